"""Copies of a run's ledger: TensorBoard, MLflow, and CSV."""

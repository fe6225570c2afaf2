"""Sinks that follow a run's ledger: TensorBoard, MLflow, and CSV on request."""

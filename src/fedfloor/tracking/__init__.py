"""Export of a run's ledger to TensorBoard, MLflow, and CSV."""

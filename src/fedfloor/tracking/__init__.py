"""A run's ledger in other places: TensorBoard, MLflow, and CSV."""

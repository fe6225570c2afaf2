"""Uses of a trained model: predictions from files, and ONNX."""

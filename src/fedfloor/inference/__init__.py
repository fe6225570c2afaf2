"""What a trained model is used for: predictions from files, and ONNX."""

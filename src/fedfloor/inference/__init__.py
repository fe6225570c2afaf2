"""The use of a trained model: predictions from files, and export to ONNX."""

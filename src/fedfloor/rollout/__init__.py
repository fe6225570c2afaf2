"""Deployment of models for inference: versions, releases, and the device's side, which does not need PyTorch."""

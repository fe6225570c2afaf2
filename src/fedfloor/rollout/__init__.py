"""Models brought to where they predict: versions, releases, and the side of a device. Devices need no PyTorch."""

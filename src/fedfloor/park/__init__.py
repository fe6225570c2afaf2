"""The park: devices, their samples and streams, factories."""

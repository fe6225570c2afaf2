"""The park: devices with their samples and streams, and factories."""

"""Training of many devices at once: visits with the same work are stacked along a device axis."""

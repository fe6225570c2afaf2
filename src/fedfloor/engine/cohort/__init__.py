"""Many devices at once: visits of the same work are stacked along a device axis and stepped together."""

"""What methods share: objectives, mixing, selection, work."""

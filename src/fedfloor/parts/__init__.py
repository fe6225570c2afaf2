"""Parts that methods share: objectives, mixing, selection, work."""

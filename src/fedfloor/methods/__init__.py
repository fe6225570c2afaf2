"""Who decides: one file per method."""

"""Generated data sets, which need no download."""

"""Data sets that are made here and need no download."""

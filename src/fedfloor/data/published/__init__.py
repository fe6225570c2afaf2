"""Data sets in the formats that their authors publish."""

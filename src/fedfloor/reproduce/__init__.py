"""Published tables, computed again: what their cells are, which can be run, and the figures read off the runs."""

"""Rules by which models become one, and their weights."""

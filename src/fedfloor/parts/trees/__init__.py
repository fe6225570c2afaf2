"""How trees grow by sums."""

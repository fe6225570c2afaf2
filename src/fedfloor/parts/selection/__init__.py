"""Which devices train, and in which groups."""

"""Real machines: a cloud, an edge in each factory, agents on devices; nothing here is imported unless it is used."""

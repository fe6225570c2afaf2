"""Plans of rounds: their nodes, the walk over them, and their JSON."""

"""Plans of rounds: nodes, walks, JSON."""

"""What a round is: nodes, walks, JSON, drawings."""

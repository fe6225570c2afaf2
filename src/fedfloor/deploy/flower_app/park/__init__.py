"""What Flower ships: the cloud's loop, and each factory's door."""

"""What a device makes of its samples once, before training, so that devices can be told apart by it."""

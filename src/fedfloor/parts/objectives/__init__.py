"""What a device minimises, and the terms and features that objectives need."""

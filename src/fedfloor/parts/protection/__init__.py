"""Masks and noise of secure sums."""

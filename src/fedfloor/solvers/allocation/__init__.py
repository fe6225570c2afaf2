"""Allocation of a round's devices, radio channels and transmit powers."""

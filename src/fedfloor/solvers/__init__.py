"""Solvers: arrays in, a solution with its bound out; they know numbers only."""

"""Solvers: arrays in, a solution with its bound out; they work on numbers only."""

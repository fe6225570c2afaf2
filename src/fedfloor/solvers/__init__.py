"""Solvers: functions from arrays to a solution with a proven bound."""

"""Runs of experiments: their loop, ledger, checkpoints and results."""

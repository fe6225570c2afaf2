"""Runs: the loop, the ledger, checkpoints."""

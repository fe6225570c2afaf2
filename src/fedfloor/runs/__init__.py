"""What happened: the loop, the ledger, checkpoints."""

"""Execution of plans by ranks, on CPUs or as a stack on an accelerator."""

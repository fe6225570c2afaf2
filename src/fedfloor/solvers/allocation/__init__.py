"""Who takes part in a round, on which radio channel and with how much power."""

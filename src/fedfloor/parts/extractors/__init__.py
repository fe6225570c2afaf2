"""Feature extractors: the numbers by which devices are compared before training."""

"""Which devices train together so that their classes add up to a target: FedGS's selection problem."""

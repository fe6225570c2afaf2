"""Choice of devices whose classes add up to a target: FedGS's selection problem."""

"""Selection of devices with class counts that add up to a target: FedGS's selection problem."""

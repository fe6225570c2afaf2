"""Which devices form groups whose classes are mixed alike: HFedMS's grouping problem."""

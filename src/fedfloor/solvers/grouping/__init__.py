"""Groups of devices with similar class mixes: HFedMS's grouping problem."""

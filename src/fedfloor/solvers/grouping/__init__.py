"""Grouping of devices with similar class shares per group: HFedMS's grouping problem."""

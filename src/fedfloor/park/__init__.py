"""What exists: devices, factories, data sets, partitions, streams and their census."""

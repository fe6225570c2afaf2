"""Models that are sums: devices send sums over their samples, from which the cloud has the pooled model exactly."""

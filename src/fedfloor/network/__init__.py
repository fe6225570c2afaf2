"""The cost of a plan on a park's network in seconds, bytes and joules: links, radio and computation."""

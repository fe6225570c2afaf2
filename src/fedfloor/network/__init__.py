"""The cost of a plan on a park's network: links, radio, compute; seconds, bytes and joules."""

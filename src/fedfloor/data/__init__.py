"""Data sets, published ones and the user's own, as samples with labels, owners and times."""

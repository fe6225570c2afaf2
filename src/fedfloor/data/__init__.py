"""What there is to learn from: data sets, published ones and one's own, as samples with labels, owners and times."""

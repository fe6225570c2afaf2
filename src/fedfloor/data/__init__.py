"""Published, generated and user-supplied data sets as samples with labels, owners and times."""

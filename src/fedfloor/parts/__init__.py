"""Parts that methods have in common: objectives, mixing rules, servers, selection, work settings."""

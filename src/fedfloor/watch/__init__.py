"""A page about a run while it trains; it reads only the run's folder."""

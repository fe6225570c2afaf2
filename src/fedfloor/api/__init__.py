"""The interface for Python and notebooks: experiments in, runs and comparisons out."""

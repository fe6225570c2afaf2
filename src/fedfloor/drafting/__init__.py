"""Drafts of experiments from tables."""

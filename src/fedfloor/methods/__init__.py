"""Federated methods, one file per paper."""

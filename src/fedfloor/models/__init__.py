"""Networks: the papers' by name, or your own."""

from fedfloor.models.network import Network, build, count, plain

__all__ = ["Network", "build", "count", "plain"]

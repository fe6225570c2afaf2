"""Networks: those of the papers by name, or the user's own."""

from fedfloor.models.network import Network, build, count, plain

__all__ = ["Network", "build", "count", "plain"]

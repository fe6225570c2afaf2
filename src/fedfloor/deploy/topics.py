"""The MQTT topics: who says what where. A device writes only below its own name, and reads only what is for it."""

from __future__ import annotations

ROOT = "fedfloor"


def inbox(park: str, edge: str, device: str) -> str:
    """Return where an edge asks a device; with ``edge`` "+" all that the device listens to.

    >>> inbox("trial", "north", "press-1")
    'fedfloor/trial/in/north/press-1'
    """
    return f"{ROOT}/{park}/in/{edge}/{device}"


def outbox(park: str, device: str, edge: str) -> str:
    """Return where a device answers an edge; with ``device`` "+" all that the edge listens to."""
    return f"{ROOT}/{park}/out/{device}/{edge}"


def status(park: str, device: str) -> str:
    """Return where a device says that it is there, retained; its last will says there that it is gone."""
    return f"{ROOT}/{park}/status/{device}"


def parts(topic: str) -> tuple[str, tuple[str, ...]]:
    """Return what a topic is for and the names in it, or "" where it is none of ours.

    >>> parts("fedfloor/trial/out/press-1/north")
    ('out', ('press-1', 'north'))
    """
    root, *rest = topic.split("/")
    return (rest[1], tuple(rest[2:])) if root == ROOT and len(rest) > 1 else ("", ())

"""How charts look: colours that differ for the colour-blind, dashes and symbols that differ without colour."""

from __future__ import annotations

from typing import Any

# After Okabe and Ito's palette (jfly.uni-koeln.de/color), moved so that each is seen on white and on near-black.
COLOURS = ("#2b7bd1", "#d55e00", "#0b9b74", "#b06ac4", "#b58500", "#39a5dc", "#d4467f", "#75808c")
DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
HATCHES = ("", "/", "x", ".", "\\", "-", "+", "|")
GREY = "#808a96"  # seen on white and on black
SHADE = "rgba(128,138,150,0.10)"


def layout(height: int = 380) -> dict[str, Any]:
    """Return what all charts have in common; the page's style sheet colours text and grid."""
    return {
        "template": "none",
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 24, "b": 50},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": True,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "font": {"size": 13}},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {"automargin": True, "zeroline": False, "title": {"font": {"size": 14}}},
        "yaxis": {"automargin": True, "zeroline": False, "title": {"font": {"size": 14}, "standoff": 12}},
    }


def faint(colour: str, share: float = 0.16) -> str:
    """Return a colour that lets what is below shine through.

    >>> faint("#ff0000")
    'rgba(255,0,0,0.16)'
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"

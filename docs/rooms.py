"""Draws the map of the package's rooms from the table of their imports: ``python docs/rooms.py`` writes rooms.svg."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# px: of the picture, of the names of layers, between two rooms
WIDTH = 760
LEFT = 118
GAP = 10
# px: from layer to layer, the height of a room
ROW = 76
BOX = 46
STYLE = """
svg{--ink:#1d2733;--soft:#5b6673;--card:#eaf1fb;--line:#9aabc0;color:var(--ink);font:13px system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg{--ink:#e6edf3;--soft:#a3b0bd;--card:#1f2a37;--line:#55657a}}
text{fill:var(--ink);text-anchor:middle}.s{fill:var(--soft);font-size:11px}.l{text-anchor:start;fill:var(--soft);font-size:11px}
rect{fill:var(--card);stroke:var(--line)}path{stroke:var(--line);fill:none;marker-end:url(#a)}
"""
MARKER = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" style="fill:var(--line);stroke:none;marker-end:none"/></marker></defs>'
)


def layers() -> list[dict[str, Any]]:
    """Return the layers of rooms from the top, each with its name and its rooms."""
    found: list[dict[str, Any]] = tomllib.loads((HERE / "rooms.toml").read_text(encoding="utf-8"))["layer"]
    return found


def imports() -> dict[str, set[str]]:
    """Return what each room may import, beside itself; ``training`` is all rooms from config downwards."""
    rooms = {name: about for layer in layers() for name, about in layer["rooms"].items()}
    order = list(rooms)
    training = set(order[order.index("config") :])
    found = {"cli": set(order)}
    for name, about in rooms.items():
        if name not in found:
            named = {one for each in about.get("may", ()) for one in (training if each == "training" else {each})}
            found[name] = named | {"base"}
    return found


def drawn() -> str:
    """Return the map as SVG."""
    every = layers()
    title = f"The rooms of the package in {len(every)} layers; imports go downwards"
    height = ROW * (len(every) - 1) + BOX + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}"><title>{title}</title><style>{STYLE}</style>',
        MARKER,
    ]
    for number, layer in enumerate(every):
        top = 12 + number * ROW
        lines.append(f'<text class="l" x="4" y="{top + 27}">{escape(layer["name"])}</text>')
        if number:
            lines.append(f'<path d="M60 {top - ROW + 36}v{ROW - 26}"/>')
        rooms = layer["rooms"]
        width = min(200.0, (WIDTH - LEFT - 4 + GAP) / len(rooms) - GAP)
        for place, (name, about) in enumerate(rooms.items()):
            x = LEFT + place * (width + GAP)
            middle = x + width / 2
            lines += [
                f'<rect x="{x:.0f}" y="{top}" width="{width:.0f}" height="{BOX}" rx="6"/>',
                f'<text x="{middle:.0f}" y="{top + 20}" font-weight="600">{name}</text>',
                f'<text class="s" x="{middle:.0f}" y="{top + 36}">{escape(about["what"])}</text>',
            ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(drawn(), encoding="utf-8")

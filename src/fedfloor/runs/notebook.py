"""How a run shows itself in a notebook: a few lines of HTML with a curve in it, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedfloor.figures import ACCURACY, LOSS, Figure, named
from fedfloor.runs.ledger import Line

WIDTH, HEIGHT = 460.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 12.0, 40.0
CURVE = "#2b7bd1"  # seen on white and on near-black


def html(folder: Path, stopped: str, lines: Sequence[Line]) -> str:
    """Return a run as HTML: its last figures, its headline against rounds, and where it lies.

    Args:
        folder: the run's folder.
        stopped: why it ended.
        lines: its ledger.
    """
    of = named(lines[-1].headline[0]) if lines else ACCURACY
    scored = [(line, value) for line in lines if (value := of.read(line)) is not None]
    head = f"<p><b>{escape(folder.name)}</b>: {escape(stopped)}"
    head += f" after round {lines[-1].round}, {sum(line.wall_s for line in lines):.1f} s of rounds" if lines else ""
    if scored:
        (last, value), (best, top) = scored[-1], max(scored, key=lambda one: of.gain(one[1], 0.0))
        head += f"<br/>{escape(of.name)} <b>{value:.4f}</b> (best {top:.4f}, round {best.round})"
        head += "" if last.loss is None or of == LOSS else f", loss {last.loss:.3f}"
    points = [(line.round, value) for line, value in scored]
    where = f"<p>folder: <code>{escape(str(folder))}</code></p>"
    return f"<div>{head}</p>{curve(points, of) if points else ''}{where}</div>"


def curve(points: Sequence[tuple[int, float]], of: Figure = ACCURACY) -> str:
    """Draw a figure against rounds as SVG; text and grid take the colour of the text around them.

    >>> curve([(1, 0.5), (2, 0.75)]).count("<circle")
    2
    """
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    top = 1.0 if of.share else max(value for _, value in points) or 1.0
    name = escape(of.name)

    def x(number: float) -> float:
        return LEFT + (number - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = value / top
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    places = [f"{x(number):.1f},{y(share):.1f}" for number, share in points]
    marks = "".join(
        f'<circle cx="{place.split(",")[0]}" cy="{place.split(",")[1]}" r="3" fill="{CURVE}"/>' for place in places
    )
    line = f'<polyline points="{" ".join(places)}" fill="none" stroke="{CURVE}" stroke-width="2.4"/>'
    grid = "".join(
        f'<path d="M{LEFT:g} {y(share * top):.1f}H{WIDTH - RIGHT:g}" stroke="currentColor" stroke-opacity=".18"/>'
        f'<text x="{LEFT - 6:g}" y="{y(share * top) + 4:.1f}" text-anchor="end">{share * top:.3g}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    ticks = "".join(
        f'<text x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 16:g}" text-anchor="middle">{number}</text>'
        for number in dict.fromkeys((points[0][0], points[len(points) // 2][0], points[-1][0]))
    )
    middle = (HEIGHT - BOTTOM + TOP) / 2
    title = f"{name} {points[-1][1]:.4f} in round {points[-1][0]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'style="width:100%;max-width:{WIDTH:g}px;height:auto;font:12px system-ui,sans-serif;color:inherit">'
        f'<g fill="currentColor">{grid}{ticks}'
        f'<text x="{(LEFT + WIDTH) / 2:g}" y="{HEIGHT - 5:g}" text-anchor="middle">round</text>'
        f'<text transform="translate(12 {middle:g}) rotate(-90)" text-anchor="middle">{name}</text>'
        f"</g>{line}{marks if len(points) <= 40 else ''}</svg>"
    )

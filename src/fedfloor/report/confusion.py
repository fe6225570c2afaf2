"""The confusion matrix as a picture: one colour over the page's own, so that it fits light, dark and print."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedfloor.report.evaluation import Matrix

FEW = 14  # up to so many classes every cell has its number in it


def heat_map(matrix: Matrix, classes: Sequence[str]) -> str:
    """Draw a confusion matrix as SVG.

    A cell's opacity is the square root of its share of the row, so that rare confusions are seen; small matrices have
    numbers too.

    Args:
        matrix: number of samples [true class][predicted class].
        classes: their names.

    >>> heat_map(((9, 1), (0, 2)), ["a", "b"]).count('class="cell"')
    3
    """
    few = len(classes) <= FEW
    cell = 34.0 if few else 12.0
    names = [name if len(name) <= 14 else name[:13] + "…" for name in classes]
    letters = max(len(name) for name in names)
    left = 26 + (7.2 if few else 6.2) * letters
    upright = letters > (4 if few else 1)  # names too wide for their column stand on their side
    top = 26 + ((7.2 if few else 6.2) * letters if upright else 14)
    side = cell * len(classes)
    body = _axes(names, cell, left, top, upright=upright)
    body += f'<rect class="frame" x="{left:g}" y="{top:g}" width="{side:g}" height="{side:g}"/>'
    for i, row in enumerate(matrix):
        body += _row(row, i, classes, cell, left, top, numbers=few)
    width, height = left + max(side + 4, 168), top + max(side + 4, 116)  # or what the axes' titles need
    kind = "few" if few else "many"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ff-confusion {kind}" role="img" '
        f'style="min-width:{min(width, 330):g}px" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" aria-label="Confusion matrix">{body}</svg>'
    )


def _row(
    row: Sequence[int], i: int, classes: Sequence[str], cell: float, left: float, top: float, *, numbers: bool
) -> str:
    total, body = sum(row), ""
    for j, count in enumerate(row):
        if not count:
            continue
        share = count / total
        x, y = left + j * cell, top + i * cell
        title = f"{classes[i]} taken for {classes[j]}: {count:,} of {total:,}"
        body += (
            f'<rect class="cell" x="{x:g}" y="{y:g}" width="{cell:g}" height="{cell:g}" '
            f'fill-opacity="{share**0.5:.2f}">'
            f"<title>{escape(title)}</title></rect>"
        )
        if numbers:
            strong = " class='strong'" if share > 0.3 else ""
            percent = f"{100 * share:.0f}" if share >= 0.005 else "<1"
            body += f'<text x="{x + cell / 2:g}" y="{y + cell / 2 + 4:g}"{strong}>{escape(percent)}</text>'
    return body


def _axes(names: Sequence[str], cell: float, left: float, top: float, *, upright: bool) -> str:
    body = f'<text class="title start" x="{left:g}" y="13">the model says (columns)</text>'
    body += f'<text class="title end" transform="translate(13 {top:g}) rotate(-90)">true class (rows)</text>'
    for i, name in enumerate(names):
        middle = (i + 0.5) * cell
        body += f'<text class="end" x="{left - 5:g}" y="{top + middle + 3.5:g}">{escape(name)}</text>'
        turn = f'class="start" transform="translate({left + middle + 3.5:g} {top - 5:g}) rotate(-90)"'
        flat = f'x="{left + middle:g}" y="{top - 5:g}"'
        body += f"<text {turn if upright else flat}>{escape(name)}</text>"
    return body

"""The table of a comparison as Markdown, for a repository or a notebook."""

from __future__ import annotations

from collections.abc import Iterable

from fedfloor.report.ledger import Run
from fedfloor.report.numbers import figure, interval
from fedfloor.report.table import paired, summary

HEAD = ("method", "accuracy", "minus {first}", "macro-F1", "loss", "rounds", "seeds", "s per run")


def table(runs: Iterable[Run]) -> str:
    """Return one line per method: accuracy and its paired difference to the first method, each with its 95 % interval.

    Args:
        runs: what :func:`fedfloor.report.ledger.collect` returned.
    """
    runs = list(runs)
    rows = summary(runs)
    first = rows[0]["method"]
    apart = {row["against"]: row for row in paired(runs) if row["method"] == first}
    head = [name.format(first=first) for name in HEAD]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        other = apart.get(row["method"])
        minus = "" if other is None else interval(-other["difference"], other["half_width"])
        cells = [
            row["method"], interval(row["accuracy"], row["half_width"]), minus, figure(row["macro_f1"], 4),
            figure(row["loss"], 3), str(row["rounds"]), str(len(row["seeds"])), figure(row["wall_s"], 1),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

"""The table of a comparison as Markdown, for a repository or a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedfloor.report.budget import Budget, at
from fedfloor.report.groups import judged
from fedfloor.report.ledger import Run
from fedfloor.report.numbers import figure, interval
from fedfloor.report.price import KINDS, NAMES, amount
from fedfloor.report.table import Row, paired, summary
from fedfloor.report.words import beside, diverged

HEAD = ("method", "{headline}", "minus {first}", "loss", "rounds", "seeds", "s per run")


def table(runs: Iterable[Run], target: float | None = None, budget: Budget | None = None) -> str:
    """Return a line per method: the headline and its paired difference to the first method, with 95 % intervals.

    Further columns: what the target and all rounds cost where rounds have a price, the headline when a budget is
    used, and the runs that diverged, if any did.

    Args:
        runs: what :func:`fedfloor.report.ledger.collect` returned.
        target: a value of the headline, such as an accuracy of 0.8.
        budget: how much of something each run may use up.
    """
    runs = list(runs)
    rows, of = summary(runs, target), judged(runs)
    first = rows[0]["method"]
    apart = {row["against"]: row for row in paired(runs) if row["method"] == first}
    more = _costs(rows, target) + _budget(runs, budget) + _lost(rows)
    figures = [one for one in beside(rows, of) if one[1] not in ("accuracy", "macro_f1", "loss")]
    figures = figures or [("macro-F1", "macro_f1", 4)]
    head = [of_head.format(first=first, headline=of.name) for of_head in HEAD]
    head = [*head[:3], *[name for name, _, _ in figures], *head[3:], *[name for name, _ in more]]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for i, row in enumerate(rows):
        other = apart.get(row["method"])
        minus = "" if other is None else interval(-other["difference"], other["half_width"])
        cells = [
            row["method"], interval(row[of.key], row["half_width"]), minus,
            *[figure(row.get(key), digits) for _, key, digits in figures],
            figure(row["loss"], 3), str(row["rounds"]), str(len(row["seeds"])), figure(row["wall_s"], 1),
            *[column[i] for _, column in more],
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _costs(rows: Sequence[Row], target: float | None) -> list[tuple[str, list[str]]]:
    """Return the columns of price, each a name and its cells; none where no run has a price."""
    kinds = [kind for kind in KINDS if any(row[kind] for row in rows)]
    found = [(NAMES[kind], [amount(kind, row[kind]) for row in rows]) for kind in kinds]
    if target is None or not kinds:
        return found
    rounds = [figure(row["rounds_to_target"], 1).removesuffix(".0") for row in rows]
    reach = [(f"{NAMES[kind]} to {target:g}", [amount(kind, row[f"{kind}_to_target"]) for row in rows])
             for kind in kinds]  # fmt: skip
    return [(f"rounds to {target:g}", rounds), *reach, *found]


def _budget(runs: Sequence[Run], budget: Budget | None) -> list[tuple[str, list[str]]]:
    if budget is None:
        return []
    key = judged(runs).key
    return [(f"after {budget.words}", [interval(row[key], row["half_width"]) for row in at(runs, budget)])]


def _lost(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    return [("diverged", [diverged(row) or "–" for row in rows])] if any(row["diverged"] for row in rows) else []

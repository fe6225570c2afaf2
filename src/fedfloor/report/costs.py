"""The report's sections about price: accuracy against time, bytes and energy, and who is best for a given budget."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedfloor.figures import ACCURACY, Figure
from fedfloor.report import figures, words
from fedfloor.report.budget import Budget, at, paired_at
from fedfloor.report.groups import Group, judged, spoken
from fedfloor.report.html import Drawn, chart, section, table
from fedfloor.report.ledger import Run
from fedfloor.report.numbers import interval, listed
from fedfloor.report.price import KINDS, NAMES, amount
from fedfloor.report.story import MOST
from fedfloor.report.table import Row, shown, summary

CURVES = (
    "{title} against what all rounds so far cost on the network, as the experiments describe it. {how} The mean over "
    "seeds is taken round by round, of the {name} and of the cost.{line}"
)


def cost_section(found: Sequence[Group], target: float | None, drawn: Drawn) -> str:
    """Return what the target and all rounds cost, and the curves against it; nothing where no round has a price."""
    rows, of = summary(words.members(found), target), judged(words.members(found))
    kinds = [kind for kind in KINDS if any(row[kind] for row in rows)]
    if not kinds:
        return ""
    head = ["method", *[f"{NAMES[kind]}, all rounds" for kind in kinds]]
    if target is not None:
        head[1:1] = [f"{name} to {target:g}" for name in ("rounds", *[NAMES[kind] for kind in kinds])]
    body = table(_caption(rows, target, of), head, [_cells(row, kinds) for row in rows])
    first = {spoken(one.label): one.runs[0].rounds[0].normalised for one in found if one.runs and one.runs[0].rounds}
    asked = [f"{name} {amount('seconds', one.seconds)} and {amount('bytes', one.bytes)}"
             for name, one in first.items() if one is not None]  # fmt: skip
    if asked:
        told = f"Of this, questions of the normalisation to all devices before round 1: {listed(asked)}."
        body += f'<p class="soft">{escape(told)}</p>'
    line = "" if target is None else f" The dotted line is {target:g}."
    how = words.curve_caption(found, share=of.share)
    caption = CURVES.format(how=how, line=line, title=of.title, name=of.name)
    parts = []
    for kind in kinds:
        drawing = figures.cost_figure(found, kind, target)
        told = f"{of.title} against {NAMES[kind]} on the network."
        heading = escape(f"{of.title} against {NAMES[kind]}")
        parts.append(f"<div><h3>{heading}</h3>{chart(f'cost-{kind}', drawing, told, drawn)}</div>")
    body += f'<h3>Curves</h3><p class="soft">{escape(caption)}</p><div class="pair">{"".join(parts)}</div>'
    return section("What it costs on the network", body, "cost")


def _cells(row: Row, kinds: Sequence[str]) -> list[str]:
    whole = [amount(kind, row[kind]) for kind in kinds]
    if row["target"] is None:
        return [spoken(row["method"]), *whole]
    rounds = row["rounds_to_target"]
    reach = ["–" if rounds is None else amount("rounds", rounds).split()[0]]
    reach += [amount(kind, row[f"{kind}_to_target"]) for kind in kinds]
    return [spoken(row["method"]), *reach, *whole]


def _caption(rows: Sequence[Row], target: float | None, of: Figure) -> str:
    mean = "Means over the seeds. " if any(len(row["seeds"]) > 1 for row in rows) else ""
    reach = ""
    if target is not None:
        reach = (
            f"To {target:g}: all rounds up to the first evaluated one that has this {of.name}; a dash where not every "
            "seed reached it. "
        )
    return f"{reach}{mean}Bytes are those of all links together; 1 kB is 1000 bytes."


def budget_section(runs: Sequence[Run], budget: Budget | None) -> str:
    """Return who is best when a budget is used up; nothing without one."""
    if budget is None:
        return ""
    of = judged(runs)
    head = ["method", "seeds", of.name, "measured in round", "ended before"]
    body = table(budget_caption(budget, of), head, [_budget_cells(row, of) for row in at(runs, budget)])
    pairs = paired_at(runs, budget)
    if pairs:
        few = words.fewer(len(pairs), shown(runs, pairs))
        rows = [words.paired_cells(row) for row in shown(runs, pairs)]
        body += (
            f"<h3>Method against method</h3>{table(few + _paired(of), ['methods', 'common seeds', 'difference'], rows)}"
        )
    return section(f"Who is best after {budget.words}", body, "budget")


def budget_story(runs: Sequence[Run], budget: Budget) -> str:
    """Say who is best when a budget is used, and which methods have no accuracy by then."""
    of, rows = judged(runs), at(runs, budget)
    known = sorted((row for row in rows if row[of.key] is not None), key=lambda row: -of.gain(row[of.key], 0.0))
    if not known:
        return f"After {budget.words}, no method has {of.phrase} with every seed."
    told = [f"{spoken(row['method'])} {interval(row[of.key], row['half_width'], 3)}" for row in known[:MOST]]
    more = f", and {len(known) - MOST} more below" if len(known) > MOST else ""
    none = [spoken(row["method"]) for row in rows if row[of.key] is None]
    rest = f"; {listed(none) if len(none) <= MOST else f'{len(none)} methods'} had none by then" if none else ""
    values = "accuracies are" if of == ACCURACY else f"values of {of.name} are"
    return f"After {budget.words}, the {values}: {', '.join(told)}{more}{rest}."


def _paired(of: Figure) -> str:
    """Say how paired differences at a budget were made."""
    how = "How much more accurate the first method is than the second"
    if of != ACCURACY:
        how = f"The first method's {of.name} minus the second's ({of.kind.better} is better)"
    return (
        f"{how} when both have used the budget, seed by seed: mean and 95 % Student-t interval over the common seeds. "
        "An interval that contains 0 does not tell them apart."
    )


def budget_caption(budget: Budget, of: Figure = ACCURACY) -> str:
    """Say how a row of the budget's table was made."""
    return (
        f"{of.title} in each run's last evaluated round that was complete within {budget.words}: mean and 95 % "
        "Student-t interval over the seeds. A dash: not every seed has such a round, or training had diverged. Ended "
        "before: seeds whose run was over before the budget was used, and count with their last evaluated round."
    )


def _budget_cells(row: Row, of: Figure) -> list[str]:
    rounds = ", ".join("–" if number is None else str(number) for number in row["in_rounds"])
    ended = ", ".join(map(str, row["ended"])) or "–"
    seeds = ", ".join(map(str, row["seeds"]))
    return [spoken(row["method"]), seeds, interval(row[of.key], row["half_width"]), rounds, ended]

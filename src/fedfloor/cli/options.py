"""Arguments and options that several commands have; ``--until`` and ``--at`` as limits and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfloor.errors import SettingError, unknown
from fedfloor.figures import ACCURACY, FIGURES, Figure, is_figure, named
from fedfloor.runs.orders import Limits

if TYPE_CHECKING:
    from fedfloor.report.table import Budget


File = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="An experiment file, or the name of a bundled one.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as work.lr=0.05.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder to write; default: in runs/, by its name."),
]
Ranks = Annotated[int | None, typer.Option("--ranks", metavar="N", help="Processes; default: one per core.")]
Stop = Annotated[int | None, typer.Option("--stop-after", metavar="N", help="Stop after round N; schedules stay.")]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="WHAT=X",
        help="Stop once reached: accuracy=0.8 (or another figure), seconds=3600, bytes=1e9, joules=500, epsilon=8 "
        "(of private models); several with commas.",
    ),
]  # fmt: skip
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="WHAT=X", help="Also compare at a budget: seconds=3600, bytes=1e9, joules=500 or rounds=50."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Force = Annotated[bool, typer.Option("--force", help="Resume although experiment, version or CPU changed.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="WHERE", help="Follow in tensorboard or mlflow; repeatable."),
]
References = Annotated[bool, typer.Option("--references", help="Beside local, pooled and scikit-learn.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


LIMITS = ("accuracy", "seconds", "bytes", "joules", "epsilon")
BUDGETS = ("rounds", "seconds", "bytes", "joules")


def limits(stop_after: int | None, until: str | None, headline: Figure = ACCURACY) -> Limits:
    """Read ``--stop-after`` and ``--until``; what is no budget is the name of a figure.

    Args:
        stop_after, until: as they were typed.
        headline: what the experiment is judged by; it is named where its class is left out.

    Raises:
        SettingError: something else than WHAT=X, separated by commas, or a value out of range.

    >>> limits(None, "accuracy=0.8,bytes=1e9")
    Limits(stop_after=None, accuracy=0.8, seconds=None, bytes=1000000000.0, joules=None, figures={}, epsilon=None)
    """
    found = {} if until is None else _read("--until", until, LIMITS, headline)
    own = {name: found.pop(name) for name in list(found) if name not in LIMITS}
    return Limits(stop_after, **found, figures=own)


def budget(at: str | None) -> Budget | None:
    """Read ``--at``.

    Raises:
        SettingError: something else than one WHAT=X, or a value out of range.
    """
    if at is None:
        return None
    from fedfloor.report.table import Budget

    found = _read("--at", at, BUDGETS)
    if len(found) > 1:
        raise SettingError(f"--at {at}: give one budget, such as seconds=3600.")
    ((kind, most),) = found.items()
    return Budget(kind, most)


def _read(option: str, text: str, allowed: Sequence[str], headline: Figure | None = None) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in text.split(","):
        what, _, value = (part.strip() for part in one.partition("="))
        if what == "rounds" and what not in allowed:
            raise SettingError(f"{option} {one}: --stop-after N stops after so many rounds.")
        if headline is not None and what not in allowed and is_figure(what):
            if headline.of and what.casefold() == headline.kind.name.casefold() and headline.kind.of_class == "one":
                raise SettingError(f"{option} {one}: of which class? Write {option} '{headline.name}={value}'.")
            what = named(what, option).name
        elif what not in allowed:
            raise unknown(option, what, allowed if headline is None else {*allowed, *FIGURES})
        if what in found:
            raise SettingError(f"{option} {text}: {what} is there twice. Give each once.")
        try:
            found[what] = float(value)
        except ValueError:
            example = "seconds=3600" if what in BUDGETS else f"{what}=0.8"
            raise SettingError(f"{option} {text}: give a number, such as {example}.") from None
    return found


def within(stop: Limits, at: Budget | None) -> Limits:
    """Return limits that also end a run once a budget is used: what comes later is not compared.

    >>> from fedfloor.report.table import Budget
    >>> within(Limits(seconds=60.0), Budget("seconds", 3600)).seconds
    60.0
    """
    if at is None:
        return stop
    if at.kind == "rounds":
        return replace(stop, stop_after=min(int(at.most), stop.stop_after or int(at.most)))
    least = stop.budgets | {at.kind: min(at.most, stop.budgets.get(at.kind, at.most))}
    return Limits(stop.stop_after, stop.accuracy, **least, figures=stop.figures)

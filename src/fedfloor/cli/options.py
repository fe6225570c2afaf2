"""Arguments and options of several commands; ``--until`` and ``--at`` as limits and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfloor.base.errors import SettingError, unknown
from fedfloor.runs.orders import Limits
from fedfloor.tasks.figures import ACCURACY, FIGURES, Figure, is_figure, named

if TYPE_CHECKING:
    from fedfloor.report.table import Budget


File = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="An experiment file, or the name of a bundled one.")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")]
Methods = Annotated[
    str | None, typer.Option("--methods", metavar="A,B", help="Comma-separated methods; default: the experiment's.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as work.lr=0.05; repeatable."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder to write; default: runs/NAME."),
]
Ranks = Annotated[int | None, typer.Option("--ranks", metavar="N", help="Number of processes; default: one per core.")]
Stop = Annotated[
    int | None, typer.Option("--stop-after", metavar="N", help="Stop after round N; schedules still span all rounds.")
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="WHAT=X",
        help="Stop when reached: accuracy=0.8 (or another metric), seconds=3600, bytes=1e9, joules=500, epsilon=8 (of "
        "private models); separate several by commas.",
    ),
]  # fmt: skip
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="WHAT=X",
        help="Also compare methods at a budget: seconds=3600, bytes=1e9, joules=500 or rounds=50.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="METHOD", help="Compare every method with this one, not each with each."),
]
OwnCode = Annotated[
    bool,
    typer.Option("--own-code", help="Import code named in the file (module:Name); only for trusted files."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]
Force = Annotated[
    bool, typer.Option("--force", help="With --resume: even if the experiment, the version or the CPU has changed.")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="WHERE", help="Log to tensorboard or mlflow while training; repeatable."),
]
References = Annotated[bool, typer.Option("--references", help="Also train local, pooled and scikit-learn references.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Serve a page about the run while it trains, and print its address.")
]
Stay = Annotated[bool, typer.Option("--stay", help="With --watch: serve the page after the run until Ctrl-C.")]
Overwrite = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
Seeds = Annotated[str, typer.Option("--seeds", metavar="0,1", help="Seeds, separated by commas.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


LIMITS = ("accuracy", "seconds", "bytes", "joules", "epsilon")
BUDGETS = ("rounds", "seconds", "bytes", "joules")


def limits(stop_after: int | None, until: str | None, headline: Figure = ACCURACY) -> Limits:
    """Parse ``--stop-after`` and ``--until``; a key that is no budget is the name of a metric.

    Args:
        headline: the experiment's headline metric, suggested if its class is missing.

    Raises:
        SettingError: the text is not KEY=VALUE, separated by commas, or a value is out of range.

    >>> limits(None, "accuracy=0.8,bytes=1e9")
    Limits(stop_after=None, accuracy=0.8, seconds=None, bytes=1000000000.0, joules=None, figures={}, epsilon=None)
    """
    values = {} if until is None else _parsed("--until", until, LIMITS, headline)
    figures = {name: values.pop(name) for name in list(values) if name not in LIMITS}
    return Limits(stop_after, **values, figures=figures)


def budget(at: str | None) -> Budget | None:
    """Parse ``--at``; None if it is not given.

    Raises:
        SettingError: the text is not one KEY=VALUE, or the value is out of range.
    """
    if at is None:
        return None
    from fedfloor.report.table import Budget

    values = _parsed("--at", at, BUDGETS)
    if len(values) > 1:
        raise SettingError(f"--at {at}: give one budget, such as seconds=3600.")
    return Budget(*next(iter(values.items())))


def _parsed(option: str, text: str, allowed: Sequence[str], headline: Figure | None = None) -> dict[str, float]:
    values: dict[str, float] = {}
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        if key == "rounds" and key not in allowed:
            raise SettingError(f"{option} {item}: --stop-after N stops after N rounds.")
        if headline is not None and headline.called(key):
            key = headline.name
        elif headline is not None and key not in allowed and is_figure(key):
            if headline.of and key.casefold() == headline.kind.name.casefold() and headline.kind.of_class == "one":
                raise SettingError(f"{option} {item}: the class is missing. Write {option} '{headline.name}={value}'.")
            key = named(key, option).name
        elif key not in allowed:
            raise unknown(option, key, allowed if headline is None else {*allowed, *FIGURES, headline.name})
        if key in values:
            raise SettingError(f"{option} {text}: {key} is given twice. Give each key once.")
        try:
            values[key] = float(value)
        except ValueError:
            example = "seconds=3600" if key in BUDGETS else f"{key}=0.8"
            raise SettingError(f"{option} {text}: give a number, such as {example}.") from None
    return values


def within(stop: Limits, at: Budget | None) -> Limits:
    """Return limits that also end a run when a budget is used up.

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

"""Progress of runs in Python: a bar in a notebook or on a terminal, otherwise nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from fedfloor import terminal
from fedfloor.runs.launch import ignore
from fedfloor.runs.ledger import Follow, Line
from fedfloor.templates import render

Bars = Callable[[str, int], AbstractContextManager[Follow]]  # label and number of rounds → context of a run's lines


def bars(runs: int, *, wanted: bool | None) -> Bars:
    """Return a function that shows the progress of one of several runs.

    Args:
        runs: the number of runs.
        wanted: None: in a notebook and on a terminal; True: everywhere, line by line if need be; False: nowhere.
    """
    if wanted is False or (wanted is None and not (in_notebook() or sys.stderr.isatty())):
        return lambda *_: nullcontext(ignore)
    return _cell(runs) if in_notebook() else terminal.progress


def in_notebook() -> bool:
    """Return whether this is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def _cell(runs: int) -> Bars:
    """Return bars in a notebook's cell: one output for all runs, which is removed at the end."""
    from IPython.display import HTML, display

    shown: list[Any] = []
    ended: list[str] = []

    def show(label: str, rounds: int, done: int, text: str) -> None:
        page = HTML(
            render(
                "fedfloor.api", "progress.html", label=label, rounds=rounds, done=done, text=text, runs=runs,
                number=min(len(ended) + 1, runs),
            )
        )  # fmt: skip
        if shown:
            shown[0].update(page)
        else:
            shown.append(display(page, display_id=True))  # type: ignore[no-untyped-call]

    @contextmanager
    def bar(label: str, rounds: int) -> Iterator[Follow]:
        began, first = time.monotonic(), list[int]()
        show(label, rounds, 0, "")

        def follow(line: Line) -> None:
            first.append(line.round)
            left = (time.monotonic() - began) / len(first) * (rounds - line.round)
            name, value = line.headline
            figure = "" if value is None else f"{name} {value:.4f}, "
            show(label, rounds, line.round, f"{figure}{terminal.seconds(left)} left")

        try:
            yield follow
        finally:
            ended.append(label)
            if len(ended) == runs:
                shown[0].update(HTML(""))

    return bar

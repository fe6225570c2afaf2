"""Progress of runs in Python: a bar in a notebook or on a terminal, otherwise nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from uuid import uuid4

from fedfloor.base.templates import render
from fedfloor.runs import terminal
from fedfloor.runs.launch import ignore, is_first
from fedfloor.runs.ledger import Follow, Line

EVERY_S = 0.2  # between two updates of a bar
Bars = Callable[[str, int], AbstractContextManager[Follow]]  # label and number of rounds → context of a run's lines


def bars(runs: int, *, wanted: bool | None) -> Bars:
    """Return a function that shows the progress of one of several runs.

    Args:
        runs: the number of runs.
        wanted: None: in a notebook and on a terminal; True: everywhere, line by line if need be; False: nowhere.
    """
    quiet = wanted is None and not (in_notebook() or sys.stderr.isatty())
    if quiet or wanted is False or not is_first():
        return lambda *_: nullcontext(ignore)
    return _cell(runs) if in_notebook() else terminal.progress


def in_notebook() -> bool:
    """Return whether this is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def _cell(runs: int) -> Bars:
    """Return bars in a notebook's cell: one output for all runs, which is removed at the end."""
    from IPython.display import display, update_display

    cell = f"fedfloor-{uuid4()}"  # its output, which is updated
    publish: list[Callable[..., object]] = [update_display, display]  # the first call makes the output
    ended: list[str] = []

    def show(text: str) -> None:
        publish[-1]({"text/html": text, "text/plain": ""}, raw=True, display_id=cell)
        del publish[1:]

    @contextmanager
    def bar(label: str, rounds: int) -> Iterator[Follow]:
        began = last = time.monotonic()
        done: list[int] = []

        def page(number: int, text: str = "") -> str:
            run = min(len(ended) + 1, runs)
            values = {"label": label, "rounds": rounds, "done": number, "text": text, "runs": runs, "number": run}
            return render("fedfloor.api", "progress.html", **values)

        def follow(line: Line) -> None:
            nonlocal last
            done.append(line.round)
            if time.monotonic() - last < EVERY_S:
                return
            last = time.monotonic()
            name, value = line.headline
            figure = "" if value is None else f"{name} {value:.4f}, "
            left = (last - began) / len(done) * (rounds - line.round)
            show(page(line.round, f"{figure}{terminal.seconds(left)} left"))

        show(page(0))
        try:
            yield follow
        finally:
            ended.append(label)
            if len(ended) == runs:
                show("")

    return bar

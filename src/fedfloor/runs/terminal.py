"""Output of commands: progress on standard error, tables or one JSON document on standard output."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from fedfloor.base.strict import EscapedFormatter, json_text, printable

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from rich.progress import TaskID

    from fedfloor.base.names import Names
    from fedfloor.runs.ledger import Follow, Line


QUIET_S = 5  # between two lines on a download
LINES = 20  # of rounds, at most, where standard error is no terminal
LINE_S = 60  # between two lines on work without other output
LONGEST = 1e12  # numbers from here on are written with an exponent
LEAST = 0.0001  # the least number that has a digit in a table
WIDE = 160  # characters of a table that is not printed on a terminal, without COLUMNS
SHORT = 16  # cells up to this length are never wrapped
KEYS = 2  # columns of texts, at most, that are repeated where a table continues below
GAP = 3  # characters between two columns, and at the edges of a table


def both(first: Follow, other: Follow) -> Follow:
    """Return a function that passes lines to both functions."""

    def follow(line: Line) -> None:
        first(line)
        other(line)

    return follow


@contextmanager
def progress(label: str, rounds: int, names: Names | None = None) -> Iterator[Follow]:
    """Show a run's rounds, remaining time, current headline metric and lost visits on standard error.

    Args:
        names: the names of real machines, whose lost visits are named.
    """
    if sys.stderr.isatty():
        with _bar(label, rounds, names) as follow:
            yield follow
        return
    began = time.monotonic()
    done: list[int] = []
    due = milestones(rounds)

    def plain(line: Line) -> None:
        done.append(line.round)
        passed = [number for number in due if number <= line.round]
        told = line.round >= rounds or line.lost or line.headline[1] is not None or len(passed) > 1
        if not passed or not told:
            return
        del due[: len(passed)]
        left = (time.monotonic() - began) / len(done) * (rounds - line.round)
        name, value = line.headline
        figure = "" if value is None else f", {name} {value:.4f}"
        lost = printable(losses(vars(line), names))
        print(f"{label}: round {line.round}/{rounds}{figure}{lost}, {seconds(left)} left", file=sys.stderr, flush=True)

    yield plain


def milestones(rounds: int) -> list[int]:
    """Return the rounds of which a log tells: all up to 20, of more 1, 2, 4, … up to a tenth, and then each tenth.

    >>> milestones(3), milestones(612)
    ([1, 2, 3], [1, 2, 4, 8, 16, 32, 62, 123, 184, 245, 306, 368, 429, 490, 551, 612])
    """
    if rounds <= LINES:
        return list(range(1, rounds + 1))
    doubled = [2**k for k in range(rounds.bit_length()) if 2**k < rounds / 10]
    return [*doubled, *(-(-rounds * tenth // 10) for tenth in range(1, 11))]


def losses(line: Mapping[str, Any], names: Names | None) -> str:
    """Return the lost visits of a ledger line as text; "" without any.

    Args:
        names: the names of real machines, with which lost devices and absent edges are named.

    >>> from fedfloor.base.names import Names
    >>> line = {"lost": 3, "visits": 4, "lost_by": {"0": [1, 2], "1": [2, 2]}, "measured": {"absent": ["south"]}}
    >>> losses(line, Names({0: "pump", 1: "mill"}, ("north", "south"))), losses(line, None)
    (', 3 of 4 visits lost: pump, mill (edge south absent)', ', 3 of 4 visits lost')
    >>> losses({"lost": 4, "visits": 4}, None)
    ', all 4 visits lost, model unchanged'
    """
    if not line.get("lost"):
        return ""
    lost = line["lost"]
    visits = line.get("visits")
    of = "" if visits is None else f" of {visits:,}"
    text = f", all {lost:,} visits lost, model unchanged" if lost == visits else f", {lost:,}{of} visits lost"
    if names is None or not line.get("lost_by"):
        return text
    absent = [name for name in (line.get("measured") or {}).get("absent", ()) if name in names.factories]
    edges = f" (edge {', '.join(absent)} absent)" if absent else ""
    return f"{text}: {names.many(map(int, line['lost_by']))}{edges}"


@contextmanager
def counted(label: str, last: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of other work: continuously on a terminal, otherwise one line per minute."""
    on_terminal = sys.stderr.isatty()
    began = last_update = time.monotonic()

    def step(number: int) -> None:
        nonlocal last_update
        if number and time.monotonic() - last_update > (0.2 if on_terminal else LINE_S):
            last_update = time.monotonic()
            left = f"{label}: round {number}/{last}, {seconds((last_update - began) / number * (last - number))} left"
            start, end = ("\r", " \x1b[K") if on_terminal else ("", "\n")
            print(f"{start}{left}", end=end, file=sys.stderr, flush=True)

    yield step
    if on_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _bar(label: str, rounds: int, names: Names | None) -> Iterator[Follow]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figure]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # no refresh by a thread: only single-threaded processes can be forked, as ranks are
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(label, total=rounds, figure="")
        before = [""]

        def follow(line: Line) -> None:
            name, value = line.headline
            known = {} if value is None else {"figure": f"{name} {value:.4f}"}
            lost = losses(vars(line), names)
            if names is not None and lost not in ("", before[0]):  # a line above the bar for every change
                bar.console.print(f"round {line.round}{printable(lost)}", markup=False, highlight=False)
            before[0] = lost
            bar.update(task, completed=line.round, refresh=True, **known)  # type: ignore[arg-type]

        yield follow


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int], None]]:
    """Show downloads on standard error; yield a function of a file's name, the bytes so far, and the total."""
    if not sys.stderr.isatty():
        yield _plain_downloads()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def follow(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done)

        yield follow


def _plain_downloads() -> Callable[[str, int, int], None]:
    last_line: dict[str, float] = {}

    def follow(file: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - last_line.setdefault(file, now) >= QUIET_S:
            last_line[file] = now
            print(f"{file}: {done:,} of {total:,} bytes", file=sys.stderr, flush=True)

    return follow


def seconds(value: float) -> str:
    """Return a duration in readable form.

    >>> seconds(75), seconds(4.25)
    ('1 min 15 s', '4.2 s')
    """
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def say(text: str, *, aside: bool = False) -> None:
    """Print a text, in which names of strangers' files may occur, with control characters escaped.

    Args:
        aside: whether it is printed on standard error.
    """
    print(printable(text), file=sys.stderr if aside else sys.stdout, flush=True)


def show(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str = "", after: Iterable[str] = (), **more: Any
) -> None:
    """Print rows as a table, or as a JSON document ``{"rows": […], …}``; rows may have different columns.

    Args:
        title: the heading of the table, not of the document.
        after: lines to print after the table, not after the document.
        more: further entries of the document.
    """
    if as_json:
        print(json_text({"rows": [dict(row) for row in rows], **more}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) is not None for row in rows)]
    given = os.environ.get("COLUMNS", "")
    plain = int(given) if given.isdecimal() and int(given) > 0 else WIDE
    console = Console(width=None if sys.stdout.isatty() else plain)
    longest = {name: max(len(_cell(row.get(name))) for row in rows) for name in columns}
    numeric = {name for name in columns if any(isinstance(row.get(name), (int, float)) for row in rows)}
    for part, (wide, shown) in enumerate(_parts(longest, numeric, console.width)):
        table = Table(
            title=Text(printable(title)) if title and not part else None, box=box.SIMPLE, title_justify="left"
        )
        for name in shown:
            heading = name.replace("_", " ")
            short = longest[name] <= SHORT
            heading = heading.replace(" ", "\n") if wide and short else heading
            justify: Literal["left", "right"] = "right" if name in numeric else "left"
            table.add_column(Text(printable(heading)), justify=justify, overflow="fold", no_wrap=short)
        for row in rows:
            table.add_row(*(Text(_cell(row.get(name))) for name in shown))  # verbatim, as [park] is not markup
        console.print(table)
    for line in after:
        say(line)


def _parts(longest: Mapping[str, int], numeric: Collection[str], width: int) -> list[tuple[bool, list[str]]]:
    """Return the columns of each table in which rows are shown, so that no number is cut, and whether headings wrap.

    Columns that do not fit beside the others follow below in a table of their own, which begins with the first columns
    of texts, too.

    Args:
        longest: column → its longest cell.
        numeric: the columns with numbers.
        width: characters of a line.

    >>> _parts({"method": 6, "low": 6}, ["low"], 80), _parts({"method": 6, "low": 6, "high": 6}, ["low", "high"], 20)
    ([(False, ['method', 'low'])], [(True, ['method', 'low']), (True, ['method', 'high'])])
    >>> [_parts({"method": 6, "low": 6}, ["low"], width)[0][0] for width in (17, 18)]  # 2 · 3 + 6 + 6
    [True, False]
    """
    names = [*longest]
    if 3 * len(names) + sum(max(len(name), longest[name]) for name in names) <= width:
        return [(False, names)]
    least = {
        name: GAP + max(min(longest[name], SHORT), *(len(word) for word in name.split("_"))) for name in names
    }  # long texts wrap, and headings at blanks
    key = [*takewhile(lambda name: name not in numeric, names[:KEYS])]
    parts = [[*key]]
    for name in names[len(key) :]:
        if sum(least[other] for other in parts[-1]) + least[name] > width - GAP and len(parts[-1]) > len(key):
            parts.append([*key])
        parts[-1].append(name)
    return [(True, part) for part in parts]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return printable(", ".join(map(str, value)))
    if isinstance(value, float):
        if 0 < abs(value) < LEAST / 2:  # a p-value is never 0
            return f"<{LEAST}" if value > 0 else f">-{LEAST}"
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < LONGEST else f"{value:.4g}"
    return printable(str(value))


def open_closed_streams() -> None:
    """Open the null device as each standard stream that is closed, such as by ``>&-``.

    The next file to be opened would have its number, and take what a library prints.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest free number is this one


def log_to_stderr() -> None:
    """Show the package's notes (``logging``) on standard error, for several ranks only those of the first.

    Control characters, which names in other files may contain, are escaped. A note is shown once, even if it applies to
    several runs of a comparison (or, with ``extra={"once": True}``, files); reports of machines are always shown.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapedFormatter("note: %(message)s"))
    messages: set[str] = set()
    handler.addFilter(lambda record: _is_new(record, messages))
    logger = logging.getLogger("fedfloor")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)


def _is_new(record: logging.LogRecord, messages: set[str]) -> bool:
    if record.name.startswith("fedfloor.deploy"):  # of machines that run for years
        return True
    text = record.msg if getattr(record, "once", False) else record.getMessage()
    new = text not in messages
    messages.add(text)
    return new

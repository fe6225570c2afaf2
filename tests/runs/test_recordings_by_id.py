"""Recordings that a column of identifiers separates: welds, batches, cycles and parts, drafted as windows."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from commands import Command

DEAL = ("--set", "data.columns.device=", "--set", "park.devices=3", "--set", 'data.partition={kind="iid"}')
Lines = Iterator[str]


def measured(rng: np.random.Generator, rows: int, bad: bool) -> list[str]:
    """Return the rows of a recording: a bad one varies more, which a single row hardly shows."""
    return [f"{value:.3f},{other:.3f}" for value, other in rng.normal(0, [1.0 + bad, 1.0], (rows, 2))]


def welds(rng: np.random.Generator) -> Lines:
    """Yield welds of 20 rows, numbered through all robots; no time."""
    yield "machine,weld,current,force,label"
    for weld in range(90):
        bad = rng.random() < 0.4
        yield from (f"r{weld // 30},{weld + 1000},{row},{'nok' if bad else 'ok'}" for row in measured(rng, 20, bad))


def batches(rng: np.random.Generator) -> Lines:
    """Yield batches with texts as names and unequal lengths, of two reactors whose rows alternate by their time."""
    yield "machine,time,batch,heat,flow,verdict"
    rows: list[tuple[int, str]] = []
    for reactor in range(2):
        clock = reactor
        for batch in range(45):
            bad = rng.random() < 0.4
            name = f"{'XQZ'[batch % 3]}-{rng.integers(16**6):06x}-{batch}{reactor}"
            for row in measured(rng, int(rng.integers(12, 31)), bad):
                clock += 10
                rows.append((clock, f"R{reactor},{clock},{name},{row},{'scrap' if bad else 'good'}"))
    yield from (row for _, row in sorted(rows))


def cycles(rng: np.random.Generator) -> Lines:
    """Yield cycles of a press, whose numbers begin at 1 on each of three presses; no time."""
    yield "machine,cycle,pressure,travel,state"
    for press in range(3):
        for cycle in range(30):
            bad = rng.random() < 0.4
            yield from (f"P{press},{cycle + 1},{row},{'crack' if bad else 'ok'}" for row in measured(rng, 16, bad))


def parts(rng: np.random.Generator) -> Lines:
    """Yield parts with serial numbers in no order, whose clock begins at 0 with each; no device."""
    yield "part,ms,torque,angle,label"
    for serial in rng.permutation(np.arange(100_000, 200_000, 997))[:90]:
        bad = rng.random() < 0.4
        rows = enumerate(measured(rng, int(rng.integers(15, 26)), bad))
        yield from (f"{serial},{5 * t},{row},{'loose' if bad else 'tight'}" for t, row in rows)


def drafted(command: Command, lines: Lines, *words: str) -> tuple[dict[str, Any], str]:
    """Return the document and the notes of a table's draft."""
    (command.folder / "plant.csv").write_text("\n".join(lines) + "\n")
    made = command("new", "plant.csv", "--force", *words)
    assert made.code == 0, made.err
    return tomllib.loads((command.folder / "plant.toml").read_text()), made.err


@pytest.mark.parametrize(
    ("kind", "run", "window", "words"),
    [(welds, "weld", 20, ()), (batches, "batch", 12, ()), (cycles, "cycle", 16, ()), (parts, "part", 15, DEAL)],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("given", [False, True])
def test_recordings_are_windows(
    command: Command, kind: Callable[[np.random.Generator], Lines], run: str, window: int, words: tuple[str, ...],
    given: bool,
) -> None:  # fmt: skip
    more = ("--set", f"data.columns.run={run}") if given else ()
    document, notes = drafted(command, kind(np.random.default_rng(7)), *words, *more)
    data = document["data"]
    assert data["columns"]["run"] == run, notes
    assert data["window"]["length"] == window, notes
    assert data["split"] == {"kind": "run", "by_class": True}, notes


def test_windows_of_recordings_predict_what_rows_cannot(command: Command) -> None:
    """The label is in the variation: of 20 values, deviations of 1 and 2 are apart; of a single one they are not."""
    drafted(command, welds(np.random.default_rng(7)))
    words = ("run", "plant.toml", "--ranks", "1", "--set", "rounds=16", "--set", "methods.boosting.rate=1.0", "--json")
    windows, rows = (
        command(*words, "--out", kind, *change).document["rows"][0]["accuracy"]
        for kind, change in (("windows", ()), ("rows", ("--set", "data.window.length=1")))
    )
    assert windows > 0.97
    assert rows < 0.85


def blocks(
    column: str, value: Callable[[int, int], object], label: Callable[[int, int, np.random.Generator], bool],
    rows: int = 20,
) -> Lines:  # fmt: skip
    """Yield 40 blocks of rows on each of three machines, with a column and a label by machine and block."""
    rng = np.random.default_rng(3)
    yield f"machine,{column},heat,flow,label"
    for machine in range(3):
        for block in range(40):
            bad = label(machine, block, rng)
            for row in measured(rng, rows, bad):
                yield f"m{machine},{value(machine, block)},{row},{'bad' if bad else 'good'}"


def by_block(_: int, __: int, rng: np.random.Generator) -> bool:
    """Return a label of a whole block, at random."""
    return bool(rng.random() < 0.4)


def mixed(rng: np.random.Generator) -> Lines:
    """Yield numbered batches whose rows have labels of their own."""
    yield "machine,batch,heat,flow,label"
    for row in range(1200):
        yield f"m{row // 400},{row // 20},{rng.normal():.3f},{rng.normal():.3f},{'bad' if rng.random() < 0.4 else 'ok'}"


NO_RECORDINGS = {
    "an operator recurs": blocks("operator", lambda m, b: ("Ann", "Bob", "Cid", "Dee")[(b * 7 + m) % 4], by_block),
    "a product recurs": blocks("product", lambda m, b: 4711 + 3 * ((b * 5 + m) % 9), by_block),
    "a phase determines the label": blocks("phase", lambda _, b: b + 1, lambda _, b, __: b % 3 == 0),
    "a machine has one number": blocks("asset", lambda m, _: 100 + m, by_block),
    "a level rises in its own steps": blocks("speed", lambda _, b: 600 + 25 * b, by_block),
    "a row has a number": blocks("number", lambda m, b: 40 * m + b, by_block, rows=1),
    "an hour is of a calendar": blocks("hour", lambda _, b: b, by_block),
    "rows of a batch have several labels": mixed(np.random.default_rng(5)),
}


@pytest.mark.parametrize("lines", NO_RECORDINGS.values(), ids=NO_RECORDINGS)
def test_other_columns_name_no_recordings(command: Command, lines: Lines) -> None:
    data = drafted(command, lines)[0]["data"]
    assert "run" not in data["columns"]
    assert data["split"] != {"kind": "run"}


def test_rows_that_suffice_stay_rows(command: Command) -> None:
    """A level of four deviations shows in every row, and a window adds nothing that the trial could see."""

    def shifted(rng: np.random.Generator) -> Lines:
        yield "machine,weld,current,force,label"
        for weld in range(60):
            bad = rng.random() < 0.4
            for value, other in rng.normal(8 * bad, 1, (20, 2)):
                yield f"r{weld // 20},{weld},{value:.3f},{other:.3f},{'nok' if bad else 'ok'}"

    data = drafted(command, shifted(np.random.default_rng(2)))[0]["data"]
    assert data["columns"]["run"] == "weld"
    assert data["split"] == {"kind": "run", "by_class": True}
    assert "window" not in data

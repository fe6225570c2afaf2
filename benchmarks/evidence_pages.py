"""Pages of long runs: Markdown from the cells' files that ``evidence.py`` wrote, as far as there are any."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.report.groups import half_width
from papers.catalog import TABLES
from papers.cells import Accuracy, Table
from papers.cells import Cell as PaperCell
from papers.fedgs_skew import SKEWED, VARIANTS
from papers.fedgs_training import BASELINES, FEDGS

RARE = 42  # classes of 62: digits are 71 % of the characters
DIGITS = 10  # the first classes
LOG_HEAD = ("round", "the log", "measured", "difference", "half digits", "difference", "macro-F1")
LOG_WORDS = (
    "Accuracy on the test data by round, {done} of {rounds} rounds, seed {seed}; the log is that of the {source}. "
    "Digits, which are learnt first, are 71 % of the characters here, and about half of all that were collected for "
    "NIST's database; half digits: what the classes' accuracies come to if they are half, classes among digits and "
    "among letters weighted as here."
)
SKEW_HEAD = (
    "labels", "devices chosen", "seeds", "accuracy", "minus random", "macro-F1", "minus random", "rare", "devices",
)  # fmt: skip
SKEW_WORDS = (
    "FedGS's ways to choose devices, FEMNIST's pooled characters dealt with skewed labels, {rounds} rounds. Means over "
    "the seeds, ± is the half width of the 95 % interval; minus random: differences seed by seed. Rare: the share of "
    "the samples trained on that are of the {rare} rarest classes, in units of their share of all samples; devices: on "
    "how many devices a rare class is trained in a round, the mean."
)
BASELINE_HEAD = (
    "characters",
    "method",
    "seeds",
    "accuracy",
    "minus FedAvg",
    "loss",
    "rounds to 80 %",
    "the paper, CNN",
)
BASELINE_WORDS = (
    "FedGS's Table II with a network of 200 and 200 units in the place of the paper's CNN, {rounds} rounds of one "
    "epoch, or of 50 steps for FedGS. Means over the seeds after the last round, ± is half of the 95 % interval; "
    "minus FedAvg: differences seed by seed. Rounds to 80 %: of each seed, – where there is none. The last column has "
    "the paper's accuracy and its rounds to 82 %."
)
EARLY = 100
EARLY_WORDS = (
    f"The same after {EARLY} rounds, also of runs that have done no more so far. The adaptive servers' lead and what "
    "becomes of it are in both tables"
)
HFEDMS_HEAD = ("data", "method", "seeds", "accuracy", "minus FedAvg", "loss", "rounds to 70 %", "the paper, its CNN")
HFEDMS_WORDS = (
    "HFedMS's Table III with a small network in the place of the paper's CNN, {rounds} rounds. Means over the seeds "
    "after the last round, ± is half of the 95 % interval; minus FedAvg: differences seed by seed. Rounds to 70 %: of "
    "each seed, – where there is none. The last column has the paper's accuracy."
)
Cell = Mapping[str, Any]


def cells_of(folder: Path) -> list[Cell]:
    """Return the cells of a table's folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def log_page(cells: Sequence[Cell]) -> str:
    """Return the page of the reference code's log beside the run here."""
    table = TABLES["fedgs-log"]
    (found,) = cells
    here = {one["round"]: one for one in found["evaluations"]}
    rows = []
    for figure in table.cells[0].figures:
        assert isinstance(figure, Accuracy)
        one = here.get(figure.round(table.rounds))
        measured: tuple[str, ...] = ("–",) * 5
        if one is not None and figure.paper is not None:
            shares = one["accuracy"], half_digits(one["by_class"], found["coverage"]["held"])
            pairs = [(f"{share:.4f}", f"{share - figure.paper:+.4f}") for share in shares]
            measured = (*pairs[0], *pairs[1], f"{one['macro_f1']:.4f}")
        rows.append((str(figure.round(table.rounds)), str(figure.paper), *measured))
    words = LOG_WORDS.format(done=found["rounds_done"], rounds=table.rounds, seed=found["seed"], source=table.source)
    return page(table.name, words, LOG_HEAD, rows, cells)


def half_digits(by_class: Sequence[float | None], held: Sequence[int]) -> float:
    """Return the accuracy on samples of which half are digits.

    Args:
        by_class: accuracy per class, None for a class without test samples, which is left out.
        held: how many samples of each class there are, the weights among digits and among letters.

    >>> half_digits([1.0] * 10 + [0.5, 0.0], [1] * 10 + [3, 1])
    0.6875
    """
    known = np.array([share is not None for share in by_class])
    shares = np.array([share or 0.0 for share in by_class])
    weights = np.array(held) * known
    parts = (slice(None, DIGITS), slice(DIGITS, None))
    return float(np.mean([(shares[part] * weights[part]).sum() / weights[part].sum() for part in parts]))


def skew_page(cells: Sequence[Cell]) -> str:
    """Return the page of choices on skewed labels: the cells that have done all rounds."""
    table = TABLES["fedgs-skew"]
    done = {(one["cell"], one["seed"]): one for one in cells if one["rounds_done"] == table.rounds}
    rows = []
    for partition, (words, _) in SKEWED.items():
        random = seeds_of(done, f"2nn/{partition}/random")
        for variant, (label, _) in VARIANTS.items():
            mine = seeds_of(done, f"2nn/{partition}/{variant}")
            if mine:
                rows.append((words, label, ", ".join(map(str, mine)), *figures(mine, random), *coverage(mine)))
    return page(table.name, SKEW_WORDS.format(rounds=table.rounds, rare=RARE), SKEW_HEAD, rows, cells)


def baselines_page(cells: Sequence[Cell]) -> str:
    """Return the page of FedGS's Table II with the 2NN: the cells that have done all rounds."""
    table = TABLES["fedgs-baselines"]
    soon = _baselines(cells, EARLY)
    early = [f"## After {EARLY} rounds", "", f"{EARLY_WORDS}.", "", *lines_of(BASELINE_HEAD, soon)] if soon else []
    rows = _baselines(cells, table.rounds)
    return page(table.name, BASELINE_WORDS.format(rounds=table.rounds), BASELINE_HEAD, rows, cells, more=early,
                heading=f"After {table.rounds} rounds")  # fmt: skip


def _baselines(cells: Sequence[Cell], rounds: int) -> list[tuple[str, ...]]:
    """Return the rows of the cells that were evaluated after so many rounds, as they were then."""
    table = TABLES["fedgs-baselines"]
    rows = []
    then = [up_to(one, rounds) for one in cells if any(found["round"] == rounds for found in one["evaluations"])]
    for cell, mine, theirs in ended(table, [*then, *(one for one in cells if "diverged" in one)], rounds):
        key = cell.key.split("/")[-1].removesuffix("-cnn").removesuffix("-tuned")
        printed = FEDGS if key == "fedgs-gbpcs" else BASELINES[key][3] if key in BASELINES else None
        paper = "–" if printed is None else f"{printed[0]:.1f} %, {printed[2] or '–'}"
        rows.append((*outcome(cell, mine, theirs, 0.8), paper))
    return rows


def up_to(cell: Cell, rounds: int) -> Cell:
    """Return a cell's file as it was after so many rounds, or as it is where it has done fewer."""
    done = min(int(cell["rounds_done"]), rounds)
    return {**cell, "rounds_done": done, "evaluations": [one for one in cell["evaluations"] if one["round"] <= done]}


def hfedms_page(cells: Sequence[Cell]) -> str:
    """Return the page of HFedMS's Table III with the small network: the cells that have done all rounds."""
    table = TABLES["hfedms-table3"]
    printed = {cell.key: cell.figures[0].paper for cell in table.cells}
    rows = []
    for cell, mine, theirs in ended(table, cells):
        paper = printed[cell.key.replace("small/", "cnn/")]
        rows.append((*outcome(cell, mine, theirs, 0.7), "–" if paper is None else f"{paper:.3f}"))
    return page(table.name, HFEDMS_WORDS.format(rounds=table.rounds), HFEDMS_HEAD, rows, cells, "hfedms-runs")


Runs = dict[int, Cell]


def ended(table: Table, cells: Sequence[Cell], rounds: int = 0) -> Iterator[tuple[PaperCell, Runs, Runs]]:
    """Yield a table's cells of which runs have ended: by seed these runs, and FedAvg's in the same setting.

    Args:
        table: whose cells they are.
        cells: the files.
        rounds: after which a run has ended; 0 for all of the table's.
    """
    wanted = rounds or table.rounds
    done = {(one["cell"], one["seed"]): one for one in cells if one["rounds_done"] == wanted or "diverged" in one}
    for cell in table.cells:
        mine = seeds_of(done, cell.key)
        if mine:
            yield cell, mine, seeds_of(done, f"{cell.key.rpartition('/')[0]}/fedavg")


def outcome(cell: PaperCell, mine: Runs, theirs: Runs, target: float) -> tuple[str, ...]:
    """Return a cell's setting, method, seeds, accuracy, what it is above FedAvg's, loss and rounds to a target."""
    first = (cell.setting, cell.label, ", ".join(map(str, mine)))
    lost = [str(seed) for seed, one in mine.items() if "diverged" in one]
    if lost:
        return (*first, f"diverged, seed {', '.join(lost)}", "–", "–", "–")
    accuracy, paired = figures(mine, theirs)[:2]
    loss = interval([one["evaluations"][-1]["loss"] for one in mine.values()])
    reached = ", ".join(str(rounds_to(one, target) or "–") for one in mine.values())
    return (*first, accuracy, paired, loss, reached)


def rounds_to(cell: Cell, target: float) -> int | None:
    """Return the first evaluated round with at least this accuracy, None where there is none.

    >>> rounds_to({"evaluations": [{"round": 1, "accuracy": 0.7}, {"round": 2, "accuracy": 0.8}]}, 0.8)
    2
    """
    return next((int(one["round"]) for one in cell["evaluations"] if one["accuracy"] >= target), None)


def seeds_of(done: Mapping[tuple[str, int], Cell], key: str) -> dict[int, Cell]:
    """Return a cell's finished runs by seed."""
    return {seed: one for (cell, seed), one in sorted(done.items()) if cell == key}


def figures(mine: Mapping[int, Cell], random: Mapping[int, Cell]) -> list[str]:
    """Return accuracy and macro-F1 after the last round, each with its difference from other runs of the same seeds."""
    texts = []
    for name in ("accuracy", "macro_f1"):
        ours, theirs = ({seed: one["evaluations"][-1][name] for seed, one in runs.items()} for runs in (mine, random))
        paired = [] if mine == random else [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        texts += [interval(list(ours.values())), interval(paired, sign="+")]
    return texts


def coverage(mine: Mapping[int, Cell]) -> list[str]:
    """Return what was trained on of the rarest classes: their share in units of all data's, devices in a round."""
    shares = []
    devices = []
    for one in mine.values():
        found = one["coverage"]
        held = np.array(found["held"])
        samples = np.array(found["samples"])
        rare = np.argsort(held, kind="stable")[:RARE]
        shares.append(samples[rare].sum() / samples.sum() / (held[rare].sum() / held.sum()))
        devices.append(np.array(found["devices_per_round"])[rare].mean())
    return [f"{np.mean(shares):.2f}", f"{np.mean(devices):.1f}"]


def interval(values: Sequence[float], sign: str = "") -> str:
    """Return a mean with its half width, where there are several values.

    >>> interval([0.5]), interval([]), interval([0.5, 0.5], "+")
    ('0.5000', '–', '+0.5000 ± 0.0000')
    """
    if not values:
        return "–"
    half = half_width(list(values))
    return f"{np.mean(values):{sign}.4f}{'' if half is None else f' ± {half:.4f}'}"


def page(
    name: str,
    words: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    cells: Sequence[Cell],
    folder: str = "",
    more: Sequence[str] = (),
    heading: str = "",
) -> str:
    """Return a page: what it shows, the command, the table, versions and choices; the folder's name is the table's.

    ``more`` are lines between the table and the versions, ``heading`` stands above the table.
    """
    folder = folder or name
    facts = {(c[:10], one["provenance"]["torch"], one["provenance"]["cpu"]) for one in cells for c in one["commits"]}
    made = "; ".join(f"commit {commit}, torch {torch}, {cpu}" for commit, torch, cpu in sorted(facts))
    lines = [f"# {folder}", "", words, "", "```bash", f"python benchmarks/evidence.py --only {name}", "```", ""]
    lines += [f"## {heading}", ""] if heading else []
    lines += lines_of(head, rows)
    lines += [
        *(["", *more] if more else []),
        "",
        f"Made of the files in [{folder}]({folder}) by `python -m benchmarks.pages`: {made}. Choices:",
        "",
    ]
    return "\n".join([*lines, *(f"- {note}" for note in TABLES[name].notes)]) + "\n"


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    shown = ["| " + " | ".join(row).replace("-0.", "−0.") + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *shown]

"""A run as sinks and CSV take it: its description, and its ledger as named numbers per round."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.checking import toml
from fedfloor.errors import SettingError
from fedfloor.runs.folder import flat

PLAIN = ("accuracy", "loss", "train_loss", "participants", "lost", "wall_s")


@dataclass(frozen=True)
class About:
    """A run, as its folder describes it.

    Args:
        folder: its last part names the run.
        settings: the resolved experiment, ``table.key`` → value, without provenance.
        provenance: versions, kind of CPU and the data's digest.
        classes: names of the classes, in the ledger's order.
    """

    folder: Path
    experiment: str
    method: str
    seed: int
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    classes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name: that of its folder, such as ``fedavg-seed0``."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class Point:
    """One round's numbers.

    Args:
        time_s: the end of the round, in seconds since 1970.
        figures: name → number; those that were not measured in the round are left out.
    """

    round: int
    time_s: float
    figures: Mapping[str, float]


def about(folder: Path) -> About:
    """Read a run's description from its folder.

    Raises:
        SettingError: the experiment is missing or not TOML.
        OSError: another file is missing.
    """
    document = toml(folder / "experiment.toml", "experiment")
    park = json.loads((folder / "park.json").read_text(encoding="utf-8"))
    provenance = document.pop("provenance", {})
    return About(
        folder=folder,
        experiment=str(document.get("name", folder.name)),
        method=str(document["method"]["name"]),
        seed=int(document["seed"]),
        settings=flat(document),
        provenance=provenance,
        classes=tuple(map(str, park["classes"])),
    )


def figures(row: Mapping[str, Any], classes: Sequence[str]) -> dict[str, float]:
    """Return a ledger line's numbers by name.

    >>> line = {"accuracy": 0.5, "loss": None, "by_device": {"p50": 0.4}, "by_class": [0.5, None]}
    >>> figures(line | {"priced": {"seconds": 2.0, "bytes": {"device_edge_up": 8}}}, ["a", "b"])
    {'accuracy': 0.5, 'device/p50': 0.4, 'class/a': 0.5, 'priced/seconds': 2.0, 'priced/bytes.device_edge_up': 8}
    """
    values = {name: row.get(name) for name in PLAIN}
    values |= {f"figure/{name}": value for name, value in (row.get("figures") or {}).items()}
    values |= {f"device/{name}": value for name, value in (row.get("by_device") or {}).items()}
    by_class = row.get("by_class")
    if by_class is not None:
        values |= {f"class/{name}": value for name, value in zip(classes, by_class, strict=True)}
    for table in ("priced", "info"):
        values |= {f"{table}/{name}": value for name, value in flat(row.get(table) or {}).items()}
    return {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def points(run: About) -> list[Point]:
    """Return a run's ledger; a half-written last line is left out.

    The ledger has the durations of rounds, not their ends: these are counted back from its last change.

    Raises:
        OSError: the ledger is missing.
        SettingError: a line is damaged.
    """
    path = run.folder / "ledger.jsonl"
    texts = path.read_text(encoding="utf-8").splitlines(keepends=True)
    time_s, result = path.stat().st_mtime, []
    for number, text in reversed(list(enumerate(texts, start=1))):
        if not text.endswith("\n"):
            continue
        try:
            row = json.loads(text)
            result.append(Point(int(row["round"]), time_s, figures(row, run.classes)))
            time_s -= float(row.get("wall_s") or 0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingError(f"{path}, line {number}: not a ledger line of this run ({error!r}).") from error
    return result[::-1]


def safe_round(folder: Path) -> int:
    """Return the newest checkpoint's round, or 0: a resume never makes that round's ledger line anew."""
    names = [path.name for path in (folder / "checkpoint").glob("round-*")]
    return max((int(name.removeprefix("round-")) for name in names), default=0)


FIRST = ("run", "method", "seed", "round", *PLAIN, "device:p10", "device:p50", "device:p90")
LATER = ("figure:", "class:", "priced:", "info:")


def csv_table(runs: Sequence[About]) -> str:
    """Return the ledgers of runs as one tidy CSV table, a row per run and round; missing numbers are empty cells.

    Columns: :data:`FIRST`, then ``figure:NAME``, ``class:NAME``, ``priced:NAME`` and ``info:NAME`` as far as the runs
    have them.
    """
    rows: list[dict[str, object]] = []
    for run, name in zip(runs, run_names([run.folder for run in runs]).values(), strict=True):
        head = {"run": name, "method": run.method, "seed": run.seed}
        for point in points(run):
            measured = {key.replace("/", ":", 1): value for key, value in point.figures.items()}
            rows.append({**head, "round": point.round, **measured})
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def run_names(folders: Sequence[Path]) -> Mapping[Path, str]:
    """Return a name for each run: its folder's, with as much of the path as makes it unique.

    >>> list(run_names([Path("/r/a/fedavg-seed0"), Path("/r/b/fedavg-seed0")]).values())
    ['a/fedavg-seed0', 'b/fedavg-seed0']
    """
    whole = {folder: folder.resolve() for folder in folders}
    base = os.path.commonpath([path.parent for path in whole.values()])
    return {folder: path.relative_to(base).as_posix() for folder, path in whole.items()}


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    columns = dict.fromkeys(key for row in rows for key in row if key not in FIRST)
    return [*FIRST, *sorted(columns, key=lambda key: next((i for i, p in enumerate(LATER) if key.startswith(p)), -1))]

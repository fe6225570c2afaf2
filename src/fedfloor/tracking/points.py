"""What sinks are told: a run's description, and its ledger as named numbers per round."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.errors import SettingError
from fedfloor.runs.folder import flat

PLAIN = ("accuracy", "loss", "train_loss", "participants", "lost", "wall_s")


@dataclass(frozen=True)
class About:
    """A run, as its folder describes it.

    Args:
        folder: the run's folder; its last part names the run.
        experiment: the experiment's name.
        method: the method's name.
        seed: the experiment's seed.
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
        round: from 1.
        time_s: when the round ended, in seconds since 1970.
        figures: name → number; what was not measured in the round is left out.
    """

    round: int
    time_s: float
    figures: Mapping[str, float]


def about(folder: Path) -> About:
    """Read what a run's folder says about the run.

    Raises:
        OSError: a file is missing.
    """
    document = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
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

    Args:
        row: the line, as JSON says it.
        classes: names of the classes.

    >>> line = {"accuracy": 0.5, "loss": None, "by_device": {"p50": 0.4}, "by_class": [0.5, None]}
    >>> figures(line | {"priced": {"seconds": 2.0, "bytes": {"device_edge_up": 8}}}, ["a", "b"])
    {'accuracy': 0.5, 'device/p50': 0.4, 'class/a': 0.5, 'priced/seconds': 2.0, 'priced/bytes.device_edge_up': 8}
    """
    found = {name: row.get(name) for name in PLAIN}
    found |= {f"figure/{name}": value for name, value in (row.get("figures") or {}).items()}
    found |= {f"device/{name}": value for name, value in (row.get("by_device") or {}).items()}
    by_class = row.get("by_class")
    if by_class is not None:
        found |= {f"class/{name}": value for name, value in zip(classes, by_class, strict=True)}
    for table in ("priced", "info"):
        found |= {f"{table}/{name}": value for name, value in flat(row.get(table) or {}).items()}
    return {
        name: value for name, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def points(what: About) -> list[Point]:
    """Return a run's ledger; a half-written last line is left out.

    The ledger knows how long rounds took, not when they ended: that is counted back from its last change.

    Raises:
        OSError: there is no ledger.
        SettingError: a line is damaged.
    """
    path = what.folder / "ledger.jsonl"
    texts = path.read_text(encoding="utf-8").splitlines(keepends=True)
    time_s, found = path.stat().st_mtime, []
    for number, text in reversed(list(enumerate(texts, start=1))):
        if not text.endswith("\n"):
            continue
        try:
            row = json.loads(text)
            found.append(Point(int(row["round"]), time_s, figures(row, what.classes)))
            time_s -= float(row.get("wall_s") or 0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingError(f"{path}, line {number}: not a ledger line of this run ({error!r}).") from error
    return found[::-1]


def safe_round(folder: Path) -> int:
    """Return the newest checkpoint's round, or 0: a resume never makes that round's ledger line anew."""
    names = [path.name for path in (folder / "checkpoint").glob("round-*")]
    return max((int(name.removeprefix("round-")) for name in names), default=0)

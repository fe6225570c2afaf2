"""Checkpoints: the last two states of a run, each a folder that appears whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedfloor.engine import limit
from fedfloor.engine.limit import Update
from fedfloor.errors import RunError, disk_error
from fedfloor.methods.contract import State
from fedfloor.plan.outcome import Receipt
from fedfloor.runs.folder import flush, write, write_json
from fedfloor.runs.ledger import Line, told

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round.

    Attributes:
        round: the last finished round.
        tick: the park's clock.
        state: the method's state.
        receipts: the last round's.
        memory: device → digest of what it keeps.
        line: the last round's ledger line, because a kill can fall between checkpoint and ledger.
        visits: device → how often it was trained so far.
        reports: device → how often it reported a census so far, where these carry noise.
        holders: the devices that hold the model's frozen part as it is, where rounds are priced.
        updates: scope → device → its last update, where the length of updates is limited.
    """

    round: int
    tick: int
    state: State
    receipts: tuple[Receipt, ...]
    memory: dict[int, str]
    line: Line | None = None
    visits: Mapping[int, int] = field(default_factory=dict)
    reports: Mapping[int, int] = field(default_factory=dict)
    holders: frozenset[int] = frozenset()
    updates: Mapping[str, Mapping[int, Update]] = field(default_factory=dict)


def save_to(folder: Path, point: Checkpoint) -> None:
    """Write a checkpoint, unless that round has one, and delete all but the last two.

    Raises:
        RunError: the disk is full; what was there before stays.
    """
    place = folder / f"round-{point.round:08d}"
    temporary = folder / f".{place.name}.part"
    if place.exists():
        return
    tensors = {f"packet.{name}": value for name, value in point.state.packet.items()}
    tensors |= {f"state.{name}": value for name, value in point.state.tensors.items()}
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write(temporary / "state.safetensors", save(tensors))
        about = {
            "round": point.round,
            "tick": point.tick,
            "notes": dict(point.state.notes),
            "receipts": [receipt.row() for receipt in point.receipts],
            "memory": {str(device): digest for device, digest in point.memory.items()},
            "line": told(point.line) if point.line else None,
            "visits": {str(device): count for device, count in point.visits.items()},
            "reports": {str(device): count for device, count in point.reports.items()},
            "holders": sorted(point.holders),
            "updates": limit.to_json(point.updates),
        }
        write_json(temporary / "state.json", about)
        temporary.rename(place)
        flush(folder)
    except OSError as error:
        raise disk_error(place, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def latest(folder: Path) -> Checkpoint | None:
    """Load the newest checkpoint, or None where there is none yet.

    Raises:
        RunError: a checkpoint is there, but damaged.
    """
    places = _all(folder)
    return _load(places[-1]) if places else None


def memories(folder: Path) -> set[str]:
    """Return the digests of device memories that the kept checkpoints name."""
    return set().union(*named(folder).values())


def named(folder: Path) -> dict[int, set[str]]:
    """Return for each device the digests of its memories that the kept checkpoints name."""
    found: dict[int, set[str]] = {}
    for place in _all(folder)[-KEPT:]:  # a kill may have left some of an older one
        for device, digest in json.loads((place / "state.json").read_text())["memory"].items():
            found.setdefault(int(device), set()).add(digest)
    return found


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))


def _load(place: Path) -> Checkpoint:
    try:
        tensors = load_file(place / "state.safetensors")
        about = json.loads((place / "state.json").read_text())
        state = State(_named(tensors, "packet."), about["notes"], _named(tensors, "state."))
        receipts = tuple(map(Receipt.of, about["receipts"]))
        memory = {int(device): digest for device, digest in about["memory"].items()}
        line = Line(**about["line"]) if about["line"] else None
        visits, reports = ({int(k): n for k, n in about.get(what, {}).items()} for what in ("visits", "reports"))
        holders = frozenset(about.get("holders", ()))
        updates, place_in_time = limit.from_json(about.get("updates", {})), (about["round"], about["tick"])
        return Checkpoint(*place_in_time, state, receipts, memory, line, visits, reports, holders, updates)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(
            f"checkpoint {place} is damaged ({error}). Delete that folder to go on from the one before it."
        ) from error


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

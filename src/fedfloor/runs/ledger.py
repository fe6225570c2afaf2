"""The ledger: one JSON line per round, a function of the experiment alone, except for ``wall_s``."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import RunError, SettingError, shown
from fedfloor.base.strict import json_text
from fedfloor.engine.evaluate import Score
from fedfloor.plan.outcome import Receipt

SPENT = ("seconds", "joules", "bytes")  # what rounds cost on the network


@dataclass(frozen=True)
class Line:
    """A line of the ledger: the results of one round.

    In the file a number that is not finite is null: an undefined metric, or one beyond all limits.

    Attributes:
        accuracy, loss: accuracy and loss of the global model on the test data; None in rounds without evaluation.
        train_loss: mean of the visits' losses in their last pass, weighted by samples; None if every visit was lost, or
            the devices withhold their losses.
        headlines: name of a headline other than the accuracy → its 10th, 50th and 90th percentile over the devices for
            which it is defined, and the number of these devices.
        by_device: 10th, 50th and 90th percentile of the devices' accuracies, measured or expected
            as stated in ``park.json``.
        priced: seconds, joules and bytes on the network, of this round and (``total``) of all rounds up to it; None
            without a network.
        measured: the round's measurements on real machines: seconds, bytes per link, absent and refused machines,
            devices that have not trained yet.
        backdoor: share of the test samples of other classes that a backdoor's trigger changes to its target class;
            None in rounds without evaluation, and without a backdoor.
        lost_by: number of a device → its lost visits and all its visits, for devices with lost visits; None if none
            was lost.
        visits: number of all visits; None if none was lost.
        arrivals: device, version of the model, departure and arrival in s of each visit, and if known when its training
            began and ended, in the order of arrival, of methods that do not wait and rounds that end early.
        coverage: numbers of trained ``samples`` and ``devices`` per class, with ``evaluate.coverage``.
    """

    round: int  # from 1
    accuracy: float | None
    loss: float | None
    train_loss: float | None
    by_class: list[float | None] | None  # accuracy per class
    by_device: dict[str, float] | None
    priced: dict[str, Any] | None
    wall_s: float  # duration of the round on this machine, s
    participants: int  # devices that trained, with a visit whose result arrived
    lost: int  # visits with a lost result
    plan_hash: str  # SHA-256 of the resolved plan
    info: Mapping[str, Any] = field(default_factory=dict)  # further values from the method
    macro_f1: float | None = None  # mean of F1 over the classes
    measured: dict[str, Any] | None = None
    coverage: dict[str, list[float]] | None = None
    figures: Mapping[str, float | None] | None = None  # name → value of a headline other than the accuracy
    headlines: Mapping[str, Mapping[str, float]] | None = None
    backdoor: float | None = None
    lost_by: Mapping[str, Sequence[int]] | None = None
    visits: int | None = None
    arrivals: Sequence[Sequence[float]] | None = None

    @property
    def headline(self) -> tuple[str, float | None]:
        """Name and value of the headline metric."""
        return next(iter((self.figures or {}).items()), ("accuracy", self.accuracy))


Follow = Callable[[Line], None]  # called with each new line of a run


def line(
    number: int, score: Score | None, receipts: tuple[Receipt, ...], plan_hash: str, wall_s: float,
    info: Mapping[str, Any], priced: Mapping[str, Any] | None = None, before: Line | None = None,
) -> Line:  # fmt: skip
    """Return a round's line; ``before`` is the previous one, ``priced`` has ``seconds``, ``joules``, ``bytes``."""
    kept = [r for r in receipts if not r.lost]
    known = [(r.loss_last, r.samples) for r in kept if r.loss_last is not None]
    weight = sum(samples for _, samples in known)
    train_loss = math.fsum(loss * samples for loss, samples in known) / weight if weight else None
    participants = len({r.device for r in kept if r.device >= 0})
    lost = len(receipts) - len(kept)
    measured = {name: getattr(score, name, None) for name in ("accuracy", "loss", "by_class", "by_device", "macro_f1")}
    tables: dict[str, Any] = {name: dict(getattr(score, name, ())) or None for name in ("figures", "headlines")}
    return Line(
        round=number, train_loss=train_loss, priced=_priced(priced, before), wall_s=round(wall_s, 4),
        participants=participants, lost=lost, plan_hash=plan_hash, info=info, **measured, **tables,
        lost_by=lost_by(receipts) or None, visits=len(receipts) if lost else None,
    )  # fmt: skip


def lost_by(receipts: Sequence[Receipt]) -> dict[str, list[int]]:
    """Return the number of a device → its lost visits and all its visits, for devices with lost visits."""
    lost = Counter(receipt.device for receipt in receipts if receipt.lost and receipt.device >= 0)
    visits = Counter(receipt.device for receipt in receipts)
    return {str(device): [lost[device], visits[device]] for device in sorted(lost)}


def with_price(line: Line, priced: Mapping[str, Any] | None, before: Line | None) -> Line:
    """Return a line with another price; ``before`` is the previous round's line."""
    return replace(line, priced=_priced(priced, before))


def _priced(priced: Mapping[str, Any] | None, before: Line | None) -> dict[str, Any] | None:
    """Return a round's price with the total of all rounds so far; equal on all ranks, so that all stop together."""
    if priced is None:
        return None
    spent = total(before) or {"seconds": 0.0, "joules": 0.0, "bytes": 0}
    own = {"seconds": priced["seconds"], "joules": priced["joules"], "bytes": sum(priced["bytes"].values())}
    return {**priced, "total": {name: spent[name] + value for name, value in own.items()}}


def total(last: Line | None) -> dict[str, float] | None:
    """Return the seconds, joules and bytes of all rounds up to a line; None if they have no price."""
    return last.priced["total"] if last is not None and last.priced is not None else None


def to_row(line: Line) -> dict[str, Any]:
    """Return a line's fields for the file, the run's headline first, without fields that are not recorded."""
    row = asdict(line)
    first = {"round": line.round} | ({"figures": row["figures"]} if line.figures else {})
    optional = (
        "measured", "coverage", "figures", "headlines", "backdoor", "lost_by", "visits", "arrivals",
    )  # fmt: skip
    return first | {key: value for key, value in row.items() if value is not None or key not in optional}


def append(path: Path, new: Line) -> None:
    """Append a line to a ledger; the file is unchanged after a failure."""
    regular.append(path, json_text(to_row(new)))


def cut(path: Path, last: Line | None) -> None:
    """Truncate a ledger before the checkpoint's line ``last``, which is then rewritten; None: remove all lines."""
    kept = check(path, last)
    if path.exists():
        os.truncate(path, kept)
    if last is not None:
        append(path, last)


def check(path: Path, last: Line | None) -> int:
    """Return the size in bytes of a ledger's lines before the checkpoint's line ``last``, after checking them."""
    kept = 0
    before = 0 if last is None else last.round - 1
    texts = regular.read_bytes(path).split(b"\n", before)[:-1] if path.exists() else []
    for number, text in enumerate(texts, start=1):
        try:
            held = _parsed(text).round
        except (ValueError, RecursionError) as error:
            raise _unusable(path, number, before, f"is damaged ({error})") from error
        if held != number:
            raise _unusable(path, number, before, f"is of round {held}")
        kept += len(text) + 1
    if len(texts) < before:
        raise _unusable(path, len(texts) + 1, before, "is missing, or its end is")
    return kept


def _unusable(path: Path, number: int, before: int, why: str) -> RunError:
    return RunError(
        f"{path}: line {number} {why}, and the checkpoint is of round {before + 1}: the {before} earlier lines are "
        "needed. Nothing was changed. Restore the ledger, or start again with another --out."
    )


def read(path: Path) -> list[Line]:
    """Return the lines of a ledger without an incomplete last line; a damaged line raises SettingError."""
    lines = []
    for number, text in enumerate(regular.read_bytes(path).split(b"\n")[:-1], start=1):
        try:
            lines.append(_parsed(text))
        except (ValueError, RecursionError) as error:
            raise SettingError(
                f"{path}: line {number} is damaged ({error}). Restore the ledger.", key="damaged-ledger"
            ) from error
    return lines


def _parsed(text: bytes) -> Line:
    """Return a line from its JSON; raise ValueError if it is not a table, or a key is missing or unknown."""
    row = json.loads(text)
    if not isinstance(row, dict):
        raise ValueError("not a table of a round")
    for key in (f.name for f in fields(Line) if f.default is MISSING and f.default_factory is MISSING):
        if key not in row:
            raise ValueError(f"{key} is missing")
    for key in row.keys() - {f.name for f in fields(Line)}:
        raise ValueError(f"unknown key {shown(key)}")
    return Line(**row)

"""Checkpoints of a run: its state after a round, and the best round's model if samples are held out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedfloor.base import ranges, regular
from fedfloor.base.errors import MALFORMED, RunError, SettingError, disk_error, shown
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.engine import limit
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score, evaluate, tested_on
from fedfloor.engine.limit import Longest
from fedfloor.engine.memory import DeviceMemory
from fedfloor.experiment import EvaluateSettings, Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import State
from fedfloor.park.park import Park
from fedfloor.plan.outcome import Receipt
from fedfloor.runs.folder import flush, write
from fedfloor.runs.ledger import SPENT, Line, to_row, total
from fedfloor.runs.revealed import Asked
from fedfloor.runs.round import Position

NUMBER = (int, float)
# types of a receipt's fields
RECEIPT: tuple[Any, ...] = (*[int] * 5, *[(*NUMBER, NoneType)] * 3, int, bool, (str, NoneType), NUMBER, tuple, str)


@dataclass(frozen=True, eq=False)
class Best:
    """The model of the best round on validation data so far.

    Attributes:
        value, loss: its headline, None if undefined, and its loss on validation data.
        least: the smallest loss of any round on validation data.
        improved: the last round with a better headline or a smaller loss than all rounds before it.
    """

    round: int  # the round; only evaluated rounds are compared
    figure: str  # the headline; ties are decided by the loss
    value: float | None
    loss: float
    model: Tensor  # flat, [P]
    least: float
    improved: int

    @property
    def about(self) -> dict[str, Any]:
        """The round and its metrics, as JSON."""
        return {"round": self.round, "figure": self.figure, "value": self.value, "loss": self.loss}

    @property
    def row(self) -> dict[str, Any]:
        """All but the model, as JSON."""
        return {**self.about, "least": self.least, "improved": self.improved}

    @classmethod
    def of(cls, row: Mapping[str, Any], model: Tensor) -> Best:
        """Return the inverse of :attr:`row`; earlier releases had neither ``least`` nor ``improved``."""
        number = int(row["round"])
        loss = float(row["loss"])
        least = float(row.get("least", loss))
        improved = int(row.get("improved", number))
        return cls(number, str(row["figure"]), row["value"], loss, model, least, improved)

    def waited(self, number: int, settings: EvaluateSettings) -> bool:
        """Return whether none of the last evaluations, as many as ``patience``, improved on those before."""
        return settings.patience is not None and number - self.improved >= settings.patience * settings.every

    def ends(self, number: int, experiment: Experiment) -> bool:
        """Return whether a run with ``patience`` ends after a round, and its model is this one."""
        settings = experiment.evaluate
        return settings.patience is not None and (number == experiment.rounds or self.waited(number, settings))


def held_out(experiment: Experiment, park: Park) -> Park | None:
    """Return the park with the samples held out for validation as test samples; None if there are none."""
    on = experiment.evaluate.on  # samples held out only for a threshold do not choose a model
    return park if on == "validation" else park.validating if on == "both" else None


def better(
    before: Best | None, number: int, model: Tensor, score: Score, experiment: Experiment, engine: Engine,
    method: ConfiguredMethod,
) -> Best | None:  # fmt: skip
    """Return the best model after a round with an evaluation; the same on every rank."""
    park = held_out(experiment, engine.park)
    figure = experiment.evaluate.figure
    if park is None:
        return None
    if park is not engine.park:
        score = evaluate(tested_on(engine, park), model, method.objective, figure)
    value = figure.read(score)
    new = Best(number, figure.name, value, score.loss, model.clone(), score.loss, number)
    if before is None:
        return new
    gain = 0.0 if value is None or before.value is None else figure.gain(value, before.value)
    best = new if gain > 0 or (gain == 0 and score.loss < before.loss) else before
    improved = number if best is new or score.loss < before.least else before.improved
    return replace(best, least=min(score.loss, before.least), improved=improved)


log = logging.getLogger(__name__)

KEPT = 2
TENSORS = "state.safetensors"
ABOUT = "state.json"
DIGESTS = "SHA256SUMS"
BEST = "best.w"
FORMAT = 2  # with digests; earlier releases had no digests and no format


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Position):
    """The state of a run after a round, and of what observes its rounds.

    Attributes:
        memory: device → digest of its memory.
        line: the last round's ledger line, because a kill can fall between checkpoint and ledger.
        visits: device → number of its local updates so far.
        reports: device → number of its census reports so far, if these are noisy.
        updates: scope → device → its greatest recent lengths, if the length of updates is limited.
        best: the model of the best round, if validation data are held out.
        answers: question → device → the greatest number of its answers so far.
    """

    memory: Mapping[int, str] = field(default_factory=dict)
    line: Line | None = None
    visits: Mapping[int, int] = field(default_factory=dict)
    reports: Mapping[int, int] = field(default_factory=dict)
    updates: Mapping[str, Mapping[int, Longest]] = field(default_factory=dict)
    best: Best | None = None
    answers: Asked = field(default_factory=dict)


def save_to(folder: Path, point: Checkpoint) -> None:
    """Write a checkpoint unless the round has one, and delete all except the last two."""
    place = folder / _name(point.round)
    temporary = folder / f".{place.name}.part"
    if place.exists():
        return
    tensors = {f"packet.{name}": value for name, value in point.state.packet.items()}
    tensors |= {f"state.{name}": value for name, value in point.state.tensors.items()}
    tensors |= {f"version.{number}": model.clone() for number, model in point.versions.items()}
    tensors |= {} if point.best is None else {BEST: point.best.model}
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        files = {TENSORS: save(tensors), ABOUT: json_text(_about(point), separators=(",", ":")).encode()}
        for name, data in files.items():
            write(temporary / name, data)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        write(temporary / DIGESTS, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))
        flush(temporary)
        temporary.rename(place)
        flush(folder)
    except OSError as error:
        raise disk_error(place, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _about(point: Checkpoint) -> dict[str, Any]:
    """Return all of a checkpoint but its tensors, as JSON."""
    return {
        "format": FORMAT,
        "round": point.round,
        "tick": point.tick,
        "clock_s": point.clock_s,
        "notes": dict(point.state.notes),
        "receipts": [receipt.row() for receipt in point.receipts],
        "memory": {str(device): digest for device, digest in point.memory.items()},
        "line": to_row(point.line) if point.line else None,
        "visits": {str(device): count for device, count in point.visits.items()},
        "reports": {str(device): count for device, count in point.reports.items()},
        "answers": {name: {str(k): n for k, n in counts.items()} for name, counts in point.answers.items()},
        "holders": sorted(point.holders),
        "updates": limit.to_json(point.updates),
        "departures": [list(departure) for departure in point.departures],
    } | ({} if point.best is None else {"best": point.best.row})


def latest(folder: Path, memory: Path | None = None, *, warn: bool = True) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None if there is none yet.

    Raises:
        RunError: all checkpoints are damaged; names the files.
    """
    damage: list[str] = []
    for place in reversed(_all(folder)):
        try:
            point = _load(place, memory)
        except RunError as error:
            damage.append(str(error).removesuffix("."))
            continue
        if damage and warn:
            log.warning("%s. The run resumes from the checkpoint of round %d.", "; ".join(damage), point.round)
        return point
    if damage:
        raise RunError(
            f"no checkpoint of this run is usable: {'; '.join(damage)}. Nothing was changed. Restore the damaged "
            "files from a copy, or start again with another --out."
        )
    return None


def discard_after(folder: Path, number: int) -> None:
    """Delete the checkpoints of rounds after ``number``, which :func:`latest` skipped as damaged."""
    for place in _all(folder):
        if place.name > _name(number):
            try:
                shutil.rmtree(place)
            except OSError as error:
                raise disk_error(place, error) from error


def memories(folder: Path) -> set[str]:
    """Return the digests of device memories to which the kept checkpoints refer."""
    return set().union(*named(folder).values())


def named(folder: Path) -> dict[int, set[str]]:
    """Return device → digests of its memories to which the readable kept checkpoints refer."""
    digests: dict[int, set[str]] = {}
    for place in _all(folder)[-KEPT:]:  # a kill may have left files of an older checkpoint
        with contextlib.suppress(OSError, *MALFORMED):  # the checkpoint is damaged
            for device, digest in json.loads(regular.read_bytes(place / ABOUT))["memory"].items():
                digests.setdefault(int(device), set()).add(digest)
    return digests


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))


def _name(number: int) -> str:
    return f"round-{number:08d}"


def _load(place: Path, memory: Path | None = None) -> Checkpoint:
    """Return a checkpoint from its folder; a RunError names a missing or damaged file or device memory."""
    path = place / DIGESTS
    try:
        listed = regular.read_text(path, encoding="ascii").splitlines() if path.exists() else []
        digests = {name: digest for digest, name in (line.split("  ", 1) for line in listed)}
        if path.exists() and set(digests) != {TENSORS, ABOUT}:
            raise ValueError(f"it lists {sorted(digests)}, not {ABOUT} and {TENSORS}")
        for name, digest in digests.items():
            path = place / name
            if hashlib.sha256(regular.read_bytes(path)).hexdigest() != digest:
                raise ValueError(f"its SHA-256 is not the one in {DIGESTS}")
        path = place / ABOUT
        about = json.loads(regular.read_bytes(path))
        if "format" in about and not digests:
            raise ValueError(f"{DIGESTS} is missing")
        path = place / TENSORS
        tensors = load_file(regular.check(path))
        point = _made(about, tensors)
    except (OSError, SafetensorError, SettingError, RefusedError, *MALFORMED) as error:
        raise RunError(f"{path} is damaged ({error}).") from error
    if memory is not None:
        DeviceMemory(memory, point.memory).verify()
    return point


def _made(about: dict[str, Any], tensors: dict[str, Tensor]) -> Checkpoint:
    """Return a checkpoint from the contents of its files."""
    state = State(_named(tensors, "packet."), dict(about["notes"]), _named(tensors, "state."))
    receipts = tuple(map(_receipt, about["receipts"]))
    held = {int(device): digest for device, digest in about["memory"].items()}
    line = Line(**about["line"]) if about["line"] else None
    if line is not None:
        _count(line.round)
        spent = total(line) or dict.fromkeys(SPENT, 0.0)
        for name in SPENT:
            ranges.number(spent[name], 0, math.inf, name)
    visits, reports = ({int(k): _count(n) for k, n in about.get(name, {}).items()} for name in ("visits", "reports"))
    answers = {name: {int(k): n for k, n in own.items()} for name, own in about.get("answers", {}).items()}
    holders = frozenset(about.get("holders", ()))
    return Checkpoint(
        round=_count(about["round"]),
        tick=_count(about["tick"]),
        clock_s=float(about.get("clock_s", 0.0)),
        state=state,
        receipts=receipts,
        holders=holders,
        versions={int(number): model for number, model in _named(tensors, "version.").items()},
        departures=tuple((int(n), int(k), int(v), float(at)) for n, k, v, at in about.get("departures", ())),
        memory=held,
        line=line,
        visits=visits,
        reports=reports,
        updates=limit.from_json(about.get("updates", {})),
        best=Best.of(about["best"], tensors[BEST]) if "best" in about else None,
        answers=answers,
    )


def _count(value: object) -> int:
    return ranges.whole(value, 0, ranges.COUNT, "a count")


def _receipt(row: Sequence[Any]) -> Receipt:
    """Return the receipt in a row; raise ValueError for a field of another type, or a number without bound."""
    made = Receipt.of(row)
    fields = vars(made).values()
    whole = (value for value in fields if isinstance(value, int))
    if not all(map(isinstance, fields, RECEIPT)) or max(map(abs, whole)) > ranges.COUNT:
        raise ValueError(f"{shown(row)} is not a receipt")
    return made


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

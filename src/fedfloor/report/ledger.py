"""Reading run folders: what a run was told, what it is about and what it wrote down round by round."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.errors import SettingError
from fedfloor.plan.nodes import Node
from fedfloor.plan.text import from_json
from fedfloor.report.evaluation import Evaluation, evaluation
from fedfloor.report.numbers import finite
from fedfloor.report.price import Price, added

log = logging.getLogger(__name__)

# Where a run was made and which copy of an experiment it is does not change what the experiment is.
NOT_THE_EXPERIMENT = ("name", "seed", "provenance")
DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Spread:
    """The accuracy of the 10 %, 50 % and 90 % device."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Round:
    """One line of the ledger; what was not evaluated in the round is None.

    Args:
        number: the round, counted from 1.
        accuracy: share of the test samples that the global model gets right.
        loss: its mean loss on them.
        train_loss: mean loss on the devices while they trained.
        by_class: accuracy per class.
        by_device: how the accuracy is spread over devices.
        wall_s: seconds the round took.
        participants: devices that trained.
        lost: visits that were lost.
        spent: what all rounds up to this one cost on the network; None where the run knows no prices.
    """

    number: int
    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None
    by_class: tuple[float | None, ...] | None = None
    by_device: Spread | None = None
    wall_s: float = 0.0
    participants: int = 0
    lost: int = 0
    spent: Price | None = None


@dataclass(frozen=True)
class Device:
    """A device's factory, its number of samples, how many of each class it holds, its name if any, its number."""

    factory: int
    samples: int
    counts: tuple[int, ...]
    name: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Park:
    """What a run was trained on; of very many devices (``of_devices``) some are listed that stand for all."""

    dataset: str
    classes: tuple[str, ...]
    devices: tuple[Device, ...]
    factories: int
    test_samples: int
    of_devices: int
    untrained: tuple[tuple[str, int], ...] = ()  # classes that only test samples have, and how many of these


@dataclass(frozen=True)
class Run:
    """A run folder's content.

    Args:
        folder: where it was read from.
        name: the experiment's name.
        method: the method's name.
        seed: its seed.
        key: the experiment without its name, seed and provenance; equal for seeds of one experiment.
        rounds: the ledger; empty only where training diverged in the first round.
        park: devices, classes and who holds what.
        plan: the first round's plan, where the run's folder has one that can be read.
        config: the resolved configuration as text.
        planned: rounds of its schedule; None where the configuration does not say.
        on: what its accuracy was measured on, ``"test"`` or ``"validation"`` data.
        evaluation: what is known about the final model, where the run wrote it.
        diverged: the round in which training diverged; None where it did not.
    """

    folder: Path
    name: str
    method: str
    seed: int
    key: str
    rounds: tuple[Round, ...]
    park: Park
    plan: Node | None
    config: str
    planned: int | None = None
    on: str = "test"
    evaluation: Evaluation | None = None
    diverged: int | None = None

    @property
    def last(self) -> int:
        """The last round that was finished; 0 where there is none."""
        return self.rounds[-1].number if self.rounds else 0


def collect(paths: Iterable[Path]) -> tuple[Run, ...]:
    """Read run folders, and folders that contain run folders; runs that have not finished a round are left out there.

    Args:
        paths: folders; one that is named twice, or both by itself and by its parent, is read once.

    Raises:
        SettingError: a path is no run folder and contains none, or a file in it cannot be read.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        folders.update(dict.fromkeys(folder.resolve() for folder in _run_folders(Path(path))))
    if not folders:
        raise SettingError("report: no folder was given. Name run folders, or a folder that contains them.")
    return tuple(read_run(folder) for folder in folders)


def _run_folders(path: Path) -> list[Path]:
    if _is_run(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if _is_run(child)) if path.is_dir() else []
    started = [child for child in inside if _lines(child / "ledger.jsonl") or (child / DIVERGED).is_file()]
    if inside and not started:
        raise SettingError(f"{path}: {len(inside)} runs, none of which has finished a round. Wait for the first ones.")
    if not started:
        what = "has no experiment.toml, and neither has a folder in it" if path.is_dir() else "is not a folder"
        raise SettingError(f"{path} is not a run folder: it {what}. Name what `fedfloor run --out` was given.")
    return started


def _is_run(path: Path) -> bool:
    return (path / "experiment.toml").is_file()


def _lines(path: Path) -> list[bytes]:
    """Return a ledger's lines without a last one that was cut off while it was written."""
    *lines, tail = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    return [*lines, tail] if _is_json(tail) else lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def read_run(folder: Path) -> Run:
    """Read one run folder.

    Raises:
        SettingError: a file is missing or damaged; the message names the file and the line.
    """
    config = _text(folder / "experiment.toml")
    try:
        settings = tomllib.loads(config)
        method, seed = str(settings["method"]["name"]), int(settings["seed"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{folder / 'experiment.toml'}: not a resolved experiment ({error!r}).") from error
    told = {name: value for name, value in settings.items() if name not in NOT_THE_EXPERIMENT}
    planned, diverged = settings.get("rounds"), _diverged(folder / DIVERGED)
    final = _evaluation(folder / "evaluation.json") if diverged is None else None  # else of a round before
    return Run(
        folder=folder,
        name=str(settings.get("name", folder.name)),
        method=method,
        seed=seed,
        key=json.dumps(told, sort_keys=True, default=str),
        rounds=() if diverged == 1 else read_ledger(folder / "ledger.jsonl"),
        park=_park(folder / "park.json"),
        plan=_plan(folder / "plan.json"),
        config=config,
        planned=planned if isinstance(planned, int) else None,
        on=final.on if final else str(settings.get("evaluate", {}).get("on", "test")),
        evaluation=final,
        diverged=diverged,
    )


def read_ledger(path: Path) -> tuple[Round, ...]:
    """Read a ledger; a last line that is only partly written is ignored.

    Raises:
        SettingError: there is no finished round, or a line is damaged.
    """
    rounds: list[Round] = []
    spent: Price | None = Price()
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            spent = added(spent, body.get("priced"))
            found = _round(body, spent)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingError(
                f"{path}, line {number}: not a ledger line ({error!r}). Resume the run, or remove the damaged line."
            ) from error
        if rounds and found.number <= rounds[-1].number:
            raise SettingError(f"{path}, line {number}: round {found.number} after round {rounds[-1].number}.")
        rounds.append(found)
    if not rounds:
        raise SettingError(f"{path}: no finished round. Wait for the first one, or resume the run.")
    return tuple(rounds)


def _round(line: dict[str, Any], spent: Price | None) -> Round:
    by_class, by_device = line.get("by_class"), line.get("by_device")
    return Round(
        number=int(line["round"]),
        accuracy=finite(line.get("accuracy")),
        loss=finite(line.get("loss")),
        train_loss=finite(line.get("train_loss")),
        by_class=None if by_class is None else tuple(finite(value) for value in by_class),
        by_device=None if not by_device else Spread(*(float(by_device[name]) for name in ("p10", "p50", "p90"))),
        wall_s=float(line.get("wall_s") or 0.0),
        participants=int(line.get("participants") or 0),
        lost=int(line.get("lost") or 0),
        spent=spent,
    )


def _park(path: Path) -> Park:
    body = _json(path)
    try:
        devices = tuple(
            Device(d["factory"], d["samples"], tuple(d["counts"]), d.get("name"), int(d.get("device", k)))
            for k, d in enumerate(body["devices"])
        )
        classes, there = tuple(map(str, body["classes"])), int(body.get("of_devices", len(devices)))
        untrained = tuple((str(name), int(count)) for name, count in body.get("untrained_classes", {}).items())
        tests = int(body["test_samples"])
        return Park(str(body["dataset"]), classes, devices, int(body["factories"]), tests, there, untrained)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"{path}: not the description of a park ({error!r}). Run the experiment again.") from error


def _plan(path: Path) -> Node | None:
    if not path.is_file():
        return None
    try:
        return from_json(_json(path)["plan"])
    except (KeyError, TypeError, AttributeError, SettingError) as error:  # a picture less; no figure depends on it
        log.warning("%s is damaged and left out (%s).", path, error)
        return None


def _evaluation(path: Path) -> Evaluation | None:
    if not path.is_file():
        return None
    try:
        return evaluation(_json(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"{path}: not an evaluation ({error!r}). Resume the run, or remove the file.") from error


def _diverged(path: Path) -> int | None:
    if not path.is_file():
        return None
    try:
        return int(_json(path)["round"])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{path}: no round ({error!r}). Resume the run, or remove the file.") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise SettingError(f"{path}, line {error.lineno}: not JSON ({error.msg}). Run the experiment again.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}. A run folder has it; was the run interrupted?") from error

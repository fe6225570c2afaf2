"""A finished run on another network: the same rounds, other seconds, bytes and joules; nothing is trained again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedfloor import config
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import State
from fedfloor.network import profile
from fedfloor.network.price import Price
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.park import Park
from fedfloor.plan import text
from fedfloor.runs import folder, forecast, ledger, prepare, pricing
from fedfloor.runs.compare import ground
from fedfloor.runs.forecast import ForecastRound
from fedfloor.runs.ledger import Line
from fedfloor.runs.parks import build_park

LEFT = (".lock", "report.html", "checkpoint", "memory")  # what a copy of a run does without


def reprice(runs: Sequence[Path], network: NetworkSettings, out: Path, follow: Callable[[Path], None]) -> list[Path]:
    """Write copies of runs' folders whose ledgers have the prices of another network.

    Each round's plan is made again and must be the one that was trained, by its hash. A method's first questions are
    put again where its plans hang on the answers. A run over interfering radio, or onto it, is refused: which updates
    are lost there is part of the training. ``follow`` is called with each copy that is done.

    Raises:
        SettingError: ``out`` holds something, a folder is no run, two have the same name, a network interferes, or a
            plan hangs on the results of training or on the network. Nothing is written then.
    """
    copies = [out / run.name for run in runs]
    if len(set(copies)) < len(copies):
        raise SettingError("reprice: two of the runs have folders of the same name. Name fewer at a time.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"{out} is there already. Give another folder with --out.")
    park: Park | None = None
    stands: tuple[object, ...] = ()
    afters = [_moved(run, network) for run in runs]
    ledgers = list[list[Line]]()
    for run, after in zip(runs, afters, strict=True):  # nothing is written before all are known to be possible
        if park is None or ground(after) != stands:
            park, stands = build_park(after), ground(after)
        done = run / "ledger.jsonl"  # not there where training diverged in the first round
        ledgers.append(priced(after, park, ledger.read(done) if done.exists() else [], run))
    for run, copy, after, lines in zip(runs, copies, afters, ledgers, strict=True):
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*LEFT))
        folder.write(copy / "experiment.toml", config.resolved(after, copy))
        if lines:
            folder.write(copy / "ledger.jsonl", "".join(json.dumps(ledger.to_row(line)) + "\n" for line in lines))
        follow(copy)
    return copies


def _moved(run: Path, network: NetworkSettings) -> Experiment:
    if not (run / "experiment.toml").is_file():
        raise SettingError(f"{run} is not a run folder: it has no experiment.toml.")
    before = config.read(run / "experiment.toml")
    after = replace(before, network=network)
    for settings in (before.network, after.network):
        known = profile.build(settings)
        if known is not None and known.uplink.sharing == "sinr":
            raise SettingError(
                f"{run}: on network '{known.name or settings.profile}' updates are lost to interference, which "
                "changes the training: run the experiment there."
            )
    return after


def priced(experiment: Experiment, park: Park, lines: list[Line], run: Path) -> list[Line]:
    """Return a ledger with the prices of an experiment's network; SettingError where a plan is not the one trained."""
    repriced, other = _priced(forecast.rounds(experiment, park, len(lines)), lines)
    if other:
        state = _asked(experiment, park)
        repriced, other = (
            _priced(forecast.rounds(experiment, park, len(lines), state), lines) if state else (repriced, other)
        )
    if other:
        raise SettingError(
            f"{run}, round {other}: the plan hangs on what training brought or on the network, or was made by "
            "another version of fedfloor. Run the experiment on this network instead."
        )
    return repriced


def _priced(rounds: Iterator[ForecastRound], lines: list[Line]) -> tuple[list[Line], int]:
    """Return the lines with prices up to the first round whose plan is not what was trained, and its number or 0."""
    repriced, before = list[Line](), list[Price]()
    for planned in rounds:
        before.append(planned.price)
        if planned.number == 0:
            continue
        line = lines[planned.number - 1]
        if text.digest(planned.plan) != line.plan_hash:
            return repriced, planned.number
        repriced.append(
            ledger.with_price(line, pricing.to_row(before, planned.normalised), repriced[-1] if repriced else None)
        )
        before = []
    return repriced, 0


def _asked(experiment: Experiment, park: Park) -> State | None:
    """Return the method's first state, from its questions before the first round put again; None: it has none."""
    method = config.combined(experiment)
    engine, costs = prepare.engine(experiment, method, park, Alone(), DeviceMemory(None))
    view = replace(forecast.seen(experiment, park, method)[0], start={"w": engine.network.flat.clone().cpu()})
    if costs is not None:
        view = forecast.at(view, costs, park, method, 0, 0, {})
    questions, state = prepare.first_state(engine, method, view)
    return None if questions is None else state

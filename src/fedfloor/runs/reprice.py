"""A finished run on another network: the same rounds, other seconds, bytes and joules; nothing is trained again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedfloor import config
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.network import settings
from fedfloor.network.price import Price
from fedfloor.network.settings import NetworkSettings
from fedfloor.park.park import Park
from fedfloor.plan import text
from fedfloor.runs import folder, forecast, ledger, pricing
from fedfloor.runs.compare import ground
from fedfloor.runs.ledger import Line
from fedfloor.runs.parks import build_park

LEFT = (".lock", "report.html", "checkpoint", "memory")  # what a copy of a run does without


def reprice(runs: Sequence[Path], network: NetworkSettings, out: Path, follow: Callable[[Path], None]) -> list[Path]:
    """Write copies of runs' folders whose ledgers have the prices of another network.

    Each round's plan is made again and must be the one that was trained, by its hash. A run over interfering radio, or
    onto it, is refused: which updates are lost there is part of the training.

    Args:
        runs: folders of runs; those that share data and seed should stand together, for a park takes time to build.
        network: the other network.
        out: a new folder for the copies.
        follow: called with each copy that is done.

    Returns:
        The copies.

    Raises:
        SettingError: ``out`` holds something, a folder is no run, two have the same name, a network interferes, or a
            plan hangs on what training brought or on the network. Nothing is written then.
    """
    copies = [out / run.name for run in runs]
    if len(set(copies)) < len(copies):
        raise SettingError("reprice: two of the runs have folders of the same name. Name fewer at a time.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"{out} is there already. Give another folder with --out.")
    park: Park | None = None
    stands: tuple[object, ...] = ()
    afters = [_moved(run, network) for run in runs]
    found = list[list[Line]]()
    for run, after in zip(runs, afters, strict=True):  # nothing is written before all are known to be possible
        if park is None or ground(after) != stands:
            park, stands = build_park(after), ground(after)
        done = run / "ledger.jsonl"  # not there where training diverged in the first round
        found.append(priced(after, park, ledger.read(done) if done.exists() else [], run))
    for run, copy, after, lines in zip(runs, copies, afters, found, strict=True):
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*LEFT))
        folder.write(copy / "experiment.toml", config.resolved(after, copy))
        if lines:
            folder.write(copy / "ledger.jsonl", "".join(json.dumps(ledger.told(line)) + "\n" for line in lines))
        follow(copy)
    return copies


def _moved(run: Path, network: NetworkSettings) -> Experiment:
    """Return a run's experiment on another network."""
    if not (run / "experiment.toml").is_file():
        raise SettingError(f"{run} is not a run folder: it has no experiment.toml.")
    before = config.read(run / "experiment.toml")
    after = replace(before, network=network)
    for what in (before, after):
        known = settings.network(what.network)
        if known is not None and known.uplink.sharing == "sinr":
            raise SettingError(
                f"{run}: on network '{known.name or what.network.profile}' updates are lost to interference, which "
                "changes the training: run the experiment there."
            )
    return after


def priced(experiment: Experiment, park: Park, lines: list[Line], run: Path) -> list[Line]:
    """Return a ledger with the prices of an experiment's network.

    Raises:
        SettingError: a round's plan is not the one that was trained.
    """
    found, before = list[Line](), list[Price]()
    for one in forecast.rounds(experiment, park, len(lines)):
        before.append(one.price)
        if one.number == 0:
            continue
        line = lines[one.number - 1]
        if text.digest(one.plan) != line.plan_hash:
            raise SettingError(
                f"{run}, round {one.number}: the plan hangs on what training brought or on the network, or was made by "
                "another version of fedfloor. Run the experiment on this network instead."
            )
        found.append(ledger.with_price(line, pricing.told(before), found[-1] if found else None))
        before = []
    return found

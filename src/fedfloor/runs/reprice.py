"""A finished run on another network: the same rounds, other seconds, bytes and joules; nothing is trained again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
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
from fedfloor.runs.ledger import Line

LEFT = (".lock", "report.html", "checkpoint", "memory")  # what a copy of a run does without


def reprice(
    run: Path, network: NetworkSettings, out: Path, park_of: Callable[[Experiment], Park]
) -> tuple[Experiment, list[Line]]:
    """Write a copy of a run's folder whose ledger has the prices of another network.

    Each round's plan is made again and must be the one that was trained, by its hash. A run over interfering radio, or
    onto it, is refused: which updates are lost there is part of the training.

    Args:
        run: a run's folder.
        network: the other network.
        out: the new folder.
        park_of: builds an experiment's park.

    Returns:
        The experiment with the other network, and the new ledger.

    Raises:
        SettingError: ``out`` holds something, the run is none, a network interferes, or a plan hangs on what training
            brought.
    """
    if out.exists() and any(out.iterdir()):
        raise SettingError(f"{out} is not empty. Give another folder with --out.")
    if not (run / "experiment.toml").is_file():
        raise SettingError(f"{run} is not a run folder: it has no experiment.toml.")
    before = config.read(run / "experiment.toml")
    after = replace(before, network=network)
    for what in (before, after):
        known = settings.network(what.network)
        if known is not None and known.uplink.sharing == "sinr":
            raise SettingError(
                f"{run}: on network '{known.name}' updates are lost to interference, which changes the training: run "
                "the experiment there."
            )
    lines = priced(after, park_of(after), ledger.read(run / "ledger.jsonl"), run)
    shutil.copytree(run, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT))
    folder.write(out / "experiment.toml", config.resolved(after, out))
    folder.write(out / "ledger.jsonl", "".join(json.dumps(asdict(line)) + "\n" for line in lines))
    return after, lines


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
                f"{run}, round {one.number}: the plan hangs on what training brought, or was made by another version "
                "of fedfloor. Run the experiment on this network instead."
            )
        found.append(ledger.with_price(line, pricing.told(before), found[-1] if found else None))
        before = []
    return found

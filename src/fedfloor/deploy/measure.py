"""Measurement of a running park as a network profile: latency and rates of its links, and the duration of a visit.

Packets of different sizes take the path of a round, with as many devices at once as in the experiment's round. With
t the seconds between two tiers without training, B the bytes of the model and H those of its classifier:

=============================  =================================================
an empty message down          t₀ = 2·latency
the model down                 t₁ = 2·latency + 8B/down
a visit                        t₂ = 2·latency + 8B/down + 8B/up + seconds_per_visit
a visit of the classifier up   t₃ = t₂ − 8(B − H)/up
=============================  =================================================

Between edge and cloud nothing is trained, so that the rate up follows from t₂ without the seconds of a visit.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from fedfloor.base.errors import RunError, SettingError, require
from fedfloor.deploy.cloud import attached
from fedfloor.deploy.cloud_executor import CloudExecutor
from fedfloor.deploy.settings import CloudSettings
from fedfloor.deploy.uplink import Downlink
from fedfloor.engine import ranks
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.engine.travel import VisitPath
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.models.parcel import Packet
from fedfloor.network import profile
from fedfloor.plan import walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Train, Work, device, edge
from fedfloor.runs import prepare, privacy
from fedfloor.runs.folder import owned
from fedfloor.runs.forecast import plan_of
from fedfloor.runs.pricing import effort

SMALLER = "head"  # the part of the model in a visit that sends less
Table = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """Durations of a plan in s: between cloud and edges, in the factories without training, of training a sample."""

    cloud: float
    floor: float
    per_sample: float


def measure(settings: CloudSettings, repeats: int = 15, say: Callable[[str], None] = lambda _: None) -> Table:
    """Return the tables of a network profile of a park, from medians over ``repeats`` repetitions.

    Args:
        say: called with a line of progress for each repetition.

    Raises:
        SettingError: the experiment is private, which the measured visits are not.
        RunError: the park is running an experiment, or a device does not answer.
    """
    require(repeats >= 1, "--repeats", repeats, "at least 1")
    with owned(settings.out), Downlink(settings) as link:
        experiment, park, live = attached(settings, link)
        method = experiment.configured
        check_open(method)
        engine, _ = prepare.engine(experiment, method, park, Alone(), DeviceMemory(None), live=True)
        engine.executor = engine.factories = live
        engine.limit = None
        at_once = min(-(-widest(plan_of(experiment, park)) // len(settings.edges)), int(park.devices))
        work = getattr(method.method, "work", experiment.work).at(1, experiment.rounds)
        work = Work("plain", work.epochs, work.steps, work.batch_size, work.rate)
        job = Job(engine, live, {"w": engine.network.flat.clone()}, work)
        found: dict[str, list[Sample]] = defaultdict(list)
        for number, groups in enumerate(
            device_groups(park.factory_of.tolist(), at_once, repeats)
        ):  # the first visit imports PyTorch on devices
            say(f"repetition {number} of {repeats}" if number else "first visit to each device")
            for name, plan in job.plans(groups).items():
                sample = job.timed(plan)
                if number:
                    found[name].append(sample)
        return job.fit(found, f"Measured by fedfloor park live measure, {dt.date.today()}: medians of {repeats}, "
                              f"{at_once} devices of a factory at once.")  # fmt: skip


def check_open(method: ConfiguredMethod) -> None:
    """Raise SettingError if the experiment protects updates by privacy or secure sums, or trains no network."""
    if privacy.protects(method):
        raise SettingError(
            "the experiment keeps devices' updates private, which those of measured visits would not be. Provision the "
            "park for an experiment without method.travel = 'secure-sum' and private parts to measure its network."
        )
    if method.needs.objective:
        raise SettingError(
            f"measured visits train a network and its classifier, and method '{method.name}' has neither. Provision "
            "the park for an experiment with method 'fedavg' to measure its network."
        )


def widest(node: Node) -> int:
    """Return the largest number of devices that train at the same time in a plan."""
    if isinstance(node, Train):
        return 1
    below = [widest(child) for child in walk.children(node)]
    return sum(below) if isinstance(node, Parallel) else max(below, default=1)


def device_groups(factory_of: Sequence[int], at_once: int, repeats: int) -> Iterator[dict[int, list[int]]]:
    """Yield groups of devices that work at once, by factory: first all devices, then ``repeats`` groups in turn."""
    members: dict[int, list[int]] = defaultdict(list)
    for k, m in enumerate(factory_of):
        members[m].append(k)
    yield members
    for number in range(repeats):
        yield {
            m: [some[(number * at_once + i) % len(some)] for i in range(min(at_once, len(some)))]
            for m, some in members.items()
        }


@dataclass(frozen=True)
class Job:
    """The measured plans, and the engine that carries them out."""

    engine: Engine
    live: CloudExecutor
    packet: Packet
    work: Work

    def plans(self, groups: Mapping[int, Sequence[int]]) -> dict[str, Node]:
        """Return the plans of a repetition by name: ``empty``, ``model``, ``visit`` and ``smaller``."""
        everyone = tuple(k for some in groups.values() for k in some)

        def visits(work: Work) -> Node:
            branches = {
                m: Parallel(tuple(Train(device(k), work) for k in some), at=edge(m)) for m, some in groups.items()
            }
            return Parallel(tuple(branches.values()))

        return {
            "empty": Broadcast(everyone, "nothing"), "model": Broadcast(everyone), "visit": visits(self.work),
            "smaller": visits(replace(self.work, trains=SMALLER)),
        }  # fmt: skip

    def timed(self, plan: Node) -> Sample:
        """Carry out a plan, discard its result, and return its durations.

        Raises:
            RunError: a device or an edge does not answer.
        """
        self.live.measured()
        began = time.perf_counter()
        outcome = ranks.run(self.engine, plan, self.packet, round_number=1, tick=0)
        took = time.perf_counter() - began
        stated = self.live.measured()
        lost = [f"device {one.device}" for one in outcome.receipts if one.lost]
        if gone := [*stated["absent"], *stated["failed"], *lost]:
            why = "".join(f" {who}: {text}" for who, text in list(stated["failed"].items())[:1])
            raise RunError(f"{gone[0]} did not answer, so that nothing was measured: check it and start again.{why}")
        samples = self.engine.park.holdings
        trained = stated["training_s"]
        effort_of = sum(
            effort(self.work, float(samples[r.device])) * float(samples[r.device]) for r in outcome.receipts
        )
        count = len(outcome.receipts)
        return Sample(
            took - stated["floor_s"],
            stated["floor_s"] - (trained / count if count else 0.0),
            trained / effort_of if count else 0.0,
        )

    def fit(self, found: Mapping[str, Sequence[Sample]], source: str) -> Table:
        """Return the profile by the equations of this module from name of plan → durations."""
        network = self.engine.network
        full = VisitPath(network, self.work).up.size(self.packet)
        saved = full - VisitPath(network, replace(self.work, trains=SMALLER)).up.size(self.packet)
        floor, cloud = ({name: median(getattr(one, tier) for one in some) for name, some in found.items()}
                        for tier in ("floor", "cloud"))  # fmt: skip
        down = floor["model"] - floor["empty"]
        up = 0.0  # of a single layer, which is all classifier
        if saved:
            up = (floor["visit"] - floor["smaller"]) * full / saved - down
        visit_s = floor["visit"] - floor["model"] - max(0.0, up)
        cloud_down = cloud["model"] - cloud["empty"]
        cloud_up = cloud["visit"] - cloud["model"]
        per_sample = median(one.per_sample for one in found["visit"])
        return {
            "about": "Measurements of a running park.",
            "device_edge": link_table(floor["empty"], down, up, full, source),
            "edge_cloud": link_table(cloud["empty"], cloud_down, cloud_up, full, source),
            "devices": {
                "seconds_per_sample": float(f"{per_sample:.4g}"), "seconds_per_visit": round(max(0.0, visit_s), 6),
                "source": source,
            },
        }  # fmt: skip


def link_table(round_trip_s: float, down_s: float, up_s: float, size: int, source: str) -> Table:
    """Return a link's table; a rate is left out if the measured difference in seconds is not positive."""
    rates = {name: float(f"{8 * size / s:.4g}") for name, s in (("up_bps", up_s), ("down_bps", down_s)) if s > 0}
    return {"latency_s": round(round_trip_s / 2, 6), **rates, "source": source}


def written(table: Table, path: Path) -> None:
    """Write a profile to a TOML file.

    Raises:
        SettingError: the file cannot be written.
    """
    import tomlkit

    profile.from_table(dict(table))  # fails if it is not a valid profile
    try:
        path.write_text(tomlkit.dumps(table), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--out {path}: {error.strerror or error}.") from error

"""What the cloud measures in a round, and the failures of devices in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedfloor.base.errors import RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.checks import ABSENT, ERRORS, STAGES, Failure, Measured, note_failure
from fedfloor.deploy.settings import CloudEdge


@dataclass
class RoundMeasurements:
    """Measurements of a round.

    Attributes:
        moved: bytes per link and direction.
        floor_s: duration of the slowest factory of each request, summed, s.
        trained_s: training time summed over devices, by their own clocks, s.
        absent: edges and devices that did not answer.
        refused: edge → number of messages that it refused, by sender and reason.
        failed: device → its failure.
        against: device → number of the last rounds in which its updates pointed against the others'.
        failing_edges: edges with a device whose training failed.
    """

    moved: Counter[str] = field(default_factory=Counter)
    floor_s: float = 0.0
    trained_s: float = 0.0
    absent: set[str] = field(default_factory=set)
    refused: dict[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    against: dict[str, int] = field(default_factory=dict)
    failing_edges: set[str] = field(default_factory=set)

    def add(self, edge: str, stated: Measured, down: int, up: int) -> float:
        """Add the measurements of an edge's answer; return the duration of the request in its factory, s."""
        self.trained_s += stated.training
        self.moved.update({f"device_edge_{way}": n for way, n in stated.moved.items()})
        self.moved.update(edge_cloud_down=down, edge_cloud_up=up)
        for device, failure in stated.failed.items():
            note_failure(self.failed, device, failure)
            if failure.kind == ABSENT:
                self.absent.add(device)
            elif failure.kind in ("visit", *STAGES):
                self.failing_edges.add(edge)
        self.against |= stated.against
        if stated.refused:
            self.refused[edge] = stated.refused
        return stated.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements as the ledger stores them."""
        return {
            "floor_s": round(self.floor_s, 4), "training_s": round(self.trained_s, 4),
            "bytes": dict(sorted(self.moved.items())), "absent": sorted(self.absent), "refused": self.refused,
            "failed": {device: failure.text for device, failure in sorted(self.failed.items())},
        } | ({"against": self.against} if self.against else {})  # fmt: skip


def nameable(edges: Sequence[CloudEdge], *, crosses: bool) -> dict[int, set[str]]:
    """Return the names of the devices whose failures each edge may state: factory → names; empty if none are listed.

    Args:
        crosses: whether edges also visit devices of other factories.
    """
    own = {edge.factory: {device.name for device in edge.devices} for edge in edges}
    if not all(own.values()):
        return {}
    return dict.fromkeys(own, set[str]().union(*own.values())) if crosses else own


def without_strangers(stated: Measured, names: Collection[str] | None) -> Measured:
    """Return an edge's measurements without devices that it does not visit, which become a flaw; None: any are."""
    if names is None or {*stated.failed, *stated.against} <= set(names):
        return stated
    failed = {name: failure for name, failure in stated.failed.items() if name in names}
    against = {name: times for name, times in stated.against.items() if name in names}
    flaw = RefusedError("device", "it states failures of devices that cloud.toml does not list for it.")
    return replace(stated, failed=failed, against=against, flaws=[*stated.flaws, flaw])


def raise_failure(failures: Mapping[str, Failure], number: int) -> None:
    """Raise the error that ends a run in which no device can train.

    Args:
        failures: device or edge → its failure.

    Raises:
        DivergedError, SettingError, RunError: the class of all failures; RunError if they are of several.
    """
    errors = {failure.error for failure in failures.values()}
    kind = ERRORS.get(next(iter(errors)), RunError) if len(errors) == 1 else RunError
    raise kind(f"round {number}: no device's training succeeded.{reason_of(failures, 'visit')}")


def reason_of(failures: Mapping[str, Failure], kind: str) -> str:
    """Return the first failure in a kind of request and the number of the others as text; "" without failures."""
    reasons = [(name, failure.text) for name, failure in sorted(failures.items()) if failure.kind == kind]
    if not reasons:
        return ""
    others = f"; {len(reasons) - 1} more failed likewise." if len(reasons) > 1 else ""
    return f" {reasons[0][0]}: {reasons[0][1].rstrip('.') if others else reasons[0][1]}{others}"

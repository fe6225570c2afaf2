"""What the cloud measures of a round on real machines, and which devices said that they could not do their part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedfloor.deploy.claims import Measured
from fedfloor.errors import DivergedError, FedfloorError, RunError, SettingError

KINDS: dict[str, type[FedfloorError]] = {kind.__name__: kind for kind in (DivergedError, SettingError)}


@dataclass(frozen=True)
class Failure:
    """What a device says it could not do.

    Args:
        kind: what it was asked: ``visit``, ``probe``, …
        error: the kind of error.
        text: why.
    """

    kind: str
    error: str
    text: str


def failed(known: dict[str, Failure], who: str, one: Failure) -> None:
    """Note what a device could not do: of several things the visit, by which a round is judged."""
    if who not in known or known[who].kind != "visit":
        known[who] = one


@dataclass
class RoundMeasurements:
    """What was measured in a round.

    Attributes:
        moved: bytes per link and direction.
        floor_s: seconds of the factories that took longest.
        trained_s: seconds that devices trained, by their own clocks.
        absent: edges that did not answer.
        refused: edge → how many messages it refused, by sender and reason.
        failed: device → what it could not do.
        failing: edges of which devices could not train.
    """

    moved: Counter[str] = field(default_factory=Counter)
    floor_s: float = 0.0
    trained_s: float = 0.0
    absent: set[str] = field(default_factory=set)
    refused: dict[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)

    def note(self, edge: str, stated: Measured, down: int, up: int) -> float:
        """Take in what an edge states of itself; return how long its factory took, in s.

        Args:
            edge: its name.
            stated: what it states.
            down, up: bytes of question and answer.
        """
        self.trained_s += stated.training
        self.moved.update({f"device_edge_{way}": n for way, n in stated.moved.items()})
        self.moved.update(edge_cloud_down=down, edge_cloud_up=up)
        for device, parts in stated.failed.items():
            failed(self.failed, device, Failure(*parts))
            if parts[0] == "visit":
                self.failing.add(edge)
        if stated.refused:
            self.refused[edge] = stated.refused
        return stated.seconds

    def told(self) -> dict[str, Any]:
        """Return it for the ledger."""
        return {
            "floor_s": round(self.floor_s, 4), "training_s": round(self.trained_s, 4),
            "bytes": dict(sorted(self.moved.items())), "absent": sorted(self.absent), "refused": self.refused,
            "failed": {who: one.text for who, one in sorted(self.failed.items())},
        }  # fmt: skip


def end(failures: Mapping[str, Failure], number: int) -> None:
    """End the run where all training fails.

    Args:
        failures: device → why.
        number: the round.

    Raises:
        DivergedError, SettingError, RunError: what they say, if they all say the same kind of thing.
    """
    errors = {one.error for one in failures.values()}
    kind = KINDS.get(next(iter(errors)), RunError) if len(errors) == 1 else RunError
    raise kind(f"round {number}: nobody's training succeeded.{why(failures, 'visit')}")


def why(failures: Mapping[str, Failure], kind: str) -> str:
    """Return why the first device or edge could not do a kind of work, and how many more could not."""
    told = [(name, one.text) for name, one in sorted(failures.items()) if one.kind == kind]
    if not told:
        return ""
    others = f"; {len(told) - 1} more failed likewise." if len(told) > 1 else ""
    return f" {told[0][0]}: {told[0][1].rstrip('.') if others else told[0][1]}{others}"

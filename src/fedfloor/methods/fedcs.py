"""FedCS: selection of as many devices as can finish before a deadline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Needs, Resources, State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.selection.selection import fraction
from fedfloor.plan.nodes import Node, Parallel, Probe, Radio, Sequence, Train, device


@dataclass(frozen=True)
class FedCS(FedAvg):
    r"""Client selection under a deadline, max |S| such that distribution, training and uploads end in time.

    ::

        for each round:
            query max(C·K, 1) devices, drawn at random, for their resources; S ← {}, Θ ← 0
            while candidates remain: x ← argmin_k (T_d(S∪k) − T_d(S)) + t_k^UL + max(0, t_k^UD − Θ), which is removed
                Θ' ← Θ + t_x^UL + max(0, t_x^UD − Θ); if T_d(S∪x) + Θ' < T: Θ ← Θ', S ← S ∪ {x}
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    t^UD is the time of training, t^UL that of an upload, T_d(S) that of the slowest download in S; devices train at
    the same time and upload one after the other, and Θ is the time until the last upload.

    With a deadline that every device meets and C = 1 this is FedAvg. If no candidate meets the deadline, the round does
    not change the model; if no device of the park meets it, the setting is refused.

    Travels: the model, down and up, and two numbers up from each candidate.

    Nishio and Yonetani, ICC 2019, arXiv 1804.08333, Algorithm 3, with T_cs = T_agg = 0. The algorithm does not model
    interference: over a radio every chosen device sends on a random channel with full power, as in RaFed's comparison.

    Args:
        deadline_s: T, the greatest duration of a round in seconds.
        fraction: C in (0, 1], the share of devices that are candidates in a round.
        work: the work of a visit; E = 5 and mini-batches of 50 as in the paper.
    """

    fraction: float = 0.1
    deadline_s: float = 180.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.deadline_s > 0, "methods.fedcs.deadline_s", self.deadline_s, "seconds, above 0")

    @property
    def needs(self) -> Needs:
        return Needs(network=True, questions=(Probe((), "resources"),))

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        known = view.resources
        if known is None:
            raise SettingError(
                "method 'fedcs' selects by the devices' resources: it needs a [network], such as "
                "--set network.profile=lte-cat-m2."
            )
        candidates = fraction(view.devices, self.fraction, rng)
        work = self.work.at(view.round, view.rounds, self.objective)
        update_s = known.compute_s * np.array([work.passes(n) for n in view.holdings.tolist()])
        chosen = greedy(candidates, known, update_s, self.deadline_s)
        if not chosen:
            in_time(list(range(len(view.sizes))), known, update_s, self.deadline_s)  # SettingError if none can
            return Probe(tuple(candidates), "resources")
        visits = tuple(Train(device(k), work, self._radio(known, rng)) for k in chosen)
        return Sequence((Probe(tuple(candidates), "resources"), Parallel(visits)))

    def _radio(self, known: Resources, rng: np.random.Generator) -> Radio | None:
        if known.problem is None:
            return None
        return Radio(int(rng.integers(known.problem.channels)), known.powers_dbm[-1])


def in_time(candidates: list[int], known: Resources, update_s: np.ndarray, deadline_s: float) -> list[int]:
    """Return the devices that finish in time, ascending, by the greedy selection of FedCS.

    ``update_s``: training time t^UD of every device in seconds, [K]. ``deadline_s``: T. SettingError: no candidate can.
    """
    chosen = greedy(candidates, known, update_s, deadline_s)
    if not chosen:
        each = known.download_s[candidates] + update_s[candidates] + known.upload_s[candidates]
        quickest = int(np.argmin(each))
        raise SettingError(
            f"methods.fedcs.deadline_s = {deadline_s:g}: no candidate finishes in time; the fastest, device "
            f"{candidates[quickest]}, takes {each[quickest]:.3g} s. Raise it."
        )
    return chosen


def greedy(candidates: list[int], known: Resources, update_s: np.ndarray, deadline_s: float) -> list[int]:
    """Return the devices of :func:`in_time`, or an empty list if no candidate finishes in time."""
    left = np.array(candidates)
    chosen = list[int]()
    elapsed = 0.0
    spread = 0.0
    while left.size:
        down = known.download_s[left]
        up = known.upload_s[left]
        update = update_s[left]
        extra = np.maximum(down - spread, 0.0) + up + np.maximum(update - elapsed, 0.0)
        best = int(np.argmin(extra))
        ends = elapsed + float(up[best]) + max(0.0, float(update[best]) - elapsed)
        reach = max(spread, float(down[best]))
        if reach + ends < deadline_s:
            chosen.append(int(left[best]))
            elapsed = ends
            spread = reach
        left = np.delete(left, best)
    return sorted(chosen)

"""FLDG and FLDG-L: devices grouped once by mean features or their hashes; one device per group trains in a round."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.cohorts import apart, joined, parted
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.methods.fedavg import visiting
from fedfloor.parts.selection.grouping import clustered, drifted, present
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Probe, Sequence, Train, device
from fedfloor.plan.outcome import Outcome
from fedfloor.solvers.clustering import fewest_functions

log = logging.getLogger(__name__)


class Grouped(Method):
    """The schedule of FLDG and FLDG-L: K-Means of the devices' answers, repeated when class shares have changed."""

    question = ""  # name of the question
    groups: int
    refresh: float | None
    work: WorkSettings

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        allowed = "above 0 and below 1, or left out"
        require(self.groups >= 1, f"methods.{name}.groups", self.groups, "a whole number of at least 1")
        require(self.refresh is None or 0 < self.refresh < 1, f"methods.{name}.refresh", self.refresh, allowed)

    @property
    def needs(self) -> Needs:
        return Needs(census=self.refresh is not None, questions=(self._question,))

    def setup(self, view: View) -> Node:
        return self._probe(view)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        seed = int(rng.integers(2**32))
        return State(view.start, {"seed": seed, "groups": clustered(answers, self.question, self.groups, seed)})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        groups = present(state.notes["groups"], view.devices)
        work = self.work.at(view.round, view.rounds, self.objective)
        visits = Parallel(tuple(Train(device(int(rng.choice(members))), work) for members in groups))
        if self.refresh is None or view.census is None:
            return visits
        again = self._probe(view)
        before = state.tensors.get("census")
        moved = before is not None and drifted(before.numpy(), view.census) > self.refresh
        return Sequence((Probe(again.devices, "census"), *([again] if moved else []), visits))

    def absorb(self, state: State, outcome: Outcome) -> State:
        notes = dict(state.notes)
        tensors = dict(state.tensors)
        answers = {k: answer for k, answer in outcome.answers.items() if self.question in answer}
        if answers:
            notes["groups"] = clustered(answers, self.question, min(self.groups, len(answers)), notes["seed"])
            notes["info"] = {"regrouped": 1 + notes.get("info", {"regrouped": 0})["regrouped"]}
        counts = [answer["census"] for _, answer in sorted(outcome.answers.items()) if "census" in answer]
        if counts and (answers or "census" not in tensors):
            import torch

            tensors["census"] = torch.tensor(counts, dtype=torch.float32)
        return replace(state, packet=outcome.packet, notes=notes, tensors=tensors)

    @property
    def _question(self) -> Probe:
        names = ("extractor", "weights", "hashes", "width")
        settings = {name: getattr(self, name) for name in names if getattr(self, name, None) is not None}
        return Probe((), self.question, settings=settings)

    def _probe(self, view: View) -> Probe:
        return replace(self._question, devices=tuple(view.devices))


@dataclass(frozen=True)
class FLDG(Grouped):
    r"""Device grouping by mean features, w ← w + Σ_i |D_i| Δ_i / Σ_i |D_i| over one device i per group.

    ::

        before the first round: every device k sends v_k = (1/n_k) Σ_i f(x_i); K groups ← K-Means of all v_k
        for each round:
            S ← one device of each group, drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With as many groups as devices it is FedAvg. With cohorts = true every group is a cohort with its own model w_g: all
    its devices train in every round, w_g is the mean of their models alone, and they are evaluated with it. With one
    group that is FedAvg, too.

    Travels: the D features once, then the model. The paper's f is MobileNetV2 (``mobilenet``, D = 1280), trained on
    ImageNet, which needs weights (``weights``); the default needs none. The server sees the mean features of the
    devices' data; FLDG-L reveals less.

    Liu et al., "Towards Fast and Accurate Federated Learning with non-IID Data for Cloud-Based IoT Applications". K =
    10 of 100 devices, E = 5, batches of 50, η = 0.01.

    Args:
        groups: K, the number of groups, and of devices trained in a round.
        extractor: f, by name: ``hog``, ``random-conv``, ``raw``, ``penultimate``, ``mobilenet``, ``onnx``.
        weights: the file or folder of the weights, for extractors that have weights.
        cohorts: whether every group has its own model.
        refresh: the change of class shares, ½ Σ_c |p_c − q_c| on average, above which groups are formed again; costs a
            census in every round. By default groups are fixed, as in the paper.
    """

    question = "features"

    groups: int = 10
    extractor: str = "random-conv"
    weights: str | None = None
    cohorts: bool = False
    refresh: float | None = None
    work: WorkSettings = WorkSettings(epochs=5, batch_size=50, lr=0.01)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "left out with cohorts, which keep their devices"
        require(not self.cohorts or self.refresh is None, "methods.fldg.refresh", self.refresh, allowed)

    @property
    def needs(self) -> Needs:
        return replace(super().needs, cohorts=self.cohorts)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        state = super().init(view, answers, rng)
        return parted(state, state.notes["groups"]) if self.cohorts else state

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        if not self.cohorts:
            return super().plan(state, view, rng)
        groups = [[k for k in group if k in view.devices] for group in state.notes["groups"]]
        return apart({j: visiting(self, self.work, view, group) for j, group in enumerate(groups) if group})

    def absorb(self, state: State, outcome: Outcome) -> State:
        after = super().absorb(state, outcome)
        return joined(after, {}, len(state.notes["groups"])) if self.cohorts else after


@dataclass(frozen=True)
class FLDGL(Grouped):
    r"""Device grouping by locality-sensitive hashes, F_i(v_k) = ⌊(a_i·v_k + b_i)/r⌋, i = 1 … h.

    ::

        before the first round: every device k sends h integers F_1(v_k) … F_h(v_k) of its mean features v_k
        K groups ← K-Means of these integers; then as FLDG

    a_i ~ N(0, I), b_i ~ U[0, r], drawn by the experiment's seed, the same on all devices: near vectors have equal
    hashes more often than distant vectors. Devices with equal hashes are in one group. With as many groups as devices
    it is FedAvg.

    Travels: h integers once, then the model. ``fedfloor reproduce fldg-privacy`` measures the information that the
    integers reveal.

    Liu et al., "Towards Fast and Accurate Federated Learning with non-IID Data for Cloud-Based IoT Applications". h =
    5, K = 10 of 100 devices, E = 5, batches of 50, η = 0.01; r = 3 for MobileNetV2's features, which are larger than
    those of the default extractor: r should be smaller than the distances between devices. The paper's bound
    h ≥ ⌈log_r K⌉ treats r as the number of values of a hash; fewer hashes cause a warning.

    Args:
        groups: K, the number of groups, and of devices trained in a round.
        hashes: h, the number of hashes per device.
        width: r, in the unit of the features.
        extractor: the extractor of the features; see FLDG.
        weights: the file or folder of the weights, for extractors that have weights.
        refresh: the change of class shares above which groups are formed again; see FLDG.
    """

    question = "hash"

    groups: int = 10
    hashes: int = 5
    width: float = 0.5
    extractor: str = "random-conv"
    weights: str | None = None
    refresh: float | None = None
    work: WorkSettings = WorkSettings(epochs=5, batch_size=50, lr=0.01)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.hashes >= 1, "methods.fldgl.hashes", self.hashes, "a whole number of at least 1")
        require(self.width > 0, "methods.fldgl.width", self.width, "above 0")

    def setup(self, view: View) -> Node:
        if self.width > 1 and self.hashes < (bound := fewest_functions(self.groups, self.width)):
            log.warning(
                "methods.fldgl.hashes = %d is below ⌈log_r K⌉ = %d for %d groups and width %g: different devices "
                "may get the same hashes.", self.hashes, bound, self.groups, self.width,
            )  # fmt: skip
        return super().setup(view)

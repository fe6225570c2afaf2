"""The seam of models that are sums: what one file states, from which plan, objective, network and wire follow.

A device's sums travel as the update of a visit, in double precision: secure sums, edges, prices, forecasts, live
parks, late results, checkpoints and ranks then need nothing of their own. The model of a round is

::

    each device k:   s_k ← Σ_i s(x_i, y_i; θ), of its n_k samples, with a count of 1 for each sample
    the cloud:       S ← Σ_k s_k, from the mean of s_k/n_k weighted by n_k;  θ ← solve(S, θ)

and equals that of all samples in one place up to the rounding of double precision, however rows are divided. With a
secure sum it is exact to the codec's step: numbers of ``bits`` bits of which the largest is ``bound``.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.methods.exact.rows import Charted, Floats, Named, SampleRows, Shapes
from fedfloor.parts.objectives.objective import Objective, Visit, mean_loss
from fedfloor.parts.objectives.registry import to_spec
from fedfloor.parts.travel import chains
from fedfloor.parts.travel.path import RECEIPT, UPDATE
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import WHOLE, Broadcast, Node, Parallel, Sequence, Train, device
from fedfloor.plan.outcome import Outcome
from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

EFFECTS = "effects"
GROUPS = "groups"
SUMS = "sums"  # the part of the network that travels up
STEP = WorkSettings(epochs=1, batch_size=WHOLE, lr=1.0)
BLOCK = 4096  # samples that are summed at a time
FEWER = "behind its mask a device states fewer than it has"
FAR = 1e4  # of a mean from the centre of moments, squared, in variances
SHORT = 1e-3  # a step of weights that is not halved any further
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExactSums(Method, Objective):
    """A model that is sums: a frozen dataclass of its settings, which are numbers, texts, true or false.

    Attributes:
        tasks: the kinds of tasks that it answers.
        sends: what the sums of a device reveal.
        ratio: what e to the power of an effect is, for a regression that states effects.
        usual: the number of rounds that a forecast counts: the most that it usually takes; None: all.
    """

    tasks: ClassVar[tuple[str, ...]]
    sends: ClassVar[str]
    ratio: ClassVar[str] = ""
    usual: ClassVar[int | None] = None
    short_batches: ClassVar[bool] = True

    @abstractmethod
    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        """Return the first parameters θ by name, for samples of a shape and the task's number of outputs."""

    @abstractmethod
    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the sums by name."""

    @abstractmethod
    def sums(self, rows: SampleRows, theta: Named) -> Named:
        """Return the sums over samples by name, given the present parameters."""

    @abstractmethod
    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        """Return the parameters from the sums over all samples, and whether no further round changes them.

        Args:
            total: the sums by name, with the shapes of :meth:`shapes`.
            count: the number of samples.
            theta: the parameters for which devices computed the sums.
        """

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        """Return whether no samples have these sums, as of a device that states false ones.

        Args:
            total, count, theta: as of :meth:`solve`. Of means over samples the ``count`` is 1.
        """
        return False

    @abstractmethod
    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs [n, outputs] of the task for samples float32 [n, *shape]; parameters are float32."""

    @property
    def threshold(self) -> float | None:
        """The score of a reconstruction above which there is an alarm; None: a quantile of held-out samples' scores."""
        return None

    def charted(self, x: Tensor, sensors: tuple[str, ...], theta: Mapping[str, Tensor]) -> Charted | None:
        """Return what a report draws of samples, by :mod:`fedfloor.engine.charted`; None: it has no control charts."""
        return None

    def gradient(self, total: Named, theta: Named) -> Floats:
        """Return the gradient of what rounds minimise or maximise, at the parameters for which devices computed sums.

        Empty for a model that follows from its sums at once.
        """
        return np.zeros(0)

    def stated(self, total: Named, theta: Named, after: Named) -> Named:
        """Return what a report states beside the model, by name; what an earlier round stated remains.

        Args:
            total: the sums by name, over all samples.
            theta: the parameters for which devices computed the sums.
            after: the parameters that follow from them.

        Returns:
            :data:`EFFECTS`: the effects of a sample's D numbers, their covariance, and a matrix of what is not known of
            them, [D, 1 + 2D]; :data:`GROUPS`: sums of (1, x) over the lives at risk, and over those that fail, at G
            times, [2, 1 + D, G].
        """
        return {}

    def unit(self, task: Task) -> float:
        """Return the unit of the effects that are stated."""
        return 1.0

    # what follows is the same for all models

    @property
    def objective(self) -> Objective:
        return self

    @property
    def descends(self) -> bool:
        """No: what is trained are sums."""
        return False

    @property
    def judged(self) -> bool:
        """No: a device sums up, and computes no answers, so that it needs no PyTorch."""
        return False

    @property
    def withdraws(self) -> bool:
        """Yes: by the parameters, an edge could choose whose sums fail, and have those of the others."""
        return True

    @property
    def needs(self) -> Needs:
        scopes = frozenset({SUMS})
        return Needs(scopes=scopes, objective=True, pooled=True, sums=True, travel_down="zeros", draws=False)

    @property
    def reveals(self) -> Mapping[str, str]:
        """What others learn from a visit without a secure sum."""
        return {UPDATE: self.sends, RECEIPT: ""}

    def for_task(self, task: Task) -> Objective:
        if task.kind not in self.tasks:
            raise SettingError(
                f"method '{to_spec(self)[0]}' with data.task = '{task.kind}': it answers {' and '.join(self.tasks)}. "
                "Choose another method, or another task.",
                key="combination",
            )
        return self

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        """Return the model as a network, which replaces the experiment's."""
        from fedfloor.methods.exact.network import Summed

        return Summed(self, shape, classes), None

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return the task's mean loss with the gradient −s_k/n_k by the network's sums, and the outputs [n, K]."""
        import torch

        summed: Any = module
        with torch.no_grad():
            out = module(x)
            loss = mean_loss(out, y, visit)
            theta = {name: value.cpu().numpy() for name, value in summed.theta.items()}
            rows = SampleRows(x.double().cpu().numpy(), y.cpu().numpy(), visit.task)
            mean = torch.from_numpy(self.mean_sums(rows, theta, summed.shapes, visit.work.travel)).to(x.device)
        linear = (mean * summed.sums).sum()
        return loss - (linear - linear.detach()), out

    def mean_sums(self, rows: SampleRows, theta: Named, shapes: Shapes, travel: str) -> Floats:
        """Return a device's sums over its samples divided by their number, in one vector that begins with 1.

        Args:
            shapes: those that the sums must have.
            travel: the codecs of the way up.

        Raises:
            SettingError: they are infinite or undefined, have other shapes, or a secure sum would cut them off.
        """
        y = rows.y.astype(np.float64) if np.issubdtype(rows.y.dtype, np.floating) else rows.y
        total: Any = 0.0
        for first in range(0, len(y), BLOCK):
            part = slice(first, first + BLOCK)
            named = self.sums(SampleRows(rows.x[part], y[part], rows.task), theta)
            got = {name: np.shape(value) for name, value in named.items()}
            if got != dict(shapes):
                raise SettingError(
                    f"{type(self).__name__}.sums returned {got}; its shapes are {dict(shapes)}.", key="own-sums"
                )
            total = total + np.concatenate([[float(len(y[part]))], *(np.ravel(named[name]) for name in shapes)])
        mean: Floats = total * (1 / len(y))
        _check(mean, travel)
        return mean

    def layout(self, shape: tuple[int, ...], outputs: int) -> dict[str, tuple[int, int]]:
        """Return the place of each tensor in the flat model: name → (first, last + 1)."""
        theta = self.parameters(shape, outputs)
        sizes = {SUMS: 1 + sum(map(prod, self.shapes(shape, outputs).values())), "about": 1 + len(shape)}
        sizes |= {f"theta.{name}": np.size(theta[name]) for name in sorted(theta)}
        ends = accumulate(sizes.values(), initial=0)
        return dict(zip(sizes, pairwise(ends), strict=True))

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the places of the network's tensors."""
        return State(view.start, {"layout": dict(view.layout), "solved": 0, "done": False, "left": None})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        if state.notes["done"]:
            return Sequence(())
        work = replace(
            STEP.at(view.round, view.rounds, self.objective), trains=SUMS, travel_down=self.needs.travel_down
        )
        visits = Parallel(tuple(Train(device(k), work) for k in view.devices), mix="by_samples")
        handed = Broadcast(tuple(view.devices), f"all but {SUMS}")
        return Sequence((handed, visits)) if state.notes["solved"] else visits

    def noted(self, state: State, plan: Node) -> State:
        """Return the state after a round of a forecast, whose parameters are never final."""
        return replace(state, notes={**state.notes, "solved": state.notes["solved"] + 1})

    def expected(self, rounds: int) -> int:
        return rounds if self.usual is None else min(rounds, self.usual)

    def over(self, state: State) -> bool:
        return bool(state.notes["done"])

    def left(self, state: State) -> float | None:
        return state.notes.get("left")

    def absorb(self, state: State, outcome: Outcome) -> State:
        import torch

        from fedfloor.methods.exact.network import learnt

        answered = sum(receipt.samples for receipt in outcome.receipts if not receipt.lost)
        if not answered or state.notes["done"]:
            return State(outcome.packet, state.notes, state.tensors)
        flat = outcome.packet["w"].clone()
        places = {name: slice(*place) for name, place in state.notes["layout"].items()}
        numbers = {name: flat[place].cpu().numpy().copy() for name, place in places.items()}  # flat is written below
        total, theta = learnt(self, numbers, answered)
        count = float(np.rint(numbers[SUMS][0] * answered))  # masks hide false ones
        if count < answered:
            log.warning("the sums of %d of %d samples arrived: %s", count, answered, FEWER)
        after, done, stated = self._solved(total, count, theta) if count > 0 else (theta, False, {})
        flat[places[SUMS]] = 0.0
        for name, value in after.items():
            flat[places[f"theta.{name}"]] = torch.from_numpy(np.ravel(value)).to(flat)
        left = None if done or count <= 0 else float(np.linalg.norm(self.gradient(total, theta)))
        notes = {**state.notes, "solved": state.notes["solved"] + 1, "done": done, "left": left}
        notes["info"] = {"samples": int(count)}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in stated.items()}
        return State({**outcome.packet, "w": flat}, notes, {**state.tensors, **tensors})

    def _solved(self, total: Named, count: float, theta: Named) -> tuple[Named, bool, Named]:
        """Return what :meth:`solve` and :meth:`stated` do; the parameters as they are where sums have no solution."""
        try:
            after, done = self.solve(total, count, theta)
            stated = self.stated(total, theta, after)
        except np.linalg.LinAlgError as error:
            why = str(error)
        else:
            if all(np.isfinite(value).all() for value in after.values()):
                return after, done, stated
            why = "its numbers would not be finite"
        log.error("the sums of this round have no solution, and the model stays as it is: %s.", why)
        return theta, False, {}


def near(shift: Floats, variance: Floats, theta: Named) -> bool:
    """Return whether sums about a centre give the variance to ten digits or more: the mean is at most 100σ from it.

    In the second round, whose ``center`` is the mean of the first, they do.
    """
    return bool((shift**2 <= FAR * variance).all() or theta["center"].any())


def halved(theta: Named, count: float, *, worse: bool) -> Named | None:
    """Return the parameters with the middle of the last step as weights if this step was too long; otherwise None.

    A value that is worse shows it only if it is of the same samples: where visits are lost, rounds have others, whose
    number tells most of them apart, and steps that are short do not matter.

    Args:
        theta: the parameters, with ``weight``, the ``last`` one, and the ``count`` of samples for which the best value
            so far was computed.
        worse: whether the value at ``weight`` is worse than that one.
    """
    step = np.abs(theta["weight"] - theta["last"]).max(initial=0.0)
    if not worse or count != theta["count"] or step <= SHORT:
        return None
    return {**theta, "weight": (theta["weight"] + theta["last"]) / 2}


def _check(sums: Floats, travel: str) -> None:
    """Check that a device's sums divided by its number of samples are numbers, and that no secure sum cuts them off.

    Raises:
        SettingError: one is infinite or undefined, or larger than the bound of the sum's numbers.
    """
    if not np.isfinite(sums).all():
        raise SettingError(
            "the sums over a device's samples are infinite or undefined: a sensor has infinite or missing values. Set "
            "data.missing, or leave the sensor out.",
            key="not-finite",
        )
    chains.check_sums(float(np.abs(sums).max()), travel)

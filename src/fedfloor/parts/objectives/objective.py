"""The objective of a visit: its contract, and the plain loss of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fedfloor.base.errors import RunError
from fedfloor.parts import fitting
from fedfloor.plan.nodes import Work
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.task import Task

if TYPE_CHECKING:  # methods refer to objectives by name, so that listing methods does not import PyTorch
    from numpy.random import Generator
    from torch import Tensor, nn

    from fedfloor.models.network import Network


class Extractor(Protocol):
    """The layers before the classifier, which are frozen in a visit that trains the classifier alone."""

    @property
    def name(self) -> str:
        """The digest of the extractor's parameters."""
        ...

    @property
    def before(self) -> str:
        """The digest of the extractor to which the device's memory belongs; "" for an empty memory."""
        ...

    @property
    def labels(self) -> Tensor:
        """The classes of the device's present samples, int64 [n]."""
        ...

    def stored(self) -> Tensor:
        """Return the device's present samples as they are stored, [n, *shape]."""
        ...

    def window(self, name: str = "") -> Tensor:
        """Return the features of the device's present samples, [n, D]; by an earlier extractor if it is named."""
        ...

    def of(self, stored: Tensor) -> Tensor:
        """Return the features [n, D] of stored samples [n, *shape]."""
        ...

    def chance(self) -> Generator:
        """Return a random generator keyed by the visit."""
        ...


class SampleLosses(Protocol):
    """A loss per sample that replaces the task's loss."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the losses ℓ_i [n] of logits [n, F] and classes, int64 [n]."""
        ...


@dataclass(frozen=True)
class Visit:
    """The facts that an objective may read during one visit.

    Args:
        start: the flat arrived model, float32 [P]; None without ``needs_start``.
        memory: the device's tensors from earlier visits, by name; empty at first.
        network: the network under training, for objectives that depend on the layout of a flat vector.
        packet: the vectors that arrived beside the model ``w``, by name.
        work: the visit's work: epochs or steps, rate, momentum.
        steps: the number of mini-batches in the whole visit.
        gradient: the function that returns the gradient of the mean cross-entropy over all the device's samples at the
            network's present weights, float32 [trained]; it costs a pass over the samples.
        ready: the result of :meth:`Objective.begin` on arrival.
        per_sample: the rows of :meth:`Objective.per_sample` for the present mini-batch.
        first: the index of the first trained weight in the flat model; known while the device trains.
        extractor: the extractor of a visit on features; see :attr:`Objective.on_features`.
        data: the losses per sample that replace the task's loss; None: plain training.
        task: the task of the model.
    """

    start: Tensor | None
    memory: Mapping[str, Tensor]
    network: Network | None = None
    packet: Mapping[str, Tensor] = field(default_factory=dict)
    work: Work = field(default_factory=Work)
    steps: int = 0
    gradient: Callable[[], Tensor] | None = None
    ready: Mapping[str, Tensor] = field(default_factory=dict)
    per_sample: Mapping[str, Tensor] = field(default_factory=dict)
    first: int = 0
    extractor: Extractor | None = None
    data: SampleLosses | None = None
    task: Task = CLASSIFICATION

    def arrived(self) -> Tensor:
        """Return the flat arrived model, [P].

        Raises:
            RunError: the objective's ``needs_start`` is false.
        """
        if self.start is None:
            raise RunError("the objective reads the arrived model: its 'needs_start' must be true.", key="visit-lacks")
        return self.start

    def frozen(self) -> Extractor:
        """Return the frozen extractor.

        Raises:
            RunError: the visit does not train on features.
        """
        if self.extractor is None:
            raise RunError(
                "the objective reads the frozen extractor: its 'on_features' must be true.", key="visit-lacks"
            )
        return self.extractor

    def resident(self) -> Network:
        """Return the network under training.

        Raises:
            RunError: the visit has no network.
        """
        if self.network is None:
            raise RunError(
                "this objective needs the network under training: Visit(start, memory, network).", key="visit-lacks"
            )
        return self.network


class Objective(Protocol):
    """A device's objective, a frozen dataclass of its settings; the defaults of its methods are plain training."""

    # The minimised function: a loss of a mini-batch and a term of the weights.

    @property
    def needs_start(self) -> bool:
        """Whether :attr:`Visit.start` is read."""
        return False

    @property
    def needs_classes(self) -> bool:
        """Whether it is defined for classification only; experiments with another task are then refused."""
        return False

    @property
    def assumes_sgd(self) -> bool:
        """Whether it interprets a visit's change as the rate times a sum of gradients.

        Work with more than that, :attr:`~fedfloor.plan.nodes.Work.beyond_sgd`, is then refused.
        """
        return False

    @property
    def descends(self) -> bool:
        """Whether visits move the weights by steps along the loss's gradient, so that rate and steps bound them."""
        return True

    @property
    def judged(self) -> bool:
        """Whether a visit states the loss and the accuracy of its training."""
        return True

    @property
    def withdraws(self) -> bool:
        """Whether a visit that fails is lost, with its device's crew, where others' updates are masked with it.

        Otherwise it counts as no change: a sum of which all devices but one add zeros is that one's update.
        """
        return False

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        """Return the values of :attr:`Visit.ready`, which ``loss`` and ``penalty`` read; called once, on arrival."""
        return {}

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return values that do not change while the device trains, one row per sample: {name: [samples, …]}.

        Called once per sample, in a visit's first pass, without gradients; every pass has the values in
        :attr:`Visit.per_sample`.
        """
        return {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (loss [], logits [batch, classes]) of a mini-batch."""
        ...

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return a term that depends on the weights alone, with its gradient ([], [trained]); None without a term.

        The term (such as FedProx's pull) needs no automatic differentiation. The method is called once per
        mini-batch, after ``loss``, with the trained weights, which begin at :attr:`Visit.first` of the model; reported
        losses include the term. The gradient is read before the next call, and never changed.
        """
        return None

    # Other parts and settings.

    @property
    def excludes(self) -> Mapping[str, str]:
        """The traits of methods and settings that it excludes, with reasons: :mod:`fedfloor.parts.fitting`."""
        single = "it sends tensors beside the model or keeps a part of it, which needs a single model. Choose another."
        memory = "the objective's memory would take their place. Choose another objective, or a setting of the method "
        memory += "in which nothing is kept."
        return {
            fitting.OBJECTIVE: "leave it out.",
            **({fitting.COHORTS: single} if self.personal or self.travels else {}),
            **({fitting.REMEMBERS: memory} if self.remembers else {}),
        }

    # The device's memory between visits.

    @property
    def remembers(self) -> bool:
        """Whether the device keeps tensors between visits."""
        return False

    @property
    def personal(self) -> bool:
        """Whether a device is evaluated with its own parameters in the model; see :meth:`arrive`."""
        return False

    def arrive(self, model: Tensor, memory: Mapping[str, Tensor], network: Network) -> None:
        """Put the device's own parameters into the flat model [P], in place, before training or evaluation.

        Args:
            model: the model to change.
            memory: the device's tensors; empty at first.
            network: a network with the layout of the model.
        """
        return

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the tensors that the device keeps until its next visit, given the flat model at the visit's end."""
        return {}

    # Vectors beside the model w.

    @property
    def travels(self) -> tuple[str, ...]:
        """The names of vectors that must travel beside ``w``; the method sets their first values."""
        return ()

    @property
    def counts_equally(self) -> bool:
        """Whether the vectors beside ``w`` are averaged with equal weights."""
        return False

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the vectors that the device sends beside ``w``, by name; omitted vectors are sent as they arrived."""
        return {}

    # Training of the classifier alone, on features instead of samples.

    @property
    def on_features(self) -> bool:
        """Whether it trains the classifier alone, on features that are computed once; see :meth:`features`.

        Its visits have :attr:`Visit.extractor`, and the features that the device keeps refer to that extractor.
        """
        return False

    @property
    def refers(self) -> bool:
        """Whether the device's memory belongs to an extractor, to which the device keeps a reference."""
        return self.on_features and self.remembers

    def features(self, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return the training data of a visit on features: features [n, D] and labels, int64 [n]."""
        extractor = visit.frozen()
        return extractor.window(), extractor.labels

    # Additions to the experiment's network, and the trained part.

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        """Return the network that this objective trains, and the path of its classifier.

        Called once, before training, with the random generator of the initial weights; the module may be changed.

        Args:
            module: the experiment's network.
            classifier: the path of its classifier; None if unknown.
            classes: the number of classes.
            shape: the shape of a sample.

        Raises:
            SettingError: the network does not fit.
        """
        return module, classifier

    def for_task(self, task: Task) -> Objective:
        """Return the objective in its form for a task, which adapts the network."""
        return self

    def trains(self, network: Network) -> slice:
        """Return the trained part of the flat model."""
        return slice(0, network.trained)

    # The computation of a visit.

    @property
    def least_steps(self) -> int:
        """The least number of mini-batches in a visit for which the objective is useful."""
        return 1

    def passes(self, trained: float) -> float:
        """Return the computation of a visit in passes over the device's samples, for its price.

        A training pass counts 1, a forward pass a third (:data:`fedfloor.plan.nodes.FORWARD`).

        Args:
            trained: the number of training passes in the visit.
        """
        return trained


def adapting(task: Task, objective: Objective) -> Callable[..., tuple[nn.Module, str | None]]:
    """Return the function that adapts an experiment's network for training: by the task, then by the objective."""

    def adapt(
        module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        return objective.for_task(task).adapt(*task.around(module, classifier), classes, shape)

    return adapt


def mean_loss(out: Tensor, y: Tensor, visit: Visit) -> Tensor:
    """Return the mean of the task's loss [], or of the losses :attr:`Visit.data`, for outputs [n, K] and targets."""
    return visit.task.losses(out, y, "mean") if visit.data is None else visit.data.losses(out, y).mean()


@dataclass(frozen=True)
class Plain(Objective):
    """The task's mean loss of the mini-batch; for classification F(w) = −(1/b) Σ log softmax(f(x; w))_y."""

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (the task's loss [], or the mean of :attr:`Visit.data`'s losses; outputs [batch, …])."""
        out = module(x)
        return mean_loss(out, y, visit), out

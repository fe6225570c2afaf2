"""The objective of a visit: its contract, and the plain loss of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fedfloor.errors import RunError
from fedfloor.plan.nodes import Work
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.task import Task

if TYPE_CHECKING:  # methods name their objective, and looking at methods does not wait for PyTorch
    from numpy.random import Generator
    from torch import Tensor, nn

    from fedfloor.models.network import Network


class Extractor(Protocol):
    """The layers before the classifier, frozen in a visit that trains the classifier alone."""

    @property
    def name(self) -> str:
        """Digest of its numbers."""
        ...

    @property
    def before(self) -> str:
        """Digest of the extractor with which the device's memory was made; "" where the memory is empty."""
        ...

    @property
    def labels(self) -> Tensor:
        """Classes of the samples that the device holds now, int64 [n]."""
        ...

    def stored(self) -> Tensor:
        """Return the samples that the device holds now as they are stored, [n, *shape]."""
        ...

    def window(self, name: str = "") -> Tensor:
        """Return the features of the device's present samples, [n, D]: by an earlier extractor where one is named."""
        ...

    def of(self, stored: Tensor) -> Tensor:
        """Return the features [n, D] of samples as they are stored, [n, *shape]."""
        ...

    def chance(self) -> Generator:
        """Return a generator keyed by the visit."""
        ...


class SampleLosses(Protocol):
    """A loss of each sample instead of the task's."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return ℓ_i [n] of logits [n, F] and classes int64 [n]."""
        ...


@dataclass(frozen=True)
class Visit:
    """The facts that an objective may read during one visit.

    Args:
        start: the flat model as it arrived, float32 [P]; None without ``needs_start``.
        memory: the device's tensors from earlier visits, by name; empty at first.
        network: the network under training, for objectives that depend on the layout of a flat vector.
        packet: the vectors beside the model ``w`` that arrived, by name.
        work: epochs or steps, rate, momentum.
        steps: mini-batches of the whole visit.
        gradient: computes the gradient of the mean cross-entropy over all the device's samples at the network's
            present weights, float32 [trained]; it costs a pass over the samples.
        ready: the result of :meth:`Objective.begin` on arrival.
        per_sample: the rows of :meth:`Objective.per_sample` for the present mini-batch.
        first: the place of the trained weights in the flat model; known while the device trains.
        extractor: the extractor of a visit on features; see :attr:`Objective.on_features`.
        data: the losses of samples that take the place of the task's; None: plain training.
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
        """Return the flat model as it arrived, [P].

        Raises:
            RunError: the objective does not declare it.
        """
        if self.start is None:
            raise RunError("the objective reads the model as it arrived: its 'needs_start' must be true.")
        return self.start

    def frozen(self) -> Extractor:
        """Return the frozen extractor.

        Raises:
            RunError: the visit is none on features.
        """
        if self.extractor is None:
            raise RunError("the objective reads the frozen extractor: its 'on_features' must be true.")
        return self.extractor

    def resident(self) -> Network:
        """Return the network under training.

        Raises:
            RunError: the visit has none.
        """
        if self.network is None:
            raise RunError("this objective needs the network under training: Visit(start, memory, network).")
        return self.network


class Objective(Protocol):
    """A device's objective, a frozen dataclass of its settings. Most write only ``loss``; the rest is that
    of plain training."""

    # The function that is minimised: a loss of a mini-batch and a term of the weights.

    @property
    def needs_start(self) -> bool:
        """Whether :attr:`Visit.start` is read."""
        return False

    @property
    def needs_classes(self) -> bool:
        """Whether it is defined for classification alone; experiments with another task are then refused."""
        return False

    @property
    def assumes_sgd(self) -> bool:
        """Whether it takes the change of a visit for its rate times sums of gradients; work that is no
        :attr:`~fedfloor.plan.nodes.Work.plain_sgd` is then refused."""
        return False

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        """Return the values for :attr:`Visit.ready` that ``loss`` and ``penalty`` read; called once, on arrival."""
        return {}

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return values that do not change while the device trains, one row per sample: {name: [samples, …]}.

        Called once per sample in a visit's first pass (without gradients), found in :attr:`Visit.per_sample` in every.
        """
        return {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (loss [], logits [batch, classes]) of a mini-batch."""
        ...

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return a term of the weights alone and its gradient ([], [trained]), or None for no such term.

        Such a term (FedProx's pull) needs no automatic differentiation. It is called once per mini-batch, after
        ``loss``, with the weights that are trained, which begin at :attr:`Visit.first` of the model; the losses
        reported include it. The gradient is read before the next call, and never changed.
        """
        return None

    # The device's memory from visit to visit.

    @property
    def remembers(self) -> bool:
        """Whether the device keeps something between visits."""
        return False

    @property
    def personal(self) -> bool:
        """Whether a device's own numbers are part of the model it is evaluated with; see :meth:`arrive`."""
        return False

    def arrive(self, model: Tensor, memory: Mapping[str, Tensor], network: Network) -> None:
        """Put the device's own numbers into the flat model [P], in place, before it is trained or evaluated.

        Args:
            model: changed.
            memory: the device's tensors; empty at first.
            network: a network with the layout of the model.
        """
        return

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the tensors that the device keeps until its next visit, given the flat model at its end."""
        return {}

    # Vectors beside the model w.

    @property
    def travels(self) -> tuple[str, ...]:
        """Names that must travel besides ``w``; the method sets their first values."""
        return ()

    @property
    def counts_equally(self) -> bool:
        """Whether the vectors beside ``w`` are averaged with equal weights."""
        return False

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the vectors that leave the device beside ``w``, by name; an omitted one is sent on as it arrived."""
        return {}

    # Training the classifier alone, on features in the place of samples.

    @property
    def on_features(self) -> bool:
        """Whether it trains the classifier alone, on features that are extracted once; see :meth:`features`.

        Its visits have :attr:`Visit.extractor`, and the features that the device keeps refer to that extractor.
        """
        return False

    @property
    def refers(self) -> bool:
        """Whether the device's memory belongs to its extractor, to which a reference is kept."""
        return self.on_features and self.remembers

    def features(self, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return the training data of a visit on features: [n, D] and labels, int64 [n]."""
        extractor = visit.frozen()
        return extractor.window(), extractor.labels

    # Additions to the experiment's network, and the part that is trained.

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        """Return the network this objective trains, and the path of its classifier, given the experiment's network.

        Called once, before training, with the random numbers of the initial weights; the module may be changed.

        Args:
            module: the experiment's network.
            classifier: path of its classifier; None where it is unknown.
            classes: number of classes.
            shape: shape of one sample.

        Raises:
            SettingError: the network does not fit.
        """
        return module, classifier

    def trains(self, network: Network) -> slice:
        """Return the part of the flat model that is trained."""
        return slice(0, network.trained)

    # The computation of a visit.

    @property
    def least_steps(self) -> int:
        """The fewest mini-batches of a visit for which the objective makes sense."""
        return 1

    def passes(self, trained: float) -> float:
        """Return the number of passes over the device's samples with the computation of a visit, for its price.

        A pass that trains is 1, one that only goes forward a third (:data:`fedfloor.plan.nodes.FORWARD`).

        Args:
            trained: passes that the visit trains for.
        """
        return trained


def adapting(task: Task, objective: Objective) -> Callable[..., tuple[nn.Module, str | None]]:
    """Return the function that adapts an experiment's network for training: by the task, then by the objective."""

    def adapt(
        module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        return objective.adapt(*task.around(module, classifier), classes, shape)

    return adapt


def mean_loss(out: Tensor, y: Tensor, visit: Visit) -> Tensor:
    """Return the mean of the task's loss [], or of the losses :attr:`Visit.data`, for outputs [n, K] and targets."""
    return visit.task.losses(out, y, "mean") if visit.data is None else visit.data.losses(out, y).mean()


@dataclass(frozen=True)
class Plain(Objective):
    """The task's mean loss of the mini-batch; of a classification F(w) = −(1/b) Σ log softmax(f(x; w))_y."""

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (the task's loss [], or the mean of :attr:`Visit.data`'s losses; outputs [batch, …])."""
        out = module(x)
        return mean_loss(out, y, visit), out

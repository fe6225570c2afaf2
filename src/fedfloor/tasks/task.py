"""The contract of a task, such as classification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.tasks.answer import Answer
from fedfloor.tasks.figures import Counts, Predictions

if TYPE_CHECKING:  # settings contain a task, and must be readable without PyTorch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    Rows = NDArray[np.float32]
    Boosted = Callable[[Rows], NDArray[np.float64]]

Reduction = Literal["none", "mean", "sum"]
Calibrate = Literal["park", "device"]


class Task(ABC):
    """The task of a model, a frozen dataclass of its settings.

    Every sample has a *bin*: its class, the range of its number, or whether it is an anomaly. Partitions, drift,
    census, device memory, grouping, selection and the confusion table count bins; losses and metrics use targets.

    Attributes:
        kind: the name of the task in ``[data] task``.
        headline: the default headline metric of a run.
        labelled: whether the user's data need a column of labels.
        offers: a description of its use without labels; empty if it needs labels.
        detects: whether bins are normal and anomaly, and only normal samples are for training.
        promises: the settings that state what thresholds promise, and to whom.
        trained: the settings on which a trained model depends beside its samples.
        of_thresholds: the metric of samples and thresholds, from which :meth:`inside` follows.
    """

    kind: str
    headline: ClassVar[str]
    labelled: ClassVar[bool] = True
    offers: ClassVar[str] = ""
    detects: ClassVar[bool] = False
    promises: ClassVar[tuple[str, ...]] = ()
    trained: ClassVar[tuple[str, ...]] = ()
    of_thresholds: ClassVar[str] = "coverage"

    @property
    def calibrates(self) -> bool:
        """Whether answers need thresholds, computed from held-out training samples."""
        return False

    @property
    def apart(self) -> bool:
        """Whether each device has thresholds of its own, drawn towards those of all, with a shared model, too."""
        return False

    @property
    def share(self) -> float:
        """The share of samples whose scores may not exceed their threshold."""
        return 1.0

    @property
    def promised(self) -> float | None:
        """The share that a new sample is promised; None if thresholds are plain quantiles of held-out samples."""
        return None

    @property
    def ahead(self) -> int:
        """The number of rows after a window that are its targets; 0 for other tasks."""
        return 0

    @property
    def targets(self) -> int:
        """The number of values of a sample's target after :meth:`fitted`; 0 if the target is the bin."""
        return 0

    @property
    def lives(self) -> bool:
        """Whether the settings indicate that targets are remaining lives."""
        return False

    def called(self) -> tuple[str, ...]:
        """Return the names of the predicted quantities: targets, or sensors."""
        return ()

    @property
    def unread(self) -> tuple[int, ...]:
        """The channels of samples that no network reads, because only :meth:`answer` does."""
        return ()

    def in_tables(self, x: NDArray[Any], target: NDArray[Any] | None) -> NDArray[Any]:
        """Return samples as stored [n, *shape], with targets [n, targets], as they are in tables to predict."""
        return x

    @property
    def drafts(self) -> Mapping[str, Any]:
        """The settings of an experiment that a draft proposes instead of trees and networks; empty for none."""
        return {}

    @property
    def wishes(self) -> Mapping[str, str]:
        """The settings that a draft proposes unless they are given, as key → the option's text."""
        return {}

    @property
    def repeats(self) -> Mapping[str, int]:
        """The references that repeat a sensor's earlier value, by name → rows back."""
        return {}

    @property
    def plain(self) -> tuple[str, ...]:
        """The references that need no training."""
        return (*self.repeats,)

    @abstractmethod
    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        """Return the number of outputs of the network for a sample.

        Args:
            bins: F, the number of bins.
            targets: the number of values of a sample's target; 0 if it is the bin.
            shape: the shape of a sample.
        """

    def around(self, module: nn.Module, classifier: str | None) -> tuple[nn.Module, str | None]:
        """Return the module to train, made from an experiment's network, and the path of its classifier."""
        return module, classifier

    @abstractmethod
    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the loss of each sample [n], or their mean or sum [].

        Args:
            out: the network's outputs, [n, outputs].
            y: the targets: bins int64 [n], or numbers float32 [n, targets].
            reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        """

    @abstractmethod
    def predicted(self, out: Tensor) -> Tensor:
        """Return the predicted bin of each sample, int64 [n]."""

    @abstractmethod
    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        """Return whether the bin of each sample is predicted correctly, bool [n]."""

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return the numbers used by metrics in addition to the predicted bins, float32 [n, S]; [n, 0] if none.

        Args:
            out: the network's outputs, [n, outputs].
            y: the targets.
            bins: the bins whose samples are ranked by the headline metric.
        """
        return out.new_zeros((len(out), 0))

    def judged(
        self, table: Counts, loss: float, y: NDArray[Any], scores: NDArray[Any], scored: Sequence[int]
    ) -> Predictions:
        """Return the predictions from which metrics are computed.

        Args:
            table: int64 [F, F], the number of samples with bin i (row) predicted as bin j (column).
            loss: the mean loss.
            y: int64 [n], the bins of the samples.
            scores: [n, S], from :meth:`scores`.
            scored: the bins by which the headline metric ranks samples.
        """
        return Predictions(table, loss)

    @abstractmethod
    def answer(self, out: Tensor, x: Tensor) -> Answer:
        """Return the answer for a person, a machine's control or an ONNX file, in the targets' unit.

        It consists of operations available in ONNX, for any number of samples.

        Args:
            out: the network's outputs, [n, outputs].
            x: the samples as stored, before their scaling, [n, *shape].
        """

    def judge(self, answer: Answer, target: NDArray[Any]) -> Predictions | None:
        """Return predictions for metrics, from answers with known true values; None if there are none.

        Args:
            answer: the answer of n samples, made of arrays.
            target: the true numbers [n, targets].
        """
        return None

    def spelled(self, labels: Sequence[str]) -> Sequence[str]:
        """Return the labels of a table as classes for evaluation."""
        return labels

    def check_fitted(self, bins: int, columns: Sequence[str]) -> None:
        """Refuse settings that cannot result from training samples, because a model's file is not trusted.

        Args:
            bins: F, the number of bins of the model.
            columns: the model's sensors; empty for pictures.

        Raises:
            ValueError: the settings are impossible.
        """
        return

    def bin(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the bins of targets, int64 [N]; targets that are bins are returned unchanged."""
        return targets.reshape(-1).astype(np.int64)

    def fitted(self, targets: NDArray[Any]) -> Task:
        """Return the task with values derived from the training targets [N, targets], such as their scale."""
        return self

    def admits(self, got: Task | None, bins: Sequence[float] | None) -> bool:
        """Return whether the task of all devices, None for classes, is this one of a device's experiment.

        Only what the samples of all devices determine may differ, and it may not single out samples of one.

        Args:
            bins: the edges of ranges that the experiment states.
        """
        return True

    def unboosted(self, targets: int) -> str:
        """Return the reason why :meth:`boosted` cannot fit the task; "" if it can.

        Args:
            targets: the number of values of a sample's target; 0 if it is the bin.
        """
        return f"a task of the kind '{self.kind}' has no target for a fit of trees"

    def boosted(self, rows: Rows, y: NDArray[Any], bins: int, settings: Mapping[str, Any]) -> Boosted:
        """Fit scikit-learn's histogram gradient boosting as a reference; return a function like a network.

        Args:
            rows: float32 [N, C], the samples as a table.
            y: the targets: bins int64 [N], or numbers float32 [N, targets].
            bins: F, the number of bins.
            settings: the settings of scikit-learn's ``HistGradientBoosting…``.

        Returns:
            rows [n, C] → outputs float64 [n, outputs].
        """
        raise NotImplementedError

    def strangeness(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the scores [n, S] of samples whose quantiles are thresholds, each in 2^−40 … 2^40.

        Args:
            out: the network's outputs, [n, outputs].
            y: the targets.
        """
        raise NotImplementedError

    def calibrated(self, thresholds: Sequence[float]) -> Task:
        """Return the task with thresholds [S] of its scores."""
        return self

    def uncalibrated(self, asked: Task) -> Task:
        """Return the task without thresholds, and with what another one of its type promises."""
        return self

    def of_devices(self) -> Task:
        """Return the task with thresholds of each device: see :attr:`apart`."""
        return self

    def inside(self, value: float | None) -> float | None:
        """Return the share of samples within thresholds from the metric :attr:`of_thresholds`; None: unknown."""
        return value

    def describe(self) -> dict[str, Any]:
        """Return the task as JSON: its kind and settings."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

"""The contract of a task, such as classification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.figures import Counts, Predictions
from fedfloor.tasks.answer import Answer

if TYPE_CHECKING:  # settings name a task, and reading them does not wait for PyTorch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    Rows = NDArray[np.float32]
    Boosted = Callable[[Rows], NDArray[np.float64]]

Reduction = Literal["none", "mean", "sum"]


class Task(ABC):
    """A task of models, a frozen dataclass of its settings.

    Every sample has a *bin*: its class, the range that its number lies in, or whether it is an anomaly. Partitions,
    drift, census, device memory, grouping, selection and the confusion table count bins; losses and figures read
    targets.

    Attributes:
        kind: its name in ``[data] task``.
        headline: the figure that a run is judged by where the experiment names none.
        labelled: whether the user's own data need a column of labels.
        offers: its use for data without labels, in words; empty where it needs labels.
        calibrates: whether alarms need a threshold, which held-out training samples give.
    """

    kind: str
    headline: ClassVar[str]
    labelled: ClassVar[bool] = True
    offers: ClassVar[str] = ""
    calibrates: ClassVar[bool] = False

    @property
    def ahead(self) -> int:
        """The number of rows from a window to its targets."""
        return 0

    @property
    def targets(self) -> int:
        """The number of values of a sample's target, once training samples were seen; 0 where the target is a bin."""
        return 0

    @property
    def lives(self) -> bool:
        """Whether targets are remaining lives, as far as settings show."""
        return False

    def called(self) -> tuple[str, ...]:
        """Return the names of the predicted quantities: targets, or sensors."""
        return ()

    @property
    def repeats(self) -> Mapping[str, int]:
        """The references that repeat a sensor's values, by name, and the rows before that."""
        return {}

    @abstractmethod
    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        """Return the number of outputs of the network for a sample.

        Args:
            bins: F.
            targets: numbers that a sample's target has; 0 where it is its bin.
            shape: the shape of a sample.
        """

    def around(self, module: nn.Module, classifier: str | None) -> tuple[nn.Module, str | None]:
        """Return the module of an experiment's network that is trained, and the path of its classifier."""
        return module, classifier

    @abstractmethod
    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the loss of each sample [n], or their mean or sum [].

        Args:
            out: the network's outputs, [n, outputs].
            y: targets: int64 [n] where these are bins, else float32 [n, targets].
            reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        """

    @abstractmethod
    def predicted(self, out: Tensor) -> Tensor:
        """Return the predicted bin of each sample, int64 [n]."""

    @abstractmethod
    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        """Return whether each sample's bin was predicted, bool [n]."""

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return the numbers that metrics read besides the predicted bins, float32 [n, S]; [n, 0] for none.

        Args:
            out: the network's outputs, [n, outputs].
            y: targets.
            bins: the bins whose samples the headline ranks.
        """
        return out.new_zeros((len(out), 0))

    def judged(
        self, table: Counts, loss: float, y: NDArray[Any], scores: NDArray[Any], scored: Sequence[int]
    ) -> Predictions:
        """Return the predictions from which metrics are computed.

        Args:
            table: int64 [F, F], the number of samples of bin i (row) predicted as bin j (column).
            loss: mean loss.
            y: int64 [n], the samples' bins.
            scores: [n, S], those of :meth:`scores`.
            scored: bins by which the headline ranks the samples.
        """
        return Predictions(table, loss)

    @abstractmethod
    def answer(self, out: Tensor, x: Tensor) -> Answer:
        """Return the answer for a person, a machine's control or an ONNX file, in the targets' unit.

        It is made of operations that ONNX has, on any number of samples.

        Args:
            out: the network's outputs, [n, outputs].
            x: the samples as they went into the network, [n, *shape].
        """

    def judge(self, answer: Answer, target: NDArray[Any]) -> Predictions | None:
        """Return the predictions for metrics, from answers whose truth is known; None without any.

        Args:
            answer: the answer of n samples, made of arrays.
            target: the true numbers [n, targets].
        """
        return None

    def spelled(self, labels: Sequence[str]) -> Sequence[str]:
        """Return a table's labels as the classes that a model is judged by."""
        return labels

    def check_fitted(self, bins: int, columns: Sequence[str]) -> None:
        """Refuse settings that no training samples can have given: a model's file may come from anywhere.

        Args:
            bins: F of the model.
            columns: its sensors; none where samples are pictures.

        Raises:
            ValueError: so it is.
        """
        return

    def bin(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the bins of targets, int64 [N]; where these are bins, themselves."""
        return targets.reshape(-1).astype(np.int64)

    def fitted(self, targets: NDArray[Any]) -> Task:
        """Return the task with facts of the training samples' targets [N, targets], such as their scale."""
        return self

    def unboosted(self, targets: int) -> str:
        """Return the reason why :meth:`boosted` cannot fit the task; "" where it can.

        Args:
            targets: numbers that a sample's target has; 0 where it is its bin.
        """
        return f"a task of the kind '{self.kind}' has no target that trees could be fitted to"

    def boosted(self, rows: Rows, y: NDArray[Any], bins: int, settings: Mapping[str, Any]) -> Boosted:
        """Fit histogram gradient boosting of scikit-learn, as a reference, and return outputs like a network's.

        Args:
            rows: float32 [N, C], the samples as a table.
            y: their targets: int64 [N] where these are bins, else float32 [N, targets].
            bins: F.
            settings: the settings of scikit-learn's ``HistGradientBoosting…``.

        Returns:
            rows [n, C] → outputs float64 [n, outputs].
        """
        raise NotImplementedError

    def calibrated(self, threshold: float) -> Task:
        """Return the task with a threshold of its scores."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return the task as JSON: its kind and settings."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

"""A device's visits for models that are sums, in NumPy: such a device never loads PyTorch.

Its numbers are those of :class:`fedfloor.deploy.worker.Worker` to the bit. That worker, with PyTorch, takes every
request that is not such a visit: questions, secure sums, streams, and whatever is to be refused.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import names as names_of
from fedfloor.deploy.message import Message, Reply, digest_of
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.own import Sensed
from fedfloor.experiment import Experiment
from fedfloor.methods import bounds
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.exact.rows import Floats, SampleRows
from fedfloor.methods.exact.sums import SUMS, ExactSums
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.objectives import registry as objectives
from fedfloor.plan.nodes import WHOLE, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.runs import privacy

OTHERS = f"all but {SUMS}"  # the part of a model that is kept between visits


class Replies(Protocol):
    """What serves requests: a :class:`~fedfloor.deploy.worker.Worker`."""

    def reply(self, message: Message) -> Reply:
        """Return the answer to a request."""
        ...


def suits(experiment: Experiment, method: ConfiguredMethod, park: Park) -> bool:
    """Return whether visits of an experiment are sums in the clear over samples that stay the same."""
    plain = not privacy.on_devices(method) and not method.parts.travel and not method.needs.clock
    still = park.stream.kind == "static" and not isinstance(park, Sensed)
    return isinstance(method.method, ExactSums) and plain and still and experiment.model.init_from is None


class SumsWorker:
    """What sums up a device's samples.

    Args:
        experiment: the device's copy of the experiment, which :func:`suits`.
        otherwise: makes the worker of all other requests.
    """

    def __init__(
        self, device: int, experiment: Experiment, method: ConfiguredMethod, names: PartNames, park: Park,
        otherwise: Callable[[], Replies],
    ) -> None:  # fmt: skip
        if not isinstance(method.method, ExactSums):
            raise TypeError(f"{type(method.method).__name__} does not sum up samples.")
        self.device = device
        self.park = park
        self._seed = experiment.seed
        self._normalise = experiment.data.normalise
        self._method = method
        self._names = names
        self._otherwise = otherwise
        self._other: Replies | None = None
        data = park.dataset
        self._layout = method.method.layout(data.shape, data.outputs)
        self._size = max(last for _, last in self._layout.values())
        self._digest = digest_of(self._layout, np.dtype(np.float64))
        self._held: Floats | None = None  # the last model that arrived, as a later message has only its sums

    def reply(self, message: Message) -> Reply:
        """Return the answer to a request; errors as of :meth:`fedfloor.deploy.worker.Worker.reply`."""
        about = message.about
        mine = about.get("device") == self.device and about.get("layout") in (None, self._digest)
        if mine and type(about.get("trained")) is int and about.get("held") is None and self._other is None:
            if message.kind == "keep" and message.scope in ("all", OTHERS):
                arrived = self._arrived(message)
                self._held = self._held if arrived is None else arrived
                if arrived is not None:
                    return "kept", {}, {}
            if message.kind == "visit" and (work := self._work(message)) is not None:
                return self.visit(message, work)
        if self._other is None:
            self._other = self._otherwise()
        return self._other.reply(message)

    def visit(self, message: Message, work: Work) -> Reply:
        """Return the sums over the device's samples at the parameters of a message, and the receipt.

        Raises:
            SettingError: the sums are no numbers.
        """
        about = message.about
        arrived = self._held if message.scope == SUMS else self._arrived(message)
        if arrived is None or (message.scope == SUMS and self._rest(arrived) != about.get("rest")):
            return "lacks", {}, {}
        self._held = arrived
        key = Key(self._seed, message.round, int(about["tick"]), self.device, int(about["visit"]))
        began = time.perf_counter()
        model: Any = objectives.objective(work.objective, work.settings)
        x, y = self.park.held(self.device, key.tick, 0)
        order, _ = next(batch_order(len(y), work.batch_size, work.epochs, work.steps, key.rng("batches")))
        data = self.park.dataset
        theta = {
            name: arrived[slice(*self._layout[f"theta.{name}"])].reshape(value.shape)
            for name, value in model.parameters(data.shape, data.outputs).items()
        }
        rows = SampleRows(self._values(x, order), y[order], data.task)
        mean = model.mean_sums(rows, theta, model.shapes(data.shape, data.outputs), work.travel)
        receipt = Receipt(self.device, key.visit, key.tick, 1, len(y), None, None, None, 0, lost=False)
        sent = mean if message.scope == SUMS else np.concatenate([mean, arrived[len(mean) :]])
        return "update", {"receipt": receipt.row(), "seconds": time.perf_counter() - began}, {"w": sent}

    def _work(self, message: Message) -> Work | None:
        """Return the work of a visit that this worker can do; None for another one, and one that is to be refused."""
        try:
            work = names_of.work(message.about.get("work"), self._names)
        except RefusedError:
            return None
        usual = work.only("objective", "settings", "epochs", "batch_size", "rate", "trains", "travel_down")
        usual = usual and (work.epochs, work.batch_size, work.rate, work.trains) == (1, WHOLE, 1.0, SUMS)
        if not usual or message.about.get("sum") is not None:
            return None
        if not isinstance(objectives.objective(work.objective, work.settings), ExactSums):
            return None
        if bounds.excess(work, self._method, int(self.park.holdings[self.device])):
            return None
        sums = message.scope == SUMS and message.arrays["w"].size == 0 and message.arrays["w"].dtype == np.uint8
        return work if sums or (message.scope == "all" and self._arrived(message) is not None) else None

    def _arrived(self, message: Message) -> Floats | None:
        """Return the model [P] of a message, with sums of 0; None if it has another form."""
        numbers = message.arrays.get("w")
        first = self._layout[SUMS][1]
        size = self._size - first * (message.scope == OTHERS)
        if set(message.arrays) != {"w"} or numbers is None:
            return None
        if numbers.shape != (size,) or numbers.dtype != np.float64:
            return None
        return np.concatenate([np.zeros(self._size - size), numbers])

    def _rest(self, model: Floats) -> str:
        """Return the digest of a model without its sums, as :meth:`fedfloor.models.parcel.Parcel.rest`."""
        first = self._layout[SUMS][1]
        return hashlib.sha256(model[first:].data).hexdigest()

    def _values(self, x: NDArray[Any], order: NDArray[np.int64]) -> Floats:
        """Return samples in an order, normalised as :class:`fedfloor.engine.engine.Samples` does."""
        data = self.park.dataset
        form = (1, -1, *(1,) * (x.ndim - 2))
        mean, std = (one.reshape(form) for one in mean_and_deviation(self.park, self._normalise))
        taken = x[order]
        factor = data.scale / std
        if not mean.any():
            values = taken * factor
        elif np.issubdtype(x.dtype, np.floating):
            values = (taken - mean / data.scale) * factor
        else:
            values = taken * factor + -mean / std
        return np.where(np.isnan(values), 0.0, values) if data.inputs.holes else values

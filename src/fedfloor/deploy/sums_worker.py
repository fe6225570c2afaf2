"""A device's visits for models that are sums, in NumPy: such a device never loads PyTorch.

Its numbers are those of :class:`fedfloor.deploy.worker.Worker` to the bit, in the clear and masked. That worker, with
PyTorch, takes every request that is not such a visit: questions, streams, and whatever is to be refused.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.outside import reason
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import names as names_of
from fedfloor.deploy.checks import STAGES, printable, worth_a_line
from fedfloor.deploy.device_sum import DeviceSum
from fedfloor.deploy.message import Message, Reply, digest_of
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.own import Sensed
from fedfloor.deploy.own_work import OwnWork
from fedfloor.engine.summand import WithdrawnError, withdraws
from fedfloor.experiment import Experiment
from fedfloor.methods import bounds
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.exact.rows import Floats, SampleRows
from fedfloor.methods.exact.sums import SUMS, ExactSums
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.travel import chains
from fedfloor.plan.nodes import WHOLE, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.runs import privacy

log = logging.getLogger(__name__)

OTHERS = f"all but {SUMS}"  # the part of a model that is kept between visits


class Replies(Protocol):
    """What serves requests: a :class:`~fedfloor.deploy.worker.Worker`."""

    def reply(self, message: Message) -> Reply:
        """Return the answer to a request."""
        ...


def suits(experiment: Experiment, method: ConfiguredMethod, park: Park) -> bool:
    """Return whether visits of an experiment are sums, in the clear or secure, over samples that stay the same."""
    travel = method.parts.travel or ""
    plain = chains.secure(travel) if travel else not privacy.on_devices(method)
    plain = plain and not privacy.by_visits(method) and not method.needs.clock
    still = park.stream.kind == "static" and not isinstance(park, Sensed)
    return isinstance(method.method, ExactSums) and plain and still and experiment.model.init_from is None


class SumsWorker:
    """What sums up a device's samples.

    Args:
        experiment: the device's copy of the experiment, which :func:`suits`.
        otherwise: makes the worker of all other requests.
        sums: the device's part in secure sums; None where its experiment has none.
    """

    def __init__(
        self, device: int, experiment: Experiment, method: ConfiguredMethod, names: PartNames, park: Park,
        otherwise: Callable[[], Replies], sums: DeviceSum | None = None,
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
        own = method, experiment.rounds, park, device, dict, self._layout[SUMS][1], self._layout
        self._sum = sums
        self._own_work = None if sums is None else OwnWork(*own)
        self._failed = 0  # visits whose sums are no numbers, or too large
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
            if message.kind in STAGES and self._sum is not None:
                return "answer", self._sum.reply(message.kind, about.get("sum")), {}
            if message.kind == "visit" and (work := self._work(message)) is not None:
                return self.visit(message, work)
        if self._other is None:
            self._other = self._otherwise()
        return self._other.reply(message)

    def visit(self, message: Message, work: Work) -> Reply:
        """Return the sums over the device's samples at the parameters of a message, masked or not, and the receipt.

        Raises:
            RefusedError: the work is not the device's own, or its update could be read from the secure sum.
            SettingError: the sums are no numbers.
        """
        about = message.about
        if self._own_work is not None:
            self._own_work.check(work, message.round)
        arrived = self._held if message.scope == SUMS else self._arrived(message)
        if arrived is None or (message.scope == SUMS and self._rest(arrived) != about.get("rest")):
            return "lacks", {}, {}
        self._held = arrived
        key = Key(self._seed, message.round, int(about["tick"]), self.device, int(about["visit"]))
        size = self._layout[SUMS][1]
        part = self._names.resolve(about.get("sum"))
        if self._sum is not None and self._own_work is not None:
            self._sum.state = (None,)  # as Worker.chosen: no memory, and samples that stay
            self._sum.at_once = self._own_work.at_once
            self._sum.standing(size, work, part, key, message.run)
            self._sum.attempt(work, arrived, key)
        began = time.perf_counter()
        mean, samples = self._mean(work, arrived, key)
        receipt = Receipt(self.device, key.visit, key.tick, 1, samples, None, None, None, 0, lost=False)
        sent: NDArray[Any] = mean if message.scope == SUMS else np.concatenate([mean, arrived[size:]])
        if self._sum is not None:
            sent, receipt = self._sum.masked(work, arrived, mean, size, receipt, part, key, message.run)
        return "update", {"receipt": receipt.row(), "seconds": time.perf_counter() - began}, {"w": sent}

    def _mean(self, work: Work, arrived: Floats, key: Key) -> tuple[Floats, int]:
        """Return the sums over the device's samples divided by their number, and this number.

        Where they are masked, an error would state in the clear what may depend on samples: such a visit is lost with
        the device's crew or, with noise in place of crews, adds zeros; the device's own log alone says why.

        Raises:
            SettingError: the sums are no numbers, and not masked.
            WithdrawnError: they are no numbers, or too large, and there are crews.
        """
        model: Any = objectives.objective(work.objective, work.settings)
        x, y = self.park.held(self.device, key.tick, 0)
        order, _ = next(batch_order(len(y), work.batch_size, work.epochs, work.steps, key.rng("batches")))
        data = self.park.dataset
        theta = {
            name: arrived[slice(*self._layout[f"theta.{name}"])].reshape(value.shape)
            for name, value in model.parameters(data.shape, data.outputs).items()
        }
        rows = SampleRows(self._values(x, order), y[order], data.task)
        try:
            mean: Floats = model.mean_sums(rows, theta, model.shapes(data.shape, data.outputs), work.travel)
        except (Exception, SystemExit) as error:  # a user's own code may raise anything
            if self._sum is None:
                raise
            self._failed += 1
            lost = withdraws(work)
            if worth_a_line(self._failed):
                text = "is lost with its crew" if lost else "counts as no change"
                log.error("this visit %s (%d so far): %s", text, self._failed, printable(reason(error)))
            if lost:
                raise WithdrawnError(reason(error)) from error
            mean = np.zeros(self._layout[SUMS][1])
        return mean, len(y)

    def _work(self, message: Message) -> Work | None:
        """Return the work of a visit that this worker can do; None for another one, and one that is to be refused."""
        try:
            work = names_of.work(message.about.get("work"), self._names)
        except RefusedError:
            return None
        usual = work.only("objective", "settings", "epochs", "batch_size", "rate", "trains", "travel", "travel_down")
        usual = usual and (work.epochs, work.batch_size, work.rate, work.trains) == (1, WHOLE, 1.0, SUMS)
        if not usual or work.travel != (self._method.parts.travel or ""):
            return None
        if self._sum is None and message.about.get("sum") is not None:
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

"""The eight kinds of nodes of a plan, the sites at which they take place, and the work of visits.

A method does not carry out a round, but describes it as a tree of these nodes, which engines, prices and drawings
interpret. All nodes are frozen dataclasses of JSON scalars and other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property
from typing import Any, Literal

from fedfloor.base.errors import SettingError

Scalar = str | int | float | bool | None
LEAST_LOSS = "least_loss"  # the selection policy that reads the round's answers to "losses"
BLIND = frozenset({"everyone", "uniform", LEAST_LOSS})  # selection policies that need no census
MODEL = "w"  # the name of a packet's model; further models are w/1, w/2, …
KEEP = "keep"  # the rule of a Parallel whose branches keep a model each

TRAVEL = ("travel", "travel_down")  # fields of a work that do not affect training; a Parallel has them, too
BUT = "all but "
LEAST_RATE = 1e-30  # as which a rate of 0 counts in :meth:`Work.reach`
WHOLE = 2**31 - 1  # batch_size of work that takes all samples of a device at once
ARRIVED = "arrived"  # value of ``sends`` for a visit that trains a model beside the arrived one
FORWARD = 1 / 3  # share of a training pass: the backward pass takes about twice the cycles of the forward pass


def only(part: Any, *names: str) -> bool:
    """Return whether every field of a node or a work that differs from its default is among ``names``.

    A fast path names the fields that it implements and leaves any other work to the general path. A field that is added
    later is then handled there, and never ignored. A field without a default has to be named.

    Args:
        part: a node, or a work.
        names: fields.

    >>> ring = Parallel((), mix="equal")
    >>> only(ring, "children", "mix"), only(ring, "children")
    (True, False)
    """
    for name, default in _defaults(part.__class__, *names):  # noqa: SIM110  (all() takes three times as long)
        if getattr(part, name) != default:
            return False
    return True


@cache
def _defaults(kind: type[Any], *names: str) -> tuple[tuple[str, object], ...]:
    """Return a class's fields outside of ``names`` with their defaults; MISSING equals no value of a field."""
    rest = [f for f in fields(kind) if f.name not in names]
    return tuple((f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in rest)


@dataclass(frozen=True, slots=True)
class Site:
    """A place at which a packet can be: the cloud, a factory's edge, or a device.

    >>> str(device(17)), str(edge(3)), str(CLOUD)
    ('device:17', 'edge:3', 'cloud')
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return "cloud" if self.kind == "cloud" else f"{self.kind}:{self.index}"


CLOUD = Site("cloud")


def edge(factory: int) -> Site:
    """Return the site of a factory's edge (numbered from 0)."""
    return Site("edge", int(factory))


def device(number: int) -> Site:
    """Return the site of a device (numbered from 0 over the whole park)."""
    return Site("device", int(number))


def model_name(number: int) -> str:
    """Return the name of a packet's model by its number.

    >>> model_name(0), model_name(1)
    ('w', 'w/1')
    """
    return f"{MODEL}/{number}" if number else MODEL


@dataclass(frozen=True)
class Work:
    """The work of a visit: stochastic gradient descent on an objective, or Adam.

    Exactly one of ``epochs`` and ``steps`` is set. With rate η and momentum β a step is v ← βv + ∇, w ← w − ηv, v = 0
    at the visit's start. :func:`fedfloor.engine.steps.stepper` gives the steps of the other optimisers.

    Args:
        objective: the name of the objective that the device minimises.
        epochs: passes over the device's data.
        steps: the number of mini-batches, which are shuffled again after every pass.
        batch_size: the number of samples in a mini-batch; the last mini-batch of a pass may be smaller.
        rate: the learning rate η.
        factors: by what η is multiplied in parts of the model, as the text of :func:`factors_text`; "": nowhere.
        momentum: β in [0, 1) of SGD.
        weight_decay: added to the gradient as weight_decay·w; AdamW subtracts rate·weight_decay·w from the weights.
        trains: the name of the trained part of the model (:meth:`fedfloor.models.network.Network.numbers`): ``all``,
            ``head`` (or ``classifier``), ``body``, or patterns, joined by +, of the names of adjacent tensors;
            the rest, statistics included, does not change.
        settings: the objective's own settings, such as FedProx's μ.
        optimizer: the optimiser of the steps.
        beta1, beta2, eps: for Adam and AdamW, the decay of the mean gradient and of its mean square, in [0, 1), and the
            number added to the root of the latter.
        moments: whether momentum and Adam's means begin at 0 in every ``visit``, or are kept by the ``device``.
        clip_norm: the norm to which a mini-batch's gradient is clipped; None: no clipping.
        sends: the name of the part of the model that travels to the visit and back. By default it is the trained part,
            and the rest of the model is the same on every device. If it is named (``body``, ``all but norms``,
            ``nothing``), the rest is the device's own: the device's next such visit starts from it, and the arrived
            rest is passed on unchanged. With ``arrived`` the whole arrived model is passed on unchanged, and the visit
            trains the device's own model beside it.
        sample_clip: C, the norm to which every sample's gradient is clipped, for differentially private SGD
            (:func:`fedfloor.engine.private.train_private`); None: plain mini-batches.
        sample_noise: z, the standard deviation of its noise in units of C.
        travel: the text of the codecs of the model that the visit sends: :func:`fedfloor.parts.travel.chains.chain`.
        travel_down: the text of the codecs of the model on its way to the visit.
    """

    objective: str = "plain"
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 32
    rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    trains: str = "all"
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    moments: Literal["visit", "device"] = "visit"
    clip_norm: float | None = None
    sends: str = ""
    sample_clip: float | None = None
    sample_noise: float = 0.0
    travel: str = ""
    travel_down: str = ""
    factors: str = ""

    @property
    def travels(self) -> str:
        """The part of the model that travels to a visit and from it.

        >>> Work(trains="classifier").travels, Work(sends="body").travels, Work(sends="arrived").travels
        ('classifier', 'body', 'all')
        """
        return "all" if self.sends == ARRIVED else self.sends or self.trains

    @property
    def own(self) -> str:
        """The part of the model that is the device's own; "" without one.

        >>> Work().own, Work(sends="all but head").own, Work(sends="body").own, Work(sends="nothing").own
        ('', 'head', 'all but body', 'all')
        """
        if self.sends in ("", "nothing", ARRIVED):
            return "all" if self.sends else ""
        return self.sends[len(BUT) :] if self.sends.startswith(BUT) else f"{BUT}{self.sends}"

    @property
    def borrows(self) -> bool:
        """Whether a part of the model neither travels nor is the device's own, and so is the same on every device."""
        return not self.sends and self.trains != "all"

    @property
    def counts(self) -> bool:
        """Whether the visit has its own number.

        The training of a model beside the arrived one has none: it belongs to the device's next visit, with the same
        samples and mini-batches.
        """
        return self.sends != ARRIVED

    def batches(self, samples: int) -> int:
        """Return the number of mini-batches in a visit to a device with ``samples`` samples.

        >>> Work(epochs=2, batch_size=32).batches(70)
        6
        """
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * -(-samples // self.batch_size)

    def passes(self, samples: float) -> float:
        """Return the number of passes of a visit over ``samples`` samples: its epochs, or steps · batch size / samples.

        >>> Work(epochs=2).passes(70), Work(steps=3, batch_size=20).passes(30)
        (2.0, 2.0)
        """
        return float(self.epochs or 0) if self.steps is None else self.steps * self.batch_size / samples

    @property
    def keeps_moments(self) -> bool:
        """Whether the device keeps its optimiser's moments between visits."""
        return self.moments == "device" and (self.optimizer != "sgd" or self.momentum > 0)

    @property
    def beyond_sgd(self) -> str:
        """The setting by which a visit's change is not the rate times a sum of gradients; "" if it is.

        >>> Work(clip_norm=1.0).beyond_sgd, Work(momentum=0.9).beyond_sgd
        ('work.clip_norm = 1.0', '')
        """
        beyond = {
            "optimizer": self.optimizer != "sgd",
            "clip_norm": self.clip_norm is not None,
            "sample_clip": self.sample_clip is not None,
            "moments": self.keeps_moments,
            "factors": bool(self.factors),
        }
        return next((f"work.{name} = {getattr(self, name)!r}" for name, given in beyond.items() if given), "")

    @property
    def fastest(self) -> float:
        """The rate of the fastest part of the model, of at least ``rate``; SettingError: factors are malformed."""
        return self.rate * max((1.0, *factors_of(self.factors).values()))

    def reach(self, samples: int) -> float:
        """Return how far a visit to a device with ``samples`` samples can go, in its gradients' units: rate · steps.

        It follows from the work, and is no claim of a device. The rate is that of the fastest part of the model; a rate
        of 0 counts as one that can be divided by.

        >>> Work(epochs=2, batch_size=32, rate=0.5).reach(70), Work(steps=1, rate=0.5, factors="head 4.0").reach(70)
        (3.0, 2.0)
        """
        return max(self.fastest, LEAST_RATE) * max(1, self.batches(samples))

    def to_spec(self) -> dict[str, Any]:
        """Return the fields for a plan's JSON, without later additions that have their defaults.

        ``trains`` is written as ``scope``, and ``sends`` as the part that the device owns, as in the first plans.

        >>> sorted(Work(epochs=1, clip_norm=1.0).to_spec().keys() - Work(epochs=1).to_spec().keys())
        ['clip_norm']
        """
        spec = {name: value for name, value in vars(self).items() if name not in _LATER or value != _LATER[name]}
        spec["scope"] = spec.pop("trains")
        if self.sends and self.sends != ARRIVED:
            spec.pop("sends")
            spec["own"] = self.own
        return spec

    @staticmethod
    def fields(spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's fields from the result of :meth:`to_spec`; unknown entries do not change.

        >>> Work.fields({"epochs": 1, "scope": "all", "own": "head"})
        {'epochs': 1, 'trains': 'all', 'sends': 'all but head'}
        """
        values = {"trains" if name == "scope" else name: value for name, value in spec.items()}
        if spec.get("sends") in (True, False):  # the form of plans before work had an own part
            values["sends"] = "" if spec["sends"] else "nothing"
        if isinstance(spec.get("own"), str):
            values["sends"] = keeping(values.pop("own"))
        return values

    def only(self, *names: str) -> bool:
        """Return whether every field that differs from its default is among ``names``: see :func:`only`.

        >>> Work(steps=1, rate=0.1).only("steps", "rate"), Work(steps=1, momentum=0.9).only("steps", "rate")
        (True, False)
        """
        return only(self, *names)


def factors_text(factors: Mapping[str, float]) -> str:
    """Return factors by the name of a part of the model as a text, as messages carry numbers and texts alone.

    >>> factors_text({"all but head": 0.1, "head": 2})
    'all but head 0.1; head 2.0'
    """
    return "; ".join(f"{name} {float(factor)!r}" for name, factor in factors.items())


def factors_of(text: str) -> dict[str, float]:
    """Return the factors in the text of :func:`factors_text`; SettingError: it is no such text.

    >>> factors_of("all but head 0.1; head 2.0"), factors_of("")
    ({'all but head': 0.1, 'head': 2.0}, {})
    """
    factors: dict[str, float] = {}
    for entry in text.split("; ") if text else ():
        name, _, number = entry.rpartition(" ")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not name or ";" in name or name in factors or not 0 <= factor < math.inf:
            raise SettingError(f"factors = {text!r:.80}: must be names with numbers of at least 0, such as 'head 2.0'.")
        factors[name] = factor
    return factors


def keeping(own: str) -> str:
    """Return the part that a visit sends if ``own`` remains on its device: see :attr:`Work.sends`.

    >>> keeping("head"), keeping("all"), keeping("all but body"), keeping("")
    ('all but head', 'nothing', 'body', '')
    """
    if own in ("", "all"):
        return own and "nothing"
    return own[len(BUT) :] if own.startswith(BUT) else f"{BUT}{own}"


# later fields of Work, omitted with their defaults so that the hashes of older plans do not change
_ADDED = ("sends", "optimizer", "beta1", "beta2", "eps", "moments", "clip_norm", "sample_clip", "sample_noise",
          *TRAVEL, "factors")  # fmt: skip
_LATER = {f.name: f.default for f in fields(Work) if f.name in _ADDED}


def forward_cost(passes: float) -> float:
    """Return the computation of a forward pass over the samples of a visit, in training passes.

    >>> forward_cost(5.0), forward_cost(0.3)
    (0.3333333333333333, 0.09999999999999999)
    """
    return FORWARD * min(1.0, passes)


@dataclass(frozen=True)
class Radio:
    """The channel and transmit power (dBm) given to a visit's upload."""

    channel: int
    power_dbm: float


@dataclass(frozen=True)
class Train:
    """A visit: the packet goes to ``site``, and its model is trained there by ``work``."""

    site: Site
    work: Work
    radio: Radio | None = None


class Tupled:
    """A node of several children or devices, which may be given as a list or a generator."""

    def __post_init__(self) -> None:
        for name in ("children", "candidates", "devices"):
            if isinstance(given := getattr(self, name, ()), list | Iterator):
                object.__setattr__(self, name, tuple(given))


@dataclass(frozen=True)
class Sequence(Tupled):
    """A chain: the packet passes from one child to the next."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Parallel(Tupled):
    """Parallel branches: each child gets a copy of the model, and the rule ``mix`` aggregates the results at ``at``.

    With ``mix = "keep"`` there is no aggregation: the children are nodes with a ``model`` each, and all models return.
    A device that several children visit takes its visits in the children's order.

    Args:
        children: the branches, one per copy.
        at: the site of the aggregation.
        mix: the mixing rule.
        settings: the rule's own settings, such as the share that a trimmed mean leaves out.
        model: the name (:func:`model_name`) of the packet's model that is sent and replaced, the only one of several.
        travel: the text of the codecs of models that return from edges at which branches end.
        travel_down: the text of the codecs of the model on its way to these edges.
    """

    children: tuple[Node, ...]
    at: Site = CLOUD
    mix: str = "by_samples"
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    model: str = MODEL
    travel: str = ""
    travel_down: str = ""


@dataclass(frozen=True)
class Repeat:
    """A repetition of the child; each of ``times`` turns advances the park's clock by a tick if ``tick`` is true."""

    times: int
    child: Node
    tick: bool = True


@dataclass(frozen=True)
class Select(Tupled):
    """A selection of devices when the walk arrives: it becomes ``Parallel(Train(d, work) for d in selected)``.

    Random draws are keyed by the number of a device's visits so far in the round. Branches of a ``Parallel`` select
    independently. If two branches may visit the same device in the same tick, their visits have the same random draws
    (mini-batches, dropout, loss of the visit), and equal branches select the same devices. Give such branches different
    candidates, or put them one after the other.

    Args:
        policy: the selection policy; ``least_loss``: the devices whose last answer to ``losses`` is the least for this
            model.
        candidates: the devices to select from.
        how_many: the number of selected devices.
        work: the work of each selected device.
        at, mix, settings, model: the aggregation, as in :class:`Parallel`.
        random: the number of the ``how_many`` devices that are drawn uniformly, before the rest are selected.
        share: the target class shares [F] of all selected devices' samples, for policies that read the census.
        census_free: whether the bytes of the census that the policy reads are not counted.
    """

    policy: str
    candidates: tuple[int, ...]
    how_many: int
    work: Work
    at: Site = CLOUD
    mix: str = "by_samples"
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    random: int = 0
    share: tuple[float, ...] = ()
    census_free: bool = False
    model: str = MODEL

    @property
    def reads_census(self) -> bool:
        """Whether the policy reads the census of the candidates."""
        return self.policy not in BLIND

    @cached_property
    def census(self) -> Probe | None:
        """The question for the census; None if the policy reads none, or its bytes are not counted."""
        return Probe(self.candidates, "census", self.at) if self.reads_census and not self.census_free else None

    @cached_property
    def visit(self) -> Mapping[int, Train]:
        """The visit to each candidate, built once, as a node may select repeatedly."""
        return {k: Train(device(k), self.work) for k in self.candidates}


@dataclass(frozen=True)
class Broadcast(Tupled):
    """A transfer of the part ``scope`` of the model to devices that only keep it; costs bytes and changes no model."""

    devices: tuple[int, ...]
    scope: str = "all"


@dataclass(frozen=True)
class Probe(Tupled):
    """A question, named ``what``, to each device; the answers return to ``at`` by device and are not aggregated.

    ``settings`` are the question's own settings, such as the number of hashes that a device returns.
    """

    devices: tuple[int, ...]
    what: str
    at: Site = CLOUD
    settings: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Since:
    r"""The child, carried out from an earlier global model, with its result moved to the present one.

    With w the present model, v the earlier one and u the child's result, the result is w + s·(u − v) if the
    ``change`` counts, and w + s·(u − w) if the ``model`` does. Only the model moves; a child whose visits are all lost
    leaves the packet unchanged. Random draws of the child are those of the round of its departure, ``version`` + 1, so
    that its result does not depend on when it arrives.

    Args:
        version: the number of the round whose global model the child starts from; 0: the initial model.
        child: what is carried out.
        weight: s, such as a function of the age of the version.
        counts: what is moved to the present model.
        tick: the tick at which the child departed, which determines the samples that its devices then held.
    """

    version: int
    child: Node
    weight: float = 1.0
    counts: Literal["change", "model"] = "change"
    tick: int = 0


Node = Train | Sequence | Parallel | Repeat | Select | Broadcast | Probe | Since

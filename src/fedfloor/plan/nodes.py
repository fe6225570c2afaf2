"""The seven kinds of nodes of a plan, the sites that they name, and the work done there.

A method does not do a round, it writes it down as a tree of these nodes; engines, prices and drawings interpret the
tree. All are frozen dataclasses of JSON scalars and other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property
from typing import Any, Literal

Scalar = str | int | float | bool | None
LEAST_LOSS = "least_loss"  # the policy that reads the round's answers to "losses"
BLIND = frozenset({"everyone", "uniform", LEAST_LOSS})  # policies that need no census
MODEL = "w"  # the name of a packet's model; further ones are w/1, w/2, …
KEEP = "keep"  # the rule of a Parallel whose branches have a model each

TRAVEL = ("travel", "travel_down")  # fields of a work that leave its training as it is; a Parallel has them, too
BUT = "all but "
ARRIVED = "arrived"  # sent by a visit that trains a model beside the one that arrived
FORWARD = 1 / 3  # of the cycles of a pass that trains: the backward pass takes about twice those of the forward pass


def only(part: Any, *names: str) -> bool:
    """Return whether every field of a node or a work that differs from its default is among ``names``.

    A fast path names the fields that it implements and leaves the rest to the general path: a field that is added later
    makes it step aside, and is never dropped. A field without a default has to be named.

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
    """Return a class's fields outside of ``names`` with their defaults; MISSING equals no value that is set."""
    rest = [f for f in fields(kind) if f.name not in names]
    return tuple((f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in rest)


@dataclass(frozen=True, slots=True)
class Site:
    """A place of a packet: the cloud, a factory's edge, or a device.

    >>> str(device(17)), str(edge(3)), str(CLOUD)
    ('device:17', 'edge:3', 'cloud')
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return "cloud" if self.kind == "cloud" else f"{self.kind}:{self.index}"


CLOUD = Site("cloud")


def edge(factory: int) -> Site:
    """Return the base station of a factory (numbered from 0)."""
    return Site("edge", int(factory))


def device(number: int) -> Site:
    """Return a device (numbered from 0 over the whole park)."""
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
    at the visit's start. The steps of the other optimisers stand at :func:`fedfloor.engine.steps.stepper`.

    Args:
        objective: minimised by the device, by name.
        epochs: passes over the device's data.
        steps: mini-batches, reshuffled at the end of every pass.
        batch_size: samples of a mini-batch; the last one of a pass may be smaller.
        rate: learning rate η.
        momentum: β in [0, 1) of SGD.
        weight_decay: added to the gradient as weight_decay·w; AdamW takes rate·weight_decay·w off the weights.
        trains: the part of the model that is trained, by its name (:meth:`fedfloor.models.network.Network.numbers`):
            ``all``, ``head`` (or ``classifier``), ``body``, or a pattern of tensors' names that lie side by side; the
            rest, its statistics included, stays as it was.
        settings: the objective's own numbers, such as FedProx's μ.
        optimizer: the optimiser of the steps.
        beta1, beta2, eps: Adam's and AdamW's decay of the mean gradient and of its mean square, in [0, 1), and what is
            added to the root of the latter.
        moments: whether momentum and Adam's means begin at 0 in every ``visit``, or are kept by the ``device``.
        clip_norm: the norm that gradients of a mini-batch are clipped to; None: they are not.
        sends: the part of the model that travels to the visit and from it, by its name: what is trained where it is
            left out, and the rest of the model is then everybody's. Named, as ``body``, ``all but norms`` or
            ``nothing``, the rest is the device's own: its next such visit starts from it, and what arrived of it goes
            on as it was. With ``arrived`` all that arrived goes on as it was, and what is trained is a model of the
            device's own beside it.
        sample_clip: C, the norm that the gradient of every sample is clipped to, for differentially private SGD
            (:func:`fedfloor.engine.private.train_private`); None: plain mini-batches.
        sample_noise: z, the deviation of its noise in units of C.
        travel: codecs of the model that the visit sends on, by their text: :func:`fedfloor.parts.codecs.chain`.
        travel_down: codecs of the model on its way to the visit.
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
        """Whether a part of the model neither travels nor is the device's own: it is the same on every device."""
        return not self.sends and self.trains != "all"

    @property
    def counts(self) -> bool:
        """Whether the visit has its own number; the training of a model besides the one that arrived has none: it
        belongs to the device's next visit, with the same samples and mini-batches."""
        return self.sends != ARRIVED

    def batches(self, samples: int) -> int:
        """Return the number of mini-batches a visit to a device with ``samples`` samples takes.

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
        """Whether the device keeps its optimiser's moments from visit to visit."""
        return self.moments == "device" and (self.optimizer != "sgd" or self.momentum > 0)

    @property
    def plain_sgd(self) -> bool:
        """Whether a visit's change is its rate times sums of gradients: SGD without clipping or kept moments."""
        return (
            self.optimizer == "sgd" and self.clip_norm is None and self.sample_clip is None and not self.keeps_moments
        )

    def to_spec(self) -> dict[str, Any]:
        """Return the fields of a plan's JSON: without those added later, where they have their defaults.

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
        """Return the fields of a :meth:`to_spec`; unknown entries are left as they are.

        >>> Work.fields({"epochs": 1, "scope": "all", "own": "head"})
        {'epochs': 1, 'trains': 'all', 'sends': 'all but head'}
        """
        values = {"trains" if name == "scope" else name: value for name, value in spec.items()}
        if spec.get("sends") in (True, False):  # as plans were written before work had an own part
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


def keeping(own: str) -> str:
    """Return the part that a visit sends if ``own`` remains on its device: see :attr:`Work.sends`.

    >>> keeping("head"), keeping("all"), keeping("all but body"), keeping("")
    ('all but head', 'nothing', 'body', '')
    """
    if own in ("", "all"):
        return own and "nothing"
    return own[len(BUT) :] if own.startswith(BUT) else f"{BUT}{own}"


# fields that Work did not have from the beginning: the hashes of plans without them stay as they were
_ADDED = ("sends", "optimizer", "beta1", "beta2", "eps", "moments", "clip_norm", "sample_clip", "sample_noise",
          *TRAVEL)  # fmt: skip
_LATER = {f.name: f.default for f in fields(Work) if f.name in _ADDED}


def forward_cost(passes: float) -> float:
    """Return the passes whose computation equals one forward pass over the samples of a visit of ``passes`` passes.

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
    """The packet visits ``site`` and is trained there by ``work``."""

    site: Site
    work: Work
    radio: Radio | None = None


@dataclass(frozen=True)
class Sequence:
    """The packet moves on from one child to the next: a chain."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Parallel:
    """Copies are sent out, one per child, and are aggregated at ``at`` into one model by rule ``mix``.

    With ``mix = "keep"`` they are not: the children are nodes with a ``model`` each, which come back side by side.
    A device that several of them visit takes its visits in the children's order.

    Args:
        children: one per copy.
        at: the site of the aggregation.
        mix: the mixing rule.
        settings: the rule's own numbers, such as the share that a trimmed mean leaves out.
        model: the name (:func:`model_name`) of the packet's model that goes out, alone of all, and is replaced.
        travel: codecs of the models that return from the edges at which its branches end, by their text.
        travel_down: codecs of the model on its way to them.
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
    """The child, ``times`` times; each turn advances the park's clock by one tick unless ``tick`` is false."""

    times: int
    child: Node
    tick: bool = True


@dataclass(frozen=True)
class Select:
    """A choice of devices, made when the walk arrives: becomes ``Parallel(Train(d, work) for d in chosen)``.

    Chance is keyed by the number of a device's visits so far in the round. Two branches of a ``Parallel`` know nothing
    of each other's choices, so where both may visit one device in the same tick, their visits to it share their draws
    (mini-batches, dropout, whether the visit is lost), and two that are alike choose the same devices. Give such
    branches candidates of their own, or put them one after the other.

    Args:
        policy: the policy of the choice; ``least_loss``: the devices whose last answer to ``losses`` is least for this
            model.
        candidates: the devices to choose from.
        how_many: the number of chosen devices.
        work: the work of each chosen device.
        at, mix, settings, model: as of the aggregation in :class:`Parallel`.
        random: the number of the ``how_many`` devices that are drawn uniformly, before the rest are chosen.
        share: target class shares [F] of all chosen devices' samples, for policies that read the census.
        census_free: whether the bytes of the candidates exclude the census that the policy reads.
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
        """The question for the census, if it is put and counted."""
        return Probe(self.candidates, "census", self.at) if self.reads_census and not self.census_free else None

    @cached_property
    def visit(self) -> Mapping[int, Train]:
        """The visit to each candidate: built once, as a Select may choose repeatedly."""
        return {k: Train(device(k), self.work) for k in self.candidates}


@dataclass(frozen=True)
class Broadcast:
    """Sends the part ``scope`` of the model to devices that only keep it; this costs bytes and changes no model."""

    devices: tuple[int, ...]
    scope: str = "all"


@dataclass(frozen=True)
class Probe:
    """Puts the question named ``what`` to each device; small answers come back to ``at``, per device, unmixed.

    ``settings`` are the question's own, such as the number of hashes of its features a device returns.
    """

    devices: tuple[int, ...]
    what: str
    at: Site = CLOUD
    settings: Mapping[str, Scalar] = field(default_factory=dict)


Node = Train | Sequence | Parallel | Repeat | Select | Broadcast | Probe

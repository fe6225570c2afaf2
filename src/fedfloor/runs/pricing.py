"""The cost of a run's rounds on its network: sizes of packets, sites of devices, and the price of each round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.engine.questions import QUESTIONS, Question, Sizes
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import Resources
from fedfloor.models.parcel import Parcel
from fedfloor.network import profile
from fedfloor.network.arrivals import Arrivals, price_of
from fedfloor.network.payload import Payload, QuestionCost
from fedfloor.network.price import Closing, Critical, Price, price
from fedfloor.network.sites import (
    RadioUplink,
    Sites,
    allocation_problem,
    draw_sites,
    equivalent_passes,
    radio_uplink,
    transfer_s_alone,
)
from fedfloor.park.park import Park
from fedfloor.park.statistics import Step
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.travel import chains as chains_of
from fedfloor.plan import walk
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import Node, Probe, Scalar, Work
from fedfloor.plan.nodes import Sequence as Chain
from fedfloor.plan.outcome import Outcome
from fedfloor.plan.questions import SURVEY
from fedfloor.plan.schedule import single

if TYPE_CHECKING:
    from torch import Tensor

MOST = 1e20  # largest s or J of a round, so that sums in a ledger stay within the range of a report


@dataclass(frozen=True, eq=False)
class PriceModel:
    """The price model of a run's rounds.

    Args:
        parcel: part of the model and codecs → its parcel, see :func:`fedfloor.engine.travel.coded`.
    """

    sites: Sites  # the devices on the network
    air: RadioUplink | None  # the radio of its uplink; None for wired links
    classes: int  # F, number of classes in a census
    trained: int  # number of trained parameters of the model
    classifier: int = 0  # number of parameters of its classifier; 0 if unknown
    shape: tuple[int, ...] = ()  # shape of a sample
    parcel: Callable[..., Parcel] | None = None
    visit: Work = field(default_factory=Work)  # a visit with the whole model, with the codecs that methods assume

    def at(self, factory_of: NDArray[np.int32]) -> PriceModel:
        """Return the price model with devices in these factories; the same object if nothing changes."""
        if np.array_equal(factory_of, self.sites.factory_of):
            return self
        sites = replace(self.sites, factory_of=factory_of)
        return replace(self, sites=sites, air=None if self.air is None else radio_uplink(sites, self.air.seed))

    def payload(
        self, packet: Mapping[str, Tensor], works: Collection[Work] = (), chains: Collection[tuple[str, str]] = (),
        handed: Collection[str] = (),
    ) -> Payload:  # fmt: skip
        """Return the sizes of messages: all tensors of the packet, down and up, and answers to questions.

        A visit, hop or broadcast with the classifier as scope carries only the classifier's parameters. If the radio
        sets a fixed payload in nats, it replaces the size of the packet and of a gradient, is reduced by codecs by the
        same factor as the packet, and leaves the size of a part of the model undefined. Questions define their own
        prices (:mod:`fedfloor.engine.questions`).

        Args:
            chains: pairs of a part of the model and codecs, as used by models between nodes and edges.
            handed: the parts of the model that broadcasts send.
        """
        packet = single(packet)  # several models are sent one by one
        model = packet["w"]
        radio = self.sites.network.radio
        size = Parcel((slice(0, model.numel()),), model.numel()).size(packet)
        number = model.element_size()
        gradient = number * self.trained
        parts = {"classifier": number * self.classifier} if self.classifier else {}
        if self.parcel is not None:
            travels = {*handed, *(work.travels for work in works)} - {"all", "classifier"}
            parts |= {part: self.parcel(part).size(packet) for part in travels}
        coded = {way: self.parcel(*way).size(packet) for way in chains} if self.parcel is not None else {}
        if radio is not None and radio.payload_nats is not None:
            nats = round(radio.payload_nats / math.log(2) / 8)
            parts = {}
            coded = {way: round(nats * bytes_ / size) for way, bytes_ in coded.items()}
            gradient = size = nats
        mean = float(self.sites.samples.mean())
        sizes = Sizes(size, number, gradient, self.classes, self.classifier, self.shape, mean)

        def cost(kind: type[Question]) -> Callable[[Mapping[str, Scalar]], QuestionCost]:
            return lambda settings: kind(settings).price(sizes)

        costs = {name: cost(kind) for name, kind in QUESTIONS.items()}
        staged = {text: stages for _, text in chains if (stages := chains_of.staged(text)) is not None}
        across = frozenset(text for text in staged if chains_of.across(text))
        return Payload({"all": size, **parts}, costs, coded, staged, across)

    def resources(self, packet: Mapping[str, Tensor]) -> Resources:
        """Return the properties of devices on the network that methods may read."""
        visit = [self.visit]
        sizes = self.payload(packet, visit, {(work.travels, text) for work in visit for text in walk.coded(work)})
        radio = self.sites.network.radio
        codecs = (self.visit.travel_down, self.visit.travel)
        whole = sizes.packet["all"]
        down, up = (sizes.coded.get(("all", text), whole) for text in codecs)
        sites = self.sites
        levels = () if radio is None else radio.powers_dbm
        if radio is not None and radio.payload_nats is not None:
            radio = replace(radio, payload_nats=radio.payload_nats * (up / whole))
            sites = replace(sites, network=replace(sites.network, radio=radio))
        down_s = transfer_s_alone(sites, down)[0]
        up_s = transfer_s_alone(sites, up)[1]
        return Resources(sites.pass_s, down_s, up_s, allocation_problem(sites, up), levels)

    def price(
        self, plan: Node, packet: Mapping[str, Tensor], number: int, tick: int,
        numbers: Sequence[int] | None = None, holders: frozenset[int] = frozenset(),
        closing: Closing | None = None,
    ) -> Price:  # fmt: skip
        """Return the price of a resolved plan; ``numbers``: of each visit among its device's visits.

        Raises:
            SettingError: the plan carries a part of the model that does not exist or has no known size, or the price is
                out of range.
        """
        walk.check(plan, len(self.sites.samples))
        size = self.payload(packet, walk.works(plan), walk.codings(plan), walk.handed(plan))
        if "classifier" not in size.packet and "classifier" in walk.scopes(plan) | walk.handed(plan):
            why = "the network's classifier is unknown. Name its layer with model.classifier."
            if self.classifier:
                why = (
                    "radio.payload_nats sets the size of a whole model on the radio link, but not of a part. Remove "
                    "it from the network, or train 'all'."
                )
            raise SettingError(f"work.trains = 'classifier' has no price: {why}")
        paid = price(
            plan, self.sites, size, air=self.air, round_number=number, tick=tick, numbered=numbers, holders=holders,
            closing=closing,
        )  # fmt: skip
        if not max(paid.seconds, paid.joules) <= MOST:
            raise SettingError(
                f"network '{self.sites.network.name}': round {number} takes {paid.seconds:.3g} s and {paid.joules:.3g} "
                f"J, but must take at most {MOST:.0e} of either. Check the rates, clocks and powers of the network."
            )
        return paid

    def arrived(
        self, plan: Node, packet: Mapping[str, Tensor], number: int, arrivals: Sequence[Arrival], began_s: float
    ) -> Price:  # fmt: skip
        """Return the price of a round whose results arrived from real machines in their own time.

        Its seconds are those that passed. Bytes and energy are those of its visits, each alone on the network, and the
        energy of waiting for the round's end; visits that were lost do not count.

        Args:
            plan: the resolved plan, with one visit for each arrival.
            began_s: the time at which the round before ended, s.
        """
        visits = {walk.number(visit): visit for visit, _ in walk.visited(plan)}
        paid = [self.price(visits[arrival.device], packet, number, 0) for arrival in arrivals]
        ended_s = max((arrival.arrived_s for arrival in arrivals), default=began_s)
        joules: dict[int, float] = {}
        for arrival, own in zip(arrivals, paid, strict=True):
            waited = max(0.0, ended_s - arrival.departed_s - own.seconds)
            joules[arrival.device] = own.joules + waited * self.sites.lists.idle_w[arrival.device]
        sent = sum((Counter(own.bytes) for own in paid), Counter[str]())
        return price_of(arrivals, ended_s - began_s, joules, sent, paid[-1].critical if paid else Critical())

    def survey(self, steps: Sequence[Step], packet: Mapping[str, Tensor]) -> Price | None:
        """Return the price of a normalisation's successive steps, each with all devices; None without steps."""
        everyone = tuple(range(len(self.sites.factory_of)))
        probes = [Probe(everyone, SURVEY.name, settings={"down": step.down, "up": step.up}) for step in steps]
        return self.price(Chain(tuple(probes)), packet, 0, 0) if probes else None


class StepSites(Sites):
    """Devices without a network, where a second is a mini-batch and transfers take no time."""

    @cached_property
    def pass_s(self) -> NDArray[np.float64]:
        """1 for every device, as the effort of a visit is its number of mini-batches."""
        return np.ones(len(self.samples))

    @classmethod
    def of(cls, park: Park) -> StepSites:
        """Return the devices of a park."""
        drawn = draw_sites(profile.NetworkProfile(), 0, park.factory_of, park.holdings, 1)
        values = {f.name: getattr(drawn, f.name) for f in fields(drawn)}
        return cls(**values | {"effort": lambda work, samples: float(work.batches(int(samples)))})


@dataclass(frozen=True)
class StepClock:
    """The duration of rounds without a network, in mini-batches."""

    sites: StepSites

    def price(
        self, plan: Node, packet: Mapping[str, Tensor], number: int, tick: int,  # noqa: ARG002
        numbers: Sequence[int] | None = None, holders: frozenset[int] = frozenset(),  # noqa: ARG002
        closing: Closing | None = None,
    ) -> Price:  # fmt: skip
        """Return the price of a plan like :meth:`PriceModel.price`, with mini-batches for seconds."""
        parts = {work.travels for work in walk.works(plan)} | walk.handed(plan) | {"all"}
        asked = dict.fromkeys(QUESTIONS, lambda settings: QuestionCost(0, 0))  # noqa: ARG005
        payload = Payload(dict.fromkeys(parts, 0), asked, dict.fromkeys(walk.codings(plan), 0))
        return price(plan, self.sites, payload, closing=closing)


def build_price_model(
    experiment: Experiment, park: Park, trained: int, classifier: int = 0,
    parcel: Callable[..., Parcel] | None = None, visit: Work | None = None,
) -> PriceModel | None:  # fmt: skip
    """Return the price model of an experiment's rounds; None without a network."""
    network = experiment.network.built
    if network is None:
        return None
    data = park.dataset
    sites = draw_sites(network, experiment.seed, park.factory_of, park.holdings, data.sample_bits)
    sites = replace(sites, effort=effort)
    air = radio_uplink(sites, experiment.seed)
    return PriceModel(sites, air, len(data.classes), trained, classifier, data.shape, parcel, visit or Work())


def flight(
    flow: VisitFlow, park: Park, seed: int, price_model: PriceModel | None, packet: Mapping[str, Tensor]
) -> Arrivals:
    """Return the rounds of a flow of visits in simulated time: seconds, or mini-batches without a network.

    Raises:
        SettingError: the flow is not possible in the park or on its network.
    """
    devices = len(flow.devices)
    if not 1 <= flow.buffer <= flow.concurrency <= devices:
        raise SettingError(
            f"buffer = {flow.buffer} results in a round and concurrency = {flow.concurrency} visits at once do not fit "
            f"the {devices} devices that take part: must be 1 <= buffer <= concurrency <= {devices}."
        )
    if price_model is None:
        return Arrivals(flow, seed, StepSites.of(park), priced=False)
    if price_model.air is not None:
        raise SettingError(
            "visits that do not wait for each other have no price on a radio whose uploads interfere "
            "(device_edge.sharing = 'sinr'): which uploads coincide would depend on themselves. Choose another network."
        )
    if park.mobility is not None:
        raise SettingError("visits that do not wait for each other need devices that stay: leave park.mobility out.")
    work = flow.work
    sizes = price_model.payload(packet, [work], {(work.travels, text) for text in walk.coded(work)})
    whole = sizes.packet[work.travels]
    down = sizes.coded.get((work.travels, work.travel_down), whole)
    up = sizes.coded.get((work.travels, work.travel), whole)
    return Arrivals(flow, seed, price_model.sites, down, up)


def effort(work: Work, samples: float) -> float:
    """Return the computation of a visit, including its objective, as a number of passes over ``samples``.

    For a visit to the classifier alone see :func:`fedfloor.network.sites.equivalent_passes`.
    """
    passes = equivalent_passes(work, samples)
    if work.borrows:
        return passes
    return _objective(work.objective, tuple(sorted(work.settings.items()))).passes(passes)


@lru_cache(maxsize=64)
def _objective(name: str, settings: tuple[tuple[str, Scalar], ...]) -> Objective:
    return objectives.objective(name, dict(settings))


def stamped(outcome: Outcome, paid: Price | None) -> Outcome:
    """Return an outcome whose receipts have the duration of each visit on the network, s."""
    if paid is None:
        return outcome
    pairs = zip(outcome.receipts, paid.visits, strict=True)
    return replace(outcome, receipts=tuple(replace(receipt, seconds=seconds) for receipt, seconds in pairs))


def to_row(paid: Sequence[Price], normalised: Price | None = None) -> dict[str, Any] | None:
    """Return the sum of successive prices in the form of a ledger line; None without prices.

    The price of the normalisation's surveys is included in the sum, and listed separately as ``normalise``.
    """
    if not paid:
        return None
    paid = [*([] if normalised is None else [normalised]), *paid]
    links = sorted({link for price in paid for link in price.bytes})
    row: dict[str, Any] = {
        "seconds": sum(price.seconds for price in paid), "joules": sum(price.joules for price in paid),
        "bytes": {link: sum(price.bytes.get(link, 0) for price in paid) for link in links},
    }  # fmt: skip
    if normalised is not None:
        size = sum(normalised.bytes.values())
        row["normalise"] = {"seconds": normalised.seconds, "joules": normalised.joules, "bytes": size}
    return row

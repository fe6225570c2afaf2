"""A run's rounds on its network: sizes of parcels, places of devices, and the price of each round."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.engine.questions import QUESTIONS, SURVEY, Question, Sizes
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import Resources
from fedfloor.models.parcel import Parcel
from fedfloor.network import profile
from fedfloor.network.price import Payload, Price, QuestionCost, price
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
from fedfloor.parts import codecs, objectives
from fedfloor.parts.masking import exchanges
from fedfloor.parts.objective import Objective
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Probe, Scalar, Work
from fedfloor.plan.nodes import Sequence as Chain
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.plan.schedule import single

if TYPE_CHECKING:
    from torch import Tensor

MOST = 1e20  # s or J of a round; so that a ledger's sums stay in the range of a report


@dataclass(frozen=True, eq=False)
class Tariff:
    """The price model of a run's rounds.

    Args:
        parcel: the parcel of the model, by part and codecs: see :func:`fedfloor.engine.travel.coded`.
    """

    sites: Sites  # the devices on the network
    air: RadioUplink | None  # the radio of its uplink, if it is one
    classes: int  # F, of which a census counts samples
    trained: int  # how many numbers of the model are trained
    classifier: int = 0  # how many of them are its classifier's; 0 where that is unknown
    shape: tuple[int, ...] = ()  # of a sample
    parcel: Callable[..., Parcel] | None = None
    visit: Work = field(default_factory=Work)  # a visit of the whole model, with the codecs that methods plan by

    def at(self, factory_of: NDArray[np.int32]) -> Tariff:
        """Return the tariff with devices in these factories; unchanged where they are there."""
        if np.array_equal(factory_of, self.sites.factory_of):
            return self
        sites = replace(self.sites, factory_of=factory_of)
        return replace(self, sites=sites, air=None if self.air is None else radio_uplink(sites, self.air.seed))

    def payload(
        self, packet: Mapping[str, Tensor], works: Collection[Work] = (), chains: Collection[tuple[str, str]] = ()
    ) -> Payload:
        """Return the sizes of parcels: all tensors of the packet, down and up, and answers to questions.

        A visit, a hop or a handing out whose scope is the classifier carries the classifier's numbers alone. Where the
        radio fixes the payload, in nats, it takes the place of the packet's size and of a gradient's, and the
        size of a part of the model is not known; codecs make it as much smaller as they make the packet. Questions
        state their own prices (:mod:`fedfloor.engine.questions`).

        Args:
            chains: (part of the model, codecs) → the codecs of the part as it travels.
        """
        packet = single(packet)  # several models travel one by one
        model = packet["w"]
        radio, size = self.sites.network.radio, Parcel((slice(0, model.numel()),), model.numel()).size(packet)
        number = model.element_size()
        gradient = number * self.trained
        parts = {"classifier": number * self.classifier} if self.classifier else {}
        if self.parcel is not None:
            travels = {work.travels for work in works} - {"all", "classifier"}
            parts |= {part: self.parcel(part).size(packet) for part in travels}
        coded = {way: self.parcel(*way).size(packet) for way in chains} if self.parcel is not None else {}
        if radio is not None and radio.payload_nats is not None:
            nats, parts = round(radio.payload_nats / math.log(2) / 8), {}
            coded = {way: round(nats * bytes_ / size) for way, bytes_ in coded.items()}
            gradient = size = nats
        mean = float(self.sites.samples.mean())
        sizes = Sizes(size, number, gradient, self.classes, self.classifier, self.shape, mean)

        def cost(kind: type[Question]) -> Callable[[Mapping[str, Scalar]], QuestionCost]:
            return lambda settings: kind(settings).price(sizes)

        costs = {name: cost(kind) for name, kind in QUESTIONS.items()}
        staged = {text: exchanges for _, text in chains if codecs.secure(text)}
        across = frozenset(text for text in staged if codecs.across(text))
        return Payload({"all": size, **parts}, costs, coded, staged, across)

    def resources(self, packet: Mapping[str, Tensor]) -> Resources:
        """Return the facts of devices on the network that methods may read."""
        visit = [self.visit]
        sizes = self.payload(packet, visit, {(work.travels, text) for work in visit for text in walk.coded(work)})
        radio = self.sites.network.radio
        codecs, whole = (self.visit.travel_down, self.visit.travel), sizes.packet["all"]
        down, up = (sizes.coded.get(("all", text), whole) for text in codecs)
        sites, levels = self.sites, () if radio is None else radio.powers_dbm
        if radio is not None and radio.payload_nats is not None:
            radio = replace(radio, payload_nats=radio.payload_nats * (up / whole))
            sites = replace(sites, network=replace(sites.network, radio=radio))
        down_s, up_s = transfer_s_alone(sites, down)[0], transfer_s_alone(sites, up)[1]
        return Resources(sites.pass_s, down_s, up_s, allocation_problem(sites, up), levels)

    def price(
        self, plan: Node, packet: Mapping[str, Tensor], number: int, tick: int,
        receipts: Sequence[Receipt] | None = None, holders: frozenset[int] = frozenset(),
    ) -> Price:  # fmt: skip
        """Return the price of a resolved plan.

        Raises:
            SettingError: the plan carries a part of the model whose size is not known, or there is no such part, or the
                price is out of range.
        """
        walk.check(plan, len(self.sites.samples))
        visits = None if receipts is None else [receipt.visit for receipt in receipts]
        size = self.payload(packet, walk.works(plan), walk.codings(plan))
        if "classifier" not in size.packet and "classifier" in walk.scopes(plan) | walk.handed(plan):
            why = "the network's classifier is not known. Name its layer with model.classifier."
            if self.classifier:
                why = (
                    "radio.payload_nats fixes the size of a whole model on the air, and not that of a part. Leave it "
                    "out of the network, or train 'all'."
                )
            raise SettingError(f"work.trains = 'classifier': it has no price, as {why}")
        paid = price(
            plan, self.sites, size, air=self.air, round_number=number, tick=tick, numbered=visits, holders=holders
        )
        if not max(paid.seconds, paid.joules) <= MOST:
            raise SettingError(
                f"network '{self.sites.network.name}': round {number} takes {paid.seconds:.3g} s and {paid.joules:.3g} "
                f"J, and at most {MOST:.0e} of either is counted. Check the rates, clocks and powers of the network."
            )
        return paid

    def survey(self, steps: Sequence[Step], packet: Mapping[str, Tensor]) -> Price | None:
        """Return the price of a normalisation's steps in turn, each to every device; None without steps."""
        everyone = tuple(range(len(self.sites.factory_of)))
        probes = [Probe(everyone, SURVEY, settings={"down": step.down, "up": step.up}) for step in steps]
        return self.price(Chain(tuple(probes)), packet, 0, 0) if probes else None


def tariff(
    experiment: Experiment, park: Park, trained: int, classifier: int = 0,
    parcel: Callable[..., Parcel] | None = None, visit: Work | None = None,
) -> Tariff | None:  # fmt: skip
    """Return the price model of an experiment's rounds, or None where it names no network."""
    network = profile.build(experiment.network)
    if network is None:
        return None
    data = park.dataset
    sites = draw_sites(network, experiment.seed, park.factory_of, park.holdings, data.sample_bits)
    sites = replace(sites, effort=effort)
    air = radio_uplink(sites, experiment.seed)
    return Tariff(sites, air, len(data.classes), trained, classifier, data.shape, parcel, visit or Work())


def effort(work: Work, samples: float) -> float:
    """Return the number of passes over ``samples`` with the computation of a visit, its objective's included.

    On the classifier alone, training and objective are left out: see :func:`fedfloor.network.sites.equivalent_passes`.
    """
    passes = equivalent_passes(work, samples)
    if work.borrows:
        return passes
    return _objective(work.objective, tuple(sorted(work.settings.items()))).passes(passes)


@lru_cache(maxsize=64)
def _objective(name: str, settings: tuple[tuple[str, Scalar], ...]) -> Objective:
    return objectives.objective(name, dict(settings))


def stamped(outcome: Outcome, paid: Price | None) -> Outcome:
    """Return an outcome whose receipts have the seconds that each visit took on the network."""
    if paid is None:
        return outcome
    pairs = zip(outcome.receipts, paid.visits, strict=True)
    return replace(outcome, receipts=tuple(replace(receipt, seconds=seconds) for receipt, seconds in pairs))


def to_row(paid: list[Price], normalised: Price | None = None) -> dict[str, Any] | None:
    """Return the sum of successive prices in the form of a ledger line; None without prices.

    The price of the normalisation's questions is added, and stands apart as ``normalise``, too.
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

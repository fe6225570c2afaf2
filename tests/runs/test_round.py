"""A round is resolved and priced before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedfloor import config
from fedfloor.engine import travel
from fedfloor.engine.team import Team
from fedfloor.methods.catalog import METHODS
from fedfloor.park.park import Park
from fedfloor.park.stream import Recycle
from fedfloor.plan import visit_order
from fedfloor.plan.nodes import Node, Parallel, Repeat, Select, Sequence, Work, edge
from fedfloor.plan.outcome import Outcome
from fedfloor.runs import pricing
from fedfloor.runs import round as round_
from floor import everywhere, park
from rounds import RADIO, Job, method

SIZES = (6, 10, 4, 9, 5, 8)
FACTORIES = (0, 1, 0, 1, 2, 2)
UNEQUAL = {"seconds_per_sample": {"median": 0.1, "factor": 3.0}, "idle_w": 1.0, "compute_w": 2.0}
NETWORKS: dict[str, Any] = {
    "wifi": {"profile": "wifi", "devices": UNEQUAL},
    "lte-cat-m2": {"profile": "lte-cat-m2", "devices": UNEQUAL},
    "radio": RADIO,
}


class _Order(round_.Observer):
    """Notes what had been paid when a round's plan was carried out."""

    def __init__(self, setup: round_.Setup) -> None:
        self.setup = setup
        self.priced = 0
        self.before = list[int]()
        whole = setup.prices

        def prices(*given: Any) -> Any:
            self.priced += 1
            return whole(*given)

        setup.prices = prices  # type: ignore[method-assign]

    def carried_out(self, point: round_.Position, outcome: Outcome) -> None:
        self.before.append(self.priced)


def job(name: str, network: str, here: Park, folder: Path, **more: Any) -> Job:
    """Return a method at work on a priced network."""
    of = Job(method(name), here, folder=folder, loss=0.3, **more)
    experiment = config.from_table({"network": NETWORKS[network]})
    net = of.engine.network
    parts = (net.trained, net.classifier_parameters, partial(travel.coded, net), of.method.coded(Work()))
    found = pricing.build_price_model(experiment, here, *parts)
    assert found is not None
    of.engine.stand_on(found.sites)
    of.setup.price_model = found
    of.setup.priced = True
    return of


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", METHODS)
def test_the_price_before_is_the_price_after(name: str, network: str, tmp_path: Path) -> None:
    needs = method(name).needs
    if needs.clock and network == "radio":
        pytest.skip("refused: which uploads coincide would depend on themselves")
    if name == "rafed" and network != "radio":
        pytest.skip("refused: it allocates the channels of a radio")
    of = job(name, network, park(SIZES, factory_of=FACTORIES), tmp_path)
    order = _Order(of.setup)
    point = round_.Position(state=of.begin())
    for number in (1, 2, 3):
        after, record = round_.step(of.setup, point, order)
        assert order.before[-1] == number  # priced before it was carried out, and only once
        if not needs.clock:
            numbers = [receipt.visit for receipt in record.outcome.receipts]
            holders = record.prices[-2].holders if len(record.prices) > 1 else point.holders
            known = (record.outcome.resolved, point.state.packet, number, point.tick, numbers, holders)
            assert of.setup.price_model is not None
            assert of.setup.price_model.price(*known) == record.prices[-1]
        point = after


WORK = Work(steps=1, batch_size=2)
CHOICES = tuple(Select("uniform", ks, 2, WORK, at=edge(m)) for m, ks in enumerate([(0, 2), (1, 3), (4, 5)]))
AGAIN = Select("uniform", (0, 1, 2, 3, 4, 5), 3, WORK)
PLANS: dict[str, Node] = {
    "turns": Parallel(tuple(Repeat(4, one) for one in CHOICES)),
    "twice in a round": Sequence((Parallel(CHOICES), AGAIN, Repeat(2, AGAIN))),
    "the same devices in branches": Parallel((Sequence((AGAIN, AGAIN)), Repeat(2, AGAIN))),
}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("plan", PLANS)
def test_choices_made_before_are_those_of_a_walk_with_training(plan: str, ranks: int) -> None:
    """On a stream that moves with every visit that is not lost, by ranks that share the choices."""
    here = replace(park(SIZES, factory_of=FACTORIES), stream=Recycle(2))

    def body(team: Team) -> bool:
        of = Job(method("fedavg"), here, team=team, loss=0.4)
        made = of.setup.resolved(PLANS[plan], round_.Position(state=of.begin()))
        trained = of.setup.carrier.run(PLANS[plan], of.start, 1, 0, {})
        assert made.whole == trained.resolved
        assert made.numbers == tuple(receipt.visit for receipt in trained.receipts)
        assert len(made.known.choices) == visit_order.count_selects(PLANS[plan])
        return True

    assert everywhere(ranks, body) == [True] * ranks

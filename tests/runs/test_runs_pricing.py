"""What a visit is priced to compute: what its objective asks the network, counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfloor import config
from fedfloor.plan import visit_order
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.runs import pricing
from floor import park, visits
from rounds import Job, method

SIZE = 10
THIRD = 1 / 3
# method, its settings, passes beside those that train
VISITS: list[tuple[str, dict[str, Any], float]] = [
    ("fedavg", {}, 0.0),
    ("fedprox", {"mu": 0.1}, 0.0),
    ("scaffold", {}, 0.0),
    ("moon", {"dim": 4}, 2 * THIRD),  # the model as it arrived, and the last one
    ("moon", {"dim": 4, "mu": 0.0}, 0.0),
    ("fedmmd", {}, THIRD),
    ("fedfusion", {}, THIRD),
    ("fedl", {}, 2.0),  # two gradients of all samples
    ("cgau", {"warm_up": 1, "layers": 1, "units": 4}, THIRD - 2.0),  # a frozen extractor, once; its head is left out
]


@pytest.mark.parametrize(("name", "settings", "beside"), VISITS, ids=str)
def test_a_visit_is_priced_as_often_as_it_asks_the_network(
    name: str, settings: dict[str, Any], beside: float, tmp_path: Path
) -> None:
    job = Job(method(name, rounds=2, work={"epochs": 2}, **settings), park((SIZE,)), rounds=2, folder=tmp_path)
    state = job.round(job.begin(), 1)  # nobody has kept anything yet
    first = next(one for one in job.engine.network.module.modules() if isinstance(one, nn.Linear))
    asked = []

    def count(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        asked.append(len(inputs[0]) * (1.0 if torch.is_grad_enabled() else THIRD))

    handle = first.register_forward_pre_hook(count)
    job.round(state, 2)
    handle.remove()
    (visit,) = visit_order.in_order(job.plan(state, 2))
    told = pricing.effort(visit.work, SIZE)
    assert told == pytest.approx(2.0 + beside)
    assert sum(asked) / SIZE == pytest.approx(told)


def test_seconds_and_joules_go_with_it() -> None:
    job = Job(method("fedavg"), park((6, 10)))
    price_model = pricing.build_price_model(config.from_table({"network": {"profile": "lte-cat-m2"}}), job.here, 1)
    assert price_model is not None
    plain = Work(epochs=1)
    two = Work(epochs=1, objective="mmd", settings={"weight": 0.1})
    one, other = (
        price_model.price(Parallel(visits((0, 1), work)), {"w": torch.zeros(1)}, 1, 0) for work in (plain, two)
    )
    assert other.bytes == one.bytes
    assert other.seconds - one.seconds == pytest.approx(max(price_model.sites.pass_s) / 3, rel=1e-6)
    trained = price_model.sites.pass_j.sum()
    assert 0 < other.joules - one.joules - trained / 3 < 0.2 * trained  # and the idle time of the device that waits


def test_half_a_pass_asks_half_of_the_samples() -> None:
    assert (
        pricing.effort(Work(steps=1, batch_size=5, objective="mmd", settings={"weight": 0.1}), SIZE) == (1 + THIRD) / 2
    )

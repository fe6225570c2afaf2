"""FedCS's greedy choice by hand, its law and its errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedfloor.base.errors import SettingError
from fedfloor.engine import ranks
from fedfloor.methods.contract import Resources
from fedfloor.methods.fedcs import FedCS, in_time
from fedfloor.plan.nodes import Probe, Sequence
from floor import bits, park
from refusals import refused
from rounds import RADIO, Job, method


def known(down: list[float], up: list[float]) -> Resources:
    zero = np.zeros(len(down))
    return Resources(zero, np.array(down), np.array(up))


def test_the_greedy_choice_by_hand() -> None:
    """Training 1, 4, 2, 9 s; uploads 2, 1, 3, 1 s; no downloads; deadline 8 s.

    Θ = 0: costs 2+1, 1+4, 3+2, 1+9 = 3, 5, 5, 10: device 0, Θ = 3. Then 1+max(0, 4−3) = 2, 3+0 = 3, 1+6 = 7: device 1,
    Θ = 3+2 = 5. Then device 2: 3+0, Θ = 8, which is not below 8: left out. Device 3: 1+4 = 5, Θ = 10: left out.
    """
    training = np.array([1.0, 4.0, 2.0, 9.0])
    facts = known([0.0] * 4, [2.0, 1.0, 3.0, 1.0])
    assert in_time([0, 1, 2, 3], facts, training, 8.0) == [0, 1]
    assert in_time([0, 1, 2, 3], facts, training, 8.1) == [0, 1, 2]
    assert in_time([3, 2], facts, training, 8.1) == [2]


def test_the_slowest_download_of_the_chosen_counts_once() -> None:
    """Downloads 3 and 2 s, training 0, uploads 1 s. The second device costs less, max(2 − 0, 0) + 1 = 3 against 4, and
    is first: T_d = 2, Θ = 1. The first then ends at T_d + Θ = 3 + 2 = 5 s."""
    facts = known([3.0, 2.0], [1.0, 1.0])
    assert in_time([0, 1], facts, np.zeros(2), 5.01) == [0, 1]
    assert in_time([0, 1], facts, np.zeros(2), 5.0) == [1]


def test_after_a_slow_download_those_of_the_others_cost_nothing() -> None:
    """Downloads 4, 3 and 1 s, uploads 0.1, 2 and 3.5 s, no training: costs 4.1, 5 and 4.5, so device 0 and T_d = 4.

    Then the others cost their uploads alone, 2 and 3.5: device 1, T_d + Θ = 4 + 2.1. Device 2 would end at 4 + 5.6.
    """
    facts = known([4.0, 3.0, 1.0], [0.1, 2.0, 3.5])
    assert in_time([0, 1, 2], facts, np.zeros(3), 8.0) == [0, 1]
    assert in_time([0, 1, 2], facts, np.zeros(3), 9.7) == [0, 1, 2]


def test_a_deadline_that_nobody_meets_names_the_fastest_device() -> None:
    facts = known([0.0, 0.5], [1.0, 0.25])
    with refused("methods.fedcs.deadline_s") as caught:
        in_time([0, 1], facts, np.array([1.0, 1.0]), 1.5)
    assert str(caught.value) == (
        "methods.fedcs.deadline_s = 1.5: no candidate finishes in time; the fastest, device 1, takes 1.75 s. Raise it."
    )


def test_with_time_for_all_it_is_fedavg() -> None:
    here = park((6, 10, 4))
    assert RADIO["radio"]["attempts"] == 100  # nothing is lost on this air
    two = [Job(method(name, fraction=1.0), here) for name in ("fedcs", "fedavg")]
    first, second = (job.run() for job in two)
    assert not any(one.lost for job in two for outcome in job.outcomes for one in outcome.receipts)
    assert bits(first.packet["w"]) == bits(second.packet["w"])


def test_a_round_in_which_nobody_asked_meets_the_deadline_leaves_the_model() -> None:
    """Of two devices one is asked in a round; one takes 1 s, the other 3 s, of 2 s."""
    job = Job(method("fedcs", {"mix": "by_samples"}, fraction=0.5, deadline_s=2.0), park((6, 10)), rounds=12)
    state = job.begin()
    seen = set[tuple[int, ...]]()
    for number in range(1, 13):
        slow = replace(job.view(number), resources=known([0.0, 0.0], [1.0, 3.0]))
        plan = job.method.plan(state, slow, np.random.default_rng(number))
        asked = plan.children[0] if isinstance(plan, Sequence) else plan
        assert isinstance(asked, Probe)
        assert isinstance(plan, Probe) == (asked.devices == (1,))
        seen.add(asked.devices)
        if isinstance(plan, Probe):
            after = ranks.run(job.engine, plan, state.packet, round_number=number, tick=0)
            assert bits(job.method.absorb(state, after).packet["w"]) == bits(state.packet["w"])
    assert seen == {(0,), (1,)}
    nobody = replace(job.view(1), resources=known([0.0, 0.0], [4.0, 3.0]))
    with refused("methods.fedcs.deadline_s"):
        job.method.plan(state, nobody, np.random.default_rng(0))


def test_the_devices_asked_are_priced_by_a_probe() -> None:
    job = Job(method("fedcs", fraction=0.5), park((6, 10, 4, 9)))
    plan = job.plan(job.begin(), 1)
    assert isinstance(plan, Sequence)
    assert isinstance(plan.children[0], Probe)
    assert plan.children[0].what == "resources"
    assert len(plan.children[0].devices) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"deadline_s": 0.0}, "methods.fedcs.deadline_s = 0.0: must be seconds, above 0."),
        ({"fraction": 1.5}, "methods.fedcs.fraction = 1.5: must be above 0 and at most 1."),
    ],
)
def test_settings_are_checked(settings: dict[str, float], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        FedCS(**settings)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_it_needs_a_network() -> None:
    job = Job(method("fedcs"), park((6, 10)))
    job.setup.price_model = None
    with refused("method"):
        job.plan(job.begin(), 1)

"""Uploads over the radio: what they cost, how often they are sent, and that engine and price agree on who is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedfloor.network import radio
from fedfloor.network.payload import Payload, QuestionCost
from fedfloor.network.price import price
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile, RadioModel
from fedfloor.network.sites import RadioUplink, Sites, draw_sites, radio_uplink
from fedfloor.network.visits import placed_visits
from fedfloor.plan import nodes
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Parallel,
    Probe,
    Repeat,
    Sequence,
    Train,
    Work,
    device,
)
from floor import WORK

OF = (0, 0, 0, 1, 1)
NATS = 25_000.0


def over_radio(what: RadioModel, factory_of: tuple[int, ...] = OF, **more: object) -> Sites:
    """Devices 10 m away on a network whose uplink is a radio, 16 s a pass."""
    link = {"over": more.pop("over")} if "over" in more else {}
    devices = {"distance_m": 10.0, "cycles_per_bit": 1.0, "data_bits": 16.0, "clock_hz": 1.0, **more}
    on = NetworkProfile(
        device_edge=LinkClass(down_bps=8000.0, sharing="sinr", **link),  # type: ignore[arg-type]
        radio=what, devices=Devices(**devices),  # type: ignore[arg-type]
    )  # fmt: skip
    return draw_sites(on, 0, np.array(factory_of), np.full(len(factory_of), 64), 8)


def heard_with(chance: float, **more: object) -> RadioModel:
    """A radio on which a device 10 m away is received with a chance, alone at full power: γ = −ln(q)·s/N0."""
    what = RadioModel(**{"payload_nats": NATS, "channels": 1, **more})  # type: ignore[arg-type]
    signal = float(radio.received(what, np.array([10.0]))[0, -1])
    return replace(what, threshold=-math.log(chance) * signal / radio.noise_w(what))


def sender(k: int, channel: int = 0, power: float = 20.0) -> Train:
    return Train(device(k), Work(epochs=1), nodes.Radio(channel, power))


def of(there: Sites, seed: int = 0) -> RadioUplink:
    found = radio_uplink(there, seed)
    assert found is not None
    return found


# -- how often ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chance", "most"), [(0.9, 8), (0.4, 3), (0.05, 8), (0.5, 1)])
def test_attempts_are_geometric_and_end_at_the_limit(chance: float, most: int) -> None:
    # P(n) = q(1 − q)^(n−1); lost with (1 − q)^N; the mean is Σ_{n<N} (1 − q)^n = (1 − (1 − q)^N)/q
    there = of(over_radio(heard_with(chance, attempts=most)))
    sent = [there.send(sender(0), (), (r, 0, 0, 0), 0) for r in range(10_000)]
    tries = np.array([one.attempts for one in sent])
    lost = np.array([one.lost for one in sent])
    gone = (1 - chance) ** most
    assert np.mean(lost) == pytest.approx(gone, abs=4 * math.sqrt(gone * (1 - gone) / 10_000))
    assert np.mean(tries) == pytest.approx((1 - gone) / chance, abs=4 * np.std(tries) / 100 + 1e-9)
    for n in range(1, most):
        share = chance * (1 - chance) ** (n - 1)
        assert np.mean((tries == n) & ~lost) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 10_000))
    assert set(tries[lost]) <= {most}
    assert tries.max() <= most


def test_certain_and_hopeless() -> None:
    sure = of(over_radio(RadioModel(threshold=1e-30)))
    assert [sure.send(sender(0), (), (r, 0, 0, 0), 1)[1::2] for r in range(50)] == [(1, False)] * 50
    never = of(over_radio(RadioModel(threshold=1e30, attempts=5)))
    assert [never.send(sender(0), (), (r, 0, 0, 0), 1)[1::2] for r in range(50)] == [(5, True)] * 50


def test_draws_are_keyed_by_place_and_seed() -> None:
    there = over_radio(heard_with(0.2))
    places = [(r, t, k, v) for r in (1, 2) for t in (0, 1) for k in (0, 1) for v in (0, 1)]
    one, same, other = ([of(there, seed).send(sender(0), (), p, 0).attempts for p in places] for seed in (0, 0, 1))
    assert one == same != other
    assert len(set(one)) > 2


def test_a_channel_is_drawn_where_the_plan_gives_none() -> None:
    there = of(over_radio(RadioModel(channels=4)))
    plain = Train(device(1), Work(epochs=1))
    drawn = [there.given(plain, r) for r in range(4000)]
    counts = np.bincount([one.channel for one in drawn], minlength=4)
    assert (abs(counts - 1000) < 4 * math.sqrt(4000 * 0.25 * 0.75)).all()
    assert {one.power_dbm for one in drawn} == {20.0}
    assert drawn[7] == there.given(plain, 7)
    assert there.given(sender(1, 3, 5.0), 0) == nodes.Radio(3, 5.0)


# -- who interferes ----------------------------------------------------------------------------------------------------


def chance_of(there: Sites, *beside: Train) -> float:
    """The share of 2,000 packets of one attempt that are received."""
    heard = of(there)
    return float(np.mean([not heard.lost(sender(0), beside, (r, 0, 0, 0)) for r in range(2000)]))


def test_interference() -> None:
    # equally strong: q' = q·e^(−γ), or q/(1 + γ) over the other's fading; γ = 1, SNR 27 dB: q = 0.998. 4 errors: 0.045
    what = RadioModel(path_loss="B", carrier_hz=2.4e9, attempts=1, payload_nats=NATS)
    there = over_radio(what)
    assert chance_of(there) == pytest.approx(0.998, abs=0.005)
    assert chance_of(there, sender(1)) == pytest.approx(math.exp(-1), abs=0.045)
    assert chance_of(there, sender(1), sender(2)) == pytest.approx(math.exp(-2), abs=0.031)
    assert chance_of(there, sender(1, power=0.0)) == pytest.approx(math.exp(-0.012), abs=0.01)  # 20 dB less
    exact = over_radio(replace(what, reception="exact"))
    assert chance_of(exact, sender(1)) == pytest.approx(0.5, abs=0.045)
    assert chance_of(exact, sender(1), sender(2)) == pytest.approx(0.25, abs=0.039)
    # another channel, another factory's base station, the cloud
    for quiet in (sender(1, channel=1), sender(3), Train(CLOUD, Work(epochs=1))):
        assert chance_of(there, quiet) == chance_of(there)
    # one base station for the park
    assert chance_of(over_radio(what, over="park"), sender(3)) == chance_of(there, sender(1))


def test_who_stands_beside_whom() -> None:
    a, b, c = (Train(device(k), WORK) for k in (0, 1, 2))
    plan = Sequence(
        (Parallel((Repeat(2, Sequence((a, b)), tick=True), Repeat(2, c))), a, Parallel((Parallel((a, b)), c)))
    )
    found = placed_visits(plan, 7, 10)
    assert [(one.site.index, tuple(o.site.index for o in others), place) for one, others, place in found] == [
        (0, (2,), (7, 10, 0, 0)), (1, (2,), (7, 10, 1, 0)), (0, (), (7, 11, 0, 1)), (1, (), (7, 11, 1, 1)),
        (2, (0,), (7, 10, 2, 0)), (2, (1,), (7, 11, 2, 1)),
        (0, (), (7, 12, 0, 2)),
        (0, (1,), (7, 12, 0, 3)), (1, (0,), (7, 12, 1, 2)), (2, (), (7, 12, 2, 2)),
    ]  # fmt: skip


# -- what it costs -----------------------------------------------------------------------------------------------------


def airtime(there: Sites, nats: float = NATS, power_dbm: float = 20.0) -> float:
    what = there.network.radio
    assert what is not None
    noise = 10 ** ((what.noise_dbm_per_mhz - 30) / 10) * what.bandwidth_hz / 1e6
    gain = 299_792_458 / (4 * math.pi * what.carrier_hz) / 10**what.path_loss_exponent
    return nats / (what.bandwidth_hz * math.log(1 + 10 ** ((power_dbm - 30) / 10) * gain / noise))


def test_seconds_bytes_and_joules_of_uploads() -> None:
    # down 1 s for 1,000 bytes, 16 s of training, then n transmissions of an airtime, each of 1,000 bytes; 0.1 W at
    # 20 dBm, 0.001 W at 0 dBm in place of the profile's transmit power
    there = over_radio(heard_with(0.3), transmit_w=77.0, idle_w=2.0)
    heard = of(there)
    plan = Parallel((sender(0), sender(3, power=0.0)))  # in two cells: they do not interfere
    found = price(plan, there, Payload({"all": 1000}), air=heard, round_number=4, tick=9)
    tries = [
        heard.send(one, (), (4, 9, k, 0), 1000).attempts for one, k in ((plan.children[0], 0), (plan.children[1], 3))
    ]
    air_s = [n * airtime(there, power_dbm=p) for n, p in zip(tries, (20.0, 0.0), strict=True)]
    assert tries[0] != tries[1] == 8  # at 0 dBm it is not heard
    assert found.visits == pytest.approx([17 + one for one in air_s], rel=1e-12)
    assert found.seconds == max(found.visits)
    assert found.bytes["device_edge_up"] == sum(tries) * 1000
    assert found.bytes["edge_cloud_up"] == 2000
    waits = [found.seconds - 17 - one for one in air_s]
    expected = {0: 0.1 * air_s[0] + 2 * waits[0], 3: 0.001 * air_s[1] + 2 * waits[1]}
    assert found.joules_by_device == pytest.approx(expected, rel=1e-9)


def test_answers_are_sent_once_in_their_own_size() -> None:
    # 40 bytes are 320·ln 2 nats, whatever a result takes; the model from device 0 to device 1, 1,000 bytes
    there = over_radio(heard_with(1e-9))
    asked = Payload({"all": 1000}, {"census": lambda _: QuestionCost(0, 40)})
    found = price(Probe((0, 1), "census"), there, asked, air=of(there))
    assert found.seconds == pytest.approx(airtime(there, 320 * math.log(2)), rel=1e-12)
    assert found.bytes["device_edge_up"] == 80
    handed = price(Sequence((sender(0), Broadcast((1,)))), there, asked, air=of(there))
    # down 1, train 16, up once in its own size and down 1; then its result, 8 times in vain
    expected = 17 + airtime(there, 8000 * math.log(2)) + 1 + 8 * airtime(there)
    assert handed.seconds == pytest.approx(expected, rel=1e-12)
    assert handed.visits == pytest.approx([expected])


def test_a_ring_over_the_radio_pays_for_every_hop() -> None:
    there = over_radio(heard_with(0.5))
    heard = of(there)
    plan = Parallel((Repeat(2, Sequence((sender(0), sender(1))), tick=True),))
    tries = [heard.send(one, others, place, 0).attempts for one, others, place in placed_visits(plan, 1, 0)]
    assert len(set(tries)) > 1
    found = price(plan, there, Payload({"all": 1000}), air=heard)
    assert found.seconds == pytest.approx(4 * 17 + sum(tries) * airtime(there), rel=1e-12)
    assert found.bytes["device_edge_up"] == sum(tries) * 1000

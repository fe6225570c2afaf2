"""The radio against numbers worked out by hand and against draws of the fading it averages over."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedfloor.network import radio
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile, RadioModel
from fedfloor.network.sites import draw_sites
from refusals import refused

DRAWS = 200_000


def db(ratio: float) -> float:
    return 10 * math.log10(ratio)


def test_powers() -> None:
    assert radio.watts(30.0) == 1.0
    assert radio.watts(np.array([0.0, 10.0, 20.0])) == pytest.approx([1e-3, 1e-2, 1e-1], rel=1e-15)


def test_noise() -> None:
    # −114 dBm/MHz, a quarter of a MHz: −114 − 6.02 dB; 10^(−12.002 − 3) W
    noise = radio.noise_w(RadioModel())
    assert db(noise) + 30 == pytest.approx(-120.02, abs=0.001)
    assert noise == pytest.approx(9.95e-16, rel=1e-3)


@pytest.mark.parametrize(
    ("reading", "carrier_hz", "expected"),
    # A: v/(4π f d^α) at 868 MHz: 0.02748/(13.55, 5754, 2.443e6), times 0.1 W over 9.953e-16 W; 2.4 GHz: 4.42 dB less
    # B: (v/(4π f d))^α: (0.02748/2)^3.76 = 1.0e-7, 70 dB; 37.6 dB less per decade; 2.4 GHz: 3.76·4.42 = 16.6 dB less
    # (published to the whole dB: 113/87/60, 70/44/17.5, 109/82/56, 53/27/0.9)
    [
        ("A", 868e6, (113.1, 86.8, 60.5)),
        ("B", 868e6, (70.0, 43.7, 17.5)),
        ("A", 2.4e9, (108.7, 82.4, 56.1)),
        ("B", 2.4e9, (53.4, 27.1, 0.9)),
    ],
)
def test_path_loss(reading: str, carrier_hz: float, expected: tuple[float, ...]) -> None:
    # RaFed's numbers, dB of signal to noise at 2, 10 and 50 m and 20 dBm
    what = RadioModel(path_loss=reading, carrier_hz=carrier_hz)  # type: ignore[arg-type]
    found = radio.received(what, np.array([2.0, 10.0, 50.0]))
    assert found.shape == (3, 21)
    assert [db(one / radio.noise_w(what)) for one in found[:, -1]] == pytest.approx(expected, abs=0.06)
    assert found[0, -1] / found[0, 0] == pytest.approx(100)  # 20 dB more power
    # ten times as far: 37.6 dB less
    near, far = radio.attenuation(what, np.array([5.0, 50.0]))
    assert db(near / far) == pytest.approx(37.6)


@pytest.mark.parametrize(("snr_db", "seconds"), [(0, 0.144), (10, 0.042), (30, 0.0145), (50, 0.0087)])
def test_clean_airtime(snr_db: float, seconds: float) -> None:
    # 25,000 nats / (250 kHz · ln(1 + SNR)): ln 2 = 0.693 → 0.1443 s, ln 11 = 2.398 → 0.0417, ln 1001 = 6.909 → 0.01447,
    # ln 100,001 = 11.513 → 0.00869
    what = RadioModel(payload_nats=25_000.0)
    signal = np.array(radio.noise_w(what) * 10 ** (snr_db / 10))
    assert float(radio.airtime_s(what, signal, 0)) == pytest.approx(seconds, rel=0.01)
    # 25,000 nats are 25,000 / (8 ln 2) = 4,508 bytes
    assert float(radio.airtime_s(RadioModel(), signal, 25_000 / 8 / math.log(2))) == pytest.approx(
        float(radio.airtime_s(what, signal, 0)), rel=1e-12
    )


def test_airtime_in_bits() -> None:
    # SNR 3: log2(1 + 3) = 2 bit per second and Hz; 62,500 bytes are 500,000 bits: 1 s at 250 kHz
    signal = np.array(3 * radio.noise_w(RadioModel()))
    assert float(radio.airtime_s(RadioModel(), signal, 62_500)) == pytest.approx(1.0, rel=1e-12)


def fading(count: int, *places: int) -> np.ndarray:
    return np.random.default_rng(places).exponential(size=(DRAWS, count))


@pytest.mark.parametrize("threshold", [0.5, 1.0, 4.0])
def test_reception_with_faded_interferers(threshold: float) -> None:
    # received where h s/(Σ h_j s_j + N0) >= γ, every h of Exp(1); 200,000 draws: 4 standard errors are < 0.0045
    what = RadioModel(threshold=threshold, reception="exact")
    noise = radio.noise_w(what)
    signal = 5 * noise
    others = np.array([0.5, 2.0]) * noise
    h = fading(3)
    share = np.mean(h[:, 0] * signal >= threshold * (h[:, 1:] @ others + noise))
    assert radio.reception(what, signal, others) == pytest.approx(share, abs=0.0045)
    # e^(−γ/5) / ((1 + 0.1γ)(1 + 0.4γ))
    expected = math.exp(-threshold / 5) / (1 + 0.1 * threshold) / (1 + 0.4 * threshold)
    assert radio.reception(what, signal, others) == pytest.approx(expected)


def test_reception_with_interferers_at_their_mean() -> None:
    # Eq. 10: e^(−γ(0.5 + 2 + 1)/5): the sender fades, the others do not
    what = RadioModel(threshold=2.0)
    noise = radio.noise_w(what)
    found = radio.reception(what, 5 * noise, np.array([0.5, 2.0]) * noise)
    assert found == pytest.approx(math.exp(-2 * 3.5 / 5))
    share = np.mean(fading(1, 1)[:, 0] * 5 >= 2 * 3.5)
    assert found == pytest.approx(share, abs=0.0045)


def test_the_two_readings_of_reception() -> None:
    # 1/(1 + x) >= e^−x: with faded interferers a packet is received more often; alone, just as often
    exact, mean = (RadioModel(reception=kind) for kind in ("exact", "mean"))  # type: ignore[arg-type]
    noise = radio.noise_w(mean)
    for others in ([0.1], [1.0, 3.0], [10.0]):
        there = np.array(others) * noise
        assert radio.reception(exact, 5 * noise, there) > radio.reception(mean, 5 * noise, there)
    assert radio.reception(exact, 5 * noise, np.array([])) == radio.reception(mean, 5 * noise, np.array([]))


def test_outage_is_a_bound_on_power() -> None:
    # Eq. 9: P(h s/N0 < γ) < ζ ⇔ s > −γ N0/ln(1 − ζ), by draws just above and just below the bound
    for share in (0.01, 0.1, 0.5):
        what = RadioModel(threshold=2.0, outage=share)
        noise = radio.noise_w(what)
        least = -2 * noise / math.log(1 - share)
        assert radio.usable(what, least * np.array([0.999, 1.001])).tolist() == [False, True]
        h = fading(1, 2)[:, 0]
        error = 4 * math.sqrt(share * (1 - share) / DRAWS)
        assert np.mean(h * least / noise < 2) == pytest.approx(share, abs=error)
        assert 1 - radio.reception(what, least, np.array([])) == pytest.approx(share)
    assert radio.usable(RadioModel(), np.zeros(3)).all()


def test_out_of_reach() -> None:
    # reading B at 2.4 GHz: 0.9 dB at 50 m: an outage of 1 − e^(−1/1.23) = 0.56; 27 dB at 10 m: 0.002
    what = RadioModel(path_loss="B", carrier_hz=2.4e9, outage=0.1)
    on = NetworkProfile(device_edge=LinkClass(sharing="sinr"), radio=what, devices=Devices(distance_m=50.0))
    with refused("out-of-reach"):
        draw_sites(on, 0, np.zeros(3, int), np.ones(3, int), 8)
    near = NetworkProfile(device_edge=LinkClass(sharing="sinr"), radio=what, devices=Devices(distance_m=10.0))
    assert draw_sites(near, 0, np.zeros(3, int), np.ones(3, int), 8).received_w.shape == (3, 21)


def test_what_is_drawn_of_devices() -> None:
    # RaFed's ranges: means of 2,000 draws within 4 standard errors; a device's numbers do not depend on how many follow
    on = NetworkProfile(devices=Devices(cycles_per_bit=(10.0, 30.0), clock_hz=(1e9, 2e9), data_bits=(4e7, 8e7)))
    many = draw_sites(on, 3, np.zeros(2000, int), np.ones(2000, int), 8)
    few = draw_sites(on, 3, np.zeros(5, int), np.ones(5, int), 8)
    for name, low, high in (("cycles_per_bit", 10, 30), ("clock_hz", 1e9, 2e9), ("data_bits", 4e7, 8e7)):
        drawn = getattr(many, name)
        assert low <= drawn.min() < drawn.max() <= high
        assert drawn.mean() == pytest.approx((low + high) / 2, abs=4 * (high - low) / math.sqrt(12 * 2000))
        assert getattr(few, name).tolist() == drawn[:5].tolist()
    assert abs(np.corrcoef(many.cycles_per_bit, many.clock_hz)[0, 1]) < 0.1
    # y·D/f: 20·6e7·E[1/f], E[1/f] = ln 2/1e9: 0.83 s (RaFed's facts: 0.84 s with D in 5–10 MB of 8e6 bits: 20·6e7)
    assert many.pass_s.mean() == pytest.approx(20 * 6e7 * math.log(2) / 1e9, rel=0.03)
    assert many.pass_s.min() > 0.2
    assert many.pass_s.max() < 2.4

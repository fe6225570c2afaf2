"""The calculations of docs/errata.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from fedfloor import models
from fedfloor.parts.selection.grouping import Exp
from fedfloor.solvers.clustering import fewest_functions, hash_functions, hash_vectors
from papers import fedgs, fedgs_training, hfedms_training


def test_the_lemma_of_fedsr_is_false_where_its_theorem_needs_it() -> None:
    shares = np.full(5, 1 / 5)
    x = np.ones(3)
    mean = sum(share * x for share in shares)
    squares = np.square(shares).sum()
    assert squares <= 1 / 2  # the condition of the theorem
    assert mean @ mean > 2 * squares * (x @ x)  # Eq. 18 has ≤
    rng = np.random.default_rng(0)
    points = rng.normal(size=(5, 3))
    assert np.square(shares @ points).sum() <= shares @ np.square(points).sum(axis=1)  # Jensen, as the remedy says


def test_eq_19_of_fedsr_needs_that_no_factory_does_better_elsewhere() -> None:
    shares = np.array([3 / 4, 1 / 4])
    apart = np.array([-1.0, 4.0])  # L_m(w) − L_m(y); of all: 1/4, so that y may be the optimum
    assert shares @ apart == 1 / 4
    assert (np.square(shares) @ apart, shares.min() * (shares @ apart)) == (-5 / 16, 1 / 16)  # Eq. 19 has ≥


def test_proposition_1_of_hfedms_holds_in_expectation_only() -> None:
    deviations = np.array([[1.0, 0.0], [1.0, 0.0]])  # of one device from each of two clusters
    bound = np.square(np.linalg.norm(deviations, axis=1)).sum() / len(deviations) ** 2
    assert np.square(deviations.mean(axis=0)).sum() == 2 * bound
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (10_000, 2, 1))
    drawn = np.square((signs * deviations).mean(axis=1)).sum(axis=1)
    assert drawn.mean() == pytest.approx(bound, rel=0.05)


def test_groups_of_icg_have_everybodys_centroid_on_average() -> None:
    """Proposition 1, part 1: over all ways to take one device of each cluster of the same size."""
    rng = np.random.default_rng(0)
    clusters = rng.normal(size=(3, 4, 5))  # clusters, devices in each, classes
    groups = [
        np.mean([clusters[one, device] for one, device in enumerate(some)], 0) for some in product(range(4), repeat=3)
    ]
    assert np.allclose(np.mean(groups, axis=0), clusters.mean(axis=(0, 1)), atol=1e-12)


def solvable(counts: NDArray[np.int64], wanted: NDArray[np.int64]) -> bool:
    """Return whether A x = b for some x of zeros and ones: problem A of FedGS."""
    return any((counts @ np.array(x) == wanted).all() for x in product((0, 1), repeat=counts.shape[1]))


def chosen_exactly(censuses: NDArray[np.int64], how_many: int, wanted: NDArray[np.int64]) -> bool:
    """Return whether L devices hold exactly the wanted classes together: whether problem B of FedGS reaches 0."""
    some = combinations(range(censuses.shape[1]), how_many)
    return any((censuses[:, list(one)].sum(axis=1) == wanted).all() for one in some)


def test_proposition_1_of_fedgs_reduces_integer_programming_to_the_choice_of_devices() -> None:
    """Problem B is asked once for each number of devices. Devices hold as many samples each, which one more class
    sees to: where A has other numbers of a device, this class has the rest."""
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(60):
        counts = rng.integers(0, 4, (3, 6))
        wanted = counts @ rng.integers(0, 2, 6) + rng.integers(0, 2) * rng.integers(0, 2, 3)
        each = int(counts.sum(axis=0).max())
        censuses = np.vstack([counts, each - counts.sum(axis=0)])
        found = any(chosen_exactly(censuses, many, np.append(wanted, many * each - wanted.sum())) for many in range(7))
        answers.append(found)
        assert found == solvable(counts, wanted)
    assert 30 <= sum(answers) < 60  # both answers occur


def test_allocations_of_rafed_are_products_of_channels_and_powers() -> None:
    devices = 2
    channels = 2
    powers = 3
    choices = 1 + channels * powers  # silent, or a channel and a power
    counted = choices**devices - 1  # but for all of them silent
    assert counted == sum(math.comb(devices, k) * (channels * powers) ** k for k in range(1, devices + 1))
    assert counted != sum(math.comb(devices, k) * (channels + powers) ** k for k in range(1, devices + 1))


COMPUTE = {"a": 2, "b": 3, "c": 4, "d": 5}  # seconds
SEND = {"a": 4, "b": 2, "c": 1, "d": 1}  # seconds without collisions
ARRIVES = {1: 1.0, 2: 0.8, 3: 0.6, 4: 0.4}  # share of packets that arrive, by the number of active devices
ITERATIONS = {1: 10, 2: 8, 3: 6, 4: 4}


def seconds(active: str, *, apart: bool = False) -> float:
    """Return the time of training with some active devices, RaFed's Table I."""
    share = 1.0 if apart else ARRIVES[len(active)]
    return ITERATIONS[len(active)] * max(COMPUTE[device] + SEND[device] / share for device in active)


def test_the_example_of_rafed() -> None:
    assert [round(seconds(active)) for active in ("ab", "c", "abcd", "bcd")] == [56, 50, 48, 40]
    sets = ["".join(some) for many in range(1, 5) for some in combinations("abcd", many)]
    assert min(sets, key=seconds) == "bcd", "the shortest, as the table's heading says"
    assert seconds("bcd", apart=True) == 36
    assert min(seconds(active, apart=True) for active in sets) == seconds("abcd", apart=True) == 24


Latencies = NDArray[np.float64]


def least(latencies: Latencies) -> float:
    """Return what Algorithm 1's function ``max`` returns: its line 19 keeps the smaller of two latencies."""
    kept = 9999.0
    for latency in latencies:
        kept = min(kept, float(latency))
    return kept


def swept(of: Callable[[list[int]], Latencies], chosen: list[int], choices: int) -> tuple[list[int], list[float]]:
    """Return the allocation after the sweeps of Algorithm 1 as printed, and T_0 after each of its changes."""
    course = [least(of(chosen))]
    while True:
        before = course[-1]
        for device in range(len(chosen)):
            for choice in range(choices):
                tried = [*chosen[:device], choice, *chosen[device + 1 :]]
                if least(of(tried)) > course[-1]:  # line 9
                    course.append(least(of(tried)))
                    chosen = tried
        if not before - course[-1] > 0:
            return chosen, course


def test_algorithm_1_of_rafed_as_printed() -> None:
    computing = np.array([1.0, 2.0, 3.0])

    def of(channels: list[int]) -> Latencies:
        """Return the latencies of three devices: sending takes as long as so many devices share the channel."""
        shared = [sum(one == other for other in channels) for one in channels]
        return computing + np.array(shared)

    start = [0, 1, 1]
    ended, course = swept(of, start, 3)
    assert all(earlier < later for earlier, later in pairwise(course)), "T_0 only grows"
    assert of(ended).max() > of(start).max() == 5
    best = min(product(range(3), repeat=3), key=lambda channels: of(list(channels)).max())
    assert of(list(best)).max() == 4, "as it is meant, all have a channel of their own"


def test_percentages_of_rafed_have_fedcs_ahead_of_q_ffl_and_fedl() -> None:
    times = {name: 1 / (1 - below) for name, below in {"q-FFL": 0.282, "FEDL": 0.299, "FedCS": 0.158}.items()}
    assert [round(time, 2) for time in times.values()] == [1.39, 1.43, 1.19]
    assert [round(10 * math.log10(1000 * watts)) for watts in (0.2, 1.0)] == [23, 30]  # dBm


def test_averages_of_fedgs() -> None:
    accuracy, _, rounds = zip(*(printed for *_, printed in fedgs_training.BASELINES.values()), strict=True)
    ours, _, needed = fedgs_training.FEDGS
    assert round(ours - np.mean(accuracy), 1) == 3.5
    reached = [one for one in rounds if one is not None]
    assert (len(rounds), len(reached), np.mean(reached)) == (14, 9, 280)
    assert round(100 * (1 - needed / np.mean(reached)), 1) == 47.5
    assert round(100 * (1 - needed / np.mean([one or 500 for one in rounds]))) == 59
    assert sorted(reached)[:3] == [68, 71, 76]
    fedavg = rounds[list(fedgs_training.BASELINES).index("fedavg")]
    assert round(fedavg / needed, 1) == 3.3


def test_devices_that_are_drawn_first_do_not_make_selections_equally_likely() -> None:
    """Eq. 6 and its trick, of four devices with two classes: one is drawn, then the one that evens it out."""
    counts = np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
    chosen = np.zeros(4)
    for first in range(4):
        far = {k: float(np.abs(counts[first] + counts[k] - 1).sum()) for k in range(4) if k != first}
        best = [k for k, one in far.items() if one == min(far.values())]
        chosen[first] += 1 / 4
        chosen[best] += 1 / 4 / len(best)
    assert chosen == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])


def test_ends_of_gbpcs_are_swapped_between_text_and_plot() -> None:
    (comparison,) = fedgs.comparisons()
    begun = {one.init: one.begun for one in comparison.samplers if one.begun}
    assert (begun["zero"].said, begun["mpinv"].said) == (0.029, 0.030)
    assert (begun["zero"].ends, begun["mpinv"].ends) == (0.030, 0.029)


def test_exponential_growth_of_hfedms_begins_without_a_group() -> None:
    def printed(period: int, alpha: float) -> int:
        return math.floor((1 + alpha) ** period - 1)

    assert [printed(1, alpha) for alpha in hfedms_training.GROWTHS["exponential"]] == [0, 0, 0]
    assert next(period for period in range(1, 100) if printed(period, 0.012)) == 59
    assert Exp(alpha=0.012, beta=10).groups(1) == 10


def test_percentages_of_hfedms_follow_from_its_tables() -> None:
    stream, static = ([one[at] for one in hfedms_training.BASELINES.values()] for at in (0, 2))
    assert [round(84.2 - one, 1) for one in (max(stream), min(stream))] == [6.4, 14.1]
    assert [round(85.4 - one, 1) for one in (max(static), min(static))] == [2.2, 6.7]
    drops = [round(before - now, 1) for before, now in zip(static, stream, strict=True)]
    assert (min(drops), max(drops)) == (4.3, 10.0)
    fedavg, s, d, *_ = (hfedms_training.TABLE4[key] for key in (None, 1, 5))
    others = [row for key, row in hfedms_training.TABLE4.items() if key is not None]
    saved = [[100 * (1 - row[at] / fedavg[at]) for row in others] for at in range(3)]
    spans = [(math.floor(min(one)), round(max(one))) for one in saved]
    assert spans == [(83, 93), (93, 98), (93, 98)], "rounds, traffic, hours; the text has 90 of traffic"
    assert round(100 * (1 - d[1] / s[1])) == 67
    assert round(100 * (1 - d[2] / s[2])) == 70


def test_traffic_of_icg_of_hfedms() -> None:
    devices = 368
    classes = 62
    kilobytes = {
        every: 4 * devices * classes * math.ceil(rounds / every) / 1000
        for every, (rounds, *_) in hfedms_training.TABLE4.items()
        if every is not None
    }
    assert {every: round(one) for every, one in kilobytes.items()} == {1: 2920, 3: 1095, 5: 639, 7: 913, 9: 821}


def test_networks_of_fedsr() -> None:
    assert models.count("mlp-2nn", (1, 28, 28), 10) == 199_210
    assert models.count("cnn-tutorial", (3, 32, 32), 100) == 128_420
    assert models.count("cnn-tutorial", (3, 28, 28), 100) == 99_748


def test_mnist_has_too_few_of_a_digit_for_table_ii_of_fldg() -> None:
    counts = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])  # MNIST's training pictures
    assert counts.sum() == 60_000
    assert (counts // 600).sum() == 94  # devices with 600 of one label
    assert (counts // 300).sum() // 2 == 97  # with 300 of each of two
    assert min(counts) // 10 >= 540  # as many as ten devices of every label want here


MNIST = {  # FedSR's Table II: IID, ξ = 4, ξ = 2
    "FedAvg": (97.64, 97.38, 93.52), "FedProx": (97.60, 97.40, 93.46), "MOON": (97.74, 97.30, 92.98),
    "HierFAVG": (97.69, 97.46, 95.19), "FedSR": (97.71, 97.45, 97.83),
}  # fmt: skip
FASHION = {
    "FedAvg": (92.62, 90.85, 85.23), "FedProx": (92.54, 90.98, 85.38), "MOON": (92.44, 90.67, 85.81),
    "HierFAVG": (92.48, 90.81, 86.64), "FedSR": (92.93, 92.57, 92.04),
}  # fmt: skip


def test_methods_of_fedsr_degrade_with_two_shards_and_not_with_four() -> None:
    def lost(table: dict[str, tuple[float, ...]], at: int) -> dict[str, float]:
        return {name: round(row[0] - row[at], 2) for name, row in table.items()}

    assert lost(MNIST, 1)["FedAvg"] == lost(MNIST, 1)["FedSR"] == 0.26
    assert max(lost(MNIST, 1).values()) == 0.44
    assert max(lost(FASHION, 1).values()) == 1.77
    assert (lost(MNIST, 2)["FedAvg"], lost(FASHION, 2)["FedAvg"]) == (4.12, 7.39)
    assert (lost(MNIST, 2)["FedSR"], lost(FASHION, 2)["FedSR"]) == (-0.12, 0.89)


@pytest.mark.parametrize(
    ("side", "channels", "printed", "padded"), [(28, 50, 800, 2450), (28, 32, 512, 1568), (32, 16, 400, 1024)]
)
def test_inputs_of_fldgs_layers_are_those_without_padding(side: int, channels: int, printed: int, padded: int) -> None:
    def inputs(padding: int) -> int:
        left = side
        for _ in range(2):
            left = (left + 2 * padding - 4) // 2  # a convolution of 5 × 5, then pooling of 2 × 2
        return channels * left**2

    assert (inputs(0), inputs(2)) == (printed, padded)


def test_one_hash_of_fldg_tells_many_groups_apart() -> None:
    far = 1000.0 * np.arange(10)[:, None] * np.ones(4)
    values = hash_vectors(hash_functions(4, 1, 3.0, seed=0), far)
    assert len(np.unique(values)) == 10
    assert fewest_functions(10, 3.0) == 3


def test_percentages_of_fldgs_fig_6a_are_ratios() -> None:
    """FLDG beside FLDG-L follows from FedAvg and from K-Center, in the same round and the same runs."""
    half = 0.05  # of the last digit that is printed
    fldg, fldgl = (13.2, 46.3), (11.8, 44.6)  # above FedAvg, above K-Center
    points = [(a - b - 2 * half, a - b + 2 * half) for a, b in zip(fldg, fldgl, strict=True)]
    assert points[0][1] < points[1][0], "1.4 and 1.7 points: no difference fits both"
    ratios = [
        ((100 + a - half) / (100 + b + half), (100 + a + half) / (100 + b - half))
        for a, b in zip(fldg, fldgl, strict=True)
    ]
    both = max(low for low, _ in ratios), min(high for _, high in ratios)
    assert both == pytest.approx((1.0116, 1.0125), abs=1e-4), "one ratio fits both"

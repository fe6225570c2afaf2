"""Intervals over seeds and test units, p-values and their correction: closed forms, coverage, numbers by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, permutation_test, ttest_1samp

from fedfloor.engine.resample import DRAWS, Units
from fedfloor.report import intervals
from fedfloor.report.groups import groups
from fedfloor.report.intervals import Draws, Estimate, holm
from fedfloor.report.ledger import collect
from fedfloor.report.story import story
from fedfloor.report.table import paired, summary, trials
from run_folders import make_run

PICKS = {many: np.array(list(Units("sample", np.arange(many)).draws(DRAWS))) for many in (4, 6, 12, 40)}


def drawn(values: np.ndarray, noun: str = "recording") -> Draws:
    """The draws of the mean of equally large units with these means."""
    return Draws(noun, len(values), values[PICKS[len(values)]].mean(axis=1))


def estimate(values: np.ndarray) -> Estimate:
    return Estimate((float(values.mean()),), (drawn(values),))


def student(values: np.ndarray) -> tuple[float, float]:
    ends = ttest_1samp(values, 0.0).confidence_interval()
    return float(ends.low), float(ends.high)


def test_of_normal_units_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(10.0, 1.0, 40)
    low, high = student(values)
    # the ends are quantiles of 1,000 draws: within an eighth of the half width
    assert estimate(values).bounds() == pytest.approx((low, high), abs=(high - low) / 16)


def test_of_many_units_the_ends_are_those_of_scipys_bootstrap() -> None:
    values = np.random.default_rng(1).exponential(1.0, 40)
    by_scipy = bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=0).confidence_interval
    low, high = estimate(values).bounds() or (0.0, 0.0)
    assert (low, high) == pytest.approx((by_scipy.low, by_scipy.high), abs=0.1 * (high - low))


@pytest.mark.parametrize("many", [6, 12])
def test_intervals_of_few_recordings_contain_the_truth_as_often_as_they_promise(many: int) -> None:
    rng = np.random.default_rng(2)
    inside = inside_rows = 0
    for _ in range(400):
        shares = np.clip(rng.normal(0.8, 0.1, many), 0, 1)  # each recording has a share of its own
        rows = rng.random((many, 50)) < shares[:, None]
        low, high = estimate(rows.mean(axis=1)).bounds() or (1.0, 0.0)
        inside += low <= 0.8 <= high
        wide = 1.96 * math.sqrt(rows.mean() * (1 - rows.mean()) / rows.size)  # as if rows were independent
        inside_rows += abs(rows.mean() - 0.8) <= wide
    assert 0.92 <= inside / 400 <= 0.99  # ±0.03: two standard errors of 400 trials, and the clipping at 1
    assert inside_rows / 400 < 0.80


def test_seeds_and_test_units_add_up_as_independent_parts() -> None:
    values = np.array([0.6, 0.8, 0.7, 0.9, 0.5, 0.7])
    seeds = (0.68, 0.72)  # mean 0.7, half width t(1)·s/√2 = 12.7062·0.02
    low, high = Estimate((0.7,), (drawn(values),)).bounds() or (0.0, 0.0)
    both = Estimate(seeds, (drawn(values - 0.02), drawn(values + 0.02)))
    width = math.tan(0.475 * math.pi) * 0.02
    ends = 0.7 - math.hypot(width, 0.7 - low), 0.7 + math.hypot(width, high - 0.7)
    assert both.bounds() == pytest.approx(ends)
    assert both.over == "2 seeds and 6 test recordings"


def test_seeds_with_other_test_samples_contain_their_spread() -> None:
    values = np.array([0.6, 0.8, 0.7, 0.9, 0.5, 0.7])
    other = Estimate((0.68, 0.72), (drawn(values), drawn(values)), same=False)
    assert other.over == "2 seeds"
    assert other.bounds() == Estimate((0.68, 0.72)).bounds()


def test_seeds_that_agree_by_chance_vary_as_their_test_samples_do() -> None:
    """One right of 48, 48 and 47: Student's interval of the three shares would be [0.0203, 0.0216]."""
    values = [np.array([1.0] + [0.0] * (many - 1)) for many in (48, 48, 47)]
    shares = tuple(float(one.mean()) for one in values)
    picks = {many: np.array(list(Units("sample", np.arange(many)).draws(DRAWS))) for many in (47, 48)}
    tests = tuple(Draws("sample", len(one), one[picks[len(one)]].mean(axis=1), len(one)) for one in values)
    low, high = Estimate(shares, tests, same=False).bounds() or (0.0, 0.0)
    exact = binomtest(3, 143).proportion_ci(method="exact")
    assert 0 <= low <= exact.low
    assert exact.high <= high < 1.2 * exact.high
    assert (Estimate(shares).bounds() or (0.0, 0.0)) == pytest.approx((0.0203, 0.0216), abs=1e-4)
    units = np.array([0.6, 0.8, 0.7, 0.9, 0.5, 0.7])
    close = Estimate((0.6999, 0.7, 0.7001), tuple(drawn(units + shift) for shift in (-1e-4, 0, 1e-4)), same=False)
    low, high = close.bounds() or (0.0, 0.0)
    wide = 1.96 * units.std() / math.sqrt(18)
    assert (0.7 - low, high - 0.7) == pytest.approx((wide, wide), rel=0.25)


def test_equal_seeds_show_nothing() -> None:
    assert Estimate((0.61, 0.61)).bounds() is None
    assert Estimate((0.61, 0.61)).chance is None
    assert Estimate((0.61,)).over == ""


def test_p_values_of_seeds_are_those_of_the_t_test() -> None:
    values = (0.02, 0.05, 0.01, 0.04)
    assert Estimate(values).chance == pytest.approx(ttest_1samp(values, 0.0).pvalue, abs=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6, unique=True), st.floats(-0.5, 0.5))
@settings(max_examples=60, deadline=None)
def test_the_p_value_is_below_a_twentieth_where_the_interval_excludes_0(values: list[float], shift: float) -> None:
    found = estimate(np.array(values) + shift)
    low, high = found.bounds() or (0.0, 0.0)
    assert found.chance is not None
    if low > 0 or high < 0:
        assert found.chance <= 0.05 + 1e-6
    elif low < -1e-9 and high > 1e-9:
        assert found.chance >= 0.05 - 1e-6


def test_beyond_all_draws_the_p_value_is_students() -> None:
    values = np.random.default_rng(5).normal(0.2, 0.02, 12)  # ten standard deviations, and 35 standard errors
    found = estimate(values).chance
    students = ttest_1samp(values, 0.0).pvalue
    assert found is not None
    assert 1e-13 < students < 1e-9
    assert found < 1e-8


def test_models_are_compared_on_the_same_units() -> None:
    hard = np.linspace(0.2, 0.9, 12)  # recordings differ much, the models little
    better = drawn(hard + 0.02).minus(drawn(hard))
    assert better is not None
    low, high = Estimate((0.02,), (better,)).bounds() or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.02, 0.02))
    wide = estimate(hard + 0.02).bounds() or (0.0, 0.0)
    assert wide[1] - wide[0] > 0.2
    assert drawn(hard).minus(drawn(hard, "device")) is None
    assert drawn(hard).minus(drawn(hard[:6])) is None


def difference(values: np.ndarray) -> Estimate:
    """The difference of two models with these differences on recordings of the same size."""
    return Estimate((float(values.mean()),), (drawn(values),), paired=True)


def exact(values: np.ndarray) -> float:
    def apart(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.mean(a - b, axis=axis)

    return float(permutation_test((values, 0 * values), apart, permutation_type="samples", n_resamples=1e6).pvalue)


@pytest.mark.parametrize("many", [6, 12])
def test_the_p_value_of_few_recordings_is_at_least_that_of_scipys_exact_test(many: int) -> None:
    rng = np.random.default_rng(7)
    ratios = []
    for _ in range(12):
        values = rng.normal(rng.uniform(0, 0.2), 0.1, many)
        found = difference(values).chance
        by_draws = estimate(values).chance
        assert found is not None
        assert by_draws is not None
        assert found == pytest.approx(max(exact(values), by_draws), abs=1e-6)
        ratios.append(exact(values) / by_draws)
    assert max(ratios) > 1  # the exact test decides in some of them


def test_six_recordings_show_at_most_one_in_thirty_two() -> None:
    values = np.array([0.2, 0.21, 0.19, 0.22, 0.2, 0.18])  # all alike, so that the draws alone would prove much
    found = difference(values)
    alone = estimate(values).chance
    assert alone is not None
    assert alone < 0.001
    assert found.chance == pytest.approx(2 / 64, abs=1e-6)
    low, high = found.bounds() or (0.0, 0.0)
    assert 0 < low < 0.2 < high
    assert found.bounds(0.97) is None  # no interval is known at a level above 1 − 2/64


def test_five_recordings_have_no_interval_and_fifteen_no_p_value_below_their_floor() -> None:
    alike = np.full(5, 0.2) + np.array([0.0, 0.01, -0.01, 0.02, -0.02])
    picks = np.array(list(Units("sample", np.arange(5)).draws(DRAWS)))
    five = Estimate((0.2,), (Draws("recording", 5, alike[picks].mean(axis=1)),), paired=True)
    assert five.bounds() is None
    assert five.chance == pytest.approx(2 / 32, abs=1e-6)
    picks = np.array(list(Units("sample", np.arange(15)).draws(DRAWS)))
    many = np.linspace(0.2, 0.21, 15)
    fifteen = Estimate((float(many.mean()),), (Draws("recording", 15, many[picks].mean(axis=1)),), paired=True)
    assert fifteen.chance == pytest.approx(2 / 2**15, rel=0.01)


def test_the_exact_interval_holds_differences_that_the_exact_test_does_not_refuse() -> None:
    values = np.random.default_rng(3).normal(0.1, 0.1, 6)
    low, high = intervals._exchanged(values, 0.1)
    assert exact(values - (low + 1e-6)) > 0.1 > exact(values - (low - 1e-6))
    assert exact(values - (high - 1e-6)) > 0.1 > exact(values - (high + 1e-6))


def test_holm_by_hand() -> None:
    # ascending 0.005, 0.011, 0.02, 0.04: times 4, 3, 2, 1 = 0.02, 0.033, 0.04, 0.04
    assert holm([0.011, 0.02, 0.005, 0.04]) == pytest.approx([0.033, 0.04, 0.02, 0.04])
    # a smaller product after a larger one is raised to it, and nothing exceeds 1
    assert holm([0.03, 0.04, 0.9]) == pytest.approx([0.09, 0.09, 0.9])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([None, 0.01]) == [None, 0.01]


def evaluated(folder: Path, accuracy: float, values: np.ndarray, *, seeded: bool = True, **kind: object) -> Path:
    """Give a run folder an evaluation with draws of six recordings."""
    make_run(folder, [accuracy], **kind)  # type: ignore[arg-type]
    park = json.loads((folder / "park.json").read_text()) | {"test_sha256": "same"}
    (folder / "park.json").write_text(json.dumps(park))
    draws = {"unit": "recording", "units": len(values), "figures": {"accuracy": drawn(values).values.tolist()}}
    body = {"round": 1, "classes": park["classes"], "confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}
    (folder / "evaluation.json").write_text(json.dumps(body | {"resampled": draws, "seeded": seeded}))
    return folder


VALUES = np.array([0.6, 0.8, 0.7, 0.9, 0.5, 0.7])


def test_seeds_of_a_method_that_draws_nothing_are_no_certainty(tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluated(tmp_path / f"{seed}", 0.7, VALUES, seeded=False, seed=seed)
    (row,) = summary(collect([tmp_path]))
    assert row["half_width"] is None
    assert (row["low"], row["high"]) == pytest.approx(estimate(VALUES).bounds())
    assert row["over"] == "6 test recordings"
    text = story(groups(collect([tmp_path])), None)
    assert "Another seed gives the same model" in " ".join(text)
    assert not any("more seeds" in sentence for sentence in text)


def test_without_draws_more_test_samples_are_asked_for_where_seeds_do_not_matter(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 0.7, VALUES, seeded=False, method="fedavg")
    make_run(tmp_path / "b", [0.6])
    body = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    few = body | {"resampled": {"unit": "recording", "units": 3, "figures": {}}}
    for folder in ("a", "b"):
        (tmp_path / folder / "evaluation.json").write_text(json.dumps(few))
    text = " ".join(story(groups(collect([tmp_path])), None))
    assert "more test samples" in text
    assert "more seeds" not in text
    assert "The test samples of a run are of 3 recordings" in text


def test_where_recordings_are_few_seeds_alone_exclude_no_chance(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.75, 0.5)):  # gains of 0.25 and −0.25
        evaluated(tmp_path / f"a{seed}", accuracy, VALUES[:4], method="fedavg", seed=seed)
        evaluated(tmp_path / f"b{seed}", 1.25 - accuracy, VALUES[:4], method="fedsr", seed=seed)
    both = " ".join(story(groups(collect([tmp_path])), None))
    assert "equally accurate" not in both
    one = " ".join(story(groups(collect([tmp_path / "a0", tmp_path / "b0"])), None))
    assert "more seeds and more test samples, of other devices or recordings, are needed to exclude chance" in one


def test_methods_against_one_are_corrected_for_their_number_alone(tmp_path: Path) -> None:
    shifts = {"fedavg": 0.0, "fedprox": 0.03, "ida": 0.02, "moon": -0.06}
    noise = np.random.default_rng(3).normal(0, 0.02, (4, 6))
    for (method, shift), away in zip(shifts.items(), noise, strict=True):
        own = VALUES + shift + away
        evaluated(tmp_path / method, float(own.mean()), own, method=method)
    runs = collect([tmp_path])
    every = paired(runs)
    base = paired(runs, against="fedavg")
    assert len(every) == 6
    assert {row["method"] for row in base} == {"fedprox", "ida", "moon"}
    assert all(row["against"] == "fedavg" for row in base)
    assert [row["p_holm"] for row in base] == holm([row["p"] for row in base])
    assert [row["p_holm"] for row in every] == holm([row["p"] for row in every])
    alone = {row["method"]: row["p"] for row in every if row["against"] == "fedavg"} | {
        row["against"]: row["p"] for row in every if row["method"] == "fedavg"
    }
    assert {row["method"]: row["p"] for row in base} == pytest.approx(alone, rel=1e-6)
    text = " ".join(story(groups(runs), None, against="fedavg"))
    assert "FedProx is ahead of FedAvg" in text
    assert "MOON is behind FedAvg" in text
    assert "IDA is ahead of MOON" not in text


def test_trials_of_a_sweep_are_compared_with_the_best_alone(tmp_path: Path) -> None:
    many = np.tile(VALUES, 2)
    noise = np.random.default_rng(4).normal(0, 0.01, (3, 12))
    for number, shift in enumerate((0.05, 0.048, -0.1)):
        own = many + shift + noise[number]
        evaluated(tmp_path / f"{number}", float(own.mean()), own, laps=number)
    runs = sorted(collect([tmp_path]), key=lambda run: run.folder.name)
    ends = [[(run, run.rounds[-1].accuracy or 0.0)] for run in runs]
    best, near, far = trials(ends[0], ends, runs[0].headline)
    assert best["p_holm"] is None
    assert near["p_holm"] > 0.05
    assert far["p_holm"] < 0.05
    by_hand = [Estimate((float(np.mean(many + shift + noise[i]) - np.mean(many + 0.05 + noise[0])),),
                        (drawn(many + shift + noise[i] - many - 0.05 - noise[0]),)).chance
               for i, shift in ((1, 0.048), (2, -0.1))]  # fmt: skip
    assert [near["p_holm"], far["p_holm"]] == pytest.approx(holm(by_hand), abs=0.01)


@pytest.mark.parametrize("seeded", [True, False])
def test_one_seed_excludes_chance_only_where_nothing_is_drawn(tmp_path: Path, *, seeded: bool) -> None:
    many = np.tile(VALUES, 2)
    for method, shift in (("fedavg", 0.0), ("fedprox", 0.05)):
        own = many + shift + np.random.default_rng(6).normal(0, 0.001, 12)
        evaluated(tmp_path / method, float(own.mean()), own, seeded=seeded, method=method)
    text = " ".join(story(groups(collect([tmp_path])), None))
    assert "FedProx is ahead of FedAvg by 5.0 percentage points" in text
    assert ("more than chance explains" in text) != seeded
    assert ("more seeds are needed to exclude chance in training" in text) == seeded


@pytest.mark.parametrize(("units", "low"), [(72, 0.025 ** (1 / 72)), (5, 0.025**0.2)])
def test_without_an_error_the_interval_is_clopper_and_pearsons(units: int, low: float) -> None:
    """Of n right samples of n, the lower end is (α/2)^(1/n), and of none 1 − (α/2)^(1/n), by hand."""
    right = Estimate((1.0,), (Draws("sample", units, np.ones(DRAWS), units),))
    wrong = Estimate((0.0,), (Draws("sample", units, np.zeros(DRAWS), units),))
    assert right.bounds() == pytest.approx((low, 1.0))
    assert wrong.bounds() == pytest.approx((0.0, 1 - low))


def test_with_few_errors_the_interval_is_at_least_clopper_and_pearsons() -> None:
    """Of 39 right samples of 40: F quantiles give 0.8684 and 0.99937."""
    values = np.r_[np.ones(39), 0.0]
    draws = Draws("sample", 40, drawn(values).values, 40)
    low, high = Estimate((0.975,), (draws,)).bounds() or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.8684, 1.0), abs=1e-4)  # the draws reach 1
    recordings = Draws("recording", 40, drawn(values).values, 40)  # whose samples are not right or wrong alike
    assert Estimate((0.975,), (recordings,)).bounds() == estimate(values).bounds()


@given(st.lists(st.floats(0.0, 0.06), min_size=3, max_size=3), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_an_interval_of_several_pairs_excludes_0_exactly_where_p_is_small(gains: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        runs = []
        for i, gain in enumerate([0.0, *gains]):
            values = np.clip(VALUES + gain + rng.normal(0, 0.02, len(VALUES)), 0, 1)
            runs.append(evaluated(Path(folder) / f"m{i}", float(values.mean()), values, seeded=False, method=f"m{i}"))
        for row in paired(collect(runs)):
            excludes = row["low"] is not None and (row["low"] > 0 or row["high"] < 0)
            assert excludes == (row["p_holm"] < 0.05), row


def test_a_difference_of_shares_is_at_most_one(tmp_path: Path) -> None:
    """Of two seeds with differences 0.1 and 0.7, Student's interval is 0.4 ± 12.7·0.424/√2 = −3.4 to 4.2."""
    for seed, gain in enumerate((0.1, 0.7)):
        make_run(tmp_path / f"a{seed}", [0.2], method="fedavg", seed=seed)
        make_run(tmp_path / f"b{seed}", [0.2 + gain], method="fedsr", seed=seed)
    [row] = paired(collect([tmp_path]))
    assert (row["low"], row["high"]) == (-1.0, 1.0)
    assert row["p"] == pytest.approx(0.410, abs=0.001)  # of t = 4/3 with one degree: 1 − 2·arctan(4/3)/π

"""Label skew: what is measured, what chance alone makes of it, and the warning where nothing is left to choose by."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from commands import Command
from fedfloor import config
from fedfloor.park.described import LabelSkew, deviation, label_skew
from fedfloor.park.park import Park
from fedfloor.park.statistics import RemoteStatistics
from fedfloor.runs.prepare import warn
from floor import park

CHOOSES = {
    "fedgs": {"solver": "random"}, "hfedms": {"grouping": "random"}, "astraea": {"grouping": "random"},
}  # fmt: skip


def dealt(*counts: list[int]) -> Park:
    """Return a park whose devices hold so many samples of each class."""
    here = park([sum(row) for row in counts], classes=len(counts[0]))
    y = np.concatenate([np.repeat(np.arange(len(row)), row) for row in counts])
    parts = np.split(np.arange(len(y)), np.cumsum([sum(row) for row in counts])[:-1])
    return replace(here, dataset=replace(here.dataset, y=y), indices=tuple(parts))


# -- figures -----------------------------------------------------------------------------------------------------------


def test_measured_is_the_mean_distance_from_all_devices_class_shares() -> None:
    """All devices together have ½, ½. Device 0 has ¾, ¼: ½·(¼ + ¼) = ¼. Device 1 has 0, 1: ½. Device 2: 0."""
    found = label_skew(dealt([3, 1], [0, 2], [3, 3]))
    assert found is not None
    assert found.measured == pytest.approx((0.25 + 0.5 + 0.0) / 3)


@given(n=st.integers(1, 60), weights=st.lists(st.integers(1, 20), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_closed_form_is_the_expectation(n: int, weights: list[int]) -> None:
    """Beside the sum over all outcomes of each class's binomial distribution."""
    share = np.array(weights) / sum(weights)
    outcomes = np.arange(n + 1)
    by_hand = sum(float((binom.pmf(outcomes, n, p) * np.abs(outcomes / n - p)).sum()) for p in share) / 2
    assert deviation(np.array([n]), share)[0] == pytest.approx(by_hand, abs=1e-12)


def test_random_devices_have_the_expected_skew() -> None:
    """4,000 devices of 30 samples each, drawn by chance: the mean's standard error is below 0.001 (deviation 0.05)."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(30, [0.5, 0.3, 0.1, 0.1], size=4000)
    here = dealt(*counts.tolist())
    found = label_skew(here)
    assert found is not None
    assert found.measured == pytest.approx(found.expected, abs=0.004)
    assert found.negligible
    skewed = label_skew(dealt(*np.sort(counts, axis=1)[:, ::-1].tolist(), *np.sort(counts, axis=1).tolist()))
    assert skewed is not None
    assert not skewed.negligible


def test_samples_that_stay_on_real_devices_are_not_measured() -> None:
    assert label_skew(replace(park(), remote=RemoteStatistics())) is None


# -- the warning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHOOSES)
def test_methods_that_choose_by_labels_declare_it(name: str) -> None:
    assert config.from_table({"method": {"name": name}}).configured.needs.labels
    assert not config.from_table({"method": {"name": name}, "methods": {name: CHOOSES[name]}}).configured.needs.labels
    assert not config.from_table({"method": {"name": "fedavg"}}).configured.needs.labels


@pytest.mark.parametrize(("name", "measured", "warned"), [("fedgs", 0.2, 1), ("fedgs", 0.5, 0), ("fedavg", 0.2, 0)])
def test_a_choice_without_anything_to_choose_by_is_warned_of(
    name: str, measured: float, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedfloor"):
        warn(config.from_table({"method": {"name": name}}), LabelSkew(measured, 0.21))
        warn(config.from_table({"method": {"name": name}}), None)
    assert caplog.text.count("which hardly differ here") == warned


def test_run_and_new_say_it(command: Command) -> None:
    said = command.run(
        "--set", "method.name=fedgs", "--set", "methods.fedgs.devices=1", "--set", "methods.fedgs.random=0"
    )
    assert "label skew 0." in said.err.splitlines()[-2]
    assert "which hardly differ here" in said.err
    rows = [
        f"{device},{time},{device * time % 7},{'ok' if time % 2 else 'worn'}"
        for device in range(4)
        for time in range(40)
    ]
    Path("plant.csv").write_text("\n".join(["device,time,sensor,label", *rows]) + "\n")
    drafted = command("new", "plant.csv", "--set", "method.name=fedgs")
    assert "label skew 0." in drafted.out
    assert "Method 'fedgs' chooses devices by their labels, which hardly differ here" in drafted.err


def test_a_comparison_shows_a_note_once(command: Command) -> None:
    """Not once for each seed."""
    text = "device,a,b,label\n" + "".join(f"press {r % 3},{r},7,{'ok' if r % 2 else 'bad'}\n" for r in range(60))
    (command.folder / "t.csv").write_text(text, encoding="utf-8")
    experiment = 'name = "t"\nrounds = 1\n[data]\npath = "t.csv"\n[model]\nname = "logistic"\n[work]\nbatch_size = 4\n'
    (command.folder / "t.toml").write_text(experiment, encoding="utf-8")
    said = command("compare", "t.toml", "--methods", "fedavg,fedsr", "--seeds", "0,1,2")
    assert said.code == 0
    notes = [line for line in said.err.splitlines() if line.startswith("note: ")]
    assert notes
    assert len(notes) == len(set(notes))

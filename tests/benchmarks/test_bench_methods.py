"""What methods cost beside FedAvg: the arithmetic on made-up times, and one small measurement."""

from __future__ import annotations

import pytest

from benchmarks import methods
from benchmarks.methods import NOTES, SETTINGS, Case, measure, row, trained
from commands import Command
from fedfloor.methods.catalog import METHODS
from fedfloor.plan.outcome import Receipt

SMALL = Case(model="logistic", epochs=2, shape=(1, 4, 4), classes=3, devices=3, samples=7, factories=2, batch_size=5)


def test_a_row_is_the_median_of_ratios_to_the_neighbours() -> None:
    # 4 beside (1, 3) is 2, 9 beside (3, 3) is 3, 8 beside (4, 12) is 1; the quartiles of 1, 2, 3 are 1.5 and 2.5, and
    # the median of 4, 9 and 8 µs per sample is 8 ms per 1,000
    found = row("moon", [4e-6, 9e-6, 8e-6], [(1e-6, 3e-6), (3e-6, 3e-6), (4e-6, 12e-6)])
    assert found == {
        "method": "moon",
        "ms_per_1000_samples": 8.0,
        "ratio": 2.0,
        "quartiles": "1.500–2.500",
        "note": NOTES["moon"],
    }


@pytest.mark.parametrize(
    ("steps", "samples", "batch_size", "expected"),
    [(24, 120, 10, 240), (6, 25, 10, 50), (4, 25, 10, 35), (5, 25, 10, 45), (3, 4, 10, 12), (0, 25, 10, 0)],
)
def test_samples_of_a_visit_are_those_it_went_through(steps: int, samples: int, batch_size: int, expected: int) -> None:
    assert trained(Receipt(0, 0, 0, steps, samples, 0.0, 0.0, 0.0, 0, lost=False), batch_size) == expected


def test_a_small_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    # a clock by which every round takes 21 s: three devices, 7 samples each, twice: 42 samples, half a second each
    said: list[str] = []
    monkeypatch.setattr(methods.made, "timed", lambda _, work: (work(), 21.0)[1])
    rows = measure(SMALL, ["scaffold", "fedsr"], 1, 1, said.append)
    assert [(one["method"], one["ms_per_1000_samples"]) for one in rows] == [("scaffold", 5e5), ("fedsr", 1e5)]
    assert [one["ratio"] for one in rows] == [1.0, 0.2]  # FedSR's five laps go through five times the samples
    assert said == ["warming up", "warming up", "round 1 of 1"]


def test_cgau_is_measured_frozen() -> None:
    assert SETTINGS["cgau"]["warm_up"] < methods.WARM_UP + 1


def test_notes_are_about_methods() -> None:
    assert set(NOTES) | set(SETTINGS) <= set(METHODS)


def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "Case", lambda **said: Case(**{**vars(SMALL), **said}))
    words = ("--only", "ida", "--repeats", "1", "--epochs", "1", "--model", "mlp-2nn", "--json")
    (found,) = command("bench", "methods", *words).document["rows"]
    assert found["method"] == "ida"
    assert found["ratio"] > 0


def test_what_is_refused(command: Command) -> None:
    command.refused(command("bench", "methods", "--only", "fedprx"), "Did you mean 'fedprox'?")
    command.refused(
        command("bench", "methods", "--repeats", "0"), "--repeats = 0: must be a whole number of at least 1"
    )
    command.refused(command("bench", "methods", "--epochs", "0"), "--epochs = 0: must be a whole number of at least 1")
    command.refused(command("bench", "loading", "--model", "lenet"), "belong to fedfloor bench methods")

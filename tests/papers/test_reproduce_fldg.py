"""FLDG's tables, and the attack on what devices tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import Command
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.methods.chosen import method_of
from papers import catalog, disclosure, fldg, fldg_training
from papers.cells import Accuracy, Rounds
from papers.disclosure import Disclosure, Point, Telling
from refusals import refused

TABLES = fldg_training.tables()
CASES, CIFAR, GROUPS, HASH = TABLES
SAMPLES = {"mnist": 540, "mnist-2nn-drawn": 300, "fashion": 600, "cifar-10": 500}

# -- the cells ---------------------------------------------------------------------------------------------------------


def test_every_cell_is_an_experiment_of_ten_devices_a_round() -> None:
    for table in TABLES:
        for cell in table.cells:
            what = table.experiment(cell, 100, seed=2)
            task, case, method = cell.key.split("/")[:3]
            samples = SAMPLES[task.removesuffix("-2nn")]
            assert (what.park.devices, what.method.name) == (100, method)
            if case == "iid":
                assert what.data.partition.kind == "iid"
            else:
                assert (f"case{what.data.partition.case}", what.data.partition.samples) == (case, samples)
            of = method_of(what)
            assert (of.work.epochs, of.work.batch_size, of.work.lr) == (5, 50, 0.01)  # type: ignore[attr-defined]
            if method == "fedavg":
                assert of.fraction == 0.1  # type: ignore[attr-defined]
            elif table is not GROUPS:
                assert (of.centers if method == "kcenter" else of.groups) == 10  # type: ignore[attr-defined]
            if table is not HASH:
                assert getattr(of, "hashes", 5) == 5
        assert len({cell.run for cell in table.cells}) == len(table.cells) == len({cell.key for cell in table.cells})
        assert catalog.find(table.name).cells == table.cells  # type: ignore[union-attr]
    assert [len(table.cells) for table in TABLES] == [5 * 4 * 4, 1 + 4 * 4, 2 * 4 * 2 * 4, 5 * 7]
    assert [table.rounds for table in TABLES] == [100, 300, 800, 100]


def test_the_printed_figures_stand_at_their_cells_only() -> None:
    printed = {
        cell.key: tuple(one.paper for one in cell.figures if one.paper is not None)
        for table in TABLES
        for cell in table.cells
        if any(one.paper is not None for one in cell.figures)
    }
    assert printed == {
        **{f"cifar-10/case{i}/fedavg": (share,) for i, share in enumerate((0.1684, 0.4415, 0.5062, 0.5453), start=1)},
        "cifar-10/iid/fedavg": (0.5737,),
        "cifar-10/case2/fldgl/groups5": (0.475, 200),
        "cifar-10/case2/fldgl/groups50": (0.548, 40),
    }
    there = {cell.key: cell.figures for cell in GROUPS.cells}
    assert there["cifar-10/case2/fldgl/groups10"] == (Accuracy(None), Accuracy(None, last=10), Rounds(None, 0.4))
    assert GROUPS.scaled(0.0375) == 30


def test_groups_and_hashes_are_those_of_the_keys() -> None:
    for cell in GROUPS.cells:
        assert method_of(GROUPS.experiment(cell, 9)).groups == int(cell.key.split("groups")[1])  # type: ignore[attr-defined]
    for cell in HASH.cells:
        assert method_of(HASH.experiment(cell, 9)).hashes == int(cell.key.split("/h")[1])  # type: ignore[attr-defined]


# -- the attack --------------------------------------------------------------------------------------------------------


def test_who_is_told_nothing_knows_what_is_known_of_all() -> None:
    rng = np.random.default_rng(0)
    top = np.tile(np.arange(4), 10)
    means = rng.normal(size=(40, 3))
    right, ridge, near = disclosure.attacked(np.zeros((40, 1)), top, means)
    assert right == 0.25  # all known devices vote, five for each label, and the first wins
    assert (ridge, near) == (pytest.approx(1), pytest.approx(1))  # v̂ = v̄, whatever the targets


def test_who_is_told_all_knows_all() -> None:
    rng = np.random.default_rng(0)
    top = np.tile(np.arange(4), 10)
    means = np.eye(4)[top] + rng.uniform(-0.1, 0.1, size=(40, 4))  # labels are √2 apart, samples of one at most 0.4
    assert disclosure.attacked(means.copy(), top, means) == (1.0, 0.0, 0.0)


def test_a_map_that_is_linear_is_found_and_a_label_gives_its_mean() -> None:
    rng = np.random.default_rng(1)
    said = rng.normal(size=(60, 3))
    means = said @ rng.normal(size=(3, 7)) + 5
    assert disclosure.attacked(said, np.zeros(60, np.int64), means)[1] < 1e-8
    # two labels at ±1, each with as many devices at +e as at −e: v̄ = 0, the nearest are the label's, whose mean is ±1
    top = np.repeat([0, 1, 0, 1], 2)
    e = 0.5
    values = (np.where(top == 0, -1.0, 1.0) + np.tile([e, -e], 4))[:, None]
    right, _, near = disclosure.attacked(top[:, None].astype(float), top, values)
    assert (right, near) == (1.0, pytest.approx(e**2 / (1 + e**2)))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(-3, 3))
def test_the_nearest_are_those_at_the_least_distance(known: list[int], said: int) -> None:
    (near,) = disclosure.nearest(np.array(known, float)[:, None], np.array([[float(said)]]))
    least = min(abs(one - said) for one in known)
    assert near.tolist() == [int(abs(one - said) == least) for one in known]


# -- the devices that tell ---------------------------------------------------------------------------------------------

TELLINGS = (
    Telling("nothing"),
    Telling("census"),
    Telling("features"),
    Telling("hash", 1, 0.5),
    Telling("hash", 9, 0.5),
)
TINY = Disclosure("tiny-privacy", "what is given away", "nobody", 20, (Point(1), Point(4)), TELLINGS, ("chosen",))


def small(of: Disclosure) -> Dataset:
    """Rendered digits, a few per device."""
    return disclosure.labels.labels(2 * of.devices, 20, 0, 10)


def test_devices_share_no_sample_and_are_as_large_as_can_be() -> None:
    data = small(TINY)
    rarest = int(np.bincount(data.y).min())
    features = np.eye(len(data.y), dtype=np.float32)  # the mean says who holds what
    for point in TINY.points:
        counts, means = disclosure.park(data, features, point, 40, seed=3)
        held = means > 0
        assert held.sum(0).max() == 1
        assert set(held.sum(1).tolist()) == {rarest // 4} == set(counts.sum(1).tolist())  # four want each label wholly
        assert np.bincount(counts.argmax(1)).tolist() == [4] * 10
    with refused("devices"):
        disclosure.park(data, features, Point(1), 39, seed=3)


def test_hashes_are_those_that_devices_answer() -> None:
    from fedfloor.parts.selection.grouping import hashed

    means = np.random.default_rng(0).normal(size=(3, 6))
    said = disclosure.told(Telling("hash", 4, 0.7), np.ones((3, 2), np.int64), means, seed=5)
    assert said.tolist() == [hashed(one, 4, 0.7, 5) for one in means]


def test_the_command_attacks_rendered_digits_where_there_is_no_mnist(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    monkeypatch.setattr(disclosure, "RENDERED", 20)
    monkeypatch.setitem(catalog.DISCLOSURES, TINY.name, TINY)  # type: ignore[call-overload]
    assert not sources.looked_in(["mnist"])[0]["found"]
    words = ("reproduce", TINY.name, "--scale", "0.1", "--only", "case1", "--out", "here")
    said = command(*words, "--json")
    assert said.new == {"here", "here/table.md", "here/table.json"}
    document = said.document
    assert (document["table"], document["scale"], document["notes"]) == (TINY.name, 0.1, ["chosen"])
    nothing, census, features, one, many = document["rows"]
    assert {(row["data"], row["case"], row["parks"]) for row in document["rows"]} == {("labels", 1, 2)}
    assert [row["bytes"] for row in document["rows"]] == [0, 40, 4 * 324, 8, 72]
    assert (nothing["accuracy"], nothing["purity"], nothing["ridge"]) == (0.1, 0.1, pytest.approx(1))
    assert (census["accuracy"], census["purity"], features["accuracy"], features["ridge"]) == (1, 1, 1, 0)
    assert one["accuracy"] < many["accuracy"]
    assert many["nearest"] < one["nearest"]
    text = (command.folder / "here" / "table.md").read_text()
    assert "fedfloor reproduce tiny-privacy --only 'case1' --scale 0.1\n" in text
    assert "| labels | 1 | 9 hashes, r = 0.5 | 72 |" in text
    assert "- chosen" in text
    assert "label guessed" in command(*words).out
    command.refused(command("reproduce", TINY.name, "--only", "case2"), "no point of tiny-privacy has this in its name")


def test_the_attack_is_listed_with_its_work(command: Command) -> None:
    (row,) = [
        row
        for row in command("reproduce", "--scale", "0.5", "--json").document["rows"]
        if row["table"] == "fldg-privacy"
    ]
    assert (row["runs"], row["rounds"], row["not_possible_here"]) == (10 * 3 * (3 + 2 * 9), 0, 0)
    assert [one.key for one in fldg.disclosures()[0].points] == ["case1", "case3", "case4"]

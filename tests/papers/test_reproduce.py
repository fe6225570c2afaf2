"""Published tables: their cells, what can be run of them, and the figures read off runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedfloor.methods.catalog import METHODS
from fedfloor.methods.chosen import method_of
from fedfloor.methods.contract import View
from fedfloor.parts.work import Cosine
from fedfloor.plan.nodes import CLOUD, Node, Parallel
from fedfloor.report import ledger
from papers import catalog, fedsr, figures, work
from papers.cells import Accuracy, Cell, Rounds, Table, Traffic
from papers.count import count
from refusals import refused
from run_folders import make_run

FEDSR = [table for name, table in catalog.TABLES.items() if name.startswith("fedsr-")]
EVERY = [(table, cell) for table in FEDSR for cell in table.cells]
POSSIBLE = [(table, cell) for table, cell in EVERY if cell.method in METHODS]


# -- the tables --------------------------------------------------------------------------------------------------------


def test_every_cell_whose_method_is_here_is_an_experiment() -> None:
    assert {cell.method for _, cell in EVERY} <= set(METHODS)
    for table, cell in POSSIBLE:
        what = table.experiment(cell, 500, seed=3)
        assert (what.seed, what.rounds, what.method.name, what.data.name) == (3, 500, cell.method, cell.data)
        assert method_of(what).work.lr == Cosine(0.01, 1e-5)  # type: ignore[attr-defined]
        assert method_of(what).work.batch_size == 32  # type: ignore[attr-defined]


def test_the_tables_have_all_printed_figures() -> None:
    one, varied, two, three, four, small = FEDSR
    assert len(one.cells) == 5 * 2 * 2  # MNIST with two networks, methods, partitions
    assert len(varied.cells) == 2 * (5 + 4)  # data sets; laps and epochs, sizes of rings
    assert len(two.cells) == 4 * 7 * 5  # data sets, methods, partitions
    assert len(three.cells) == 6 * 4
    assert len(four.cells) == 6 * 2
    assert sum(len(cell.figures) for cell in four.cells) == 6 * 4
    assert len(small.cells) == 3 * 4  # parks with the small network, methods
    unprinted = [(table, cell.key) for table, cell in EVERY if any(figure.paper is None for figure in cell.figures)]
    assert {key for table, key in unprinted if table is one} == {cell.key for cell in one.cells if "2nn" in cell.key}
    assert [key for table, key in unprinted if table not in (one, varied, small)] == ["cifar-100/xi4/moon"]
    for table in FEDSR:
        assert len({cell.key for cell in table.cells}) == len(table.cells)


def test_some_figures_as_they_are_printed() -> None:
    found = {(table.name, cell.key): cell.figures for table, cell in EVERY}
    assert found["fedsr-table1", "cifar-100/xi20/ring"] == (Accuracy(0.4436),)
    assert found["fedsr-table2", "mnist/xi2/fedsr"] == (Accuracy(0.9783),)
    assert found["fedsr-table2", "fashion/alpha0.1/moon"] == (Accuracy(0.8890),)
    assert found["fedsr-table2", "cifar-100/xi8/ring"] == (Accuracy(0.4614),)
    assert found["fedsr-table3", "mnist/xi2/fedsr"] == (
        Rounds(6, 0.9), Traffic(660, 0.9, "visits, edge-cloud both ways"),  # 660 / 110
    )  # fmt: skip
    assert found["fedsr-table3", "cifar-100/xi4/hierfavg"] == (
        Rounds(265, 0.33), Traffic(29150, 0.33, "device up, edge-cloud both ways"),
    )  # fmt: skip
    assert found["fedsr-table4", "cifar-10/fraction0.4/ring"] == (Accuracy(0.7266, 0.5), Accuracy(0.7846))


def test_cells_share_a_run_where_they_have_one_experiment() -> None:
    for table in FEDSR:
        experiments = {cell.run: repr(table.base) + repr(cell.settings) for cell in table.cells}
        assert len(set(experiments.values())) == len(experiments)
        for cell in table.cells:
            assert experiments[cell.run] == repr(table.base) + repr(cell.settings)
            assert cell.target is None or len(cell.figures) == 2


def plan_of(table: Table, cell: Cell) -> Node:
    """The plan of a cell's first round, with devices of equal size in factories of equal size."""
    what = table.experiment(cell, 500)
    devices = what.park.devices or 0
    factories = what.park.factories or 0
    view = View(1, 500, np.full(devices, 600), np.arange(devices, dtype=np.int32) % factories, {})
    method = method_of(what)
    rng = np.random.default_rng(0)
    return method.plan(method.init(view, {}, rng), view, rng)


def round_of(table: Table, cell: Cell) -> int:
    """The models that a cell's first round sends."""
    return count(plan_of(table, cell), fedsr.RULES.get(cell.method, "device up and down"))


def test_a_round_sends_what_the_third_table_counts() -> None:
    # FedAvg 2·20; FedSR and HierFAVG 5·20 + 2·5; ring 20: each divides the printed traffic without a rest
    for models, per_round in zip(fedsr.TRAFFIC.values(), map(fedsr.PER_ROUND.get, fedsr.TRAFFIC), strict=True):
        assert per_round is not None
        assert [one % per_round for one in models if one is not None] == [0] * (4 - models.count(None))
    two = catalog.find("fedsr-table2")
    three = catalog.find("fedsr-table3")
    for cell in three.cells:
        if cell.method in METHODS:
            assert round_of(three, cell) == fedsr.PER_ROUND[cell.method], cell.key
    central = next(cell for cell in two.cells if cell.method == "centralized")
    assert round_of(two, central) == 0


def test_the_cloud_exchanges_a_quarter_of_fedavgs_models_with_fedsr() -> None:
    table = catalog.find("fedsr-table3")
    exchanged = {}
    for method in ("fedavg", "fedsr"):
        cell = next(one for one in table.cells if one.key == f"mnist/xi2/{method}")
        met = plan_of(table, cell)
        assert isinstance(met, Parallel)
        assert met.at == CLOUD
        rounds = cell.figures[0].paper
        exchanged[method] = 2 * len(met.children), 2 * len(met.children) * int(rounds or 0)
    assert exchanged == {"fedavg": (40, 4680), "fedsr": (10, 60)}, "a round, and to 90 %"


def test_a_fraction_of_a_hundred_devices_makes_rings_of_four() -> None:
    table = catalog.find("fedsr-table4")
    sent = {cell.key: round_of(table, cell) for cell in table.cells if cell.method in ("fedavg", "fedsr", "ring")}
    assert sent == {
        "cifar-10/fraction0.2/fedavg": 40, "cifar-10/fraction0.4/fedavg": 80,
        "cifar-10/fraction0.2/ring": 20, "cifar-10/fraction0.4/ring": 40,
        "cifar-10/fraction0.2/fedsr": 5 * 20 + 2 * 5, "cifar-10/fraction0.4/fedsr": 5 * 40 + 2 * 10,
    }  # fmt: skip


# -- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "rounds"), [(1.0, 500), (0.1, 50), (0.0049, 2), (1e-9, 2), (0.007, 4)])
def test_scale_is_a_share_of_the_rounds(scale: float, rounds: int) -> None:
    table = catalog.find("fedsr-table2")
    assert table.scaled(scale) == rounds  # 0.0049 · 500 = 2.45, 0.007 · 500 = 3.5, which rounds to even
    what = table.experiment(table.cells[0], rounds)
    lr = method_of(what).work.lr  # type: ignore[attr-defined]
    assert (lr.at(1, what.rounds), lr.at(rounds, what.rounds)) == (0.01, pytest.approx(1e-5, rel=1e-9))


@pytest.mark.parametrize("scale", [0.0, -0.1, 1.01, float("nan")])
def test_a_scale_out_of_range_is_refused(scale: float) -> None:
    with refused("--scale"):
        catalog.find("fedsr-table2").scaled(scale)


# -- what can be run ---------------------------------------------------------------------------------------------------


def test_what_is_lacking_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))  # nothing there
    monkeypatch.delitem(METHODS, "ring")
    table = catalog.find("fedsr-table2")
    found = work.lacking(table.cells)
    assert found["mnist/iid/ring"] == "method 'ring': not in this version"
    assert found["cifar-10/xi4/fedsr"] == "data set 'cifar-10' is not here: fedfloor datasets get cifar-10"
    what = work.plan(table, "cifar-10/", 0.1, [0], tmp_path)
    assert what.planned_runs() == []
    rows = figures.rows(what, {})
    assert len(rows) == 7 * 5
    assert {row["note"].split(":")[0] for row in rows} == {"skipped"}
    assert {row["measured"] for row in rows} == {None}
    assert rows[0]["paper"] == 0.8102


def test_the_runs_go_seed_by_seed_and_park_by_park(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "lacking", lambda _cells: {})
    table = catalog.find("fedsr-table2")
    small = replace(table, cells=tuple(cell for cell in table.cells if cell.method in ("centralized", "fedsr", "ring")))
    planned = work.plan(small, "mnist/", 1.0, [0, 7], tmp_path).planned_runs()
    names = [run.out.name for run in planned]
    assert names[:5] == [
        "mnist-centralized-seed0", "mnist-iid-ring-seed0", "mnist-iid-fedsr-seed0", "mnist-xi4-ring-seed0",
        "mnist-xi4-fedsr-seed0",
    ]  # fmt: skip
    assert len(names) == len(set(names)) == 2 * (1 + 2 * 5)  # centralised once, not once per partition
    assert [run.experiment.seed for run in planned] == [0] * 11 + [7] * 11
    assert {run.limits for run in planned} == {None}
    (one,) = work.plan(catalog.find("fedsr-table3"), "cifar-10/xi2/fedsr", 1.0, [0], tmp_path).planned_runs()
    assert one.limits is not None
    assert one.limits.accuracy == 0.67


def test_cells_are_named_by_parts_of_a_key_by_patterns_and_by_their_run(tmp_path: Path) -> None:
    def asked(only: str) -> list[str]:
        return [cell.key for cell in work.plan(catalog.find("fedsr-table2"), only, 0.01, [0], tmp_path).cells]

    partitions = ["iid", "xi4", "xi2", "alpha0.3", "alpha0.1"]
    assert asked("mnist/*/fedsr") == [f"mnist/{one}/fedsr" for one in partitions]
    assert asked("mnist-centralized") == [f"mnist/{one}/centralized" for one in partitions]
    assert asked("mnist-xi2-fedsr") == asked("mnist/xi2/fedsr") == ["mnist/xi2/fedsr"]
    assert len(asked("*")) == len(asked("")) == 140
    assert asked("cifar-10/alpha0.1/f*") == [f"cifar-10/alpha0.1/{one}" for one in ("fedavg", "fedprox", "fedsr")]
    with refused("--only"):
        asked("mnist/*/fedrs")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("unknown table"):
        catalog.find("fedsr-tabel2")
    table = catalog.find("fedsr-table2")
    with refused("--only"):
        work.plan(table, "fedrs", 1.0, [0], tmp_path)
    with refused("repeated-method"):
        work.plan(table, "", 1.0, [1, 1], tmp_path)


# -- figures -----------------------------------------------------------------------------------------------------------

SEVEN = Accuracy(0.8), Accuracy(0.5, share=0.5), Rounds(2, 0.7), Traffic(88, 0.7, "visits, edge-cloud both ways")


def made(folder: Path, *runs: list[float | None], rounds: int = 4) -> tuple[ledger.RecordedRun, ...]:
    """Runs of FedSR in 2 rings of 4 devices and 5 laps, one per seed."""
    found = [make_run(folder / str(seed), run, seed=seed, rounds=rounds) for seed, run in enumerate(runs)]
    return tuple(ledger.read_run(one) for one in found)


def test_figures_of_one_run(tmp_path: Path) -> None:
    runs = made(tmp_path, [0.2, 0.6, 0.7, 0.75])
    end, half, rounds, sent = (figures.measure(figure, runs, 4) for figure in SEVEN)
    assert end == figures.Measured(0.75, None, (0,))
    assert half.value == 0.6  # half of 4 rounds
    assert rounds.value == 3  # 0.7 is reached when it is met
    assert sent.value == 3 * (5 * 8 + 2 * 2)  # each round: 5 laps of 8 devices, down to 2 rings and up again
    assert [label.label(4) for label in SEVEN] == [
        "accuracy", "accuracy at round 2", "rounds to 70%", "models sent to 70%",
    ]  # fmt: skip


def test_figures_of_several_seeds(tmp_path: Path) -> None:
    runs = made(tmp_path, [0.2, 0.6, 0.7, 0.7], [0.3, 0.7, 0.7, 0.8], [0.1, 0.8, 0.7, 0.9])
    end, half, rounds, sent = (figures.measure(figure, runs, 4) for figure in SEVEN)
    assert end.seeds == (0, 1, 2)
    assert end.value == pytest.approx(0.8)
    # s = 0.1, t(0.975, 2) = 4.303: 4.303 · 0.1 / √3
    assert end.half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert half.value == pytest.approx(0.7)
    assert rounds.value == pytest.approx((3 + 2 + 2) / 3)
    assert sent.value == pytest.approx(44 * 7 / 3)


def test_the_mean_of_the_last_rounds(tmp_path: Path) -> None:
    runs = made(tmp_path, [0.2, 0.6, 0.7, 0.8], [0.3, 0.5, 0.9, None])
    last = figures.measure(Accuracy(None, last=2), runs[:1], 4)
    assert (last.value, last.note) == (pytest.approx(0.75), "")
    # rounds 2 and 3, which both evaluated: (0.65 + 0.7) / 2
    both = figures.measure(Accuracy(None, last=2), runs, 4)
    assert (both.value, both.note) == (pytest.approx(0.675), "after round 3 of 4")
    few = figures.measure(Accuracy(None, last=9), runs[:1], 4)
    assert (few.value, few.note) == (pytest.approx(0.575), "mean of 4 rounds")
    half = figures.measure(Accuracy(None, share=0.5, last=2), runs, 4)
    assert (half.value, half.note) == (pytest.approx(0.4), "")


def test_a_target_that_was_not_reached(tmp_path: Path) -> None:
    runs = made(tmp_path, [0.2, 0.6, 0.7, 0.7], [0.3, 0.4, 0.5, 0.6])
    got = figures.measure(SEVEN[2], runs, 4)
    assert (got.value, got.note) == (None, "not reached in 4 rounds; 1 of 2 seeds reached it")
    begun = figures.measure(SEVEN[3], made(tmp_path / "begun", [0.2]), 4)
    assert (begun.value, begun.note) == (None, "not reached yet, after round 1 of 4")


def test_a_run_that_has_not_ended(tmp_path: Path) -> None:
    runs = made(tmp_path, [0.2, 0.6, 0.7], [0.4, None, None])
    end, half = (figures.measure(figure, runs, 4) for figure in SEVEN[:2])
    assert (end.value, end.note) == (pytest.approx(0.3), "after round 1 of 4")  # the last that both evaluated
    assert (half.value, half.note) == (pytest.approx(0.3), "after round 1 of 2")
    assert figures.measure(SEVEN[0], made(tmp_path / "none", [None]), 4).note == "not evaluated yet"


@pytest.mark.parametrize(("name", "changes"), [("fedsr-table2", True), ("fedgs-noise", False), ("fldg-hash", False)])
def test_a_scaled_table_s_heading_speaks_of_a_rate_that_changes_only(name: str, changes: bool, tmp_path: Path) -> None:
    what = work.plan(catalog.TABLES[name], "", 0.02, [0], tmp_path)
    heading = work.heading(what)
    assert f"(scale 0.02): {'the learning rate runs to its end in 10' if changes else 'the paper'}" in heading
    assert heading.endswith(f"the paper's figures are those of {what.table.rounds}")

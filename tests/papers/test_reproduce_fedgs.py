"""FedGS's Table II, its grids and what noise costs: the cells, and the figures that only these have."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from fedfloor import config
from fedfloor.methods.chosen import method_of
from fedfloor.plan.nodes import Parallel, Probe, Repeat, Sequence, Train, Work, device, edge
from fedfloor.report import ledger
from fedfloor.runs.launch import build_park, ignore, start
from fedfloor.runs.orders import Orders
from papers import catalog, fedgs_skew, fedgs_training, figures, work
from papers.cells import Accuracy, Cell, Divergence, Epsilon, Loss, Rounds, Table
from run_folders import make_run

TABLES = fedgs_training.tables()
EVERY = [(table, cell) for table in TABLES for cell in table.cells]


def cell_of(table: Table, key: str) -> Cell:
    (found,) = [cell for cell in table.cells if cell.key == key]
    return found


def test_the_printed_figures_say_what_the_paper_says_of_them() -> None:
    # "3.5 % more than the others' mean", "3.3 times fewer rounds than FedAvg", "59 % fewer on average" with 500 for the
    # five that never got there
    papers = [paper for _, _, _, paper in fedgs_training.BASELINES.values()]
    accuracy, loss, rounds = fedgs_training.FEDGS
    assert len(papers) == 14
    assert accuracy - mean(one[0] for one in papers) == pytest.approx(3.5, abs=0.05)
    assert 478 / rounds == pytest.approx(3.25, abs=0.01)
    assert 1 - rounds / mean(500 if one[2] is None else one[2] for one in papers) == pytest.approx(0.59, abs=0.005)
    assert loss < min(one[1] for one in papers)


def test_every_cell_is_an_experiment_and_has_a_run_of_its_own() -> None:
    for table, cell in EVERY:
        what = table.experiment(cell, 100, seed=2)
        assert (what.seed, what.rounds, what.method.name, what.data.name) == (2, 100, cell.method, "femnist")
        assert cell.target is None  # accuracy and loss are read after the last round
        assert what.model.name == fedgs_training.NETWORKS[cell.key.split("/")[0]][1]
    for table in TABLES:
        assert len({cell.run for cell in table.cells}) == len(table.cells)
        assert catalog.find(table.name).cells == table.cells


def test_cells_with_steps_train_on_as_many_samples_as_fedgs() -> None:
    # 10 factories · 10 devices · 50 iterations · 32; for the others 100 of 300 devices, and a window of all 50
    for cell in TABLES[0].cells:
        what = TABLES[0].experiment(cell, 100)
        method = method_of(what)
        visit = method.work.at(1, 100)  # type: ignore[attr-defined]
        if "/steps/" not in cell.key:
            assert (visit.epochs, visit.steps, what.data.stream.kind) == (1, None, "static")
            continue
        window = what.data.stream.window  # type: ignore[union-attr]
        places = 100  # type: ignore[union-attr]
        iterations = method.iterations if cell.method == "fedgs" else 1  # type: ignore[attr-defined]
        assert window == visit.steps * visit.batch_size  # type: ignore[operator]
        assert places * iterations * window == 10 * 10 * 50 * 32
        if cell.method == "fedgs":
            assert (method.devices, what.park.factories) == (10, 10)  # type: ignore[attr-defined]
        else:
            assert what.method.selection["share"] * 300 == pytest.approx(100)  # type: ignore[index, call-overload]


def test_the_paper_s_figures_stand_beside_its_own_network_only() -> None:
    figures_of = {cell.key: cell.figures for cell in TABLES[0].cells}
    assert figures_of["cnn/steps/fedgs-gbpcs"] == (Accuracy(0.86), Loss(0.435), Rounds(147, 0.82))
    assert figures_of["cnn/epoch/fedadam"] == (Accuracy(0.85), Loss(0.662), Rounds(71, 0.82))
    assert figures_of["cnn/epoch/ida"] == (Accuracy(0.81), Loss(0.628), Rounds(None, 0.82))
    for key, found in figures_of.items():
        if key.startswith("2nn/") or key == "cnn/steps/fedgs":
            assert all(one.paper is None for one in found)
    grid = {cell.key: cell.figures[0].paper for cell in TABLES[1].cells}
    assert (grid["cnn/T10/n8"], grid["cnn/M20/L40"], grid["2nn/T10/n8"]) == (0.792, 0.867, None)
    assert sum(key.startswith("cnn/") for key in grid) == 3 * 4 + 3 * 4


def test_a_cell_s_whole_name_means_it_alone(tmp_path: Path) -> None:
    def asked(only: str) -> list[str]:
        return [cell.key for cell in work.plan(TABLES[0], only, 0.02, [0], tmp_path).cells]

    assert asked("2nn/steps/fedgs") == ["2nn/steps/fedgs"]
    assert len(asked("2nn/steps/fedg")) == 6


def test_losses_and_epsilons_are_read_off_a_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", [0.25, 0.5, 0.75], rounds=3)
    run = ledger.read_run(folder)
    assert figures.measure(Loss(None), (run,), 3).value == pytest.approx(0.25)  # 1 − accuracy, in these
    assert figures.measure(Accuracy(None), (run,), 3).value == pytest.approx(0.75)
    assert figures.measure(Epsilon(), (run,), 3).note == "without noise there is none"
    body = {"reports": 101, "epsilon": 50.5, "epsilon_advanced": 20.25, "delta": 1e-5}
    (folder / "privacy.json").write_text(json.dumps(body))
    assert figures.measure(Epsilon(), (run,), 3).value == 50.5
    assert figures.measure(Epsilon(delta=True), (run,), 3).value == 20.25
    assert Loss(None).label(500) == "loss"
    assert Loss(None, share=0.5).label(500) == "loss at round 250"


def test_the_log_is_the_reference_code_s_run() -> None:
    """Random devices once a round, ten of ten factories, 50 steps of batches of 5, Glorot's weights, raw pixels."""
    (log,) = (table for table in fedgs_skew.tables() if table.name == "fedgs-log")
    (cell,) = log.cells
    assert {one.round(140): one.paper for one in cell.figures} == {  # type: ignore[union-attr]
        20: 0.349, 40: 0.617, 60: 0.726, 80: 0.772, 100: 0.795, 140: 0.821,
    }  # fmt: skip
    what = log.experiment(cell, log.rounds)
    method = method_of(what)
    visit = method.work.at(1, 140)  # type: ignore[attr-defined]
    assert (method.solver, method.choose, method.iterations, method.devices) == ("random", "round", 50, 10)  # type: ignore[attr-defined]
    assert (visit.steps, visit.batch_size, visit.rate, visit.momentum) == (1, 5, 0.01, 0.0)
    assert (what.model.name, what.model.init, what.data.normalise) == ("cnn-fedgs", "glorot", "unit")
    assert (what.data.stream.kind, what.data.stream.window, what.park.factories) == ("recycle", 5, 10)  # type: ignore[union-attr]


def test_cells_on_skewed_labels_differ_in_their_choice_alone() -> None:
    (table,) = (one for one in fedgs_skew.tables() if one.name == "fedgs-skew")
    assert len({cell.run for cell in table.cells}) == len(table.cells) == 3 * 5
    for key in fedgs_skew.SKEWED:
        whats = [table.experiment(cell, 100) for cell in table.cells if f"/{key}/" in cell.key]
        assert len({repr((one.data, one.park, one.model, one.evaluate, one.seed)) for one in whats}) == 1
        assert whats[0].evaluate.coverage
        methods = [method_of(one) for one in whats]
        assert [(one.solver, one.choose, one.balance) for one in methods] == [  # type: ignore[attr-defined]
            ("exact", "iteration", False), ("gbpcs", "iteration", False), ("exact", "iteration", True),
            ("random", "iteration", False), ("random", "round", False),
        ]  # fmt: skip


def test_super_nodes_are_found_with_their_ticks() -> None:
    one = [Parallel((Train(device(k), Work(steps=1)),), edge(0)) for k in range(4)]
    asked = Sequence((Probe((0, 1), "census", edge(0)), one[1]))
    plan = Parallel((Sequence((Repeat(1, one[0]), Repeat(1, asked))), Repeat(2, one[2]), one[3]))
    assert list(figures.super_nodes(plan, 5)) == [(one[0], 5), (one[1], 6), (one[2], 5), (one[2], 6), (one[3], 5)]


def small(tmp_path: Path, name: str, **more: object) -> ledger.RecordedRun:
    """A run of FedGS on made-up labels, with six devices in two factories."""
    table = {
        "name": name, "rounds": 1, "data": {"samples_per_device": 40, "stream": {"kind": "fifo", "window": 8}},
        "park": {"devices": 6, "factories": 2, **more}, "model": {"name": "logistic"}, "method": {"name": "fedgs"},
        "methods": {"fedgs": {"iterations": 4, "devices": 2, "random": 0, "work": {"steps": 1, "batch_size": 8}}},
    }  # fmt: skip
    what = config.from_table(table)
    start(what, Orders(out=tmp_path / name), 1, ignore)
    return ledger.read_run(tmp_path / name)


def test_a_divergence_is_that_of_the_true_counts_of_the_first_round(tmp_path: Path) -> None:

    plain = small(tmp_path, "plain")
    noisy = small(tmp_path, "noisy", census_epsilon=1e-3)
    park = build_park(config.read(tmp_path / "plain" / "experiment.toml"))
    best = []
    for tick in range(4):
        for m in range(2):
            members = park.members(m)
            counts = park.census(members, tick, [0] * 3)
            pairs = [counts[[i, j]].sum(0) / 16 for i in range(3) for j in range(i)]
            best.append(min(float(np.linalg.norm(pair - park.distribution)) for pair in pairs))
    assert figures.class_divergence(plain) == pytest.approx(mean(best), rel=1e-12)
    assert figures.measure(Divergence(), (plain,), 1).value == figures.class_divergence(plain)
    assert figures.class_divergence(noisy) > figures.class_divergence(plain)
    told = json.loads((tmp_path / "noisy" / "privacy.json").read_text())
    assert told["reports"] == 1 + 4  # the classes once, and a census in each tick
    assert figures.measure(Epsilon(), (noisy,), 1).value == pytest.approx(5e-3)

"""HFedMS's tables and grids: the cells, what they cost to a target, and how far groups are apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from fedfloor.data import sources
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.chosen import method_of
from fedfloor.parts.selection.grouping import Exp, Linear, Log, chosen_groups, groups_of
from fedfloor.report import ledger
from fedfloor.runs.launch import build_park
from floor import park
from papers import catalog, figures, groupings, hfedms_training, work
from papers.cells import Accuracy, Loss, Rounds, Spent
from papers.groupings import Groupings, Point, Way
from priced import TABLE_IV
from run_folders import make_run, price

TABLES = hfedms_training.tables()
THREE, FOUR, GROWTH = TABLES
EVERY = [(table, cell) for table in TABLES for cell in table.cells]

# -- the cells ---------------------------------------------------------------------------------------------------------


def test_the_printed_figures_say_what_the_paper_says_of_them() -> None:
    # static: "improves the benchmark accuracy by 2.2 to 6.7 %"; stream: "outperforms the benchmarks by 6.4 to 14.1 %",
    # "while the benchmark accuracy drops by 4.3 to 10 %"
    printed = list(hfedms_training.BASELINES.values())
    papers = {key: paper for key, (_, _, paper) in hfedms_training.VARIANTS.items() if paper}
    assert len(printed) == 8
    for key, column, least, most in (("static/hfedms-s", 2, 2.2, 6.7), ("stream/hfedms-d", 0, 6.4, 14.1)):
        gains = [papers[key][0] - one[column] for one in printed]
        assert (min(gains), max(gains)) == (pytest.approx(least), pytest.approx(most))
        assert papers[key][1] < min(one[column + 1] for one in printed)
    drops = [one[2] - one[0] for one in printed]
    assert (min(drops), max(drops)) == (pytest.approx(4.3), pytest.approx(10))
    assert list(hfedms_training.TABLE4) == [None, 1, 3, 5, 7, 9]  # T; FedAvg has none, HFedMS-S is T = 1
    assert list(hfedms_training.TABLE4.values()) == [(rounds, *told) for rounds, _, *told in TABLE_IV]


def test_every_cell_is_an_experiment_and_has_a_run_of_its_own() -> None:
    for table, cell in EVERY:
        if cell.method not in METHODS:
            assert cell.method == "hfedms"
            continue
        what = table.experiment(cell, 100, seed=2)
        assert (what.seed, what.rounds, what.method.name, what.data.name) == (2, 100, cell.method, "femnist")
        assert what.model.name == hfedms_training.NETWORKS[cell.key.split("/")[0]][1]
        visit = method_of(what).work.at(1, 100)  # type: ignore[attr-defined]
        assert (visit.epochs, visit.steps, visit.batch_size) == (1, None, 5)
        assert (what.data.stream.kind == "augmented") == cell.setting.startswith("stream")
        assert getattr(what.data.stream, "window", 50) == (49 if cell.key.endswith(("/stays", "/code")) else 50)
    for table in TABLES:
        assert len({cell.run for cell in table.cells}) == len(table.cells) == len({cell.key for cell in table.cells})
        assert catalog.find(table.name).cells == table.cells
    assert [len(table.cells) for table in TABLES] == [
        2 * (2 * (8 + 3) + 8 + 5 + 3 + 2 * 2),
        2 * (8 + 9),
        2 * (3 * 3 * 3 + 5),
    ]


def test_what_the_reference_code_does_otherwise_is_in_one_cell_together() -> None:
    table = catalog.find("hfedms-table3")
    whats = {cell.key: table.experiment(cell, 100) for cell in table.cells if cell.key.startswith("cnn/stream/")}
    usual, whole = (vars(method_of(whats[f"cnn/stream/{key}"])) for key in ("hfedms-d", "code"))
    other = {name for name in usual if usual[name] != whole[name]}
    assert other == {"calibration_epochs", "rule", "shuffle", "weights", "grouping"}
    assert vars(method_of(whats["cnn/stream/epochs"]))["calibration_epochs"] == 3
    for key in ("stays", "code"):
        stream = whats[f"cnn/stream/{key}"].data.stream
        assert (stream.window, stream.every) == (49, whole["period"]) == (49, 5)  # type: ignore[attr-defined]
    for key in ("distilled", "code"):
        assert whats[f"cnn/stream/{key}"].method.objective == {"kind": "distilled", "weight": 0.0016}


def test_every_cell_with_hfedms_is_an_experiment() -> None:
    cells = [(table, cell) for table, cell in EVERY if cell.method == "hfedms"]
    assert cells
    for table, cell in cells:
        method = method_of(table.experiment(cell, 100))
        chosen, groups = (3, 7) if "/chains" in cell.key else (3, 10)
        assert method.share == pytest.approx(chosen / groups)  # type: ignore[attr-defined]
        assert method.work.at(1, 100).batch_size == 5  # type: ignore[attr-defined]


def test_groups_train_from_the_first_period_on_and_never_outnumber_devices() -> None:
    grown = {}
    for cell in GROWTH.cells:
        kind, alpha, beta = cell.settings["methods"]["hfedms"]["growth"].values()
        growth = {"linear": Linear, "log": Log, "exponential": Exp}[kind](alpha, beta)
        assert chosen_groups(0.3, groups_of(growth, 1, hfedms_training.DEVICES)) >= 1
        grown[kind, alpha, beta] = growth.groups(500)
    assert grown["log", 2.0, 10] == 130  # 10·⌊2·ln 500 + 1⌋ = 10·13
    # each grid goes from groups that stay few to as many as there are devices, or more
    for kind in ("linear", "exponential"):
        last = [groups for key, groups in grown.items() if key[0] == kind]
        assert min(last) <= 60
        assert max(last) >= hfedms_training.DEVICES


def test_the_paper_s_figures_stand_beside_its_own_network_only() -> None:
    found = {(table.name, cell.key): cell.figures for table, cell in EVERY}
    assert found["hfedms-table3", "cnn/stream/fedyogi"] == (Accuracy(0.758), Loss(0.803))
    assert found["hfedms-table3", "cnn/static/fedfusion-multi"] == (Accuracy(0.824), Loss(0.554))
    assert found["hfedms-table3", "cnn/static/icg"] == (Accuracy(None), Loss(None))
    assert found["hfedms-growth", "cnn/log/alpha2/beta10"] == (Accuracy(0.854), Loss(0.453))
    assert found["hfedms-table4", "cnn/T5"] == (
        Rounds(34, 0.7), Spent(0.056, 0.7, "bytes"), Spent(25, 0.7, "seconds"),
    )  # fmt: skip
    assert all(one.paper is None for (_, key), several in found.items() if key.startswith("small/") for one in several)
    assert {cell.target for cell in FOUR.cells} == {0.7}  # their runs end there


def test_adaptive_servers_have_the_printed_rate_and_their_best() -> None:
    rates = {}
    for cell in THREE.cells:
        if cell.key.startswith("small/stream/fedad") or cell.key.startswith("small/stream/fedyogi"):
            rates[cell.key.removeprefix("small/stream/")] = cell.settings["methods"][cell.method]["work"]["lr"]
    assert rates == {
        f"{name}{end}": rate
        for name in ("fedadam", "fedyogi", "fedadagrad")
        for end, rate in (("", pytest.approx(10**-1.5)), ("-printed", 0.01))
    }


def test_as_many_devices_train_with_every_method() -> None:
    cells = {cell.key: cell for cell in THREE.cells}
    fedavg, fixed = (THREE.experiment(cells[f"small/static/{key}"], 10) for key in ("fedavg", "benchmark"))
    assert fedavg.method.selection["share"] * 272 == pytest.approx(81.6)  # type: ignore[index, call-overload]
    of = method_of(fixed)
    assert 272 // of.devices == 10  # type: ignore[attr-defined]
    assert chosen_groups(of.share, 10) * of.devices == 81  # type: ignore[attr-defined]


def test_the_park_has_so_many_devices(data_root: Path) -> None:
    if not (data_root / "femnist").is_dir():
        pytest.skip("no FEMNIST")
    here = build_park(THREE.experiment(THREE.cells[0], 10))
    assert (here.devices, bool(here.sizes.min() >= 90)) == (hfedms_training.DEVICES, True)


# -- what a target costs -----------------------------------------------------------------------------------------------


def test_bytes_and_hours_to_a_target_are_added_up(tmp_path: Path) -> None:
    links = [{"device_edge_up": 2**38, "device_edge_down": 2**39, "edge_cloud_up": 7}] * 3
    folder = price(make_run(tmp_path / "one", [0.5, 0.7, 0.9], rounds=3), [1800.0, 5400.0, 9.0], links)
    volume = Spent(None, 0.7, "bytes")
    hours = Spent(None, 0.7, "seconds")
    run = ledger.read_run(folder)
    assert figures.measure(volume, (run,), 3).value == pytest.approx(2 * 0.75)  # two rounds of 1/4 + 1/2 TB
    assert figures.measure(hours, (run,), 3).value == pytest.approx(2.0)
    assert (volume.label(3), hours.label(3)) == ("TB to 70%", "hours to 70%")
    never = Spent(None, 0.95, "bytes")
    assert figures.measure(never, (run,), 3).note == "not reached in 3 rounds"
    free = ledger.read_run(make_run(tmp_path / "free", [0.9]))
    assert figures.measure(volume, (free,), 1).note == "rounds have no price"


def test_cells_whose_method_is_not_there_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(METHODS, "hfedms", raising=False)
    what = work.plan(FOUR, "small/T5", 0.01, [0], tmp_path)
    assert [row["note"] for row in figures.rows(what, {})] == ["skipped: method 'hfedms': not in this version"] * 3


# -- groupings ---------------------------------------------------------------------------------------------------------

WAYS = (Way("alone"), Way("random", "random", (0.625, None)), Way("icg", "icg", (0.25, 0.4)), Way("ours", "exchange"))
TINY = Groupings("tiny-cpd", "how far", "nobody, Fig. 0", 12, 5, (Point(3), Point(4)), WAYS, ("this was chosen",))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """FEMNIST is twenty writers of four classes, each with two classes mostly."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.choice(4, 30, p=np.roll([0.6, 0.3, 0.05, 0.05], k)) for k in range(20)])
    data = replace(park().dataset, y=y, owner=np.repeat(np.arange(20, dtype=np.int32), 30), classes=tuple("abcd"))
    monkeypatch.setattr(sources, "load", lambda _name: data)


@pytest.mark.usefixtures("made_up")
def test_groups_are_compared_on_the_same_populations() -> None:
    what = groupings.asked(TINY, "", 0.2, [0, 1])
    assert what.populations == (0, 1, 2, 3, 20, 21, 22, 23)
    done: list[int] = []
    found = groupings.rows(what, done.append)
    assert done == list(range(1, what.work + 1))
    assert [(row["groups"], row["size"], row["grouping"]) for row in found] == [
        (groups, 12 // groups if way.solver else 1, way.label) for groups in (3, 4) for way in WAYS
    ]
    for at in (0, 4):
        alone, random, icg, ours = found[at : at + 4]
        assert (alone["to_devices"], random["to_benchmark"]) == (1, 1)
        assert alone["cpd"] > random["cpd"] > icg["cpd"] > ours["cpd"]
        assert random["to_devices"] < 1 < alone["to_benchmark"]
        assert (icg["paper_to_devices"], icg["paper_to_benchmark"]) == (0.25, 0.4)
    assert found[0]["cpd"] == found[4]["cpd"]  # the devices are the same whatever the groups
    assert groupings.rows(what) == found


@pytest.mark.usefixtures("made_up")
def test_dealt_characters_are_each_on_one_device_and_skewed() -> None:
    data = sources.load("femnist")
    parts = groupings.dealt(data, 0.1, 12, 0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(data.y))
    assert not np.array_equal(parts[0], groupings.dealt(data, 0.1, 12, 1)[0])
    what = replace(TINY, points=(Point(3), Point(3, alpha=0.1)))
    found = groupings.rows(groupings.asked(what, "", 0.2, [0]))
    alone, skewed = (row for row in found if row["grouping"] == "alone")
    assert skewed["cpd"] > alone["cpd"]
    assert len(alone["cpds"]) == 4
    assert alone["cpd"] == pytest.approx(np.mean(alone["cpds"]))


@pytest.mark.usefixtures("made_up")
def test_the_command_prints_and_writes_the_groupings(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.GROUPINGS, TINY.name, TINY)  # type: ignore[call-overload]
    words = ("reproduce", TINY.name, "--scale", "0.1", "--only", "M = 3,", "--out", "here")
    said = command(*words, "--json")
    assert said.new == {"here", "here/table.md", "here/table.json"}
    document = said.document
    assert (document["table"], document["scale"], document["notes"]) == (TINY.name, 0.1, ["this was chosen"])
    assert {row["groups"] for row in document["rows"]} == {3}
    assert {row["populations"] for row in document["rows"]} == {2}
    text = (command.folder / "here" / "table.md").read_text()
    assert "fedfloor reproduce tiny-cpd --only 'M = 3,' --scale 0.1\n" in text
    assert "| writers | 3 | 4 | icg |" in text
    assert "(0.25) |" in text
    assert "- this was chosen" in text
    assert "in brackets: the paper" in " ".join(command(*words).out.split())


def test_groupings_need_the_data(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    command.refused(command("reproduce", "hfedms-cpd"), "data set 'femnist': looked in", "which does not exist")
    command.refused(command("reproduce", "hfedms-cdp"), "unknown table 'hfedms-cdp'. Did you mean 'hfedms-cpd'")
    command.refused(command("reproduce", "hfedms-cpd", "--only", "M = 11"), "no point of hfedms-cpd has this in its")
    (row,) = [row for row in command("reproduce", "--scale", "0.5", "--json").document["rows"]
              if row["table"] == "hfedms-cpd"]  # fmt: skip
    assert (row["runs"], row["rounds"], row["not_possible_here"]) == (10 * 8 * 5, 0, 400)

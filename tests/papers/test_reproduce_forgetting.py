"""HFedMS's figure about forgetting: which batches are followed, how they are measured, its rows, files and command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import Command, lines
from fedfloor import models
from fedfloor.base.errors import SettingError
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import evaluate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.runs import launch
from fedfloor.runs.launch import build_park
from fedfloor.runs.orders import Orders
from papers import catalog, forgetting, hfedms_training, pictures
from papers.cells import Accuracy, Cell, Table, merged
from papers.forgetting import Course, Forgetting
from refusals import refused

REAL = catalog.FORGETTINGS["hfedms-forgetting"]
BASE = {
    "data": {
        "name": "labels",
        "samples_per_device": 30,
        "partition": {"kind": "natural"},
        "stream": {"kind": "augmented", "window": 10},
    },
    "park": {"devices": 6, "factories": 2},
    "model": {"name": "mlp-2nn"},
}


def cell(name: str, label: str, own: dict[str, Any], lr: float = 0.05) -> Cell:
    usual = {"period": 2, "share": 0.5, "growth": {"kind": "log", "alpha": 0.0, "beta": 2}}
    work = {"epochs": 1, "batch_size": 5, "lr": lr}
    settings = {"data": {"name": "labels"}, "methods": {"hfedms": {**usual, **own, "work": work}}}
    return Cell(f"tiny/{name}", "labels", "stream", label, "hfedms", f"tiny-{name}", settings, (Accuracy(None),))


CELLS = cell("s", "HFedMS-S", {"variant": "S"}), cell("d", "HFedMS-D", {}), cell("still", "nobody learns", {}, 1e-30)
TABLE = Table("tiny-forgetting", "what is left", "nobody, Fig. 0", 8, BASE, CELLS, ("this was chosen",))
TINY = Forgetting(TABLE, period=2, lags=2, shown=(0, 1, 2))


def experiment(number: int, **more: Any) -> Experiment:
    return replace(TABLE, base=merged(BASE, more)).experiment(CELLS[number], 8)


def engine(what: Experiment, folder: Path) -> Engine:
    park = build_park(what)
    network = models.build(what.model.name, park.dataset.shape, len(park.dataset.classes), what.seed)
    return Engine(park, network, Alone(), DeviceMemory(folder), what.seed)


# -- which batches -----------------------------------------------------------------------------------------------------


def test_batches_of_the_second_half_are_followed() -> None:
    assert REAL.followed(100) == range(51, 81)  # 80 is the last with 20 rounds after it
    assert REAL.followed(500) == range(251, 481)
    assert REAL.followed(55) == range(31, 36)  # 28 … 30 are no whole period
    with refused("--scale"):
        REAL.followed(49)


@given(rounds=st.integers(1, 300), lags=st.integers(0, 30), period=st.integers(1, 9))
def test_batches_are_of_whole_periods(rounds: int, lags: int, period: int) -> None:
    of = replace(TINY, lags=lags, period=period)
    if rounds >= 2 * (lags + 2 * period):  # what the message advises
        assert of.followed(rounds)
    try:
        found = of.followed(rounds)
    except SettingError:
        return
    assert len(found) % period == 0
    assert found[0] % period == (1 if period > 1 else 0)  # a period begins
    assert rounds / 2 < found[0]
    assert found[-1] + lags <= rounds


def test_the_variants_are_table_iii_s() -> None:
    three = {one.key: one for one in hfedms_training.tables()[0].cells}
    assert [one.label for one in REAL.table.cells[:5]] == [
        "HFedMS-S", "S + LASP, no memory", "D, not compensated", "HFedMS-D", "D, all samples kept",
    ]  # fmt: skip
    for one in REAL.table.cells:
        assert three[one.key] == one
    assert REAL.period == hfedms_training.PERIOD
    usual = forgetting.asked(REAL, "", 0.2, [0], Path("nowhere"))
    assert [one.key.split("/")[0] for one in usual.cells] == ["small"] * 5
    assert len(forgetting.asked(REAL, "cnn", 0.2, [0], Path("nowhere")).cells) == 5
    with refused("--scale"):
        forgetting.asked(REAL, "", 0.05, [0], Path("nowhere"))


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_rounds_are_those_of_a_run(tmp_path: Path) -> None:
    """Census, memory and all: the model after each round has the accuracy that a run's ledger says."""
    what = experiment(1)
    launch.start(what, Orders(tmp_path / "run"), 1, launch.ignore)
    here = engine(what, tmp_path / "memory")
    found = []
    for done in forgetting.rounds(here, what):
        assert (done.tick, len(done.devices), len(done.visits)) == (done.number - 1, 3, 3)  # one of two groups of three
        found.append(evaluate(here, done.model).accuracy)
    assert found == [line["accuracy"] for line in lines(tmp_path / "run")]


def test_a_batch_is_what_was_held_and_its_controls_were_not(tmp_path: Path) -> None:
    plain = {"kind": "augmented", "window": 10, "brightness": 0.0, "scale": [1.0, 1.0]}
    what = experiment(0, data={"stream": plain})
    here = engine(what, tmp_path)
    park = here.park
    *_, done = forgetting.rounds(here, what)
    batch, fresh, unseen = forgetting.batches(here, what, done)
    for samples, tick in ((batch, 7), (fresh, 8 + 7)):
        x, y, sizes = park.together(done.devices, tick, done.visits)
        assert sizes.tolist() == [10] * len(done.devices)
        assert np.array_equal(samples.stored().numpy(), x)
        assert np.array_equal(samples.y.numpy(), y)
    assert not np.array_equal(batch.stored().numpy(), fresh.stored().numpy())
    rows = np.flatnonzero(np.isin(park.test_devices, done.devices))
    assert np.array_equal(unseen.stored().numpy(), park.test(rows)[0])  # as they are: nothing is altered here
    altered = build_park(experiment(0))
    shown, y = forgetting.unseen(altered, done.devices, 15)
    assert np.array_equal(y, park.test(rows)[1])
    assert not np.array_equal(shown, park.test(rows)[0])
    assert np.array_equal(altered.test(rows)[0], park.test(rows)[0])  # nor did the test samples themselves change


def test_large_batches_are_sampled_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = experiment(0)
    here = engine(what, tmp_path)
    done = next(forgetting.rounds(here, what))
    whole = forgetting.batches(here, what, done)
    monkeypatch.setattr(forgetting, "MOST", 8)
    some = forgetting.batches(here, what, done)
    assert [len(one) for one in some] == [8] * 3
    kept = [[row.tobytes() for row in one.stored().numpy()] for one in whole]
    chosen = [[every.index(row.tobytes()) for row in one.stored().numpy()]
              for one, every in zip(some, kept, strict=True)]  # fmt: skip
    assert chosen[0] == chosen[1] == sorted(set(chosen[0]))  # as many of each device in both


def test_accuracy_is_the_evaluation_s(tmp_path: Path) -> None:
    what = experiment(0)
    here = engine(what, tmp_path)
    model = here.network.flat.clone()
    said = evaluate(here, model).accuracy
    assert forgetting.accuracy(here, model, here.wrap(*here.park.test())) == said
    zero = forgetting.accuracy(here, model * 0, here.wrap(*here.park.test()))  # all logits 0: the first class
    assert zero == np.mean(here.park.dataset.y_test == 0)


def test_a_model_that_stays_forgets_nothing(tmp_path: Path) -> None:
    """The rate is too small to change a number: at every lag accuracies are those of the first model."""
    what = experiment(2)
    followed = range(3, 7)
    told = list[int]()
    found = forgetting.course(what, followed, 2, told.append)
    assert told == list(range(1, 9))
    here = engine(what, tmp_path)
    first = here.network.flat.clone()
    seen = np.zeros((3, 0))
    for done in forgetting.rounds(here, what):
        if done.number in followed:
            values = [forgetting.accuracy(here, first, one) for one in forgetting.batches(here, what, done)]
            seen = np.c_[seen, values]
    for kind, mean in zip(forgetting.KINDS, seen.mean(axis=1), strict=True):
        assert found.figure(kind) == pytest.approx((mean,) * 3)
    assert found.test == evaluate(here, first).accuracy


def test_test_samples_need_owners(tmp_path: Path) -> None:
    here = engine(experiment(0), tmp_path)
    with pytest.raises(SettingError, match="test samples do not belong to devices"):
        forgetting.unseen(here.park, [99], 0)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_means_over_seeds() -> None:
    what = forgetting.asked(TINY, "tiny/s", 1.0, [0, 1], Path("nowhere"))
    found = {
        ("tiny/s", 0): Course((0.9, 0.8, 0.7), (0.6, 0.6, 0.6), (0.5, 0.5, 0.5), 0.4),
        ("tiny/s", 1): Course((0.8, 0.8, 0.8), (0.6, 0.7, 0.8), (0.5, 0.5, 0.5), 0.6),
    }
    # two values a, b: t(0.975, 1)·s/√2 = 12.7062·|a − b|/2
    rows = forgetting.rows(what, found)
    (last,) = rows
    assert last["batch"] == pytest.approx([0.85, 0.8, 0.75])
    assert last["batch_half_width"] == pytest.approx([0.63531, 0, 0.63531], abs=1e-5)
    assert last["over_fresh"] == pytest.approx([0.25, 0.15, 0.05])
    assert last["over_fresh_half_width"] == pytest.approx([0.63531, 0.63531, 0.63531], abs=1e-5)  # 0.3 or 0.2, 0.2 …
    assert last["over_unseen"] == pytest.approx([0.35, 0.3, 0.25])
    assert (last["test"], last["seeds"]) == (pytest.approx(0.5), 2)
    (shown,) = forgetting.shown(TINY, rows)
    (beside,) = forgetting.controls(TINY, rows)
    assert (shown["variant"], shown["+1"], shown["+2"]) == ("HFedMS-S", "80.0 ± 0.0", "75.0 ± 63.5")
    assert beside["batch − fresh, +0"] == "25.0 ± 63.5"
    assert beside["unseen, +2"] == "50.0 ± 0.0"


def test_the_picture_has_a_curve_per_variant_and_panel() -> None:
    flat = {"batch": [0.5] * 3, "over_fresh": [0.1] * 3, "over_unseen": [0.2] * 3}
    text = pictures.forgotten({"one": flat, "two": flat})
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text == pictures.forgotten({"one": flat, "two": flat})
    for words in (">one<", ">two<", ">rounds since<", ">accuracy on the batch (%)<", ">above fresh windows (points)<"):
        assert words in text


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, with a figure that takes no time."""
    monkeypatch.setitem(catalog.FORGETTINGS, TINY.name, TINY)
    return command


def test_the_command_prints_writes_and_goes_on(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("reproduce", TINY.name, "--only", "s", "--out", "here", "--json")
    said = tiny(*words)
    files = {"table.md", "table.json", "tiny-forgetting.svg", "tiny-s-seed0.json", "tiny-still-seed0.json"}
    assert said.new == {"here", *(f"here/{file}" for file in files)}
    document = said.document
    assert [row["key"] for row in document["rows"]] == ["tiny/s", "tiny/still"]
    assert (document["first"], document["last"], document["lags"], document["rounds"]) == (5, 6, 2, 8)
    assert document["notes"] == ["this was chosen"]
    assert all(len(row["batch"]) == 3 for row in document["rows"])
    text = (tiny.folder / "here" / "table.md").read_text()
    assert "fedfloor reproduce tiny-forgetting --only 's'\n" in text
    assert "](tiny-forgetting.svg)" in text
    assert "batches of rounds 5–6" in text
    assert "- this was chosen" in text
    tiny.refused(tiny(*words), "tiny-s-seed0.json is there already. Go on with --resume")

    def never(*_: object) -> Course:
        raise AssertionError("trained again")

    monkeypatch.setattr(forgetting, "course", never)
    assert tiny(*words, "--resume").document == document
    assert "batch − unseen, +2" in tiny(*words[:-1], "--resume").out
    monkeypatch.setitem(catalog.FORGETTINGS, TINY.name, replace(TINY, lags=1, shown=(0, 1)))
    tiny.refused(tiny(*words, "--resume"), "tiny-s-seed0.json was made with another lags")


def test_what_is_missing_is_trained(tiny: Command) -> None:
    words = ("reproduce", TINY.name, "--only", "s", "--out", "here", "--json")
    first = tiny(*words).document
    path = tiny.folder / "here" / "tiny-still-seed0.json"
    kept = json.loads(path.read_text())
    path.unlink()
    said = tiny(*words, "--resume")
    assert "note: 8 rounds in one process" in said.err
    assert (said.document, json.loads(path.read_text())) == (first, kept)


def test_without_the_data(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    command.refused(command("reproduce", REAL.name), "data set 'femnist': looked in", "which does not exist")
    (row,) = [one for one in command("reproduce", "--scale", "0.2", "--json").document["rows"]
              if one["table"] == REAL.name]  # fmt: skip
    assert (row["runs"], row["rounds_each"], row["not_possible_here"]) == (10, 100, 10)

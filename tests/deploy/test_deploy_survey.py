"""Quartiles and regimes among devices with samples of their own: the simulation's bits, and what devices refuse."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_deploy_data import DEVICES, same

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.answered import Answers
from fedfloor.deploy.facts import Questions
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.settings import DataSource
from fedfloor.park.normalise import normaliser
from fedfloor.park.survey import RegimeNormaliser, RowClusters, RowQuestion
from fedfloor.runs.parks import build_park, load_data
from live_park import experiment, live, simulated
from refusals import refused

ROWS = 40
SENSORS = ("speed", "heat")
NORMALISE = {
    "robust": "'robust'",
    "regime": "{ kind = 'regime', columns = ['speed'], regimes = 3 }",
    "deep": "{ kind = 'robust', rounds = 6 }",
}


def plant(folder: Path) -> None:
    """Write a table of all devices, and one of each device's training rows."""
    rng = np.random.default_rng(0)
    x = np.c_[rng.integers(0, 3, DEVICES * ROWS), rng.standard_t(3, (DEVICES * ROWS, 2))].round(3)
    y = rng.integers(0, 2, len(x))
    device = np.repeat(np.arange(DEVICES), ROWS)
    head = "speed,heat,flow,label"
    lines = [f"{','.join(map(str, row))},{('good', 'bad')[c]}" for row, c in zip(x.tolist(), y, strict=True)]
    every = [f"d{k},{i},{line}" for i, (k, line) in enumerate(zip(device, lines, strict=True))]
    (folder / "all.csv").write_text("\n".join([f"device,time,{head}", *every]) + "\n")
    for k in range(DEVICES):
        mine = [f"{i},{lines[i]}" for i in np.flatnonzero(device == k)[: ROWS * 3 // 4]]
        (folder / f"{k}.csv").write_text("\n".join([f"time,{head}", *mine]) + "\n")


def written(folder: Path, kind: str, more: str = "") -> Path:
    plant(folder)
    more += f"\ndata.path = '{folder}/all.csv'\ndata.split = {{ kind = 'time', test = 0.25 }}"
    return experiment(folder, "fedavg", devices=DEVICES, more=f"{more}\ndata.normalise = {NORMALISE[kind]}")


@pytest.mark.parametrize("window", ["", "data.window = { length = 4, step = 2 }"])
@pytest.mark.parametrize("kind", NORMALISE)
def test_devices_with_files_are_the_simulations_bits(tmp_path: Path, kind: str, window: str) -> None:
    same(tmp_path, written(tmp_path, kind, window), lambda k: DataSource("folder", tmp_path / f"{k}.csv"))
    live_told, told = (json.loads((tmp_path / one / "privacy.json").read_text()) for one in ("live", "simulated"))
    assert live_told["normalise"] == told["normalise"]


@pytest.mark.parametrize("window", ["", "data.window = { length = 4, step = 2 }"])
@pytest.mark.parametrize("kind", ["robust", "regime"])
def test_devices_with_their_share_of_the_experiments_data_are_too(tmp_path: Path, kind: str, window: str) -> None:
    shares = {k: DataSource("folder", tmp_path / f"{k}.csv") if k % 2 else DataSource() for k in range(DEVICES)}
    same(tmp_path, written(tmp_path, kind, window), shares.__getitem__)


@pytest.mark.parametrize("kind", ["robust", "regime"])
def test_devices_whose_samples_a_function_yields_are_too(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = written(tmp_path, kind)
    raw = build_park(config.read(what, ["data.normalise=unit"]))
    module = types.ModuleType("sensor")
    module.see = lambda device, tick: raw.samples(device)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sensor", module)
    same(tmp_path, what, lambda _: DataSource("function", name="sensor:see"))


def test_a_run_that_goes_on_asks_again_and_is_the_same(tmp_path: Path) -> None:
    what = written(tmp_path, "regime")
    simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=lambda k: DataSource("folder", tmp_path / f"{k}.csv")) as park:
        from fedfloor.runs.orders import Limits

        park.run(limits=Limits(stop_after=1))
        park.run(resume=True)
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


def test_a_device_answers_what_its_experiment_asks_and_no_more() -> None:
    below = RowQuestion("below", np.zeros((2, 45)))
    kept = RevealRecord()
    questions = Questions(normaliser("robust"), Answers(kept))
    questions.admit(below.to_dict(), SENSORS)
    with refused("question", RefusedError):
        questions.admit(RowQuestion("below", np.zeros((2, 46))).to_dict(), SENSORS)
    for place in range(3 * 6 - 1):  # three surveys of two questions and four rounds
        questions.admit(RowQuestion("below", np.full((2, 45), float(place + 1))).to_dict(), SENSORS)
    questions.admit(below.to_dict(), SENSORS)  # the same again reveals nothing more
    for place in range(100):
        with refused("question", RefusedError):
            questions.admit(RowQuestion("below", np.full((2, 45), 1000.0 + place)).to_dict(), SENSORS)
    assert kept.rows("SELECT count(*) FROM answers") == [(18,)]  # what is refused is not kept
    questions.admit(below.to_dict(), SENSORS)
    by_heat = RowClusters(np.array([1]), np.zeros(1), np.ones(1), np.zeros((3, 1)))  # the experiment's are by speed
    regimes = Questions(RegimeNormaliser(("speed",), 3), Answers(RevealRecord()))
    for asked, why in (
        (RowQuestion("clusters", None, by_heat), "use other columns"),
        (below, "has no question 'below'"),
    ):
        with pytest.raises(RefusedError, match=why):
            regimes.admit(asked.to_dict(), SENSORS)
    with refused("question", RefusedError):
        Questions(normaliser("robust"), Answers(RevealRecord())).admit(
            RowQuestion("clusters", None, by_heat).to_dict(), SENSORS
        )
    with refused("question", RefusedError):
        regimes.admit({"kind": "sums"}, SENSORS)
    with refused("question", RefusedError):
        Questions(normaliser("standard"), Answers(RevealRecord())).admit(below.to_dict(), SENSORS)


@pytest.mark.parametrize(
    ("place", "value"),
    [((0, 0, 0), -1.0), ((0, 0, 0), 10.5), ((0, 1, 0), 1e31), ((0, 1, 0), float("nan")), ((0, 1, 0), None)],
)
def test_an_answer_out_of_range_is_refused(tmp_path: Path, place: tuple[int, ...], value: float | None) -> None:
    what = config.read(written(tmp_path, "robust"), [])
    asked = replace(facts_of.of(what, load_data(what)), question=RowQuestion("sums").to_dict())
    answer = np.zeros((1, 2, 3), object)
    answer[place] = value
    said = {"samples": 10, "counts": [5, 5], "sums": [], "digest": "0" * 64, "answer": answer.ravel().tolist()}
    with refused("header", RefusedError):
        facts_of.read_holding(said, asked)
    with refused("header", RefusedError):
        facts_of.read_holding({**said, "answer": [0.0] * 5}, asked)


def test_columns_that_are_none_are_refused_before_any_device_is_asked(tmp_path: Path) -> None:
    text = written(tmp_path, "regime").read_text().replace("'speed'", "'sped'")
    (tmp_path / "wrong.toml").write_text(text)
    what = config.read(tmp_path / "wrong.toml", [])
    with refused("data"):
        facts_of.of(what, load_data(what))

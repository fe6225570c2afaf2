"""Survival: the likelihood, tables of lives and recordings that still run, answers at an age, drafts, bad input."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedfloor
from fedfloor.base.checking import checked
from fedfloor.data.dataset import Dataset
from fedfloor.drafting.draft import draft
from fedfloor.experiment import Experiment
from fedfloor.runs.parks import load_data
from fedfloor.tasks import figures
from fedfloor.tasks.kinds import made
from fedfloor.tasks.survival import Survival
from refusals import refused

Row = dict[str, Any]
REPAIRS = ("pump", "site", "grade", "temp", "installed", "removed", "status")
LIVES = np.array([[4.0, 1, 0, 1], [9, 0, 0, 1], [6, 1, 2, 1], [12, 0, 5, 1]], np.float32)


def repairs(path: Path, many: int = 90, **changed: dict[int, str]) -> Path:
    """Write a table of pump repairs, in which some pumps still run."""
    rng = np.random.default_rng(0)
    today = date(2026, 11, 1)
    rows = []
    for n in range(many):
        grade = ("PN10", "PN16")[n % 2]
        temp = rng.normal(60, 10)
        days = max(1, round(900 * np.exp(-0.4 * (n % 2) - 0.02 * (temp - 60)) * rng.weibull(1.7)))
        begin = date(2022, 1, 1) + timedelta(days=int(rng.integers(0, 1600)))
        over = begin + timedelta(days=days) < today
        end = (begin + timedelta(days=days)).isoformat() if over else ""
        state = "failed" if over else "running"
        row = [f"P{n}", f"site {n % 3}", grade, f"{temp:.1f}", begin.isoformat(), end, state]
        rows.append([changed.get(name, {}).get(n, cell) for name, cell in zip(REPAIRS, row, strict=True)])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([REPAIRS, *rows])
    return path


def table(path: Path, rows: list[Row], **settings: Any) -> Dataset:
    """Write a table of lives and load it."""
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    data = {"path": str(path), "task": "survival", "ended": "failed", **settings}
    return load_data(checked(Experiment, {"data": data}, ""))


def hours(many: int = 24) -> list[Row]:
    """Return rows of lives in hours."""
    return [
        {"machine": f"m{n % 3}", "load": n % 5, "hours": 10 + 7 * n, "status": ("failed", "running")[n % 4 == 0]}
        for n in range(many)
    ]


COLUMNS = {"device": "machine", "life": "hours", "label": "status"}


@pytest.mark.parametrize("distribution", ["weibull", "log-normal"])
@pytest.mark.parametrize("since", ["start", "sample"])
def test_the_loss_is_the_likelihood_of_what_was_observed(distribution: str, since: str) -> None:
    task = Survival(distribution=distribution, center=1.5, scale=0.8, grid=(1.0,), since=since)  # type: ignore[arg-type]
    out = torch.tensor([[0.1, 0.0], [0.5, -0.3], [-0.2, 0.2], [0.3, 0.1]], dtype=torch.float64)
    got = task.losses(out, torch.from_numpy(LIVES).double())
    for row, life, loss in zip(out.numpy(), LIVES.astype(float), got.tolist(), strict=True):
        time, failed, entry, _ = life
        if since == "sample":
            time, entry = time - entry, 0.0
        place, width = 1.5 + 0.8 * row[0], 0.8 * np.exp(row[1])
        law: Any = stats.weibull_min(1 / width, scale=np.exp(place))
        law = law if distribution == "weibull" else stats.lognorm(width, scale=np.exp(place))
        known = law.logpdf(time) + np.log(time) if failed else law.logsf(time)  # the density is that of log t
        assert loss == pytest.approx(-(known - law.logsf(entry)), rel=1e-6)


def test_the_loss_of_steps_is_that_of_failures_at_the_next_time_of_the_grid() -> None:
    # steps of 0.1, 0.2, 0.3 at 3, 6, 10: a failure at 4 counts at 6, a life that ends at 9 is not at risk at 10, and a
    # life that enters at 5 and ends at 12 is at risk at 6 and 10
    task = Survival(distribution="steps", center=0.0, scale=1.0, grid=(3.0, 6.0, 10.0))
    out = torch.log(torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)).expand(4, -1)
    got = task.losses(out, torch.from_numpy(LIVES).double())
    ends = -np.log(-np.expm1(-0.2))
    np.testing.assert_allclose(got, [0.1 + ends, 0.1 + 0.2, 0.1 + ends, 0.2 + 0.3], rtol=1e-9)


def test_steep_losses_have_finite_gradients() -> None:
    task = Survival(center=0.0, scale=1.0, grid=(1.0,))
    out = torch.tensor([[-300.0, 9.0], [300.0, -9.0]], requires_grad=True)
    task.losses(out, torch.tensor([[5.0, 1, 0, 1], [5.0, 0, 0, 1]]), "sum").backward()
    assert out.grad is not None
    assert bool(out.grad.isfinite().all())


@pytest.mark.parametrize("distribution", ["weibull", "log-normal", "steps"])
def test_answers_hold_at_the_present_age(distribution: str) -> None:
    grid = tuple(np.arange(1.0, 61.0).tolist())
    task = Survival(distribution=distribution, center=2.5, scale=0.7, grid=grid, within=5.0, level=0.6, age=1)  # type: ignore[arg-type]
    out = torch.full((1, 60), -2.5) if distribution == "steps" else torch.tensor([[0.2, -0.1]])
    for age in (0.0, 8.0):
        answer = task.answer(out, torch.tensor([[9.0, age]]))
        now, later = (float(task.survival(out, torch.tensor([[at]]))[0, 0]) for at in (age, age + 5.0))
        assert float(answer.chance[0]) == pytest.approx(1 - later / now, abs=1e-5)
        for left, share in ((answer.low, 0.8), (answer.median, 0.5), (answer.high, 0.2)):
            fallen = float(task.survival(out, torch.tensor([[age + float(left[0])]]))[0, 0]) / now
            assert fallen == pytest.approx(share, abs=0.04 if distribution == "steps" else 1e-4)
        assert answer.document(0)["median"] == pytest.approx(float(answer.median[0]))


def test_the_grid_of_steps_reaches_the_last_observed_time() -> None:
    """Failures at 4 and 6, and a machine that still ran at 12: beyond 12 nothing is known, and before it the curve is
    flat from 6 on.
    """
    task = Survival(distribution="steps", within=3.0).fitted(LIVES)
    assert task.grid == (4.0, 6.0, 12.0)
    assert Survival(within=3.0).fitted(LIVES).grid == (4.0, 6.0)  # other curves have no end
    task = replace(task, age=0)
    out = torch.log(torch.tensor([0.5, 0.25, 1e-12])).expand(5, -1)
    ages = torch.tensor([[0.0], [3.0], [7.0], [9.5], [13.0]])
    answer = task.answer(out, ages).changed(lambda _, part: part.numpy())
    known = [answer.document(i)["chance"] for i in range(5)]
    assert known[:3] == pytest.approx([0.0, 1 - np.exp(-0.75), 0.0], abs=1e-6)
    assert known[3:] == [None, None]
    assert answer.cells(3)["chance"] == "not known"
    assert "nothing is known beyond 12, the last observed time" in answer.phrase


def test_a_curve_that_falls_to_zero_is_known_to_its_end() -> None:
    """The last life ended in failure: no machine is known to have lived longer than 12."""
    task = Survival(distribution="steps", center=0.0, scale=1.0, grid=(4.0, 12.0), within=5.0, age=0)
    out = torch.log(torch.tensor([0.5, 16.0])).expand(2, -1)
    answer = task.answer(out, torch.tensor([[9.0], [12.0]])).changed(lambda _, part: part.numpy())
    assert [answer.document(i)["chance"] for i in range(2)] == [pytest.approx(1.0, abs=1e-6), None]


def test_a_median_that_is_not_reached_is_no_number() -> None:
    task = Survival(distribution="steps", center=0.0, scale=1.0, grid=(1.0, 2.0), within=1.0)
    answer = task.answer(torch.full((1, 2), -3.0), torch.zeros(1, 1)).changed(lambda _, part: part.numpy())
    assert answer.document(0)["median"] is None
    assert answer.cells(0)["median left"] == "more than known (? to ?)"


def test_a_task_is_described_and_made_again() -> None:
    task = Survival(within=7.0).fitted(LIVES)
    assert made(task.describe()) == task
    assert task.grid == (4.0, 6.0)
    many = np.stack([np.arange(1.0, 201.0), np.ones(200), np.zeros(200), np.ones(200)], 1)
    assert len(Survival().fitted(many).grid) == 50  # quantiles of the failure times, the last of which is the longest
    assert Survival().fitted(many).grid[-1] == 200


def test_a_table_of_lives_has_the_entry_as_its_age(tmp_path: Path) -> None:
    rows = [row | {"begin": row["hours"] / 2 if n % 2 else 0} for n, row in enumerate(hours())]
    data = table(tmp_path / "lives.csv", rows, columns=COLUMNS | {"entry": "begin"}, split={"kind": "last", "rows": 1})
    assert data.inputs.columns == ("load", "hours")
    assert data.task.unread == (1,)
    assert data.target is not None
    own = data.take(np.arange(len(data.y)), 0)
    np.testing.assert_array_equal(own[:, 1], data.target[:, 2])
    np.testing.assert_array_equal(data.y, data.target[:, 1])
    assert {*data.target[:, 2].tolist()} > {0.0}


def test_two_dates_are_a_life_in_days(tmp_path: Path) -> None:
    path = repairs(
        tmp_path / "pumps.csv", removed={0: "2026-10-31", 1: ""}, installed={0: "2026-10-01", 1: "2026-10-20"}
    )
    settings = {
        "path": str(path), "task": "survival", "ended": "failed", "until": "2026-11-01", "split": {"kind": "random"},
        "columns": {"device": "site", "life": "installed + removed", "label": "status", "ignore": ["pump", "grade"]},
    }  # fmt: skip
    data = load_data(checked(Experiment, {"data": settings}, ""))
    assert data.target is not None
    assert data.target_test is not None
    times = {*data.target[:, 0].tolist(), *data.target_test[:, 0].tolist()}
    assert {30.0, 12.0} <= times
    assert getattr(data.task, "unit", "") == "days"


def test_recordings_that_still_run_are_kept(tmp_path: Path) -> None:
    # machine m0 fails after 4 rows, m1 still runs at its fourth row, and each row is a sample with its own past
    rows = [
        {"machine": f"m{m}", "x": m + t / 10, "state": ("failed", "running")[m % 2]}
        for m in range(8)
        for t in range(4 + m)
    ]
    data = table(
        tmp_path / "runs.csv", rows, remaining=True, columns={"device": "machine", "label": "state"},
        split={"kind": "device", "test": 0.25},
    )  # fmt: skip
    target = np.concatenate([data.target, data.target_test])  # type: ignore[list-item]
    owner = np.concatenate([data.owner, data.owner_test])  # type: ignore[list-item]
    np.testing.assert_array_equal(target[owner == 0], [[4, 1, age, age == 0] for age in range(4)])
    np.testing.assert_array_equal(target[owner == 1], [[4, 0, age, age == 0] for age in range(5)])
    assert (target[:, 3].sum(), getattr(data.task, "since", "")) == (8, "sample")


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "no failure among the lives for training": ("no-failure", {"status": "running", 7: {"status": "failed"}}),
    "all fail at one time": ("one-failure-time", {"hours": 40}),
    "a negative life": ("odd-life", {5: {"hours": -3}}),
    "no time": ("odd-life", {5: {"hours": ""}}),
    "an entry after the exit": ("odd-life", {"begin": 0, 5: {"begin": 999}}),
    "no text of a failure": ("no-ended-recording", {"status": "running"}),
}


@pytest.mark.parametrize("case", CASES)
def test_tables_that_hold_no_lives_are_refused(case: str, tmp_path: Path) -> None:
    key, changes = CASES[case]
    every = {name: value for name, value in changes.items() if isinstance(name, str)}
    rows = [row | every | changes.get(n, {}) for n, row in enumerate(hours())]  # type: ignore[call-overload]
    columns = COLUMNS | ({"entry": "begin"} if "begin" in rows[0] else {})
    split = {"kind": "last", "rows": 6}
    with refused(key):
        table(tmp_path / "lives.csv", rows, columns=columns, split=split, missing="mean")


def test_a_survival_needs_lives(tmp_path: Path) -> None:
    with refused("no-lives"):
        table(tmp_path / "lives.csv", hours(), columns={"device": "machine", "label": "status"})
    with refused("data.columns.life"):
        table(tmp_path / "lives.csv", hours(), columns=COLUMNS, task="regression", ended=None)
    with refused("data.columns.life"):
        table(tmp_path / "lives.csv", hours(), columns=COLUMNS, remaining=True)
    with refused("data.until"):
        table(tmp_path / "lives.csv", hours(), columns=COLUMNS, until="soon")
    with refused("data.classes"):
        table(tmp_path / "lives.csv", hours(), columns=COLUMNS, classes=["a", "b"])


def test_a_last_observation_needs_a_mark_of_those_that_ended(tmp_path: Path) -> None:
    """Without, lives that still run counted as failed on that date."""
    settings = {
        "path": str(repairs(tmp_path / "pumps.csv")), "task": "survival", "until": "2026-11-01",
        "split": {"kind": "random"},
        "columns": {"device": "site", "life": "installed + removed", "ignore": ["pump", "grade", "status"]},
    }  # fmt: skip
    with refused("data.until"):
        load_data(checked(Experiment, {"data": settings}, ""))
    marked = settings | {"ended": "*", "columns": settings["columns"] | {"label": "removed"}}  # type: ignore[operator]
    data = load_data(checked(Experiment, {"data": marked}, ""))
    assert data.target is not None
    assert {0.0, 1.0} == {*data.target[:, 1].tolist()}


def test_an_empty_end_needs_a_date(tmp_path: Path) -> None:
    path = repairs(tmp_path / "pumps.csv")
    columns = {"device": "site", "life": "installed + removed", "label": "status", "ignore": ["pump", "grade"]}
    data = {"path": str(path), "task": "survival", "ended": "failed", "columns": columns}
    with refused("odd-life"):
        load_data(checked(Experiment, {"data": data}, ""))


def test_a_table_of_repairs_is_drafted_as_a_survival(tmp_path: Path) -> None:
    path = repairs(tmp_path / "pumps.csv")
    drafted = draft(path, tmp_path / "pumps.toml", [])
    for line in (
        'task = "survival"', 'life = "installed + removed"', 'label = "status"', 'ended = "failed"', 'device = "site"',
        'run = "pump"', 'until = "',
    ):  # fmt: skip
        assert line in drafted.text, drafted.text
    assert any("--set data.task=classification" in note for note in drafted.notes)
    other = draft(path, tmp_path / "pumps.toml", ["data.task=classification", "data.columns.device=site",
                                                  "data.columns.time=", 'data.columns.ignore=["pump"]'])  # fmt: skip
    assert "survival" not in other.text


def test_recordings_of_sensors_are_no_table_of_lives(tmp_path: Path) -> None:
    rows = [
        {"pump": f"p{n // 60}", "hours": n % 60, "temp": (n * 37) % 11, "status": ("running", "failed")[n % 60 > 50]}
        for n in range(240)
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    assert "survival" not in draft(path, tmp_path / "rows.toml", []).text


def test_a_network_learns_lives_and_answers_for_running_machines(tmp_path: Path) -> None:
    path = repairs(tmp_path / "pumps.csv", 480)
    data = {
        "path": str(path), "ended": "failed", "until": "2026-11-01", "split": {"kind": "random"},
        "task": {"kind": "survival", "within": 30},
        "columns": {
            "device": "site", "life": "installed + removed", "label": "status", "ignore": ["pump"],
            "categories": {"grade": ["PN10", "PN16"]},
        },
    }  # fmt: skip
    table = {
        "name": "pumps",
        "rounds": 60,
        "data": data,
        "model": {"name": "linear"},
        "work": {"lr": 0.02, "momentum": 0.9},
    }
    experiment = checked(Experiment, table, "")
    run = fedfloor.run(experiment, out=tmp_path / "run")
    final = run.evaluation["lives"]
    assert final["failures"] == final["samples"] - (final["samples"] - final["failures"]) > 0
    headline = run.lines[-1].figures["concordance"]
    assert headline is not None
    assert headline > 0.6
    assert "How long they live" in run.report().read_text()
    model = fedfloor.load_model(tmp_path / "run")
    new, old = (model.answer(np.array([[60, age, 0]], np.float32)) for age in (0, 900))
    assert float(old.parts()["chance"][0]) > float(new.parts()["chance"][0])  # it wears: the shape is above 1
    assert float(old.parts()["median"][0]) < float(new.parts()["median"][0])


@pytest.mark.parametrize("distribution", ["weibull", "log-normal", "steps"])
def test_devices_judge_a_release_by_its_answers_as_its_curves_are_judged(distribution: Any) -> None:
    rng = np.random.default_rng(0)
    end = rng.uniform(20, 200, 300)
    risk = rng.normal(size=300)
    life = rng.weibull(1.7, 300) * 100 * np.exp(-0.5 * risk)
    lives = np.stack([np.minimum(life, end), life <= end, 0 * end, 0 * end + 1], 1).astype(np.float32)
    task = Survival(distribution=distribution).fitted(lives)
    out = -torch.stack([torch.tensor(risk), 0 * torch.tensor(risk)], 1).float()
    if distribution == "steps":  # as by Cox
        out = torch.tensor(0.8 * risk)[:, None].float() + torch.full((1, len(task.grid)), -3.0)
    parts = {name: np.asarray(part) for name, part in task.answer(out, torch.zeros(300, 3)).parts().items()}
    answers: Any = SimpleNamespace(parts=lambda: parts)
    table = np.zeros((2, 2), np.int64)
    judged = task.judge(answers, lives)
    whole = task.judged(table, 0.0, lives[:, 1], task.scores(out, torch.tensor(lives), ()).numpy(), ())
    assert judged is not None
    near = 0.01 if distribution == "steps" else 1e-6  # of steps an answer has four points
    for name in ("concordance", "integrated Brier score", "calibration error"):
        one, other = (figures.named(name).value(made, ()) for made in (judged, whole))
        assert one == pytest.approx(other, abs=near), name
    assert task.judge(task.answer(out, torch.zeros(300, 3)), lives) is None  # of a table, at the present ages

"""The factors of a table of lives are those of lifelines, in the columns' units, and the report states them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedfloor import run
from fedfloor.api.run import Run
from fedfloor.base.checking import checked
from fedfloor.experiment import Experiment

KINDS = ("PN16", "PN25", "PN40")
METHODS: dict[str, dict[str, Any]] = {
    "Weibull": {"method": {"name": "aft"}},
    "Cox": {"method": {"name": "cox"}, "task": {"distribution": "steps", "points": 1000}},
}


def plant(folder: Path, many: int = 240) -> pd.DataFrame:
    """Write tables of lives of pumps of three kinds for training and testing, and return the former."""
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 3, many)
    heat = rng.normal(60, 8, many).round(2)
    life = 900 * np.exp(-0.02 * (heat - 60) + 0.3 * (kind == 2)) * rng.weibull(1.7, many)
    ends = rng.uniform(300, 1500, many)
    lived = np.minimum(life, ends).round(1) + 1
    state = np.where(life <= ends, "failed", "running")
    names = [KINDS[k] for k in kind]
    made = pd.DataFrame({"site": rng.integers(0, 4, many), "kind": names, "heat": heat, "days": lived, "state": state})
    made.to_csv(folder / "train.csv", index=False)
    made[:60].to_csv(folder / "test.csv", index=False)
    return made


def ran(folder: Path, task: dict[str, Any] | None = None, **about: Any) -> Run:
    data = {
        "path": str(folder / "train.csv"), "test": str(folder / "test.csv"), "ended": "failed",
        "columns": {"device": "site", "life": "days", "label": "state", "categories": {"kind": "one-hot"}},
        "task": {"kind": "survival", **(task or {})},
    }  # fmt: skip
    experiment = checked(Experiment, {"rounds": 15, "data": data, **about}, "")
    return run(experiment, out=folder / "run", ranks=1, progress=False)


def factors(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "evaluation.json").read_text()).get("factors", {})  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", METHODS)
def test_factors_and_their_intervals_are_those_of_lifelines(method: str, tmp_path: Path) -> None:
    lifelines = pytest.importorskip("lifelines")
    made = plant(tmp_path)
    made_run = ran(tmp_path, **METHODS[method])
    found = factors(tmp_path)
    theirs = lifelines.CoxPHFitter() if method == "Cox" else lifelines.WeibullAFTFitter()
    columns = {"heat": made["heat"], **{f"kind={one}": made["kind"] == one for one in KINDS[1:]}}
    table = pd.DataFrame(columns).astype(float).assign(t=made["days"], f=made["state"] == "failed")
    if method == "Cox":
        theirs.fit(table, "t", "f", fit_options={"precision": 1e-9})
    else:
        theirs._scipy_fit_options = {"ftol": 1e-15, "maxiter": 500}
        theirs.fit(table, "t", "f")
    wanted = theirs.summary if method == "Cox" else theirs.summary.loc["lambda_"]
    rows = {row["name"]: row for row in found["rows"]}
    assert found["ratio"] == ("hazard ratio" if method == "Cox" else "time ratio")
    assert sorted(rows) == sorted(columns)
    for name, row in rows.items():
        one = wanted.loc[name]
        assert row["than"] == ("" if name == "heat" else "PN16")
        assert row["step"] == 1.0
        ours = [row["effect"], row["error"], row["ratio"], row["low"], row["high"], row["p"]]
        keys = ["coef", "se(coef)", "exp(coef)", "exp(coef) lower 95%", "exp(coef) upper 95%", "p"]
        np.testing.assert_allclose(ours, [one[key] for key in keys], atol=1e-5)
    if method == "Cox":
        test = lifelines.statistics.multivariate_logrank_test(made["days"], made["kind"], made["state"] == "failed")
        (group,) = found["groups"]
        assert (group["name"], group["values"], group["freedom"]) == ("kind", 3, 2)
        np.testing.assert_allclose([group["statistic"], group["p"]], [test.test_statistic, test.p_value], rtol=1e-6)
    page = made_run.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"<th>{found['ratio']}</th>" in page.replace(' scope="col"', "")
    assert ">instead of PN16</td>" in page.replace(' data-label="step"', "")
    assert ("log-rank" in page) == (method == "Cox")


@pytest.mark.parametrize("method", METHODS)
def test_a_penalty_gives_no_factor_to_a_column_that_never_varies(method: str, tmp_path: Path) -> None:
    made = plant(tmp_path)
    made.assign(line=7.0).to_csv(tmp_path / "train.csv", index=False)
    made[:60].assign(line=7.0).to_csv(tmp_path / "test.csv", index=False)
    name = METHODS[method]["method"]["name"]
    ran(tmp_path, **METHODS[method], methods={name: {"ridge": 1.0}})
    names = [row["name"] for row in factors(tmp_path)["rows"]]
    assert sorted(names) == ["heat", "kind=PN25", "kind=PN40"]


def test_other_methods_state_no_factors(tmp_path: Path) -> None:
    plant(tmp_path)
    ran(tmp_path, {"distribution": "steps"}, method={"name": "kaplanmeier"})
    assert factors(tmp_path) == {}

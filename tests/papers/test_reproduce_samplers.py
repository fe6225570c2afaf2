"""FedGS's comparison of samplers: its selections, its rows, its files, and the command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import refusals
from fedfloor.solvers.selection.problem import SelectionProblem, divergence, value
from fedfloor.solvers.selection.solve import gbpcs, solve
from papers import catalog, selection
from papers.allocation import Row
from papers.selection import Asked, Begun, Comparison, Point, Printed, Sampler, asked
from selections import femnist_like

FEDGS = catalog.COMPARISONS["fedgs-samplers"]


def tiny_point(key: str, devices: int, factories: int) -> Point:
    partition = {"kind": "dirichlet", "alpha": 0.5, "at_least": 1}
    data = {"name": "labels", "samples_per_device": 30, "partition": partition, "stream": {"kind": "fifo", "window": 8}}
    return Point(key, data, {"devices": devices, "factories": factories})


TINY = Comparison(
    "tiny-samplers", "a comparison for tests", "nobody, Fig. 0",
    (tiny_point("two factories", 26, 2), tiny_point("one", 11, 1)),
    (
        Sampler("random", "random", Printed(0.06, 0.05, 0.01, 0.04, 0.07, 0.002)),
        Sampler("Monte Carlo", "monte-carlo", share=0.5),
        Sampler("GBP-CS", "gbpcs", init="mpinv", begun=Begun(0.037, 3, 0.029, 0.030)),
        Sampler("from zero", "gbpcs-zero", init="zero", begun=Begun(0.033, 1, 0.030, 0.029)),
        Sampler("by magic", "swap", needs="no_such_module"), Sampler("exchanges", "swap"),
        Sampler("exact", "exact"), Sampler("brute", "brute", Printed(0.03, 0.03, 0.01, 0.02, 0.04, 900.0)),
    ),
    ("this was chosen",),
)  # fmt: skip


def by_sampler(rows: list[Row], point: str) -> dict[str, Row]:
    return {row["sampler"]: row for row in rows if row["point"] == point}


@pytest.fixture(scope="module")
def what() -> Asked:
    return asked(TINY, "", 0.02, [0])  # four selections


@pytest.fixture(scope="module")
def rows(what: Asked) -> list[Row]:
    return selection.rows(what)


# -- the selections ----------------------------------------------------------------------------------------------------


def test_selections_go_through_the_factories_and_then_the_ticks() -> None:
    """26 devices in two factories of 13: two are given, 8 of 11 chosen; windows of 8 samples, ten in all."""
    made = list(selection.problems(TINY.points[0], 0, 3))
    for one in made:
        assert (one.candidates, one.how_many) == (11, 8)
        assert set(one.counts.sum(0)) == {8}
        assert one.already.sum() == 16
        assert one.wanted.sum() == pytest.approx(1)
        assert np.allclose(one.target, 80 * one.wanted - one.already)
    assert np.array_equal(made[0].wanted, made[1].wanted)  # the whole park's shares, not the factory's
    assert not np.array_equal(made[0].counts, made[1].counts)
    assert not np.array_equal(made[0].counts, made[2].counts)  # the next tick has other windows
    again = next(selection.problems(TINY.points[0], 0, 1))
    assert np.array_equal(made[0].counts, again.counts)
    assert not np.array_equal(made[0].counts, next(selection.problems(TINY.points[0], 1, 1)).counts)


def test_few_devices_leave_fewer_to_choose() -> None:
    small = tiny_point("small", 8, 1)
    assert (next(selection.problems(small, 0, 1)).how_many, 8 - selection.GIVEN) == (6, 6)


def test_where_a_descent_begins() -> None:
    """Zero begins with the choice that its eight steps of warm-up made; a divergence is ‖A x − y‖ over 320 samples."""
    problem = femnist_like(3)  # type: ignore[var-annotated]
    trace = []  # type: ignore[var-annotated]
    for init in ("mpinv", "zero", "random"):
        trace.clear()
        found = gbpcs(problem, init, seed=5, trace=trace)  # type: ignore[arg-type]
        begins, swaps = selection.descent(problem, init, 5)  # type: ignore[arg-type]
        first = next(one for one in trace if one.size == 8)
        assert begins == pytest.approx(value(problem, first) / 320)
        assert swaps == sum(one.size == 8 for one in trace) - 1
        assert selection.descended(problem, init, 5)[-1] == pytest.approx(found.value / 320)  # type: ignore[arg-type]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_say_how_near_and_how_long(rows: list[Row]) -> None:
    assert [row["sampler"] for row in rows] == [one.label for one in TINY.samplers] * 2
    assert len({tuple(row) for row in rows}) == 1  # the same columns everywhere
    for key in ("two factories", "one"):
        found = by_sampler(rows, key)
        assert (found["random"]["selections"], found["Monte Carlo"]["selections"]) == (4, 2)
        assert found["exact"]["above_pct"] == 0
        assert found["exact"]["proven"] == 4
        assert found["brute"]["mean"] == pytest.approx(found["exact"]["mean"])
        for row in found.values():
            if row["note"] is None:
                assert row["above_pct"] >= 0
                assert row["min"] <= row["median"] <= row["max"]
                assert row["min"] <= row["mean"] <= row["max"]
                assert 0 <= row["std"] <= row["max"] - row["min"]
                assert row["mean"] >= found["exact"]["mean"] - 1e-12 or row["selections"] < 4
                assert 0 < row["seconds"] < 60
        assert found["random"]["above_pct"] > found["exchanges"]["above_pct"]
        assert found["GBP-CS"]["begins"] >= found["GBP-CS"]["mean"]
        assert found["random"]["begins"] is None


def test_a_row_by_hand(what: Asked) -> None:
    """Divergences 0.02 and 0.04, 10 and 30 % above the least; half a second and two."""
    made = [selection.Made(0.02, 0.1, 0.5, True, 0, 0.05, 1), selection.Made(0.04, 0.3, 2.0, False, 0, 0.07, 2)]
    row = selection._row(TINY.points[0], TINY.samplers[2], what, made)
    assert row["mean"] == row["median"] == pytest.approx(0.03)
    assert (row["std"], row["min"], row["max"]) == (pytest.approx(0.01), 0.02, 0.04)
    assert (row["above_pct"], row["proven"], row["seconds"]) == (pytest.approx(20), 1, 1.25)
    assert (row["begins"], row["swaps"]) == (pytest.approx(0.06), 1.5)
    assert row["parks"] == [[0.02, 0.04]]
    assert (row["paper_begins"], row["paper_swaps"], row["paper_ends"], row["paper_ends_text"]) == (
        0.037,
        3,
        0.029,
        0.03,
    )
    plain = selection._row(TINY.points[0], TINY.samplers[0], what, made)
    assert plain["paper_above_pct"] == pytest.approx(100)  # 0.06 beside brute force's 0.03
    assert (plain["paper_mean"], plain["paper_seconds"], plain["begins"]) == (0.06, 0.002, None)


def test_who_cannot_take_part_is_named(rows: list[Row]) -> None:
    row = by_sampler(rows, "one")["by magic"]
    assert (row["selections"], row["mean"], row["seconds"]) == (0, None, None)
    assert row["note"] == "skipped: needs no_such_module: pip install 'fedfloor[samplers]'"
    assert next(one for one in FEDGS.samplers if one.solver == "bayesian").needs == "bayes_opt"


def test_the_bayesian_sampler_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    bayesian = next(one for one in FEDGS.samplers if one.solver == "bayesian")
    monkeypatch.setitem(sys.modules, "bayes_opt", None)
    assert "needs bayes_opt" in bayesian.lacking()
    assert asked(replace(FEDGS, samplers=(bayesian,)), "", 1.0, [0]).work == 0


def test_seeds_are_other_parks_and_all_count(what: Asked, rows: list[Row]) -> None:
    both = selection.rows(replace(what, points=TINY.points[1:], seeds=(0, 1)))
    first = by_sampler(rows, "one")
    found = by_sampler(both, "one")
    assert found["exact"]["selections"] == 8
    assert found["exact"]["min"] <= first["exact"]["min"]
    assert found["exact"]["max"] >= first["exact"]["max"]
    other = by_sampler(selection.rows(replace(what, points=TINY.points[1:], seeds=(1,))), "one")
    assert found["exact"]["mean"] == pytest.approx((first["exact"]["mean"] + other["exact"]["mean"]) / 2)


def test_what_is_asked_for() -> None:
    assert asked(FEDGS, "", 1.0, [0]).selections == 200
    assert asked(FEDGS, "", 0.5, [0]).selections == 100
    assert asked(FEDGS, "", 0.001, [3]).selections == 1
    assert asked(FEDGS, "7 factories", 0.5, [0, 2]).points == FEDGS.points[1:2]
    assert asked(TINY, "one", 0.02, [0, 2]).work == 2 * (2 + 6 * 4)  # one sampler is not there


@pytest.mark.parametrize(
    ("only", "scale", "seeds", "message"),
    [
        ("two factoris", 1.0, [0], "--only"),
        ("", 0.0, [0], "--scale"), ("", 1.5, [0], "--scale"),
        ("", 1.0, [-1], "--seeds"), ("", 1.0, [1, 1], "--seeds"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(only: str, scale: float, seeds: list[int], message: str) -> None:
    with refusals.refused(message):
        asked(TINY, only, scale, seeds)


def test_the_papers_figures_agree_with_each_other() -> None:
    """Whoever holds them: min ≤ median, mean ≤ max; GBP-CS is 66 times (the paper rounds 64.8) as fast as genetic
    search; and brute force is below all."""
    papers = {one.solver: one.paper for one in FEDGS.samplers if one.paper}
    assert set(papers) == {"random", "monte-carlo", "genetic", "bayesian", "gbpcs", "brute"}
    for one in papers.values():
        assert one.min <= min(one.median, one.mean) <= max(one.median, one.mean) <= one.max
        assert one.mean >= papers["brute"].mean
    assert papers["genetic"].seconds / papers["gbpcs"].seconds == pytest.approx(66, rel=0.03)


# -- courses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["monte-carlo", "genetic", "swap"])
@pytest.mark.parametrize("seed", range(3))
def test_stopped_earlier_is_no_better_and_the_last_is_the_sampler(solver: str, seed: int) -> None:
    problem = femnist_like(seed)
    off = [divergence(problem, run(problem, seed=seed).choice) for run in selection.EARLIER[solver]]
    assert off == sorted(off, reverse=True)
    assert off[-1] == divergence(problem, solve(solver, problem, seed=seed).choice)


def test_courses_are_of_one_selection(what: Asked) -> None:
    found = selection.courses(what)
    problem = next(selection.problems(TINY.points[-1], 0, 1))
    assert (found.candidates, found.chosen) == (problem.candidates, 8)
    assert set(found.starts) == {"mpinv", "zero"}
    assert len(found.starts["zero"]) >= 8
    assert "by magic" not in found.time
    assert len(found.time["Monte Carlo"]) == 7
    assert found.time["exact"][0][1] == pytest.approx(found.optimum)
    for label, pairs in found.time.items():
        assert all(seconds > 0 and off >= found.optimum - 1e-12 for seconds, off in pairs), label


def test_pictures_are_pictures_and_the_same_each_time() -> None:
    starts = {"mpinv": (0.04, 0.03), "zero": (0.1, 0.05, 0.03), "random": (0.05,)}
    made = selection.Courses(starts, {"random": ((1e-4, 0.05),), "exact": ((1e-3, 0.02),)}, 0.02, 26, 8)
    assert made.pictures("a") == made.pictures("a")
    words: dict[str, list[str]] = {}
    for file, text in made.pictures("a").items():
        tree = ElementTree.fromstring(text)
        assert tree.tag == "{http://www.w3.org/2000/svg}svg"
        words[file] = [one.text or "" for one in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert list(words) == list(made.files("a")) == ["a-starts.svg", "a-time.svg"]
    for said in words.values():
        assert {"optimum, 0.0200", "class divergence (L2 distance of shares)", "random"} <= set(said)
    assert "step" in words["a-starts.svg"]
    assert "time of the selection (s)" in words["a-time.svg"]


@pytest.mark.slow
def test_on_femnist(data_root: Path) -> None:
    """In each park the exact solver proves what brute force finds, GBP-CS beats a random choice by far, and exchanges
    are no worse."""
    if not (data_root / "femnist").is_dir():
        pytest.skip("no FEMNIST")
    quick = replace(FEDGS, samplers=tuple(one for one in FEDGS.samplers if one.solver != "bayesian"))
    found = selection.rows(asked(quick, "", 0.05, [0]))
    for point in FEDGS.points:
        rows = by_sampler(found, point.key)
        assert rows["exact (ours)"]["proven"] == rows["exact (ours)"]["selections"] == 10
        assert rows["brute force"]["mean"] == pytest.approx(rows["exact (ours)"]["mean"], rel=1e-9)
        assert rows["exchanges (ours)"]["mean"] <= rows["GBP-CS"]["mean"] < 0.8 * rows["random"]["mean"]


def test_problem_of_six_has_something_compiled() -> None:
    """What compiles the exact solver must not be settled before its tree is needed."""
    from fedfloor.solvers.selection import kernels as enumeration

    entered = []
    with pytest.MonkeyPatch.context() as patched:
        settle = enumeration.settle_subtree
        patched.setattr(enumeration, "settle_subtree", lambda *words: entered.append(1) or settle(*words))
        selection._compile("exact")
    assert entered
    assert isinstance(next(selection.problems(TINY.points[1], 0, 1)), SelectionProblem)


def test_samplers_are_compared_selection_by_selection() -> None:
    values = {"GBP-CS": [[1.0, 2.0], [3.0]], "genetic": [[0.5, 1.0], [3.0]], "Bayesian": [[1.0], []]}
    (one,) = selection.paired([{"sampler": name, "parks": parks} for name, parks in values.items()])
    # −0.5, −1 and 0: mean −0.5, s = 0.5, t = 4.303 with two degrees of freedom: 4.303 · 0.5 / √3 = 1.2421
    assert one == {"sampler": "genetic", "minus GBP-CS": "−0.5000 ± 1.2421"}


def test_the_published_pairs_are_those_of_its_values() -> None:
    path = Path(__file__).parents[2] / "results" / "fedgs-samplers-dealt.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    *_, table = found["blocks"]
    wanted = selection.paired(found["computed"]["rows"])
    assert table == {"columns": list(wanted[0]), "rows": [list(row.values()) for row in wanted]}

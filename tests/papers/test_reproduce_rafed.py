"""RaFed's figures about allocation: what each scheme does, how rows come about, and the command."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import refusals
from allocation_parks import park
from commands import Command
from fedfloor.base.chance import generator
from fedfloor.methods.chosen import method_of
from fedfloor.solvers.allocation.problem import Allocation, AllocationProblem, cost, lower_bound, only_level
from fedfloor.solvers.allocation.solve import random_allocation
from papers import allocation, catalog, rafed, schemes
from papers.allocation import Contender, Found, Point, Study

RNG = generator


# -- the schemes -------------------------------------------------------------------------------------------------------


def plain(compute: list[float], channels: int = 1) -> AllocationProblem:
    """Devices that hear nothing of each other (γ is tiny), one power level, uploads of 1 s; n(k) = 10/k."""
    n = len(compute)
    ones = np.ones((n, 1))
    return AllocationProblem(
        np.array(compute), ones, ones, 1e-9, 1e-12, channels, iterations_scale=10.0, iterations_offset=0.0
    )


def test_native_is_everybody() -> None:
    drawn = schemes.native(plain([1.0, 2.0, 4.0]), RNG(0, "test"))
    assert drawn.active == 3
    assert drawn.seconds == pytest.approx(10 / 3 * (4 + 1))


def test_fedcs_takes_those_who_get_done_in_time() -> None:
    """Uploads of 1 s one after the other: device 0 is done at 1 + 1 = 2, device 1 at max(2, 2) + 1 = 3, device 2 at
    max(3, 4) + 1 = 5; under 4 s the first two remain, and send at once: 10/2 · (2 + 1)."""
    problem = plain([1.0, 2.0, 4.0])
    assert schemes.fedcs(problem, RNG(0, "test"), 4.0) == (pytest.approx(15.0), 2)
    assert schemes.fedcs(problem, RNG(0, "test"), 6.0).active == 3
    assert schemes.fedcs(problem, RNG(0, "test"), 1.0) == (math.inf, 0)


@pytest.mark.parametrize("scheme", [schemes.allocated, schemes.scattered])
def test_a_random_set_has_as_many_devices_as_are_asked_for(scheme: Callable[..., schemes.Drawn]) -> None:
    problem = plain([1.0, 1.0, 1.0, 1.0])
    for size in (1, 3):
        assert scheme(problem, RNG(0, "test"), size) == (pytest.approx(10 / size * 2), size)
    assert scheme(problem, RNG(0, "test"), 9).active == 4  # there are no more


def test_qffl_and_fedl_allocate_the_channels_of_their_devices() -> None:
    """The paper's second sentence on Fig. 3: they are ahead of FedCS by the allocation of wireless resources."""
    labels = {one.label: one for one in rafed.rivals(Point("", 40))}
    problem = park(40, 0, gamma=1.0)
    drawn = {name: next(iter(labels[name].tried.values()))(problem, RNG(0, name)) for name in ("q-FFL", "FEDL")}
    assert all(one.active == 20 and one.seconds < 1e6 for one in drawn.values())
    assert drawn["q-FFL"] != drawn["FEDL"]  # other devices
    assert next(iter(labels["at random"].tried.values()))(problem, RNG(0, "at random")).seconds > 1e100


@pytest.mark.parametrize("gamma", [1.0, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_what_must_hold_of_all_schemes(gamma: float, seed: int) -> None:
    """No scheme is below the bound or our search, which tells latencies apart to 1e-4 of themselves; and Algorithm 1 is
    no worse than its start."""
    problem = park(12, seed, gamma=gamma)
    bound = lower_bound(problem)
    best = schemes.ours(problem, RNG(seed, "ours")).seconds
    drawn = {
        "qffl": schemes.allocated(problem, RNG(seed, "qffl"), 4),
        "at random": schemes.scattered(problem, RNG(seed, "at random"), 4),
        "fedcs": schemes.fedcs(problem, RNG(seed, "fedcs"), 1.5),
        "native": schemes.native(problem, RNG(seed, "native")),
        "rafed": schemes.algorithm(problem, RNG(seed, "rafed"), start=1),
    }  # fmt: skip
    for name, one in drawn.items():
        assert one.seconds >= bound * (1 - 1e-9), name
        assert one.seconds >= best * (1 - 1e-4), name
    rng = RNG(seed, "rafed")
    start = random_allocation(problem, rng, schemes.chosen(problem, rng, 1))
    assert drawn["rafed"].seconds <= cost(problem, start) * (1 + 1e-9)


def test_sweeps_end_where_costs_are_beyond_numbers() -> None:
    """Twenty devices on one channel at γ = 1: log costs of thousands, whose rounding must not look like a gain."""
    assert schemes.allocated(park(40, 0, channels=1), RNG(0, "test"), 20).active == 20


def test_one_power_for_all() -> None:
    problem = park(8, 0)

    def levels(problem: AllocationProblem, _: np.random.Generator) -> schemes.Drawn:
        assert problem.allowed.sum(1).tolist() == [1] * 8
        return schemes.Drawn(float(problem.received_w[problem.allowed].sum()), 8)

    for level in (0, -1):
        drawn = rafed.at_level(problem, RNG(0, "test"), levels, level)
        assert drawn.seconds == pytest.approx(only_level(problem, level).received_w[:, level].sum())


# -- rows --------------------------------------------------------------------------------------------------------------


def found(label: str, *seconds: list[float], role: str = "") -> Found:
    values = np.array(seconds)
    return Found(label, None, role, "", values, np.ones_like(values))


def test_lower_by_compares_medians_park_by_park() -> None:
    """Parks: medians 1 and 3 beside 2 and 4: 50 and 25 per cent lower; t(0.975, 1) = 12.706, s/√2 = 12.5."""
    mean, half = allocation.lower_by(found("a", [1, 1, 9], [3, 2, 4]), found("b", [2, 2, 1e9], [4, 4, 4]))
    assert (mean, half) == (pytest.approx(37.5), pytest.approx(12.706 * 12.5, rel=1e-4))
    assert allocation.lower_by(found("a", [1.0]), found("b", [math.inf])) == (100.0, None)


def constant(seconds: float) -> allocation.Scheme:
    return lambda problem, rng: schemes.Drawn(seconds, problem.devices)


TRIED = {"3 s": constant(3.0), "2 s": constant(2.0), "4 s": constant(4.0)}
TINY = Study(
    "tiny-figure", "a figure for tests", "nobody, Fig. 0", (Point("six", 6), Point("one channel", 4, {"channels": 1})),
    lambda point: (
        Contender("RaFed", {"": constant(1.0)}, role="rafed"), Contender("ours", {"": constant(0.5)}, role="ours"),
        Contender("tried", TRIED, paper=40.0), Contender("lost", {"": constant(math.inf)}),
    ),
    ("this was chosen",),
)  # fmt: skip


def test_rows_say_what_was_asked() -> None:
    rows = allocation.rows(allocation.asked(TINY, "", 0.4, [0]))
    assert [row["scheme"] for row in rows] == ["RaFed", "ours", "tried", "lost", "lower bound"] * 2
    first, tried, lost, bound = (rows[i] for i in (0, 2, 3, 4))
    assert (first["median_s"], first["rafed_lower_pct"], first["ours_lower_pct"]) == (1.0, None, 50.0)
    assert (tried["setting"], tried["median_s"], tried["mean_s"]) == ("2 s", 2.0, 2.0)  # the best of three
    assert (tried["rafed_lower_pct"], tried["ours_lower_pct"], tried["paper_pct"]) == (50.0, 75.0, 40.0)
    assert (tried["parks_s"], tried["parks_active"], lost["parks_s"]) == ([2.0, 2.0], [6.0, 6.0], [None, None])
    assert (lost["median_s"], lost["mean_s"], lost["note"]) == (None, None, "4 of 4 beyond 1e308 s")
    assert bound["rafed_lower_pct"] is None
    problems = [allocation.problem(TINY.points[0], park) for park in (0, 1)]
    assert bound["mean_s"] == pytest.approx(np.mean([lower_bound(one) for one in problems]))
    assert [row["channels"] for row in rows[::5]] == [4, 1]


def test_seeds_are_other_parks() -> None:
    assert allocation.asked(TINY, "", 1.0, [0, 2]).parks == (0, 1, 2, 3, 4, 10, 11, 12, 13, 14)
    assert allocation.asked(TINY, "", 0.2, [0, 1]).parks == (0, 5)
    assert allocation.asked(TINY, "channel", 0.2, [0]).points == TINY.points[1:]


def test_a_park_does_not_change_with_its_size() -> None:
    few, many = (allocation.problem(Point("", n), 3) for n in (10, 20))
    assert np.array_equal(few.compute_s, many.compute_s[:10])
    assert np.array_equal(few.received_w, many.received_w[:10])


def test_every_point_of_every_figure_can_be_made() -> None:
    for one in catalog.STUDIES.values():
        keys = [point.key for point in one.points]
        assert len(set(keys)) == len(keys)
        for point in one.points:
            assert allocation.problem(point, 0).devices == point.devices
            assert len({contender.label for contender in one.contenders(point)}) == len(one.contenders(point))


@pytest.mark.parametrize(
    ("only", "scale", "seeds", "message"),
    [
        ("sevn", 1.0, [0], "--only"), ("", 0.0, [0], "--scale"),
        ("", 1.5, [0], "--scale"), ("", 1.0, [-1], "--seeds"), ("", 1.0, [1, 1], "--seeds"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(only: str, scale: float, seeds: list[int], message: str) -> None:
    with refusals.refused(message):
        allocation.asked(TINY, only, scale, seeds)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, with a figure that takes no time."""
    monkeypatch.setitem(catalog.STUDIES, TINY.name, TINY)  # type: ignore[call-overload]
    return command


def test_the_command_prints_and_writes_the_figure(tiny: Command) -> None:
    said = tiny("reproduce", "tiny-figure", "--scale", "0.2", "--only", "six", "--out", "here", "--json")
    document = said.document
    assert said.new == {"here", "here/table.md", "here/table.json"}
    assert (document["parks"], document["draws"], document["notes"]) == ([0], 1, ["this was chosen"])
    assert [row["median_s"] for row in document["rows"]][:4] == [1.0, 0.5, 2.0, None]
    text = (tiny.folder / "here" / "table.md").read_text()
    assert "fedfloor reproduce tiny-figure --only 'six' --scale 0.2\n" in text
    assert "| six | tried | 2 s | 2.00 | 2.00 | 6.00 | 50.00 | 75.00 | 40.00 | – |" in text
    assert "- this was chosen" in text
    assert "lost" in tiny("reproduce", "tiny-figure", "--scale", "0.2").out


def test_the_command_twice_is_the_same(command: Command) -> None:
    words = ("reproduce", "rafed-fig8", "--scale", "0.2", "--only", ", 10 devices", "--json")
    first = command(*words).document
    assert command(*words).document == first
    rows = {(row["point"], row["scheme"]): row for row in first["rows"]}
    for point in ("γ = 1, 10 devices", "γ = 0.1, 10 devices", "γ = 0.0001, 10 devices"):
        algorithm = rows[point, "RaFed, Algorithm 1"]
        ours = rows[point, "search (ours)"]
        assert rows[point, "lower bound"]["mean_s"] * (1 - 1e-9) <= ours["mean_s"]
        assert ours["mean_s"] <= algorithm["mean_s"] * (1 + 1e-4)  # the search tells latencies apart no finer
        assert 1 <= ours["active"] <= 10


def test_the_command_refuses(command: Command) -> None:
    command.refused(command("reproduce", "rafed-fig9"), "unknown table 'rafed-fig9'. Known: ")
    command.refused(command("reproduce", "rafed-fig3", "--scale", "0"), "--scale = 0.0: must be a share of the parks")


def test_large_numbers_are_written_by_their_order() -> None:
    assert allocation.pair(99_999.0, 1.0) == "99999.00 ± 1.00"
    assert allocation.pair(1e5, 1.0) == "1e+05"
    assert allocation.pair(-86.9, 10.0) == "−86.90 ± 10.00"


def test_fig_4_can_be_run() -> None:
    table = catalog.TABLES["rafed-fig4"]
    assert {cell.data for cell in table.cells} == {"mnist", "tless"}
    for cell in table.cells:
        what = table.experiment(cell, 20, seed=1)
        assert (what.network.profile, what.park.devices) == ("rafed", 40)
        assert method_of(what).work.epochs == 1  # type: ignore[attr-defined]


def test_silent_devices_do_not_count() -> None:
    drawn = schemes._drawn(plain([1.0, 2.0]), Allocation(np.array([0, -1]), np.zeros(2, np.int64)))
    assert drawn == (pytest.approx(10 * (1 + 1)), 1)

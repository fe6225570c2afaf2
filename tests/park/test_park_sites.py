"""What devices state when they are asked: equal to what all rows together have, however rows are divided; checked."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.deploy.message import SHORT_HEADER
from fedfloor.park.agreement import EITHER, judged
from fedfloor.park.sites import BINS, FEWEST, FLOOR, SHARES, RowClock, SiteFacts, pooled, quantiles, read
from fedfloor.park.sites import SENSORS as SITE_SENSORS
from refusals import refused

SENSORS = ("temp", "flow")


def rows(many: int = 900, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    x = np.stack([20 + 3 * draw.normal(size=many), np.exp(2 * draw.normal(size=many))], axis=1).astype(np.float32)
    x[::7, 1] = np.nan
    return x


def divided(x: np.ndarray, parts: int, seed: int) -> list[SiteFacts]:
    whose = np.random.default_rng(seed).integers(0, parts, len(x))
    return [SiteFacts.of_rows(f"s{k}", SENSORS, x[whose == k]) for k in range(parts)]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_moments_of_sites_are_those_of_all_rows_however_these_are_divided(parts: int) -> None:
    x = rows()
    for c in range(2):
        known = x[~np.isnan(x[:, c]), c].astype(np.float64)
        many, mean, deviation = pooled([site.sums[:, c] for site in divided(x, parts, parts)])
        assert many == len(known)
        assert mean == pytest.approx(known.mean(), rel=1e-12)
        assert deviation == pytest.approx(known.std(), rel=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_quantiles_are_within_their_stated_error(parts: int) -> None:
    x = rows(2000, seed=3)
    for c, sensor in enumerate(SENSORS):
        known = x[~np.isnan(x[:, c]), c]
        found = quantiles(divided(x, parts, 1), sensor)
        assert found is not None
        true = np.quantile(known, SHARES, method="inverted_cdf")
        assert (np.abs(found[0] - true) <= found[1] * (1 + 1e-6)).all()
        assert found[1] < known.std()


def test_quantiles_are_within_their_stated_error_beside_sites_of_few_rows() -> None:
    """Ten sites of 99 rows, without histograms, far from one of 300: the median is theirs."""
    draw = np.random.default_rng(2)
    parts = [draw.normal(size=300), *(20 + draw.normal(size=(10, FLOOR - 1)))]
    found = quantiles([SiteFacts.of_rows(f"s{k}", ["v"], part[:, None]) for k, part in enumerate(parts)], "v")
    assert found is not None
    true = np.quantile(np.concatenate(parts), SHARES, method="inverted_cdf")
    assert (np.abs(found[0] - true) <= found[1] * (1 + 1e-6)).all()
    assert found[1] < 15


def test_few_rows_have_no_minimum_no_histogram_and_no_moments_of_time() -> None:
    few = SiteFacts.of_rows("s", SENSORS, rows(FLOOR - 1))
    assert np.isnan(few.ends).all()
    assert not few.bins.any()
    assert quantiles([few], "temp") is None
    clock = RowClock.of(np.arange(FLOOR - 1.0), [], dated=True, zoned=False)
    assert math.isnan(clock.first)
    assert clock.step == 1


def stated() -> dict[str, Any]:
    clock = RowClock.of(np.arange(900.0), [], dated=True, zoned=False)
    more = {"classes": {"ok": 600, "worn": 300}, "clock": clock, "units": {"temp": "°C"}, "roles": {"time": "time"}}
    return SiteFacts.of_rows("s", SENSORS, rows(), copies=3, problems=("its times are odd.",), **more).to_dict()


def test_facts_are_read_back_from_json() -> None:
    site = read(stated(), "s", "north")
    assert (site.name, site.factory, site.rows) == ("s", "north", 900)
    assert site.to_dict() == stated()


def test_names_may_have_blanks_that_do_not_break() -> None:
    body = SiteFacts.of_rows("s", ("Temp\u00a0°C", "p\u202f1"), rows(), classes={"sehr\u00a0gut": 900}).to_dict()
    assert read(body, "s").sensors == ("Temp\u00a0°C", "p\u202f1")


def changed(path: str, value: Any) -> dict[str, Any]:
    body = copy.deepcopy(stated())
    *above, last = path.split(".")
    part: Any = body
    for key in above:
        part = part[int(key) if isinstance(part, list) else key]
    part[int(last) if isinstance(part, list) else last] = value
    return body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rows", -1), ("rows", 1 << 60), ("rows", True), ("sensors", ["a"] * 2), ("sensors", ["x", "y\nforged"]),
        ("sensors", ["x"]), ("sensors", [f"s{i}" for i in range(5000)]), ("sums.0.0", 901), ("sums.0.0", 1.5),
        ("sums.1.0", math.nan), ("sums.1.0", math.inf), ("sums.2.0", -1.0), ("sums", [[1, 1]]), ("levels.0", 99),
        ("ends.0.0", "low"), ("bins.0", [1] * (BINS + 3)), ("bins.0", [900] * (BINS + 2)), ("classes", {"ok": 901}),
        ("classes", {"a" * 300: 1}), ("units", {"other": "°C"}), ("roles", {"boss": "x"}), ("copies", 901),
        ("decimal", ";"), ("problems", ["a\x1b[2Jb"]), ("problems", ["x" * 5000]), ("clock.step", 0.0),
        ("clock.step", -1.0), ("clock.first", 1e9), ("clock.dated", "yes"), ("clock.dated", []),
        ("clock.last", 1e30), ("clock.gaps", 1 << 60), ("clock.last", None), ("classes", {"ok": 0}),
    ],
)  # fmt: skip
def test_hostile_facts_are_refused(path: str, value: Any) -> None:
    with pytest.raises(RefusedError):
        read(changed(path, value), "s")


@pytest.mark.parametrize("value", [None, [], "x", {}, {"rows": 1}])
def test_something_else_than_facts_is_refused(value: Any) -> None:
    with pytest.raises(RefusedError):
        read(value, "s")


def site(name: str, seed: int, **more: Any) -> SiteFacts:
    x = rows(300, seed)
    if change := more.pop("change", None):
        x[:, 0] = change(x[:, 0])
    return SiteFacts.of_rows(name, SENSORS, x, **more)


def test_with_two_sites_it_is_not_said_which_is_wrong() -> None:
    (one,) = judged([site("a", 0), site("b", 1, change=lambda v: 1.8 * v + 32)])
    assert (one.kind, one.sensors) == ("unit", ("temp",))
    assert EITHER in one.sentence
    many = judged([*(site(f"s{k}", k) for k in range(3)), site("b", 9, change=lambda v: 1.8 * v + 32)])
    assert [(each.kind, each.sites) for each in many] == [("unit", ("b",))]
    assert EITHER not in many[0].sentence


def test_one_site_agrees_with_itself_and_none_with_nothing() -> None:
    assert judged([site("a", 0)]) == []
    assert judged([]) == []
    assert [one.kind for one in judged([SiteFacts("a", problems=("a.csv cannot be read: x",))])] == ["unreadable"]


def test_a_site_without_rows_is_named() -> None:
    empty = SiteFacts.of_rows("new", SENSORS, rows(0))
    (one,) = judged([site("a", 0), site("b", 1), site("c", 2), empty])
    assert (one.kind, one.sites) == ("empty", ("new",))


def test_a_clock_that_differs_from_that_of_who_asks_is_named() -> None:
    sites = [site(f"s{k}", k, offset=0.4) for k in range(3)] + [site("late", 7, offset=-3600.0)]
    (one,) = judged(sites)
    assert (one.kind, one.sites) == ("clock", ("late",))
    assert "3,600 s behind" in one.sentence


@pytest.mark.parametrize("odd", [True, False])
def test_a_clock_that_alone_goes_forward_in_spring_or_does_not_is_named(*, odd: bool) -> None:
    """Rows of a whole day begin at the same time; a clock with summer time shows an hour more at their end."""

    def clock(*, forward: bool) -> RowClock:
        return RowClock(0, 86_400 + 3600 * forward, 60, int(forward), 60 + 3600 * forward, dated=True, zoned=False)

    sites = [site(f"s{k}", k, clock=clock(forward=not odd)) for k in range(3)]
    (one,) = judged([*sites, site("odd", 9, clock=clock(forward=odd))])
    assert (one.kind, one.sites) == ("clock", ("odd",))
    assert ("goes forward" if odd else "does not go forward") in one.sentence
    overtime = RowClock(0, 90_000, 60, 0, 60, dated=True, zoned=False)
    assert judged([*sites, site("late", 9, clock=overtime)]) == []


def test_few_rows_have_no_sums_and_make_no_finding() -> None:
    """Two values and their sum and spread are these values: of fewer than 20 none of them leaves a device."""
    x = rows()
    small = SiteFacts.of_rows("small", SENSORS, x[: FEWEST - 1], classes={"ok": FEWEST - 1})
    stated = json.loads(json_text(small.to_dict()))
    assert (stated["sums"], stated["levels"]) == ([[19, 16], [None, None], [None, None]], [0, 0])
    assert stated["classes"] == {}
    few = read(stated, "small")
    assert few.sums[0].tolist() == [19, 16]
    others = [SiteFacts.of_rows(f"s{k}", SENSORS, x[k::5]) for k in range(5)]
    assert judged([*others, few]) == []
    assert judged([*others[:1], few]) == []
    again = read(json.loads(json_text(replace(small, name="two").to_dict())), "two")
    assert judged([*others, few, again]) == []
    many, mean, _ = pooled([site.sums[:, 0] for site in (*others, few)])
    assert (many, mean) == pooled([site.sums[:, 0] for site in others])[:2]
    whole = SiteFacts.of_rows("s", SENSORS, x[: FEWEST + 4]).to_dict()
    assert whole["sums"][1][0] == pytest.approx(float(x[: FEWEST + 4, 0].astype(np.float64).sum()))


def test_a_device_states_facts_of_many_sensors_in_a_message() -> None:
    many = [f"sensor {number} [unit]" for number in range(SITE_SENSORS)]
    x = np.random.default_rng(0).normal(size=(200, SITE_SENSORS)).astype(np.float32)
    stated = SiteFacts.of_rows("s", many, x).to_dict()
    assert len(json_text(stated)) < SHORT_HEADER / 2
    assert len(read(stated, "s").sensors) == SITE_SENSORS
    assert not any(map(any, stated["bins"]))
    with refused("range", RefusedError):
        read(SiteFacts.of_rows("s", [*many, "one more"], np.zeros((2, SITE_SENSORS + 1), np.float32)).to_dict(), "s")


def test_units_and_levels_may_differ_where_each_device_has_its_own_scale() -> None:
    """Advice that is followed ends its finding; others stay, and keep what is left out already."""
    x = rows(600, seed=4)
    hot = x[:200] * np.float32([1.8, 1.0]) + np.float32([32, 0])
    still = x[200:400].copy()
    still[:, 1] = 3.0
    sites = [SiteFacts.of_rows(name, SENSORS, part) for name, part in
             (("a", x[::3]), ("b", x[1::3]), ("c", x[2::3]), ("hot", hot), ("still", still))]  # fmt: skip
    found = judged(sites)
    assert {one.kind for one in found} == {"unit", "constant"}
    assert any("--set data.normalise=device" in one.sentence for one in found)
    (left,) = judged(sites, own_scale=True, ignored=["note"])
    assert (left.kind, left.sites) == ("constant", ("still",))
    assert '--set \'data.columns.ignore=["note", "flow"]\'' in left.sentence


@pytest.mark.filterwarnings("error")
def test_sites_of_unknown_steps_are_judged_without_a_warning() -> None:
    clock = RowClock(0.0, 60.0, math.nan, 0, math.nan, dated=True, zoned=True)
    assert judged([site(name, number, clock=clock) for number, name in enumerate("abc")]) == []

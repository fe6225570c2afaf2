"""Updates of single sensors become rows: values as they held, gaps, clocks that jump."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.sensors.grid import BACK_S, RowGrid


def grid(columns: int = 2, **more: float) -> RowGrid:
    return RowGrid(columns, **({"period_s": 1.0, "wait_s": 2.0, "gap_s": 5.0} | more))  # type: ignore[arg-type]


def table(rows: object) -> list[tuple[float, list[float]]]:
    return [(row.time, row.values.tolist()) for row in rows]  # type: ignore[attr-defined]


def test_a_row_has_of_every_sensor_its_last_value_up_to_its_time() -> None:
    got = grid()
    for time, cells in (
        (10.0, {0: 1.0, 1: 5.0}),
        (10.4, {0: 2.0}),
        (11.0, {0: 3.0}),
        (11.2, {1: 6.0}),
        (12.0, {0: 4.0}),
    ):
        got.add(time, cells, "", now=0.0)
    assert table(got.rows(0.0)) == [(10, [1, 5]), (11, [3, 5])]  # of sensor 1 nothing has come after 11.2
    assert table(got.rows(2.0)) == [(12, [4, 6])]


def test_values_that_come_out_of_order_within_the_wait_are_in_their_rows() -> None:
    got = grid()
    for second in range(10, 15):
        got.add(second, {0: second}, "", now=0.0)
    assert table(got.rows(0.1)) == []  # sensor 1 is awaited
    for second in range(10, 15):
        got.add(second, {1: -second}, "", now=0.2)
    assert table(got.rows(0.2)) == [(s, [s, -s]) for s in range(10, 15)]
    assert got.counts["late"] == 0


def test_a_living_source_without_news_goes_on_and_a_silent_one_does_not() -> None:
    for alive, wanted in ((True, [10.0, 11.0, 12.0, 13.0]), (False, [10.0])):
        got = grid(1)
        got.add(10.0, {0: 1.0}, "", now=0.0)
        assert [row.time for row in got.rows(5.5, alive=alive)] == wanted


def test_nothing_is_carried_over_a_gap_or_a_lost_connection() -> None:
    got = grid(1)
    got.add(10.0, {0: 1.0}, "", now=0.0)
    got.add(15.0, {0: 2.0}, "", now=0.0)  # 5 s: no gap yet
    got.add(21.5, {0: 3.0}, "", now=0.0)
    assert [time for time, _ in table(got.rows(0.0, end=True))] == [10, 11, 12, 13, 14, 15, 22]
    after = got.detach()
    assert table(after.rows(9.0, alive=True)) == []
    after.add(24.0, {0: 4.0}, "", now=9.0)
    assert table(after.rows(9.0, end=True)) == [(24, [4])]


def test_what_a_source_stored_goes_on_where_the_connection_was_lost() -> None:
    got = grid()
    got.add(10.0, {0: 1.0, 1: 1.0}, "", now=0.0)
    got.add(11.0, {0: 2.0}, "", now=0.0)
    assert [time for time, _ in table(got.rows(0.0))] == [10]
    got.detach()
    assert table(got.rows(1000.0)) == [(10, [1, 1])]  # of sensor 1 the value at 11 was lost
    for time, cells in ((11.0, {1: 3.0}), (12.0, {0: 4.0, 1: 4.0})):
        got.add(time, cells, "", now=1000.0)
    assert table(got.rows(1000.0)) == [(11, [2, 3]), (12, [4, 4])]


def test_rows_that_held_values_until_a_lost_connection_was_noticed_are_made_again() -> None:
    got = grid(1)
    for second in range(100, 200):
        got.add(second, {0: second}, "", now=second)
    assert [time for time, _ in table(got.rows(212.0, alive=True))][-1] == 210  # held, as it seemed to live
    after = got.detach()
    for second in range(200, 220):
        got.add(second, {0: second}, "", now=300.0)
    again = table(got.rows(300.0, end=True))
    assert again == [(float(s), [s]) for s in range(int(again[0][0]), 220)]
    assert again[0][0] <= 150
    assert after.last == 210


def test_an_initial_value_holds_and_makes_no_row() -> None:
    got = grid()
    got.add(3.0, {1: 7.0}, "", now=0.0, initial=True)  # set long before
    got.add(100.0, {0: 1.0}, "", now=0.0)
    assert table(got.rows(0.0, end=True)) == [(100, [1, 7])]


def test_an_old_value_counts_as_missing() -> None:
    got = grid(hold_s=2.0)
    got.add(10.0, {0: 1.0, 1: 1.0}, "", now=0.0)
    for second in (11, 12, 13):
        got.add(second, {0: 1.0}, "", now=0.0)
    assert [math.isnan(values[1]) for _, values in table(got.rows(0.0, end=True))] == [False, False, False, True]


def test_a_clock_that_goes_back_begins_a_new_epoch_and_loses_no_row() -> None:
    got = grid(1)
    rows = []
    for step in range(10):
        got.add(1000.0 + step, {0: step}, "", now=step)
        rows += got.rows(step)
    for step in range(10, 20):  # an hour back
        got.add(-2600.0 + 1000 + step, {0: step}, "", now=step)
        rows += got.rows(step)
    rows += got.rows(BACK_S + 20, end=True)
    assert [row.values[0] for row in rows] == list(range(20))
    assert [row.epoch for row in rows] == [0] * 10 + [1] * 10
    assert got.counts["clock went back"] == 1


def test_a_single_late_value_is_no_clock_that_goes_back() -> None:
    got = grid(2)
    for step in range(20):
        got.add(1000.0 + step, {0: step}, "", now=step)
        got.add(10.0, {1: 1.0}, "", now=step)  # a stuck clock beside one that goes
        list(got.rows(step))
    assert got.epoch == 0


def test_without_a_period_each_update_is_a_row() -> None:
    got = grid(period_s=0.0)
    got.add(0.1, {0: 1.0}, "ok", now=0.0)
    got.add(0.35, {1: 2.0}, None, now=0.0)
    (first, second) = got.rows(0.0)
    assert (first.time, first.label, second.time) == (0.1, "ok", 0.35)
    np.testing.assert_array_equal(second.values, [1, 2])  # the first sensor's value holds
    assert second.label == "ok"
    got.add(0.35, {0: 3.0}, "", now=0.0)  # of another message with the same time
    (again,) = got.rows(0.0)
    np.testing.assert_array_equal(again.values, [3, 2])
    assert (again.time, again.label) == (0.35, "")


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 2)), min_size=1, max_size=60), st.randoms())
def test_rows_do_not_depend_on_the_order_of_arrival(updates: list[tuple[float, int]], random: object) -> None:
    updates = [*{time: (time, sensor) for time, sensor in updates}.values()]
    tables = []
    for order in (sorted(updates), random.sample(updates, len(updates))):  # type: ignore[attr-defined]
        got = grid(3, gap_s=1000.0)
        for time, sensor in order:
            got.add(time, {sensor: time}, "", now=0.0)
        tables.append([(row.time, row.values.tobytes()) for row in got.rows(0.0, end=True)])
    assert tables[0] == tables[1]
    times = [time for time, _ in tables[0]]
    assert times == [times[0] + i for i in range(len(times))]

"""Labels for measurements from a table of events."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data.events import label_rows
from refusals import refused

HOURS = 60


def written(
    folder: Path, failures: str = "A,2026-01-02T00:00:00,belt\nB,2026-01-01T10:00:00,seal\n"
) -> tuple[Path, Path]:
    data = folder / "telemetry.csv"
    events = folder / "failures.csv"
    rows = [
        f"{np.datetime64('2026-01-01T00') + np.timedelta64(hour, 'h')},{machine},{hour % 7}.5"
        for machine in "AB"
        for hour in range(HOURS)
    ]
    data.write_text("datetime,machineID,heat\n" + "\n".join(rows) + "\n")
    events.write_text(f"machineID,datetime,failure\n{failures}")
    return data, events


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_rows_before_an_event_have_its_kind(tmp_path: Path) -> None:
    """The label is that of the first event in [t, t + 6 h], of the row's own device."""
    facts = label_rows(*written(tmp_path), tmp_path / "out.csv", within="6h")
    labels = np.array(column(tmp_path / "out.csv", "label")).reshape(2, HOURS)
    assert np.flatnonzero(labels[0] == "belt").tolist() == list(range(18, 25))
    assert np.flatnonzero(labels[1] == "seal").tolist() == list(range(4, 11))
    assert facts["labels"] == {"belt": 7, "seal": 7, "none": 2 * HOURS - 14}


def test_the_time_until_the_next_event_and_the_run(tmp_path: Path) -> None:
    data, events = written(tmp_path, "A,2026-01-01 05:00,belt\nA,2026-01-01 08:00,seal\n")
    facts = label_rows(data, events, tmp_path / "out.csv", remaining=True)
    assert column(tmp_path / "out.csv", "remaining") == [*"543210", *"210"]
    assert column(tmp_path / "out.csv", "run") == [*"000000", *"111"]
    assert (facts["rows"], facts["left out"]) == (9, 2 * HOURS - 9)


@pytest.mark.parametrize(
    ("failures", "settings", "message"),
    [
        ("A,2026-01-02,belt\n", {}, "label-or-remaining"),
        ("A,2026-01-02,belt\n", {"within": "6 weeks"}, "--within"),
        ("A,2027-01-02,belt\n", {"within": "1h"}, "no-event"),
        ("A,7,belt\n", {"within": "1h"}, "forms-of-times"),
        ("A,yesterday,belt\n", {"within": "1h"}, "no-time"),
        ("A,2026-01-02,none\n", {"within": "1h"}, "kinds-of-events"),
        ("A,2026-01-02,belt\n", {"within": "1h", "kind": "part"}, "kinds-of-events"),
        ("A,2026-01-02\n", {"within": "1h"}, "length-of-row"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    tmp_path: Path, failures: str, settings: dict[str, str], message: str
) -> None:
    with refused(message):
        label_rows(*written(tmp_path, failures), tmp_path / "out.csv", **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "out.csv").exists()


def test_from_two_tables_to_a_draft(command: Command) -> None:
    written(command.folder)
    made = command("datasets", "label", "telemetry.csv", "failures.csv", "--within", "6h", "--out", "l.csv")
    assert "120 rows, 2 events" in made.out
    assert "fedfloor new l.csv" in made.out
    drafted = command("new", "l.csv", "--set", 'data.split={kind="random"}')
    assert drafted.code == 0, drafted
    assert "a label lasts for 5 rows on average" in drafted.err
    assert tomllib.loads((command.folder / "l.toml").read_text())["data"]["columns"]["device"] == "machineID"
    again = command("datasets", "label", "telemetry.csv", "failures.csv", "--within", "6h", "--out", "l.csv")
    command.refused(again, "l.csv exists already")


FORMS = {
    "s": lambda hour: f"{1_767_225_600 + 3600 * hour}",
    "ms": lambda hour: f"{1_767_225_600_000 + 3_600_000 * hour}",
    "digits": lambda hour: f"{(np.datetime64('2026-01-01T00', 's') + np.timedelta64(hour, 'h')).item():%Y%m%d%H%M%S}",
    "iso": lambda hour: f"{np.datetime64('2026-01-01T00') + np.timedelta64(hour, 'h')}:00",
    "utc": lambda hour: f"{np.datetime64('2026-01-01T00') + np.timedelta64(hour, 'h')}:00Z",
    "cycle": str,
}


def in_form(folder: Path, form: str, other: str) -> tuple[Path, Path]:
    data = folder / "telemetry.csv"
    events = folder / "failures.csv"
    rows = [f"{FORMS[form](hour)},A,{hour % 7}.5" for hour in range(HOURS)]
    data.write_text("timestamp,machine,heat\n" + "\n".join(rows) + "\n")
    events.write_text(f"machine,timestamp,failure\nA,{FORMS[other](24)},belt\n")
    return data, events


@pytest.mark.parametrize(("form", "other"), [("s", "s"), ("ms", "ms"), ("digits", "digits"), ("ms", "s"), ("s", "utc")])
def test_hours_are_hours_whatever_the_numbers(tmp_path: Path, form: str, other: str) -> None:
    label_rows(*in_form(tmp_path, form, other), tmp_path / "out.csv", within="6h")
    assert np.flatnonzero(np.array(column(tmp_path / "out.csv", "label")) == "belt").tolist() == list(range(18, 25))
    label_rows(*in_form(tmp_path, form, other), tmp_path / "life.csv", remaining=True)
    assert column(tmp_path / "life.csv", "remaining") == [str(24 - hour) for hour in range(25)]


def test_cycles_have_no_hours(tmp_path: Path) -> None:
    tables = in_form(tmp_path, "cycle", "cycle")
    with refused("--within"):
        label_rows(*tables, tmp_path / "out.csv", within="6h")
    facts = label_rows(*tables, tmp_path / "out.csv", within="6")
    assert facts["labels"]["belt"] == 7
    facts = label_rows(*tables, tmp_path / "s.csv", within="6s", time_format="s")
    assert facts["labels"]["belt"] == 7


def test_local_times_beside_universal_ones_are_refused(tmp_path: Path) -> None:
    _, events = written(tmp_path, "A,2026-01-02T00:00:00,belt\n")
    events = events.rename(tmp_path / "local.csv")
    data, _ = in_form(tmp_path, "utc", "utc")
    with refused("forms-of-times"):
        label_rows(data, events, tmp_path / "out.csv", within="6h", columns={"device": ""})


def test_ambiguous_dates_have_an_option(tmp_path: Path) -> None:
    data = tmp_path / "t.csv"
    events = tmp_path / "e.csv"
    data.write_text("datetime,machine,heat\n03/02/2026 06:00,A,1.5\n03/02/2026 07:00,A,2.5\n")
    events.write_text("machine,datetime,failure\nA,03/02/2026 08:00,belt\n")
    with refused("no-time"):
        label_rows(data, events, tmp_path / "out.csv", within="1h")
    assert label_rows(data, events, tmp_path / "out.csv", within="1h", time_format="month-first")["labels"]["belt"] == 1


def test_no_event_vanishes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each event labels a row, or is named by its row with the reason."""
    failures = [
        ("A", "2026-01-02T00:00:00", "belt"),  # labels seven rows
        ("A", "2026-01-02T00:00:00", "seal"),  # the second at one time
        ("A", "2025-12-31T23:00:00", "seal"),  # before the first row
        ("A", "2026-02-01T00:00:00", "seal"),  # long after the last
        ("A", "2026-01-02T00:30:00", "seal"),  # no row since the belt
        ("C", "2026-01-02T00:00:00", "seal"),  # of an unknown device
    ]
    tables = written(tmp_path, "".join(",".join(row) + "\n" for row in failures))
    facts = label_rows(*tables, tmp_path / "out.csv", within="6h")
    reasons = facts["without rows"]
    assert (facts["events"], list(reasons.values()), facts["labels"]["belt"]) == (1, [1] * 5, 7)
    assert facts["events"] + sum(reasons.values()) == len(failures)
    said = [record.getMessage() for record in caplog.records]
    for row in range(3, 8):
        assert any(f"row {row} (" in text for text in said), row
    left = label_rows(*tables, tmp_path / "left.csv", remaining=True)  # the event of February ends a long wait
    assert (left["events"], sum(left["without rows"].values())) == (2, 4)


def test_rows_during_an_event_with_an_end_belong_to_it(tmp_path: Path) -> None:
    """Hours 24 to 29 of A, and the six hours before; B's event has no end."""
    data, events = written(tmp_path)
    rows = "A,2026-01-02T00:00:00,2026-01-02T05:00:00,belt\nB,2026-01-01T10:00:00,,seal\n"
    events.write_text(f"machineID,start time,end time,failure\n{rows}")
    facts = label_rows(data, events, tmp_path / "out.csv", within="6h", kind="failure")
    labels = np.array(column(tmp_path / "out.csv", "label")).reshape(2, HOURS)
    assert np.flatnonzero(labels[0] == "belt").tolist() == list(range(18, 30))
    assert np.flatnonzero(labels[1] == "seal").tolist() == list(range(4, 11))
    assert facts["labels"] == {"belt": 12, "seal": 7, "none": 2 * HOURS - 19}
    alone = label_rows(data, events, tmp_path / "alone.csv", kind="failure")
    assert alone["labels"] == {"belt": 6, "seal": 1, "none": 2 * HOURS - 7}
    left = label_rows(data, events, tmp_path / "left.csv", remaining=True)
    assert column(tmp_path / "left.csv", "remaining") == [*map(str, range(24, -1, -1)), *map(str, range(10, -1, -1))]
    assert left["left out"] == 2 * HOURS - 36


def test_an_end_before_its_event_and_unknown_columns_are_refused(tmp_path: Path) -> None:
    data, events = written(tmp_path)
    events.write_text("machineID,start,end,failure\nA,2026-01-02T00:00:00,2026-01-01T05:00:00,belt\n")
    with refused("end-before-event"):
        label_rows(data, events, tmp_path / "no.csv", within="6h", kind="failure")
    written(tmp_path)
    for role in ("time", "event-time", "end"):
        with pytest.raises(SettingError, match="has no such column"):
            label_rows(data, events, tmp_path / "no.csv", within="6h", columns={role: "begin"}, kind="failure")


def with_two_times(folder: Path, kinds: str = "belt,seal") -> tuple[Path, Path]:
    """Return tables whose times have unusual names, other ones in the events, which were reported later."""
    data, events = written(folder)
    data.write_text(data.read_text().replace("datetime", "moment"))
    belt, seal = kinds.split(",")
    rows = [f"A,2026-01-02T00:00:00,2026-01-05T08:00:00,{belt}", f"B,2026-01-01T10:00:00,2026-01-06T08:00:00,{seal}"]
    events.write_text("\n".join(["machineID,began,reported,failure", *rows, ""]))
    return data, events


def test_times_of_events_may_have_a_name_of_their_own_and_are_no_kinds(tmp_path: Path) -> None:
    tables = with_two_times(tmp_path)
    facts = label_rows(*tables, tmp_path / "a.csv", within="6h", columns={"time": "moment", "event-time": "began"})
    assert facts["labels"] == {"belt": 7, "seal": 7, "none": 2 * HOURS - 14}
    with refused("--time"):
        label_rows(*tables, tmp_path / "no.csv", within="6h", columns={"time": "moment"}, kind="failure")
    shared = {"time": "moment", "event-time": "began"}
    with refused("kinds-of-events"):
        label_rows(*tables, tmp_path / "no.csv", within="6h", columns=shared, kind="reported")


@pytest.mark.parametrize("kind", ["2026-01-0{}", "0{}.01.2026", "176722560{}000", "order-{}"])
def test_times_and_numbers_of_orders_are_no_classes(tmp_path: Path, kind: str) -> None:
    """With nothing else left for the kind, the refusal names the column; a kind that recurs is taken."""
    rows = [f"A,2026-01-02T0{hour}:00:00,{kind.format(hour + 1)}" for hour in range(6)]
    tables = written(tmp_path, "\n".join([*rows, ""]))
    tables[1].write_text(tables[1].read_text().replace("failure", "note"))
    with refused("kinds-of-events"):
        label_rows(*tables, tmp_path / "no.csv", within="6h")
    tables = written(
        tmp_path, "\n".join(row.rsplit(",", 1)[0] + f",order-{i % 2}" for i, row in enumerate(rows)) + "\n"
    )
    assert len(label_rows(*tables, tmp_path / "yes.csv", within="6h")["labels"]) == 3


def test_a_zone_makes_local_events_comparable_with_universal_rows(tmp_path: Path) -> None:
    data, events = in_form(tmp_path, "utc", "iso")
    with refused("forms-of-times"):
        label_rows(data, events, tmp_path / "no.csv", within="6h")
    facts = [
        label_rows(data, events, tmp_path / f"{zone.split('/')[-1]}.csv", within="6h", zone=zone)["labels"]
        for zone in ("UTC", "Etc/GMT-3")
    ]
    first = [column(tmp_path / f"{zone}.csv", "label").index("belt") for zone in ("UTC", "GMT-3")]
    assert first[0] - first[1] == 3
    assert facts[0] == facts[1]
    with refused("--zone"):
        label_rows(*in_form(tmp_path, "utc", "utc"), tmp_path / "no.csv", within="6h", zone="UTC")


def test_a_span_of_moments_needs_a_unit(tmp_path: Path) -> None:
    for form in ("s", "ms", "utc"):
        with refused("--within"):
            label_rows(*in_form(tmp_path, form, form), tmp_path / "out.csv", within="6")

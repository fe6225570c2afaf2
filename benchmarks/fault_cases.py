"""Made faults of tables, for ``benchmarks.faults``: a case writes small tables, and states how its fault is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from benchmarks.fault_tables import (
    ROWS,
    added,
    altered,
    at,
    channels,
    edited,
    fitted_late,
    german,
    lines,
    local,
    long_form,
    marked,
    measured,
    moved,
    of_machine,
    one_of,
    parquet,
    pauses,
    plant,
    predicted,
    rates,
    renamed,
    stamp,
    timed,
    with_quality,
    with_target,
    write,
)

SIMPLE = ("--set", "method.name=fedavg", "--set", "model.name=logistic", "--set", "rounds=1")
ANOMALIES = ("--task", "reconstruction")
FORECAST = ("--task", "forecasting", "--set", "data.window={length=10,step=1}", "--set", "rounds=1")
WINDOWS = (*SIMPLE, "--set", "data.window={length=10,step=10}")


@dataclass(frozen=True)
class Case:
    """A fault, or none.

    Args:
        name: the fault.
        kind: its kind; ``none`` where there is no fault.
        make: writes ``t.csv``, or a file of another name, for ``new`` and ``run``, and perhaps ``u.csv`` for
            ``predict``; returns the name of the former.
        named: a pattern of the sentence that names the fault, in the output of ``new``, ``run`` or ``predict``.
        words: arguments of ``new``.
    """

    name: str
    kind: str
    make: Callable[[Path], str]
    named: str = ""
    words: Sequence[str] = SIMPLE


RESET = datetime(2000, 1, 1)
REGRESSION = (*SIMPLE, "--task", "regression")
UNLIKE = r"({})[^\n]*(far|deviat|unlike|beyond|range)|do not rely"  # a sentence on a sensor of a table to predict

CASES = (
    # -- between machines --
    Case("°F at one machine", "machines", at(3, lambda x: x.update(temp=x["temp"] * 1.8 + 32)), one_of("temp", 3)),
    Case("mbar at one machine", "machines", at(2, lambda x: x.update(flow=x["flow"] * 1000)), one_of("flow", 2)),
    Case(
        "a factor of ten at one machine", "machines", at(4, lambda x: x.update(load=x["load"] * 10)), one_of("load", 4)
    ),
    Case("the sign of one machine", "machines", at(1, lambda x: x.update(temp=-x["temp"])), one_of("temp", 1)),
    Case(
        "two sensors exchanged at one machine",
        "machines",
        at(5, lambda x: x.update(temp=x["flow"], flow=x["temp"])),
        one_of("(temp|flow)", 5),
    ),
    Case(
        "a sensor that stands still at one machine",
        "machines",
        at(2, lambda x: x.update(flow=np.full(ROWS, 9.5))),
        one_of("flow", 2),
    ),
    Case(
        "a sensor that one machine lacks",
        "machines",
        at(3, lambda x: x.update(vib=np.full(ROWS, np.nan))),
        one_of("vib", 3),
    ),
    # -- predictions --
    Case(
        "°F in a table to predict",
        "predictions",
        predicted(change=lambda _, x: x.update(temp=x["temp"] * 1.8 + 32)),
        UNLIKE.format("temp"),
    ),
    Case(
        "a factor of ten in a table to predict",
        "predictions",
        predicted(change=lambda _, x: x.update(load=x["load"] * 10)),
        UNLIKE.format("load"),
    ),
    Case(
        "two sensors exchanged in a table to predict",
        "predictions",
        predicted(change=lambda _, x: x.update(temp=x["flow"], flow=x["temp"])),
        UNLIKE.format("(temp|flow)"),
    ),
    Case(
        "°F at one machine of a table to predict",
        "predictions",
        predicted(change=of_machine(3, lambda x: x.update(temp=x["temp"] * 1.8 + 32))),
        UNLIKE.format("temp"),
    ),
    Case("a machine that was not in training", "predictions", predicted(machines=(9,)), r"(was|were) not in training"),
    Case(
        "one machine of several that was not in training",
        "predictions",
        predicted(machines=(0, 1, 9)),
        r"M9[^\n]*(was|were) not in training",
    ),
    Case(
        "a sensor that a table to predict lacks",
        "predictions",
        predicted(renamed("vib", "vibration")),
        r"no column 'vib'",
    ),
    Case("a class that training lacks", "predictions", predicted(renamed("worn", "broken")), r"'broken'"),
    # -- clocks --
    Case(
        "milliseconds since 1970",
        "clocks",
        timed(lambda t: f"{t.timestamp() * 1000:.0f}"),
        r"read as milliseconds since 1970",
    ),
    Case(
        "microseconds since 1970",
        "clocks",
        timed(lambda t: f"{t.timestamp() * 1e6:.0f}"),
        r"read as microseconds since 1970",
    ),
    Case("YYYYMMDDhhmmss", "clocks", timed(lambda t: f"{t:%Y%m%d%H%M%S}"), r"read as YYYYMMDDhhmmss"),
    Case(
        "days of a spreadsheet",
        "clocks",
        timed(lambda t: f"{t.timestamp() / 86400 + 25569:.8f}"),
        r"read as days of a spreadsheet",
    ),
    Case(
        "the end of summer time",
        "clocks",
        moved(lambda row: local(row, "2026-10-24 20:00")),
        r"data\.zone=Europe/Berlin",
    ),
    Case(
        "the beginning of summer time",
        "clocks",
        moved(lambda row: local(row, "2026-03-28 20:00")),
        r"goes forward an hour",
    ),
    Case(
        "a clock that was reset to 2000",
        "clocks",
        moved(lambda row: f"{RESET + timedelta(minutes=row):%Y-%m-%d %H:%M:%S}" if 40 <= row < 60 else stamp(row)),
        r"more than a year away",
    ),
    Case(
        "a row a century ahead",
        "clocks",
        moved(lambda row: stamp(row) if row != 50 else "2126-03-02 07:00:00"),
        r"more than a year away",
    ),
    Case(
        "a clock that was set back",
        "clocks",
        moved(lambda row: stamp(row if row < 80 else row - 39.5)),
        r"was set back",
    ),
    Case(
        "rows that arrived late",
        "clocks",
        moved(lambda row: stamp(row + 5.5 * (row % 10 == 3))),
        r"--set data\.sort=true",
    ),
    Case(
        "hours cut off the times",
        "clocks",
        timed(lambda t: f"{t:%M:%S}.0"),
        r"is no time|cannot be read|looks like a date or time|has this time",
    ),
    # -- rates and holes --
    Case("machines of 1 Hz and 0.1 Hz", "rates", rates, r"rates differ", WINDOWS),
    Case(
        "a sensor read every fifth row",
        "rates",
        altered(lambda t: t.update(vib=[cell if row % 5 == 0 else "" for row, cell in enumerate(t["vib"])])),
        r"values are missing",
    ),
    Case("pauses of 2.5 days, forecast", "holes", pauses, r"windows do not cross|gap_s", FORECAST),
    Case("a sensor fitted late", "holes", altered(fitted_late(50)), r"values are missing"),
    Case("a sensor without a value in training", "holes", altered(fitted_late(110)), r"'vib' holds no value"),
    Case(
        "rows of separators below a table",
        "holes",
        edited(lambda rows: [*rows, *[",,,,,,"] * 40]),
        r"40 rows without any value",
    ),
    Case("-9999 for missing values", "holes", altered(marked("temp", "-9999")), r"'temp' is -9999 in"),
    Case("-999.9 for missing values", "holes", altered(marked("load", "-999.9")), r"'load' is -999\.9 in"),
    Case("9.9E+37 for missing values", "holes", altered(marked("vib", "9.9E+37")), r"'vib' is 9\.9e\+37 in"),
    Case("65535 for missing values", "holes", altered(marked("flow", "65535")), r"'flow' is 65535 in"),
    Case(
        "status texts among numbers", "holes", altered(marked("temp", "Bad Input")), r"missing_texts=\[\"Bad Input\"\]"
    ),
    # -- copies --
    Case(
        "rows sent twice",
        "copies",
        edited(lambda rows: [line for i, line in enumerate(rows) for _ in range(1 + (i % 33 == 5))]),
        r"exact cop",
    ),
    Case(
        "two different rows at one time",
        "copies",
        edited(lambda rows: [*rows[:9], rows[8].replace(",M0,", ",M0,1"), *rows[9:]]),
        r"has this time",
    ),
    Case(
        "a sensor twice",
        "copies",
        altered(added("temp2", lambda row, t: t["temp"][row])),
        r"'temp2' has the same values as 'temp'",
    ),
    Case(
        "a sensor in two units",
        "copies",
        altered(added("temp_f", lambda row, t: f"{float(t['temp'][row]) * 1.8 + 32:.6f}")),
        r"'temp_f' is a multiple of",
    ),
    # -- columns --
    Case("OPC qualities as codes", "columns", altered(with_quality("192", "24")), r"'temp_quality' states the quality"),
    Case(
        "OPC qualities as texts", "columns", altered(with_quality("Good", "Bad")), r"'temp_quality' states the quality"
    ),
    Case(
        "a label with a long name, anomalies",
        "columns",
        altered(
            lambda t: t.update(
                {
                    "Attack LABLE (1:No Attack; -1:Attack)": [
                        "-1" if s == "worn" and i % ROWS > 100 else "1" for i, s in enumerate(t.pop("state"))
                    ]
                }
            )
        ),
        r"'Attack LABLE[^\n]*taken for the label",
        ANOMALIES,
    ),
    Case(
        "a row number", "columns", altered(added("Row", lambda row, _: row + 1, "timestamp")), r"'Row' counts the rows"
    ),
    Case(
        "a counter of parts",
        "columns",
        altered(added("parts", lambda row, _: 1000 + 3 * row + row % 2)),
        r"'parts' counts up",
    ),
    Case("a sensor that never changes", "columns", altered(added("limit", lambda *_: 7)), r"'limit' is 7"),
    Case(
        "a copy of the label",
        "columns",
        altered(added("code", lambda row, t: int(t["state"][row] == "worn"))),
        r"'code' reveals the class",
    ),
    Case(
        "a number constant within each machine",
        "columns",
        with_target(lambda row, _: 500 + row // ROWS * 37),
        r"each device has a single",
        REGRESSION,
    ),
    # -- names and files --
    Case(
        "machines that differ in capitals",
        "names",
        edited(lambda rows: [re.sub(",M5,", ",m4,", row) for row in rows]),
        r"'M4' and 'm4'",
    ),
    Case(
        "classes that differ in capitals",
        "names",
        altered(lambda t: t.update(state=["OK" if s == "ok" and i % 7 == 0 else s for i, s in enumerate(t["state"])])),
        r"'OK' and 'ok'|'ok' and 'OK'",
    ),
    Case(
        "a name given twice", "names", edited(lambda rows: [rows[0].replace("flow", "temp"), *rows[1:]]), r"given twice"
    ),
    Case("no header", "names", edited(lambda rows: rows[1:]), r"data\.header"),
    Case("the header again", "names", edited(lambda rows: [*rows[:60], rows[0], *rows[60:]]), r"the header again"),
    Case(
        "units in cells",
        "names",
        altered(lambda t: t.update(temp=[f"{cell} °C" for cell in t["temp"]])),
        r"without '°C'",
    ),
    Case(
        "keys and values above the header",
        "names",
        edited(lambda rows: ["Customer,Dummy", "Counter,25", "Operator,NN", *rows]),
        r"rows 1, 2, 3 are no data",
    ),
    Case(
        "a row of units", "names", edited(lambda rows: [rows[0], ",,°C,mm/s,l/h,%,", *rows[1:]]), r"rows 2 are no data"
    ),
    Case("a row per sensor and time", "names", long_form, r"a row per sensor and time"),
    Case("channels with times of their own", "names", channels, r"with a column of times of its own"),
    # -- without a fault --
    Case("a plant", "none", altered()),
    Case("a plant, later rows of it", "none", predicted()),
    Case("machines with levels of their own", "none", altered(level=1.5)),
    Case(
        "machines with levels of their own, later rows",
        "none",
        lambda f: (write(f, lines(plant(level=1.5, begin=ROWS, seed=1)), "u.csv"), write(f, lines(plant(level=1.5))))[
            1
        ],
    ),
    Case(
        "normalised by each machine, later rows", "none", predicted(), words=(*SIMPLE, "--set", "data.normalise=device")
    ),
    Case("anomalies, later rows", "none", predicted(), words=ANOMALIES),
    Case("a forecast", "none", altered(), words=FORECAST),
    Case("a number", "none", with_target(measured), words=REGRESSION),
    Case("a German export", "none", german),
    Case("Parquet with a switch", "none", parquet),
    Case("times in seconds since 1970", "none", timed(lambda t: f"{t.timestamp():.0f}")),
    Case("times with a zone, in summer", "none", timed(lambda t: f"{t + timedelta(days=120):%Y-%m-%dT%H:%M:%S}+02:00")),
    Case(
        "a sensor that is often 0",
        "none",
        altered(lambda t: t.update(flow=["0" if row % 3 else cell for row, cell in enumerate(t["flow"])])),
    ),
    Case("machines of two kinds", "none", altered(added("kind", lambda row, _: ("press", "mill")[row // ROWS % 2]))),
)

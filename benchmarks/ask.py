"""Made parks with one fault each, parks without, and real sets: what ``fedfloor ask`` names, and what it costs.

    FEDFLOOR_DATA=… python -m benchmarks.ask      # results/ask.json, then: python -m benchmarks.pages

A made park is a folder with a table of each site: sensors with levels and noise of their own, and two or more classes.
One site has one fault. A fault is named if a finding of its kind names the site; it is noticed if another finding
does; findings on other sites are false alarms. The rules were written with six sites of four sensors and the first
fifteen faults in mind. The other kinds of park and the fifteen others came afterwards, and four rules after these had
been seen once: roles in columns of other names, many missing values, constant sensors and absent classes at one of two
sites, and marks of missing values such as -9999. No threshold was changed for a park. The last five kinds of park were
made after all rules but that on marks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import sensor_checks
from fedfloor.base.strict import json_text
from fedfloor.network import profile
from fedfloor.network.payload import Payload, QuestionCost
from fedfloor.network.price import price
from fedfloor.network.sites import draw_sites
from fedfloor.park.sites import SiteFacts
from fedfloor.plan.nodes import Probe
from fedfloor.plan.questions import SURVEY
from fedfloor.runs import asking
from fedfloor.runs.folder import write
from papers import documents

OUT = Path("results/ask.json")
START = datetime(2026, 3, 2, 6, tzinfo=UTC)
Table = dict[str, list[str]]  # column → cells
Tables = dict[str, Table]
Draw = np.random.Generator


@dataclass(frozen=True)
class Kind:
    """A kind of park.

    Args:
        sites, rows, sensors: their numbers; a site has ``rows`` to twice as many.
        level: spread of sites' levels, in deviations within sites.
        own: spread of sites' deviations, in logarithms.
        step: seconds between two rows.
        classes: names.
        aligned: whether tables begin and end together.
        words: names of sensors.
    """

    sites: int = 6
    rows: int = 400
    sensors: int = 4
    level: float = 0.5
    own: float = 0.2
    step: float = 60.0
    classes: tuple[str, ...] = ("ok", "worn")
    aligned: bool = True
    words: tuple[str, ...] = ("temp", "pressure", "flow", "load", "speed", "vibration", "current", "torque")

    def made(self, draw: Draw) -> Tables:
        """Return the tables of the sites of a park without a fault."""
        usual = np.exp(draw.normal(3.5, 0.9, self.sensors))
        usual[0] = draw.uniform(25, 60)  # °C
        noise = usual * np.exp(draw.normal(-3.0, 0.4, self.sensors))
        share = np.array([1.0, *draw.uniform(0.15, 0.4, len(self.classes) - 1)])
        tables = {}
        for number in range(self.sites):
            rows = self.rows if self.aligned else int(self.rows * draw.uniform(1, 2))
            begin = START + timedelta(seconds=0 if self.aligned else self.step * draw.integers(0, self.rows))
            level = usual + self.level * noise * draw.normal(size=self.sensors)
            wide = noise * np.exp(self.own * draw.normal(size=self.sensors))
            state = draw.choice(len(self.classes), rows, p=share / share.sum())
            x = level + wide * (draw.normal(size=(rows, self.sensors)) + 0.8 * (state[:, None] == 1))
            times = [begin + timedelta(seconds=self.step * i) for i in range(rows)]
            table: Table = {"time": [f"{time:%Y-%m-%d %H:%M:%S}" for time in times]}
            table |= {self.words[c]: [f"{v:.4f}" for v in x[:, c]] for c in range(self.sensors)}
            tables[f"site-{number + 1}"] = table | {"state": [self.classes[s] for s in state]}
        return tables


def numbers(table: Table, sensor: str, change: Callable[[Any], Any]) -> None:
    """Change the numbers of a sensor."""
    table[sensor] = [f"{v:.4f}" for v in change(np.array(table[sensor], float))]


def ordered(table: Table, names: list[str]) -> None:
    """Put columns into an order."""
    cells = dict(table)
    table.clear()
    table.update({name: cells[name] for name in names})


def renamed(table: Table, old: str, new: str) -> None:
    """Give a column another name, in its place."""
    cells = {new if name == old else name: column for name, column in table.items()}
    table.clear()
    table.update(cells)


def shifted(table: Table, hours: float) -> None:
    """Move all times."""
    moments = [datetime.fromisoformat(text) + timedelta(hours=hours) for text in table["time"]]
    table["time"] = [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in moments]


def thinned(table: Table, every: int) -> None:
    """Keep every so manieth row."""
    for name, cells in table.items():
        table[name] = cells[::every]


def repeated(table: Table, draw: Draw) -> None:
    """Send a tenth of the rows twice."""
    rows = len(table["time"])
    twice = np.sort(np.concatenate([np.arange(rows), draw.choice(rows, rows // 10)]))
    for name, cells in table.items():
        table[name] = [cells[i] for i in twice]


def spelled(table: Table, change: Callable[[str], str]) -> None:
    """Spell the second class in another way."""
    second = sorted({*table["state"]})[-1]
    table["state"] = [change(text) if text == second else text for text in table["state"]]


def without_class(table: Table) -> None:
    """Replace the second class by the first."""
    names = sorted({*table["state"]})
    table["state"] = [names[0] if text == names[-1] else text for text in table["state"]]


def exchanged(table: Table, one: str, other: str) -> None:
    """Exchange the cells of two sensors."""
    both = table[one], table[other]
    table[other], table[one] = both


def commas(table: Table, sensors: list[str]) -> None:
    """Write decimal commas."""
    for name in sensors:
        table[name] = [f'"{cell.replace(".", ",")}"' for cell in table[name]]


Fault = tuple[tuple[str, ...], Callable[[Tables, str, list[str], Draw], object]]
FAULTS: dict[str, Fault] = {
    "a sensor renamed": (("renamed",), lambda t, who, s, _: renamed(t[who], s[1], f"{s[1].title()}_2")),
    "a sensor renamed to another word": (("renamed",), lambda t, who, s, _: renamed(t[who], s[1], "Kanal 7")),
    "a sensor missing": (("missing",), lambda t, who, s, _: t[who].pop(s[2])),
    "°F beside °C": (("unit",), lambda t, who, s, _: numbers(t[who], s[0], lambda v: 1.8 * v + 32)),
    "a factor of 1,000": (("unit",), lambda t, who, s, _: numbers(t[who], s[1], lambda v: 1000 * v)),
    "sampled ten times as often": (("rate",), lambda t, who, _, __: [thinned(t[k], 10) for k in t if k != who]),
    "a class with a blank": (("spelling",), lambda t, who, _, __: spelled(t[who], lambda c: f"{c[:2]} {c[2:]}")),
    "a class in capitals": (("spelling",), lambda t, who, _, __: spelled(t[who], str.upper)),
    "a class that one site lacks": (("class",), lambda t, who, _, __: without_class(t[who])),
    "columns in another order": (("order",), lambda t, who, s, _: ordered(t[who], ["time", *s[::-1], "state"])),
    "rows sent twice": (("copies",), lambda t, who, _, draw: repeated(t[who], draw)),
    "a clock an hour off": (("clock",), lambda t, who, _, __: shifted(t[who], 1)),
    "a sensor that stands still": (("constant",), lambda t, who, s, _: numbers(t[who], s[1], lambda v: v * 0 + v[0])),
    "decimal commas": (("decimal",), lambda t, who, s, _: commas(t[who], s)),
    "a table under two names": (("twins",), lambda t, who, _, __: t.update({who: t[others(t, who, 2)[1]]})),
}  # fmt: skip


def written(tables: Tables, folder: Path) -> None:
    """Write a table for each site."""
    folder.mkdir()
    for name, table in tables.items():
        rows = [",".join(table), *map(",".join, zip(*table.values(), strict=True))]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def found(tables: Tables) -> asking.Asked:
    """Ask the sites of a park."""
    with tempfile.TemporaryDirectory() as folder:
        written(tables, Path(folder) / "park")
        return asking.of_path(Path(folder) / "park")


def outcome(kind: Kind, fault: str, seed: int) -> dict[str, Any]:
    """Return what is named of a park with a fault, or without one.

    ``named``: a finding of the fault's kind on its site; ``noticed``: another finding on this site; ``false``: findings
    on others.
    """
    draw = np.random.default_rng([seed, *map(ord, fault)])
    tables = kind.made(draw)
    who = [*tables][draw.integers(len(tables))]
    sensors = [name for name in tables[who] if name not in ("time", "state")]
    culprits = {who, *(others(tables, who, 2) if fault in PAIRS or len(tables) == 2 else ())} if fault else set()
    if fault:
        FAULTS[fault][1](tables, who, sensors, draw)
    findings = found(tables).findings
    about = [one for one in findings if culprits & {*one.sites}]
    hits = [one for one in about if one.kind in FAULTS[fault][0]]
    return {
        "fault": fault or NONE, "named": bool(hits), "noticed": bool(about),
        "sentence": (hits or about)[0].sentence if about else "",
        "false": [one.sentence for one in findings if one not in about],
    }  # fmt: skip


def marked(table: Table, sensor: str, draw: Draw, share: float, mark: str) -> None:
    """Put a text into a share of a sensor's cells."""
    table[sensor] = [mark if draw.random() < share else cell for cell in table[sensor]]


def others(tables: Tables, who: str, many: int) -> list[str]:
    """Return a site and those after it."""
    names = [*tables]
    first = names.index(who)
    return [names[(first + i) % len(names)] for i in range(many)]


LATER: dict[str, Fault] = {
    "K beside °C": (("unit",), lambda t, who, s, _: numbers(t[who], s[0], lambda v: v + 273.15)),
    "kPa beside bar": (("unit",), lambda t, who, s, _: numbers(t[who], s[1], lambda v: 100 * v)),
    "psi beside bar": (("unit", "level"), lambda t, who, s, _: numbers(t[who], s[1], lambda v: 14.5038 * v)),
    "the opposite sign": (("sign",), lambda t, who, s, _: numbers(t[who], s[1], lambda v: -v)),
    "two sensors exchanged": (("swapped",), lambda t, who, s, _: exchanged(t[who], s[0], s[1])),
    "two sensors renamed": (("renamed",), lambda t, who, s, _: [renamed(t[who], s[i], f"AI_{i}") for i in (0, 2)]),
    "a sensor more": (("added", "missing"), lambda t, who, s, _: t[who].update(extra=t[who][s[0]][::-1])),
    "two sites in °F": (
        ("unit",),
        lambda t, who, s, _: [numbers(t[k], s[0], lambda v: 1.8 * v + 32) for k in others(t, who, 2)],
    ),
    "a clock half an hour behind": (("clock",), lambda t, who, _, __: shifted(t[who], -0.5)),
    "half as often": (("rate",), lambda t, who, _, __: thinned(t[who], 2)),
    "a class with a hyphen": (("spelling",), lambda t, who, _, __: spelled(t[who], lambda c: f"{c[:2]}-{c[2:]}")),
    "the column of times renamed": (("renamed",), lambda t, who, _, __: renamed(t[who], "time", "Zeit")),
    "-9999 in a twentieth": (("unreadable",), lambda t, who, s, draw: marked(t[who], s[1], draw, 0.05, "-9999")),
    "status texts in a twentieth": (
        ("unreadable",),
        lambda t, who, s, draw: marked(t[who], s[1], draw, 0.05, "Bad Input"),
    ),
    "two thirds missing": (("missing",), lambda t, who, s, draw: marked(t[who], s[1], draw, 0.67, "")),
}  # fmt: skip
FAULTS |= LATER
PAIRS = ("two sites in °F", "a table under two names")  # faults of two sites
FREE = 5  # parks of each kind without a fault
FIRST = Kind()
KINDS: dict[str, Kind] = {
    "6 sites (as in the first)": FIRST,
    "2 sites": Kind(2),
    "3 sites, 3 classes": Kind(3, classes=("idle", "milling", "chatter")),
    "8 sites, 8 sensors": Kind(8, sensors=8, rows=600),
    "40 sites": Kind(40, rows=150, sensors=6),
    "5 sites of 40 rows": Kind(5, rows=40),
    "8 sites, levels far apart": Kind(8, level=6.0, own=0.5),
    "3 sites, levels far apart": Kind(3, level=6.0, own=0.5),
    "40 sites, levels far apart": Kind(40, rows=150, level=6.0, own=0.5),
    "6 sites, other days": Kind(aligned=False),
    "4 sites, hourly": Kind(4, step=3600.0, sensors=6),
    "12 sites, 8 sensors, a row a second": Kind(12, 300, sensors=8, step=1.0),
    "7 sites, 5 classes": Kind(7, classes=("idle", "roughing", "finishing", "chatter", "tool broken")),
    "4 sites of 90 rows": Kind(4, rows=90),
    "10 sites, much alike": Kind(10, 250, level=0.1, own=0.05),
    "16 sites, 3 sensors, other days, levels apart": Kind(16, 200, sensors=3, level=2.0, own=0.3, aligned=False),
}


REAL = ("SKAB valve1, 16 recordings", "C-MAPSS FD001, 100 engines", "C-MAPSS FD003, 100 engines", "TEP, 22 runs")
TEP_PARTS = 8  # parts of a run without a process fault, each taken for a device
NETWORK = "lte-cat-m2"
QUESTION = 400  # bytes, with its signature


def real() -> Iterator[dict[str, Any]]:
    """Yield what is named of real sets, divided by device, without a made fault."""
    sets = {name: sensor_checks.REAL[name]() for name in REAL}
    normal = sensor_checks.matrix(sensor_checks.DATA / "tep" / "d00_te.dat.gz")
    parts = np.array_split(normal, TEP_PARTS)
    sets[f"TEP without a process fault, {TEP_PARTS} parts of a run"] = {f"part {k}": x for k, x in enumerate(parts)}
    for name, machines in sets.items():
        sensors = [f"x{i}" for i in range(next(iter(machines.values())).shape[1])]
        asked = asking.Asked.of([SiteFacts.of_rows(who, sensors, x) for who, x in machines.items()])
        yield {"set": name, "sites": len(asked.sites), "findings": [one.sentence for one in asked.findings]}
    asked = asking.of_path(sensor_checks.DATA / "skab" / "valve1")
    yield {
        "set": "SKAB valve1, tables with times and labels", "sites": len(asked.sites),
        "findings": [one.sentence for one in asked.findings],
    }  # fmt: skip


def costs() -> Iterator[dict[str, Any]]:
    """Yield the bytes of a device's answer and the price of the question to all devices of a park."""
    network = profile.build(profile.NetworkSettings(profile=NETWORK))
    assert network is not None
    for sensors, devices in ((4, 8), (24, 8), (52, 8), (52, 40)):
        x = np.random.default_rng(0).normal(50, 2, (2000, sensors)).astype(np.float32)
        site = SiteFacts.of_rows(
            "device", [f"sensor_{i}" for i in range(sensors)], x, classes={"ok": 1500, "worn": 500}
        )
        size = len(json_text(site.to_dict()).encode())
        sites = draw_sites(network, 0, np.zeros(devices, np.int64), np.full(devices, 2000), 1)
        cost = QuestionCost(QUESTION, size)
        payload = Payload({"all": 0}, {SURVEY.name: lambda _, cost=cost: cost}, {})
        paid = price(Probe(tuple(range(devices)), SURVEY.name, settings={"down": QUESTION, "up": size}), sites, payload)
        yield {"sensors": sensors, "devices": devices, "bytes of an answer": size, "seconds": round(paid.seconds, 3)}


def page(found: dict[str, Any]) -> str:
    """Return the page."""
    made = found["made"]
    about = " ".join((__doc__ or "").split("\n\n")[2].replace("``", "`").split())
    rows = []
    left = []
    for kind in KINDS:
        mine = [row for row in made if row["park"] == kind]
        faults = [row for row in mine if row["fault"] != NONE]
        first = [row for row in faults if row["fault"] not in LATER]
        later = [row for row in faults if row["fault"] in LATER]
        named = [f"{sum(row['named'] for row in part)} of {len(part)}" for part in (first, later)]
        rows.append([
            kind, *named, str(sum(row["noticed"] and not row["named"] for row in faults)),
            f"{sum(len(row['false']) for row in faults)} in {len(faults)}",
            f"{sum(len(row['false']) for row in mine if row['fault'] == NONE)} in {len(mine) - len(faults)}",
        ])  # fmt: skip
        silent = [row["fault"] + " (noticed)" * row["noticed"] for row in faults if not row["named"]]
        left.append([kind, "; ".join(silent) or "none"])
    sentences = [
        [row["fault"], f"`{row['sentence'].replace('`', chr(39))}`"]
        for row in made
        if row["park"] == FIRST_KIND and row["sentence"]
    ]
    found_in = [[row["set"], str(row["sites"]), str(len(row["findings"]))] for row in found["real"]]
    parts = [
        "# What `ask` names before training", about,
        "```bash\npython -m benchmarks.ask && python -m benchmarks.pages\n```", "## Made parks",
        documents.table(COLUMNS, rows), "Not named:", documents.table(("park", "faults"), left),
        "## Real sets without a made fault",
        "Runs of TEP have process faults of their own; those findings are about them.",
        documents.table(("set", "sites", "findings"), found_in),
        "## Cost",
        f"The answer of a device with 2,000 rows and two classes, and the price of a question to all devices on "
        f"`{NETWORK}`, on which transfers take turns; the question has {QUESTION} bytes.",
        documents.table([*found["cost"][0]], [[*map(str, row.values())] for row in found["cost"]]),
        "## Sentences", "Of the first kind of park:", documents.table(("fault", "sentence"), sentences),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


NONE = "none"
FIRST_KIND = next(iter(KINDS))
COLUMNS = (
    "park", "of the fifteen faults named", "of fifteen others named", "noticed only", "false alarms with a fault",
    "false alarms without",
)  # fmt: skip


def main() -> None:
    """Ask all parks; write the JSON, unless only some are asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ask")
    parser.add_argument("--kind", default="", metavar="TEXT", help="kinds of park whose name holds this")
    parser.add_argument("--fault", default=None, metavar="TEXT", help="faults whose name holds this")
    given = parser.parse_args()
    made = []
    for name, kind in KINDS.items():
        for seed, fault in enumerate((*FAULTS, *[""] * FREE)) if given.kind in name else ():
            if given.fault is None or given.fault in fault:
                made.append({"park": name, **outcome(kind, fault, seed)})
                print(name, "|", *(f"{key}: {value} |" for key, value in made[-1].items()), flush=True)
    if not given.kind and given.fault is None:
        found = {"made": made, "real": [*real()], "cost": [*costs()]}
        write(OUT, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

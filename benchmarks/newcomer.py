"""A newcomer's way in: `new`, `run`, `report` and `predict` on published and on made tables, and a log of it.

Every case has at most two `fedfloor new` commands: the plain one, and where that asks (exit 2) the one that answers.
The log has what was guessed, whether that is what was meant (devices and classes are known for every case), and how far
each command came.

FEDFLOOR_DATA=… python -m benchmarks.newcomer [--only NAME,…] [--out results/newcomer.md]
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from papers import documents

ROUNDS = 5
SENSORS = ("temperature", "pressure", "vibration")
START = datetime(2026, 1, 20, 6, tzinfo=UTC)
ENGINES = ("engine", "cycle", *(f"setting{n}" for n in (1, 2, 3)), *(f"s{n}" for n in range(1, 22)))

Row = dict[str, object]


@dataclass(frozen=True)
class Case:
    """Data and what is meant by them.

    Args:
        name: of the case.
        about: the data, in words.
        make: folder → the data in it, and what to predict.
        answer: words added to `fedfloor new` where the plain command asks.
        devices, classes: how many there are; devices that only test are not counted.
        asks: whether the plain command has to ask.
        split: which is proposed.
    """

    name: str
    about: str
    make: Callable[[Path], tuple[Path, Path]]
    devices: int
    classes: int
    answer: tuple[str, ...] = ()
    asks: bool = False
    split: str = ""


@dataclass
class Log:
    """What became of a case."""

    commands: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    verdict: str = ""
    result: str = ""


def plant(devices: int = 6, rows: int = 150, seed: int = 0) -> list[Row]:
    """Return rows of machines that are ok or worn, an hour apart; the sensors show it."""
    rng = random.Random(seed)
    found = []
    for k in range(devices):
        for row in range(rows):
            worn = (row // 15 + k) % 3 == 0
            found.append({
                "device": f"press {k}", "factory": "north" if k < devices // 2 else "south",
                "time": START + timedelta(hours=row), "temperature": rng.gauss(50 + 6 * worn, 2),
                "pressure": rng.gauss(3, 0.2), "vibration": rng.gauss(0.5 + worn * abs(math.sin(row)), 0.1),
                "label": "worn" if worn else "ok",
            })  # fmt: skip
    return found


def table(
    path: Path, rows: Sequence[Row], names: dict[str, str], *, mark: str = ",", decimal: str = ".",
    clock: Callable[[datetime], object] = datetime.isoformat, header: bool = True, encoding: str = "utf-8",
) -> Path:  # fmt: skip
    """Write rows as a table: role or sensor → the column's name."""

    def cell(value: object) -> str:
        if isinstance(value, datetime):
            return str(clock(value.replace(tzinfo=None)))
        return f"{value:.3f}".replace(".", decimal) if isinstance(value, float) else str(value)

    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [mark.join(names.values())] * header + [mark.join(cell(row[key]) for key in names) for row in rows]
    content = ("\n".join(lines) + "\n").encode(encoding)
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".xz":
        content = lzma.compress(content)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, content)
    else:
        path.write_bytes(content)
    return path


SAME = {key: key for key in ("device", "factory", "time", *SENSORS, "label")}
GERMAN = {
    "device": "Maschine", "factory": "Werk", "time": "Zeitstempel", "temperature": "Öltemperatur",
    "pressure": "Druck", "vibration": "Schwingung", "label": "Zustand",
}  # fmt: skip


def only(rows: Sequence[Row], key: str, value: object) -> list[Row]:
    """Return the rows with a value."""
    return [row for row in rows if row[key] == value]


def without(*keys: str) -> dict[str, str]:
    """Return the columns but some."""
    return {key: name for key, name in SAME.items() if key not in keys}


def one(name: str, **how: object) -> Callable[[Path], tuple[Path, Path]]:
    """Return a maker of one table."""

    def make(folder: Path) -> tuple[Path, Path]:
        names = how.pop("names", SAME) if "names" in how else SAME
        path = table(folder / name, plant(), names, **how)  # type: ignore[arg-type]
        return path, path

    return make


def by_month(folder: Path) -> tuple[Path, Path]:
    """A table per month, all machines in each."""
    rows = plant()
    for month in range(3):
        table(
            folder / "months" / f"2026-0{month + 1}.csv",
            [r for i, r in enumerate(rows) if i % 150 // 50 == month],
            SAME,
        )
    return folder / "months", folder / "months" / "2026-03.csv"


def by_file(folder: Path) -> tuple[Path, Path]:
    """A table per machine, in a folder per factory."""
    rows = plant()
    for k in range(6):
        mine = only(rows, "device", f"press {k}")
        table(folder / "plants" / str(mine[0]["factory"]) / f"press {k}.csv", mine, without("device", "factory"))
    return folder / "plants", folder / "plants" / "north" / "press 0.csv"


def by_run(folder: Path) -> tuple[Path, Path]:
    """A folder per machine with five recordings each."""
    rows = plant()
    for k in range(6):
        mine = only(rows, "device", f"press {k}")
        for part in range(5):
            table(folder / "runs" / f"press {k}" / f"run {part}.csv", mine[30 * part : 30 * part + 30],
                  without("device", "factory"))  # fmt: skip
    return folder / "runs", folder / "runs" / "press 0" / "run 0.csv"


def by_label(folder: Path) -> tuple[Path, Path]:
    """A folder per machine and in it one per class."""
    rows = plant()
    for k in range(6):
        for label in ("ok", "worn"):
            mine = only(only(rows, "device", f"press {k}"), "label", label)
            table(folder / "sorted" / f"press {k}" / label / "log.csv", mine, without("device", "factory", "label"))
    return folder / "sorted", folder / "sorted" / "press 0" / "ok" / "log.csv"


def own_tests(folder: Path) -> tuple[Path, Path]:
    """A table to train with and one of other machines to test with."""
    rows = plant(devices=8)
    table(folder / "new machines.csv", [row for row in rows if str(row["device"])[-1] in "67"], SAME)
    path = table(folder / "old machines.csv", [row for row in rows if str(row["device"])[-1] not in "67"], SAME)
    return path, folder / "new machines.csv"


def failures(folder: Path) -> tuple[Path, Path]:
    """Milling operations with a row number, a type of product, a copy of a sensor and causes of the label."""
    rng = random.Random(3)
    path = folder / "milling.csv"
    lines = ["number,machine,type,air,kelvin,speed,torque,wear,heat failure,machine failure"]
    for n in range(3000):
        air = rng.gauss(27, 2)
        torque = rng.gauss(40, 10)
        wear = n % 200
        kind = rng.choice("LLMMH")
        heat = air > 30
        fails = heat or (wear > 150 and torque > 45 and kind == "L")
        cells = [n + 1, f"mill {n % 8}", kind, f"{air:.1f}", f"{air + 273.15:.2f}", f"{rng.gauss(1500, 100):.0f}"]
        lines.append(",".join(map(str, [*cells, f"{torque:.1f}", wear, int(heat), int(fails)])))
    path.write_text("\n".join(lines) + "\n")
    return path, path


def wear_out(folder: Path) -> tuple[Path, Path]:
    """Machines that run to failure, with the remaining life as a column."""
    rng = random.Random(4)
    path = folder / "tools.csv"
    lines = ["unit,cycle,load,noise,rul"]
    for k in range(15):
        life = rng.randint(90, 200)
        for left in range(life, -1, -1):
            load = 10 - 5 * math.exp(-left / 25) + rng.gauss(0, 0.2)
            lines.append(f"{k + 1},{life - left + 1},{load:.3f},{rng.gauss(0, 1):.3f},{left}")
    path.write_text("\n".join(lines) + "\n")
    return path, path


def arrays(folder: Path) -> tuple[Path, Path]:
    """Arrays of rows."""
    rng = np.random.default_rng(0)
    path = folder / "own.npz"
    y = rng.integers(3, size=900)
    np.savez(path, x=rng.normal(size=(900, 6)) + 2 * y[:, None], y=y, device=np.arange(900) % 6)
    np.savez(folder / "more.npz", x=rng.normal(size=(9, 6)))
    return path, folder / "more.npz"


def pictures(folder: Path) -> tuple[Path, Path]:
    """Pictures in a folder per machine and label."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for k in range(4):
        for label in ("ok", "scratch"):
            place = folder / "photos" / f"press-{k}" / label
            place.mkdir(parents=True)
            for number in range(20):
                picture = rng.normal(120, 10, (20, 20))
                picture[rng.integers(4, 16)] += 70 * (label == "scratch")
                Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(place / f"{number:02}.png")
    return folder / "photos", folder / "photos" / "press-0"


def no_device(folder: Path) -> tuple[Path, Path]:
    """A table whose columns name no machine."""
    path = table(folder / "anonymous.csv", plant(), without("device", "factory"))
    return path, path


def columnar(folder: Path) -> tuple[Path, Path]:
    """A Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = plant()
    path = folder / "plant.parquet"
    parquet.write_table(pa.table({key: [row[key] for row in rows] for key in SAME}), path)
    return path, path


def workbook(folder: Path) -> tuple[Path, Path]:
    """An Excel file."""
    from openpyxl import Workbook

    book = Workbook()
    book.active.append(list(SAME))
    for row in plant():
        book.active.append(
            [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in row.values()]
        )
    book.save(folder / "plant.xlsx")
    return folder / "plant.xlsx", folder / "plant.xlsx"


def published(*parts: str, predict: Sequence[str] = ()) -> Callable[[Path], tuple[Path, Path]]:
    """Return the place of published data."""
    root = Path(os.environ.get("FEDFLOOR_DATA", "data"))
    return lambda folder: (root.joinpath(*parts), root.joinpath(*(predict or parts)))  # noqa: ARG005


def settings(**keys: object) -> tuple[str, ...]:
    """Return the words that set keys of ``[data]``."""
    words = []
    for key, value in keys.items():
        shown = value if isinstance(value, str) and not value.startswith(("[", "{", "true")) else str(value)
        words += ["--set", f"data.{key.replace('__', '.')}={shown}"]
    return tuple(words)


CASES = (
    Case("iso", "comma, ISO times", one("plant.csv"), 6, 2, split="time"),
    Case("german", "semicolon, decimal comma, 20.01.2026 08:00, Windows-1252",
         one("werk.csv", names=GERMAN, mark=";", decimal=",", encoding="cp1252",
             clock=lambda t: t.strftime("%d.%m.%Y %H:%M")), 6, 2, split="time"),
    Case("us", "01/20/2026 8:00 AM", one("us.csv", clock=lambda t: t.strftime("%m/%d/%Y %I:%M %p")), 6, 2,
         split="time"),
    Case("epoch", "epochs in milliseconds, tabs",
         one("epoch.tsv", mark="\t", clock=lambda t: int(t.timestamp() * 1000)), 6, 2, split="time"),
    Case("headless", "no header, blanks, .gz",
         one("plain.txt.gz", names=without("factory"), mark="  ", header=False, clock=lambda t: int(t.timestamp())),
         6, 2, settings(header='["machine","no","time","temperature","pressure","vibration","state"]',
                        columns__ignore='["machine"]', columns__device="no"), asks=True, split="time"),
    Case("xz", ".xz", one("plant.csv.xz"), 6, 2, split="time"),
    Case("zip", ".zip", one("plant.csv.zip"), 6, 2, split="time"),
    Case("parquet", "Parquet", columnar, 6, 2, split="time"),
    Case("excel", "Excel", workbook, 6, 2, split="time"),
    Case("months", "a table per month, machines in a column", by_month, 6, 2, split="time"),
    Case("files", "a file per machine, a folder per factory", by_file, 6, 2,
         settings(device="file", factory="folder"), True, "time"),
    Case("runs", "a folder per machine, five recordings each", by_run, 6, 2, split="run"),
    Case("labels", "a folder per machine and class", by_label, 6, 2, ("--layout", "device/label/file"), True, "time"),
    Case("tests", "a table of other machines to test with", own_tests, 6, 2, (), split=""),
    Case("failures", "rare failures, categories, row number, copies", failures, 8, 2, split="random"),
    Case("wear", "run to failure, remaining life in a column", wear_out, 12, 3, settings(bins="[20, 60]"), True,
         "device"),
    Case("anonymous", "no column names a machine", no_device, 6, 2,
         ("--set", "data.columns.device=", "--set", "park.devices=6", "--set",
          'data.partition={kind="dirichlet",alpha=1.0}', "--set",
          "data.columns.time=", "--set", 'data.columns.ignore=["time"]'), True, "random"),
    Case("npz", "arrays", arrays, 6, 3, split="random"),
    Case("photos", "pictures", pictures, 4, 2, split="random"),
    Case("skab", "SKAB valve1: a file per recording of one bench",
         published("skab", "valve1", predict=("skab", "valve1", "0.csv")), 13, 2,
         settings(device="file", columns__ignore='["changepoint"]', split='{kind="device"}'), True),
    Case("cmapss", "C-MAPSS FD001: no header, run to failure, no label",
         published("cmapss", "train_FD001.txt.gz"), 80, 3,
         settings(header=json.dumps(list(ENGINES)), remaining="true", bins="[30, 80]"), True, "device"),
    Case("tep", "Tennessee Eastman, as the bundled experiment", published("tep", predict=("tep", "d01_te.dat.gz")),
         22, 22),
)  # fmt: skip


def call(log: Log, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Carry out a command as a user would, and write it down."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "fedfloor", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    log.seconds += time.perf_counter() - began
    log.commands.append(shlex.join(("fedfloor", *(word.replace(str(folder) + "/", "") for word in words))))
    log.codes.append(done.returncode)
    if "Traceback" in done.stderr:
        raise RuntimeError(f"{log.commands[-1]}: {done.stderr}")
    return done


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a command."""
    return next((line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr[-300:])


def play(case: Case, folder: Path) -> Log:
    """Carry a case out."""
    log = Log()
    data, more = case.make(folder)
    if case.name == "tep":
        experiment = "tep"
    else:
        words = ["new", str(data), "--out", "e.toml"]
        if case.name == "tests":
            words += ["--set", "data.test=new machines.csv"]
        done = call(log, folder, *words, "--json")
        if done.returncode == 2:
            log.notes.append(error_of(done).removeprefix("error: "))
            if case.answer:
                done = call(log, folder, *words, *case.answer, "--json")
        log.verdict = _verdict(case, log, done)
        if done.returncode:
            log.result = error_of(done)
            return log
        experiment = "e.toml"
    ran = call(log, folder, "run", experiment, "--ranks", "1", "--out", "out", "--set", f"rounds={ROUNDS}")
    if ran.returncode:
        log.result = error_of(ran)
        return log
    told = call(log, folder, "report", "out", "--json")
    line = json.loads((folder / "out" / "ledger.jsonl").read_text().splitlines()[-1])
    answer = call(log, folder, "predict", "out", str(more), "--json")
    count = len(json.loads(answer.stdout)["rows"]) if answer.stdout.startswith("{") else 0
    log.result = f"accuracy {line['accuracy']:.3f} after {ROUNDS} rounds; {count:,} predictions"
    if told.returncode or answer.returncode:
        log.result += f"; {error_of(answer if answer.returncode else told)}"
    return log


def _verdict(case: Case, log: Log, done: subprocess.CompletedProcess[str]) -> str:
    """Return whether what was guessed is what was meant, and asked where it had to be."""
    if done.returncode:
        return "refused"
    document = json.loads(done.stdout)
    log.notes += document["notes"]
    devices = sum(row["devices"] for row in document["rows"])
    classes = len({word.rsplit(" ", 1)[0] for row in document["rows"] for word in row["classes"].split(", ")})
    split = next((note.split()[2] for note in log.notes if note.startswith("split: by ")), "")
    wrong = []
    for name, got, meant in (("devices", devices, case.devices), ("classes", classes, case.classes)):
        wrong += [f"{got} {name} instead of {meant}"] if got != meant else []
    wrong += [f"split by {split} instead of {case.split}"] if case.split and split != case.split else []
    asked = log.codes[0] == 2
    wrong += ["did not ask"] if case.asks and not asked else ["asked"] if asked and not case.asks else []
    return "; ".join(wrong) if wrong else "as meant" + (", after asking" if asked else "")


def blocks(logs: Sequence[tuple[Case, Log]]) -> Iterator[str | dict[str, list[Any]]]:
    """Yield what the page consists of: words, the table, and each case's commands and notes."""
    yield "# A newcomer's log"
    yield (
        f"`python -m benchmarks.newcomer`: for each kind of data `new`, `run` ({ROUNDS} rounds), `report`, `predict`. "
        "*Asked*: the plain `fedfloor new` ended with exit code 2 and named what to add; the second one did."
    )
    rows = []
    for case, log in logs:
        news = sum(command.startswith("fedfloor new") for command in log.commands)
        cells = [f"{case.name}: {case.about}", str(news), log.verdict or "–", " ".join(map(str, log.codes))]
        rows.append([*cells, f"{log.seconds:.0f}", log.result.replace("|", "/")])
    yield {"columns": ["data", "`new`", "guesses", "exit codes", "s", "result"], "rows": rows}
    for case, log in logs:
        yield "\n".join([f"## {case.name}", "", "```console", *log.commands, "```"])
        if log.notes:
            yield "\n".join(f"- {note.replace('|', '/')}" for note in log.notes)


def _hide(log: Log, places: dict[str, str]) -> None:
    """Write names for the places of this machine."""

    def hidden(text: str) -> str:
        for place, name in places.items():
            text = text.replace(f"{place}/", "" if name == "FOLDER" else f"{name}/")
        return text

    log.commands, log.notes = list(map(hidden, log.commands)), list(map(hidden, log.notes))
    log.result = hidden(log.result)


def main() -> None:
    """Play all cases, or some, and write the log."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chosen = [case for case in CASES if not given.only or case.name in given.only.split(",")]
    logs = []
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            log = play(case, Path(folder))
            _hide(log, {folder: "FOLDER", os.environ.get("FEDFLOOR_DATA", "data"): "$FEDFLOOR_DATA"})
        logs.append((case, log))
        print(f"{case.name:10} {log.verdict:40} {log.codes} {log.seconds:.0f} s  {log.result}", flush=True)
        if given.out:
            documents.publish(given.out, list(blocks(logs)))


if __name__ == "__main__":
    main()

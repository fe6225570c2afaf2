"""What a column of a table is: a time, a label, a quality, a row number, a category, …; and the evidence for it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.ended import MISSING
from fedfloor.data.files.joined import parts_of
from fedfloor.data.files.quality import GOOD, is_good
from fedfloor.data.files.times import NUMERALS, moment, numeral

# names of columns that hold the label of failures and faults
ANSWERS = (
    "anomaly", "failure", "machine_failure", "defect", "outlier", "changepoint", "rul", "remaining_life", "life", "ttf",
    "time_to_failure", "cycles_left", "restlebensdauer", "fault_code", "error_code", "maintenance", "störung",
    "störcode", "fehler", "fehlercode", "ausfall", "wartung", "pass_fail", "failure_type", "fault_type", "outcome",
    "result", "quality", "ergebnis", "qualität", "response", "verdict", "ausschuss", "befund", "attack",
    "normal_attack", "attack_label", "abnormal", "defective", "faulty", "classes", "category", "kategorie",
)  # fmt: skip
MARKED = {"label", "lable", "labels", "klasse", "groundtruth"}  # words in long names of labels with few values
FLAGGED = {  # words in long names of labels with one or two values
    "anomaly", "anomalies", "anomalous", "attack", "attacks", "fault", "faults", "faulty", "failure", "failures",
    "failed", "defect", "defects", "defective", "outlier", "abnormal", "störung", "fehler", "ausfall", "ausschuss",
}  # fmt: skip
LEGEND = re.compile(r"((?:-|(?<!\w))\w+)\s*[:=]\s*([^,;:=()\[\]]+)")  # of codes, in the name of a column
USUAL = re.compile(r"(no|not|non|without|kein|keine|ohne)\b.*|(normal|healthy|benign|ok|good)( .*)?", re.IGNORECASE)
COUNTERS = ("second", "seconds", "sekunde", "minute", "minutes", "hour", "stunde")  # a time if they only rise
STEPS = ("sample", "step", "takt")  # a time if they only rise within recordings
FEW = 20  # different texts in a column of categories, at most
LOTS = 3  # numbered lots in a recording, at least
UNTIL = 5  # digits of moments, at least
NOUNS = ("device", "machine", "unit", "asset", "station", "equipment", "engine", "maschine", "anlage", "gerät")
MACHINES = (  # more names of the device's column, if it has texts, or "id" or the like in its name
    "pump", "motor", "turbine", "compressor", "battery", "robot", "vehicle", "truck", "press", "furnace", "bearing",
    "drive", "gearbox", "fan", "blower", "conveyor", "spindle", "lathe", "chiller", "boiler", "crane", "welder",
)  # fmt: skip
GERMAN = (  # the same in German, also as the last part of a longer word, such as Schweißroboter
    "maschine", "anlage", "gerät", "geraet", "aggregat", "roboter", "pumpe", "motor", "turbine", "kompressor",
    "verdichter", "antrieb", "getriebe", "presse", "ofen", "ventilator", "lüfter", "gebläse", "förderband", "spindel",
    "fräse", "kugellager", "wälzlager", "gleitlager", "batterie", "akku", "fahrzeug", "stapler", "kran", "kessel",
)  # fmt: skip
ENDINGS = ("id", "no", "nr", "number", "name", "nummer", "kennung", "bezeichnung")  # of names of machines
SITES = (
    "factory", "plant", "site", "hall", "location", "facility", "branch", "werk", "halle", "standort", "fabrik",
    "betriebsstätte", "niederlassung", "filiale", "usine", "planta", "fábrica", "stabilimento", "fabbrica",
)  # fmt: skip
NUMBERED = re.compile(  # Anlagennummer, Werksname
    rf"({'|'.join((*GERMAN, *SITES))})(?:e?n|e|s)?_?(nr|nummer|id|name|kennung|bezeichnung)$"
)
INDEX = re.compile(
    r"column \d+|unnamed: \d+|__index_level_\d+__|index|row|row ?(no|nr|number|id)?\.?|line ?(no|nr|number)\.?|zeile|#"
    r"|lfd\.? ?nr\.?",
    re.IGNORECASE,
)  # names of row numbers, such as pandas writes
STATE = re.compile(r"^(ab)?normal$|^n?ok$|^(healthy|good|bad|faulty|anomaly)$", re.IGNORECASE)  # no name
TICKS = re.compile(  # names of a time if it only rises
    r"t|X_Value|[tT] ?[\[(](s|sec|ms|us|µs|μs|ns|min|h)[\])]|([tT](ime)?|[zZ]eit)_(s|sec|ms|us|µs|μs|ns|min|h)"
)
CALLED = {
    "device": (
        *NOUNS, *(f"{noun}_{end}" for noun in dict.fromkeys(NOUNS + MACHINES + GERMAN) for end in ENDINGS),
        "serial_number", "serial_no", "serial", "seriennummer", "hostname",
    ),
    "factory": (*SITES, *(f"{site}_{end}" for site in SITES for end in ENDINGS)),
    "time": (
        "time", "timestamp", "time_string",
        "datetime", "date", "date_time", "ts", "zeit", "zeitpunkt", "zeitstempel", "datum",
        "cycle", "zyklus", *COUNTERS, *STEPS,
    ),
    "run": (
        "run", "run_id", "run_number", "recording", "simulationrun", "simulation_run", "trial", "lauf", "messung",
        "segment", "segment_id", "session", "session_id", "episode", "episode_id",
    ),
    "label": (
        "label", "class", "condition", "state", "status", "fault", "fault_number", "target", "zustand", "klasse",
    ),
}  # fmt: skip
CALENDAR = {  # names of columns whose values a calendar gives
    "year", "quarter", "month", "week", "day", "hour", "minute", "second", "weekday", "weekend", "workday", "work_day",
    "working_day",
    "holiday", "day_of_week", "dayofweek", "day_of_year", "dayofyear", "day_of_month", "hour_of_day", "season", "jahr",
    "quartal", "monat", "woche", "tag", "stunde", "sekunde", "wochentag", "wochenende", "arbeitstag", "feiertag",
}  # fmt: skip
# last words of names of a quality, and those of the value beside it
QUALITIES = ("opc_quality", "quality_code", "quality", "qual", "q", "validity", "qualität", "güte", "gültigkeit")
STATES = ("status_code", "statuscode", "status", "stat", "valid", "state")  # a quality only by their cells
VALUED = ("", "_value", "_val", "_wert", "_pv", "_v", "_reading")
COUNTS = "counts up from row to row"

Numbers = NDArray[np.float64]
Name = Literal[
    "empty", "time", "label", "quality", "row number", "category", "text", "constant", "counter", "sensor"
]  # fmt: skip


class ColumnKind(NamedTuple):
    """What a column is, and the evidence as the predicate of a sentence with the column as subject."""

    kind: Name
    evidence: str


@dataclass(frozen=True)
class ColumnProfile:
    """A column of texts, as in a file.

    Args:
        name: its name.
        cells: its cells.
        recording: the recording of each row; empty where all rows belong to one.
        words: the names of the table's columns, by :func:`word_of` each.
        decimal: the decimal mark.
        form: the format of times, as ``[data] time_format``.
    """

    name: str
    cells: Sequence[str]
    recording: Sequence[str] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "."
    form: str | None = None


def kind_of(column: ColumnProfile) -> ColumnKind:
    """Return what a column is; the first kind that fits, from those with the strongest evidence.

    >>> print(kind_of(ColumnProfile("T.Quality", ["192", "192", "24"], words={"t_value": "T.Value"})).evidence)
    states the quality of 'T.Value' (33 % are not good)
    >>> kind_of(ColumnProfile("Attack LABLE (1:No Attack, -1:Attack)", ["1", "1", "-1"])).kind
    'label'
    >>> kind_of(ColumnProfile("temp", ["20.5", "21", "20.5"]))
    ColumnKind(kind='sensor', evidence='holds numbers')
    """
    known = filled(column.cells)
    if not known:
        return ColumnKind("empty", "holds no value in any row examined")
    if evidence := _quality(column, known):
        return ColumnKind("quality", evidence)
    if evidence := _label(column, known):
        return ColumnKind("label", evidence)
    if evidence := _time(column):
        return ColumnKind("time", evidence)
    if mostly_text(column.cells, column.decimal):
        return textual(column)
    numbers = [number(cell, column.decimal) for cell in column.cells]
    values = np.array([math.nan if each is None else each for each in numbers])
    if INDEX.fullmatch(column.name.strip()) and len(values) > 1 and len({*np.diff(values)}) == 1:
        return ColumnKind("row number", "counts the rows")
    return measured(values, _codes(column.recording, len(values)))


def textual(column: ColumnProfile) -> ColumnKind:
    """Return what a column of texts is that has no other use: a category, if it has few recurring texts, or a text.

    >>> print(textual(ColumnProfile("lot", ["L08", "L08", "L09", "L09", "L10", "L10"])).evidence)
    counts up in its texts ('L08', 'L09', 'L10', …), none of which returns,
    >>> textual(ColumnProfile("step", ["S1", "S2", "S3"] * 20)).kind
    'category'
    """
    if lots := _lots(column):
        return ColumnKind("text", f"counts up in its texts ({lots}, …), none of which returns,")
    many = len({*filled(column.cells)})
    again = 2 <= many <= FEW and many * FEW <= max(len(column.cells), FEW * 2)
    return ColumnKind("category", "holds a few texts") if again else ColumnKind("text", "holds no numbers")


def _lots(column: ColumnProfile) -> str:
    """Return the first texts of a column that numbers lots, jobs or shifts; "" if it does not.

    The texts differ in one number, which rises from one block of adjacent rows to the next in every recording, so that
    rows to come have other texts. Recordings with one text say nothing, but one needs :data:`LOTS`.
    """
    pairs = zip(column.recording or [""] * len(column.cells), column.cells, strict=True)
    blocks = [pair for pair, _ in groupby(sorted(pairs, key=itemgetter(0)))]
    parts = {cell: re.fullmatch(r"(\D*)(\d{1,18})(\D*)", cell) for _, cell in blocks}
    if not all(parts.values()) or len({(part[1], part[3]) for part in parts.values() if part}) != 1:
        return ""
    numbers = [(recording, int(part[2])) for recording, cell in blocks if (part := parts[cell])]
    rises = all(after[1] > before[1] for before, after in pairwise(numbers) if before[0] == after[0])
    most = max(Counter(recording for recording, _ in numbers).values())
    return ", ".join(repr(cell) for _, cell in blocks[:LOTS]) if rises and most >= LOTS else ""


def measured(values: Numbers, recording: NDArray[np.integer[Any]]) -> ColumnKind:
    """Return what a column of numbers is, by its values: constant, a counter or a sensor.

    Args:
        values: float64 [T], NaN where missing.
        recording: integers [T], the recording of each row, whose rows are in order.

    >>> recording = np.array([0, 0, 1, 1])
    >>> [measured(values, recording).kind for values in (np.array([3.0, 4, 1, 2]), np.ones(4), np.arange(4) * 0.5)]
    ['counter', 'constant', 'sensor']
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return ColumnKind("empty", "holds no value in any row examined")
    if known.min() == known.max():
        return ColumnKind("constant", f"is {known[0]:g} in every row examined")
    order = np.argsort(recording, kind="stable")
    steps = np.diff(values[order])[np.diff(recording[order]) == 0]
    if len(steps) and (steps > 0).all() and (known == np.floor(known)).all():
        return ColumnKind("counter", COUNTS)
    return ColumnKind("sensor", "holds numbers")


def _codes(recording: Sequence[str], rows: int) -> NDArray[np.int64]:
    if not recording:
        return np.zeros(rows, np.int64)
    return np.unique(np.array(recording), return_inverse=True)[1].ravel()


# -- qualities ---------------------------------------------------------------------------------------------------------


def _quality(column: ColumnProfile, known: Sequence[str]) -> str:
    """Return the evidence that a column states the quality of values beside it; "" if it does not.

    A name that ends in ``quality`` or the like is evidence beside a column with the same name or that of its value;
    ``status`` and the like only with cells that are qualities of OPC. Such codes need no column beside them.
    """
    good = [is_good(cell) for cell in known]
    coded = None not in good
    if value := _valued(column, known):
        share = 100 * good.count(False) / len(good)
        bad = f" ({share:.2g} % are not good)" if coded and share else ""
        return f"states the quality of '{value}'{bad}"
    if (
        coded
        and len({*known}) <= FEW
        and word_of(column.name).split("_")[-1] in QUALITIES
        and any(cell.isdecimal() and int(cell) & GOOD == GOOD for cell in known)
    ):
        return "holds codes of quality, of which 192 is good"
    return ""


def _valued(column: ColumnProfile, known: Sequence[str]) -> str:
    """Return the column whose quality another one states, by their names; "" without one."""
    if len({*known}) > FEW:
        return ""
    word = word_of(column.name)
    coded = None not in map(is_good, known)
    for tail in (*QUALITIES, *(STATES if coded else ())):
        stem = word.removesuffix(f"_{tail}")
        beside = [column.words[stem + value] for value in VALUED if stem != word and stem + value in column.words]
        if beside:
            return beside[0]
    return ""


def judged_by(column: ColumnProfile) -> str:
    """Return the column of values whose quality of OPC a column states, with most cells good; "" without one.

    >>> judged_by(ColumnProfile("T.Quality", ["192", "192", "24"], words={"t_value": "T.Value"}))
    'T.Value'
    >>> judged_by(ColumnProfile("Pump_status", ["0", "1", "1"], words={"pump": "Pump"}))
    ''
    """
    known = filled(column.cells)
    good = [is_good(cell) for cell in known]
    sure = bool(good) and None not in good and 2 * good.count(True) > len(good)
    return _valued(column, known) if sure else ""


# -- labels ------------------------------------------------------------------------------------------------------------


def answers(names: Sequence[str]) -> list[str]:
    """Return the columns whose names denote labels of failures and faults, the most likely first.

    >>> answers(["heat", "is_anomaly", "Quality", "history"])
    ['is_anomaly', 'Quality']
    """
    return [name for word in ANSWERS for name in names if word_of(name).removeprefix("is_") == word]


def _label(column: ColumnProfile, known: Sequence[str]) -> str:
    """Return the evidence that a column marks faults, by its name or by texts that are states; "" if it does not."""
    if evidence := called_label(column):
        return evidence
    states = is_text(known, column.decimal) and len({*known}) <= FEW and any(map(STATE.search, {*known}))
    return "holds states such as 'normal'" if states else ""


def called_label(column: ColumnProfile) -> str:
    """Return the evidence that a column has the name of a mark of faults, and few values; "" if it has not."""
    known = filled(column.cells)
    values = {*known}
    whole = all(re.fullmatch(r"-?\d+(\.0+)?", cell) for cell in values) or is_text(known, column.decimal)
    words = {*re.split(r"[\W_]+", column.name.casefold()), *word_of(column.name).split("_")}
    if len(values) <= 2 and (answers([column.name]) or (whole and words & FLAGGED)):
        return "is called like a mark of faults, and has at most two values"
    return "is called like a label, and has few values" if whole and len(values) <= FEW and words & MARKED else ""


def normal_of(name: str) -> str | None:
    """Return the code of normal operation in the legend of a column's name; None without one.

    >>> normal_of("Attack LABLE (1:No Attack, -1:Attack)"), normal_of("Valve (0=closed, 1=open)")
    ('1', None)
    """
    codes = [code for code, text in LEGEND.findall(name) if USUAL.fullmatch(text.strip())]
    return codes[0] if len(codes) == 1 else None


# -- times -------------------------------------------------------------------------------------------------------------


def _time(column: ColumnProfile) -> str:
    """Return the evidence that a column is a time; "" if it is none.

    Dates; numbers that rise in each recording, of a usual name; or numbers that rise and are moments in another unit
    than seconds, such as milliseconds since 1970.
    """
    if is_time(column.cells, column.form, numbers=False):
        return "holds dates"
    cells = [cell.replace(column.decimal, ".") for cell in column.cells]
    word = word_of(column.name)
    called = TICKS.fullmatch(column.name) or (word in CALLED["time"] and word not in STEPS)
    if not all(map(is_number, cells)) or not (called or min(map(len, cells)) >= UNTIL):
        return ""
    if not rises(cells, column.recording or [""] * len(cells)):
        return ""
    if called:
        return "is called like a time, and rises in each recording"
    unit = numeral(np.array([*map(float, cells)]))
    return f"rises in each recording, and its numbers are {NUMERALS[unit]}" if unit not in (None, "s") else ""


def is_time(cells: Sequence[str], form: str | None, *, numbers: bool = True) -> bool:
    """Return whether every cell is a readable date, or a number where numbers are accepted."""
    return bool(cells) and all(is_date(cell, form) or (numbers and is_number(cell.replace(",", "."))) for cell in cells)


def is_date(text: str, form: str | None) -> bool:
    """Return whether a cell is a date; a cell of digits only counts as a number unless the format is given."""
    digits = is_number(text) and not (form and "%" in form)
    return not digits and moment(text, form) is not None


def is_called_time(name: str) -> bool:
    """Return whether a column, or one of several joined columns, has a common name of the time."""
    return any(word_of(part) in CALLED["time"] for part in parts_of(name))


def rises(cells: Sequence[str], devices: Sequence[str]) -> bool:
    """Return whether numbers rise between adjacent rows of a device; a clock may restart between devices.

    >>> rises(["0", "1", "0", "1"], ["a", "a", "b", "b"]), rises(["59", "0"], ["", ""]), rises(["7", "7"], ["", ""])
    (True, False, False)
    """
    last = dict[str, float]()
    for cell, device in zip(cells, devices, strict=True):
        if not is_number(cell) or float(cell) <= last.get(device, -math.inf):
            return False
        last[device] = float(cell)
    return True


# -- names and texts ---------------------------------------------------------------------------------------------------


def without_brackets(name: str) -> str:
    """Return a name without brackets at its end, such as those of a unit; in time linear in its length.

    >>> [without_brackets(name) for name in ("speed (set) [1/min] ", "a [b (c]", "(x) y", "[m]")]
    ['speed (set)', 'a', '(x) y', '']
    """
    whole = name.rstrip()
    if not whole.endswith((")", "]")):
        return name
    last = max(whole.rfind(")", 0, -1), whole.rfind("]", 0, -1)) + 1
    first = min((at for mark in "([" if (at := whole.find(mark, last)) >= 0), default=-1)
    return name if first < 0 else whole[:first].rstrip()


def word_of(name: str) -> str:
    """Return a column's name in lower case, its words joined by ``_``, without a unit in brackets.

    The number of a machine is a word of its own in German, too.

    >>> word_of("machineID"), word_of("Pass/Fail"), word_of("Machine failure"), word_of("Time [s]")
    ('machine_id', 'pass_fail', 'machine_failure', 'time')
    >>> word_of("Maschinennummer"), word_of("Roboter-Nr.")
    ('maschine_nummer', 'roboter_nr')
    """
    name = without_brackets(name) or name
    word = re.sub(r"[\W_]+", "_", re.sub(r"(?<=[a-zäöüß0-9])(?=[A-ZÄÖÜ])", "_", name)).strip("_").casefold()
    return NUMBERED.sub(r"\1_\2", word)


def names_machine(word: str) -> bool:
    """Return whether a word of :func:`word_of` is a kind of machine, which a column of texts may name.

    "Lager" alone is a bearing or a warehouse, and a machine stands in a warehouse.

    >>> names_machine("roboter"), names_machine("schweissroboter"), names_machine("zustand_pumpe")
    (True, True, False)
    >>> names_machine("wälzlager"), names_machine("lager"), names_machine("hochregallager")
    (True, False, False)
    """
    return word in MACHINES or ("_" not in word and word.endswith(GERMAN))


def filled(cells: Iterable[str]) -> list[str]:
    """Return the cells that are not missing values."""
    return [cell for cell in cells if cell.casefold() not in MISSING]


def is_text(cells: Sequence[str], decimal: str) -> bool:
    """Return whether a column has cells and none of them is a number."""
    known = filled(cells)
    return bool(known) and not any(is_number(cell.replace(decimal, ".")) for cell in known)


def mostly_text(cells: Sequence[str], decimal: str) -> bool:
    """Return whether a column has only texts, or few values that are mostly texts: codes such as A, F, R and 4.

    >>> codes = ["A", "F", "4", "R"] * 5
    >>> mostly_text(codes, "."), mostly_text(["1.5", "n.a.", "1.7"], "."), mostly_text(["7", "E1", "E2", "E3"], ".")
    (True, False, False)
    """
    known = Counter(filled(cells))
    texts = [cell for cell in known if not is_number(cell.replace(decimal, "."))]
    again = len(known) <= FEW and min(known.values(), default=0) > 1
    return is_text(cells, decimal) or (again and len(texts) > len(known) / 2)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    return number(text) is not None


def number(text: str, decimal: str = ".") -> float | None:
    """Return the number in a text; None if it is none."""
    try:
        return float(text.replace(decimal, "."))
    except ValueError:
        return None

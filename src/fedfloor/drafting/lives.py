"""Tables with a life per row, such as of repairs: the columns of a life, of its end and of who keeps it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.names import count, misspelt, some, typed
from fedfloor.data.ended import ANY, over
from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.files.joined import JOIN, SPANS, parts_of
from fedfloor.data.files.times import TimeError, decide, moment
from fedfloor.data.files.tree import DataFile
from fedfloor.data.kinds import CALLED, ENDINGS, filled, is_number, is_text, is_time, names_machine, number, word_of
from fedfloor.data.roles import is_grouped, stated
from fedfloor.drafting.candidates import PLACES
from fedfloor.drafting.outcomes import FAILED, RUNNING
from fedfloor.drafting.profile import first_rows
from fedfloor.drafting.sensors import coded
from fedfloor.drafting.sketch import Proposal

RISES = 0.9  # share of the steps between rows in which a clock or counter rises, at least
STATES = 8  # texts of a column of states, at most
# texts of a kind of machine, at most, and rows of each, at least on average
MOST = 20
LEAST = 5
FEW = 3  # rows of a machine at most, on average: more are a recording
UNITS = (
    r"(_?(in_)?(h|hours?|hrs|min|minutes?|d|days?|weeks?|months?|years?|cycles?|km|std|stunden|minuten|tagen?|wochen"
    r"|monaten?|jahren?|zyklen|heures|jours|mois))?"
)
COUNTED = "time|minutes|hours|days|weeks|months|years|cycles|km|starts|strokes|shots"
GERMAN = "zeit|minuten|stunden|tage|wochen|monate|jahre|zyklen|hübe|takte"
DURATIONS = re.compile(
    rf"({COUNTED}|{GERMAN})"
    r"(_(to|until|bis)_(failure|event|end|ausfall)|_in_(service|operation|use|betrieb)|_(run|used|operated|lived))?"
    rf"|((operating|service|running|run|up|life|survival)_?(time|life)|time|age|life|survival|duration|ttf|tenure){UNITS}"
    rf"|(operating|service|running|run)_?({COUNTED})"
    rf"|(lebens|nutzungs|betriebs)dauer{UNITS}|((betriebs|lauf|stand)zeit|alter){UNITS}|betriebs(stunden|tage)"
    rf"|(durée_de_(vie|fonctionnement)|âge){UNITS}|(heures|jours)_de_(fonctionnement|marche|service)"
)
WHEN = r"(_?(date|on|at|since|datum|am|le))?"  # after the name of a date
STARTS = re.compile(
    r"(date_(d[e'_]_?|of_)?)?(install(ed|ation)?|commission(ed|ing)?|start(ed)?|begin|in|in_service|put_into_service"
    r"|built|build|fitted|mounted|placed|from|new_since|einbau|eingebaut|inbetriebnahme|beginn|ab|von|seit|montage"
    rf"|mise_en_(service|marche)|installée?|posée?|début|alta|instalad[oa]|instalación|puesta_en_marcha){WHEN}"
)
ENDS = re.compile(
    r"(date_(d[e'_]_?|of_)?)?(remov(ed|al)|fail(ed|ure)|end(ed)?|replac(ed|ement)|stop(ped)?|out|out_of_service"
    r"|repair(ed)?|last_seen|until|to|event|scrap(ped)?|decommission(ed|ing)?|dismantled|retired|withdrawn|taken_out"
    r"|exchanged|breakdown|ausbau|ausgebaut|ausfall|ende|ersetzt|bis|ausserbetriebnahme|stilllegung|verschrottet|demontage"
    rf"|tausch|getauscht|mise_hors_service|panne|dépose|déposée?|fin|remplacée?|baja|fallo|retirad[oa]|retirada){WHEN}"
)
AGES = re.compile(
    r"entry|(entry|start|initial)_age|age_at_(entry|start|first_observation)|anfangsalter|alter_bei_(beginn|einbau)"
)
SWITCH = {frozenset("01"): "1", frozenset(("false", "true")): "true", frozenset(("no", "yes")): "yes"}
ENDED = re.compile(r"(has_)?(failed|failure|event|died|dead|broken|observed|ausgefallen|ausfall|defekt)(_observed)?")
CENSORED = re.compile(r"(is_)?(censored|(still_)?running|alive|active|in_service|läuft(_noch)?|zensiert)")
OUTCOMES = re.compile(  # of texts that tell how a life ended, of which some may be causes
    r"(failure_|removal_|replacement_|end_)?(reason|cause|fate|outcome|result|mode|disposition)|how_ended|failure"
    r"|reason_(of|for)_(removal|failure|replacement)|status|state|condition"
    r"|(ausfall|ausbau|schadens)?(grund|ursache|art)|schaden|befund|ergebnis|verbleib|zustand"
    r"|état|statut|cause(_de_(panne|dépose))?|motif|raison|sort|estado|motivo|causa|esito|stato"
)
Ending = tuple[str, str | tuple[str, ...]]  # a column, and its texts of lives that are over


def lives(tables: Sequence[Excerpt], data: Mapping[str, Any], keeper: str, *, asked: bool) -> Proposal:
    """Decide on the roles of tables with a life per row, as keys of ``[data]``; on nothing for other tables.

    Such a table has a time or two dates of a life, and a column that says which lives ended: with two texts, of which
    one means failed or the other running, or with 0 and 1. A machine has few rows.

    Args:
        tables: the first rows of each table; those with other columns than the first do not count.
        data: the settings of the data.
        keeper: what keeps the rows unless a column does: the ``file`` or the ``folder``; "" for a single table.
        asked: whether the task is set; otherwise both columns are needed to set it.
    """
    names = tables[0].names
    alike = [table for table in tables if {*table.names} == {*names}]
    columns: dict[str, Any] = dict(data.get("columns", {}))
    free = [name for name in names if name not in stated(columns)]
    cells = {name: [cell for table in alike for cell in table.cells(name)] for name in names}
    machines = [name for name in free if all(_names_machines(name, table.cells(name)) for table in alike)]
    sites = [name for name in names if _is_site(name)]
    if asked:  # a text that no other row has is a name
        machines += [name for name in free if name not in machines and _tells_rows(cells[name])]
    if {*machines} - {*sites}:  # a plant of machines is no machine
        machines = [name for name in machines if name not in sites]
    each = (all if asked else any)(any(_recorded(table, [name, *sites]) for table in alike) for name in machines)
    recorded = bool(machines) and each
    life = columns.get("life") or _life(free, cells, data)
    ending = _ending(free, cells, columns.get("label"))
    if recorded and not (ending and life and JOIN in life):  # of a machine that was repaired several times
        return Proposal()
    if ending is None and life is not None and "ended" not in data:
        ending = _causes(free, cells, columns.get("label"), life)
        if ending is None and asked:
            _check_states(free, cells, columns.get("label"))
    if life is None or (ending is None and not asked):
        return Proposal()
    ending = ending and _with_open(ending, cells, life)
    sentences = [] if "life" in columns else [_of_life(life)]
    columns |= {"life": life}
    settings: dict[str, Any] = {}
    if ending is not None and "ended" not in data:
        columns |= {"label": ending[0]}
        settings = {"ended": ending[1] if isinstance(ending[1], str) else list(ending[1])}
        sentences += _of_ending(ending, cells[ending[0]])
    columns |= _entry(free, cells) if "entry" not in columns else {}
    columns |= {} if "time" in columns else {"time": ""}
    settings |= {"columns": columns}
    if "task" not in data:
        settings |= {"task": "survival"}
        sentences = ["a row is a life, therefore task = survival (how long machines live); another: --set "
                     "data.task=classification", *sentences]  # fmt: skip
    ended = settings.get("ended", data.get("ended"))
    if columns.get("label") in cells and ended is not None:
        _check_dates(life, cells, cells[columns["label"]], ended)

    # the end of lives without one, kinds of machines, and who keeps the rows
    until = _until(life, cells, data)
    kinds = _kinds([name for name in free if name not in machines], cells, columns)
    columns |= kinds.settings
    keeping = _keeper(machines, cells, data, columns, keeper)
    settings |= {**until.settings, **keeping.settings}
    return Proposal(settings, [*sentences, *until.notes, *kinds.notes, *keeping.notes])


def _names_machines(name: str, cells: Sequence[str]) -> bool:
    """Return whether a column names machines, by its name; or numbers them in texts of which many differ.

    >>> _names_machines("Lager-Nr.", ["A-01", "A-02", "B-01"]), _names_machines("site no", ["1", "2", "1"])
    (True, False)
    """
    word = word_of(name)
    known = filled(cells)
    numbered = word.split("_")[-1] in ENDINGS and is_text(known, ".") and FEW * len({*known}) >= len(known)
    return names_machine(word) or word in CALLED["device"] or (numbered and not _is_site(name))


def _tells_rows(cells: Sequence[str]) -> bool:
    """Return whether every row has a text of its own, which is no date."""
    return len({*cells}) == len(cells) > 1 and is_text(cells, ".") and not is_time(cells, None, numbers=False)


def _is_site(name: str) -> bool:
    """Return whether a column may name sites or lines, by its name."""
    return word_of(name) in (*CALLED["factory"], *PLACES)


def _recorded(table: Excerpt, names: Sequence[str]) -> bool:
    """Return whether machines, told apart by some columns, have so many rows each that these are recordings."""
    machines = {*zip(*map(table.cells, names), strict=True)}
    return FEW * len(machines) < len(table.rows)


def _check_states(free: Sequence[str], cells: Mapping[str, Sequence[str]], label: str | None) -> None:
    """Refuse lives beside states of which none, or several, may be the one of a failure."""
    for name in free if label is None else [label]:
        texts = Counter(cells.get(name, ()))
        known = [text for text in texts if FAILED.fullmatch(text.strip()) or RUNNING.fullmatch(text.strip())]
        told = known or (OUTCOMES.fullmatch(_word(name)) and is_text(filled(cells.get(name, ())), "."))
        if told and 2 <= len(texts) <= STATES:
            raise SettingError(
                f"column '{name}': which text is that of a life that ended? It holds {_counted(texts)}. Correct "
                f"different spellings, and name it: {typed('data.columns.label', name)} --set 'data.ended=TEXT'; lives "
                "with other texts still run.",
                key="data.ended",
            )


def _of_ending(ending: Ending, cells: Sequence[str]) -> list[str]:
    """Return notes on the column that tells which lives are over; SettingError: a misspelt text would still run."""
    name, ended = ending
    texts = Counter(cells)
    notes = []
    for text, meant in misspelt(texts).items():
        if over([text], ended).any():
            continue
        if over([meant], ended).any():
            raise SettingError(
                f"column '{name}': '{text}' in {count(texts[text], 'row')}. Did you mean '{meant}', the text of lives "
                "that ended? Others count as lives that still run. Correct it.",
                key="data.ended",
            )
        notes.append(f"'{text}' ({texts[text]:,}): did you mean '{meant}'? Both still run")
    running = Counter({text: many for text, many in texts.items() if not over([text], ended).any()})
    known = [ended] if isinstance(ended, str) else ended
    which = f"has a {'date' if is_time(filled(cells), None, numbers=False) else 'text'}"
    which = which if ended == ANY else f"is {some([repr(text) for text in known], STATES)}"
    shown = {text or "empty": many for text, many in running.items()}
    notes.append(
        f"lives whose '{name}' {which} are over, and {running.total():,} of {texts.total():,} still "
        f"run ({_counted(Counter(shown))}; data.ended), and count with what is known of them"
    )
    return notes


def _check_dates(
    life: str, cells: Mapping[str, Sequence[str]], states: Sequence[str], ended: str | Sequence[str]
) -> None:
    """Refuse lives that ended without the date of their end, which would be the last date of the table."""
    end = parts_of(life)[-1]
    if life in cells or end not in cells:
        return
    rows = [row for row in np.flatnonzero(over(states, ended)).tolist() if not cells[end][row].strip()]
    if rows:
        raise SettingError(
            f"column '{end}': empty in {count(len(rows), 'row')} of lives that ended, first in row "
            f"{rows[0] + 1:,} below the header. Fill in their dates, or remove these rows.",
            key="odd-life",
        )


def _counted(texts: Counter[str]) -> str:
    """Return texts with their numbers, the most frequent first."""
    return some([f"'{text}' {times:,}" for text, times in texts.most_common()], STATES)


def _of_life(life: str) -> str:
    days = "the days between the two dates" if JOIN in life else "a time"
    return f"'{life}' is taken for the life, {days}; in a table to predict it is the present age of a machine"


def _life(free: Sequence[str], cells: Mapping[str, Sequence[str]], data: Mapping[str, Any]) -> str | None:
    """Return the column of the life, or two joined ones of dates."""
    form = data.get("time_format")
    for name in free:
        known = filled(cells[name])
        if known and DURATIONS.fullmatch(_word(name)) and all(map(is_number, known)) and not _runs(known):
            return name
    dates = [name for name in free if filled(cells[name]) and is_time(filled(cells[name]), form, numbers=False)]
    starts = [name for name in dates if STARTS.fullmatch(_word(name))]
    ends = [name for name in dates if ENDS.fullmatch(_word(name))]
    return starts[0] + JOIN + ends[0] if starts and ends else None


def _runs(cells: Sequence[str]) -> bool:
    """Return whether numbers are those of a clock or counter and no lives: 0 or below, or rising from row to row.

    >>> _runs(["1", "2", "3", "4"]), _runs(["812", "95", "1200", "433"])
    (True, False)
    """
    values = [value for cell in cells if (value := number(cell)) is not None]
    rises = sum(after >= before for before, after in pairwise(values))
    return min(values) <= 0 or rises >= RISES * (len(values) - 1)


def _word(name: str) -> str:
    """Return a name as a word without a unit in brackets.

    >>> _word("Operating hours [h]")
    'operating_hours'
    """
    whole = name.rstrip()
    first = min((at for mark in "([" if (at := whole.find(mark)) >= 0), default=-1)
    return word_of(whole[:first] if first >= 0 and whole.endswith((")", "]")) else name)


def _ending(free: Sequence[str], cells: Mapping[str, Sequence[str]], label: str | None) -> Ending | None:
    """Return the column that tells which lives ended, and its text for these."""
    for name in free if label is None else [name for name in cells if name == label]:
        texts = {*filled(cells[name])}
        if not 2 <= len(texts) <= STATES:
            continue
        plain = {text.casefold(): text for text in texts}
        failed = [text for text in texts if FAILED.fullmatch(text.strip())]
        running = [text for text in texts if RUNNING.fullmatch(text.strip())]
        two = len(texts) == 2
        if len(failed) == 1 and ((two and (running != failed or label)) or (running and running != failed)):
            return name, failed[0]
        if not two:
            continue
        if len(running) == 1 and not failed:
            return name, next(text for text in texts if text != running[0])
        yes = SWITCH.get(frozenset(plain))
        if yes is not None and ENDED.fullmatch(_word(name)):
            return name, plain[yes]
        if yes is not None and CENSORED.fullmatch(_word(name)):
            return name, next(text for text in texts if text.casefold() != yes)
    return None


def _with_open(ending: Ending, cells: Mapping[str, Sequence[str]], life: str) -> Ending:
    """Return an ending whose empty cells are lives that still run, if they have no date of their end, either."""
    name, ended = ending
    end = cells.get(parts_of(life)[-1], ())
    known = life not in cells and isinstance(ended, str) and ended != ANY and not all(map(str.strip, cells[name]))
    fits = known and not any(date.strip() for date, text in zip(end, cells[name], strict=True) if not text.strip())
    return (name, (str(ended),)) if fits else ending


def _causes(free: Sequence[str], cells: Mapping[str, Sequence[str]], label: str | None, life: str) -> Ending | None:
    """Return the column of causes of an end, and its texts for these; or that of the dates of the end.

    A life that still runs has an empty cause, or a text of :data:`RUNNING`, and if dates are known no date of its end.
    """
    end = parts_of(life)[-1]
    open_ends = None if life in cells or end not in cells else [not cell.strip() for cell in cells[end]]
    for name in free if label is None else [label]:
        known = Counter(filled(cells.get(name, ())))
        if name in parts_of(life) or not (label or OUTCOMES.fullmatch(_word(name))) or not is_text([*known], "."):
            continue
        still = {text for text in known if RUNNING.fullmatch(text.strip())}
        runs = [not cell.strip() or cell in still for cell in cells[name]]
        agrees = open_ends is None or all(run for run, still_open in zip(runs, open_ends, strict=True) if still_open)
        causes = tuple(text for text, _ in known.most_common() if text not in still)
        spelt = len({text.casefold() for text in known}) == len(known)
        if agrees and spelt and any(runs) and not all(runs) and (not still or len(causes) <= MOST):
            return name, causes if still else ANY
        if still or any(map(FAILED.fullmatch, known)):  # states, which contradict the dates
            return None
    if label is None and open_ends is not None and any(open_ends) and not all(open_ends):
        return end, ANY
    return None


def _entry(free: Sequence[str], cells: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the column of the age at which the observation began."""
    named = (name for name in free if AGES.fullmatch(_word(name)) and all(map(is_number, filled(cells[name]))))
    name = next(named, None)
    return {} if name is None else {"entry": name}


def _seconds(texts: Sequence[str], form: str | None) -> dict[str, float]:
    """Return date → seconds since 1970, in the order of day and month that all of them have; without other texts.

    >>> times = _seconds(["2/10/2026", "28/9/2026", "05.01.26", "-"], None)
    >>> max(times, key=times.get), round(times["05.01.26"] / 86400)
    ('2/10/2026', 20458)
    """
    found = {text: date for text in texts if (date := moment(text, form)) is not None}
    for kind in {date[0] for date in found.values()}:
        same = [text for text, date in found.items() if date[0] == kind]
        values = np.array([found[text][1] for text in same])
        with suppress(TimeError):  # no order fits: any
            values = decide(values, kind, form)[0][:, None]
        found |= {text: (kind, (when,)) for text, when in zip(same, values[:, 0].tolist(), strict=True)}
    return {text: times[0] for text, (_, times) in found.items()}


def _until(life: str, cells: Mapping[str, Sequence[str]], data: Mapping[str, Any]) -> Proposal:
    """Decide on the last date of the table as the end of lives without one."""
    parts = parts_of(life)
    if life in cells or len(parts) != 2 or "until" in data or all(map(str.strip, cells[parts[1]])):
        return Proposal()
    texts = [text for name in parts for text in cells[name]]
    times = _seconds(texts, data.get("time_format"))
    if not times:
        return Proposal()
    last, until = max((when, text) for text, when in times.items())
    which = "the last date of the table"
    begun = {times.get(first) for first, end in zip(*map(cells.get, parts), strict=True) if not end.strip()}
    if "time_format" not in data and last in begun:
        until = (datetime.fromtimestamp(last, UTC) + timedelta(days=1)).date().isoformat()
        which = "the day after the last date of the table, when a machine began"
    note = (
        f"where '{parts[1]}' is empty, the machine was observed until {until}, {which}; another: --set "
        "'data.until=\"DATE\"'"
    )
    return Proposal({"until": until}, [note])


def _kinds(free: Sequence[str], cells: Mapping[str, Sequence[str]], columns: Mapping[str, Any]) -> Proposal:
    """Make sensors of columns with a few texts, such as a kind of machine, of which a life depends, as keys of columns.

    Tables of lives are short, so that :data:`LEAST` rows of a text suffice on average.
    """
    taken = stated(columns) | {part for role in SPANS for part in parts_of(str(columns.get(role, "")))}
    codings = {}
    notes = []
    for name in free:
        known = filled(cells[name])
        many = len({*known})
        if name in taken or _is_site(name) or not is_text(known, ".") or not 2 <= many <= MOST:
            continue
        if LEAST * many <= len(known) and not is_time(known, None, numbers=False):
            codings[name] = coded(known)
            notes.append(f"'{name}' is a kind of machine or place, by its {many} texts, on which lives may depend")
    return Proposal({"categories": {**columns.get("categories", {}), **codings}} if codings else {}, notes)


def _keeper(
    machines: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    data: Mapping[str, Any],
    columns: Mapping[str, Any],
    keeper: str,
) -> Proposal:
    """Take the column of sites or lines, or the file, for the device, because a machine has few rows.

    The column of machines names recordings, of a row each.
    """
    taken = stated(columns) | {part for role in SPANS for part in parts_of(str(columns.get(role, "")))}
    sites = [name for name in cells if _is_site(name) and name not in taken]
    fits = [name for name in sites if 2 <= len({*cells[name]}) <= len(cells[name]) // FEW]
    settings: dict[str, Any] = {}
    notes = []
    if "device" in columns or "device" in data:
        pass
    elif fits and keeper != "folder":
        factory = next((name for name in fits[1:] if is_grouped(cells[fits[0]], cells[name])), "")
        columns = {**columns, "device": fits[0], "factory": factory}
        notes = [f"'{fits[0]}' is taken for the device, which keeps the lives of its machines"]
    elif keeper:
        settings = {"device": keeper} if keeper == "file" else {}
        notes = [f"each {keeper} is taken for a device, which keeps the lives of its machines"]
    else:
        return Proposal({"columns": columns})
    names = [name for name in machines if name != columns.get("device")]
    if names and "run" not in columns:
        columns = {**columns, "run": names.pop(0)}
        notes.append(f"'{columns['run']}' names the machines (data.columns.run), as predictions do")
    if names:
        columns = {**columns, "ignore": [*columns.get("ignore", ()), *names]}
        notes.append(f"{', '.join(map(repr, names))}: more names of machines, and left out")
    return Proposal({**settings, "columns": columns}, notes)


def of_tables(
    files: Sequence[DataFile], data: Mapping[str, Any], task: str, excerpts: Excerpts, *, folder: bool
) -> Proposal:
    """Decide on the roles of tables with a life per row, unless another task or recordings are asked for."""
    if task not in ("", "survival") or data.get("remaining"):
        return Proposal()
    tables = [table for table in first_rows([file.path for file in files], data, excerpts) if table.first]
    if not tables or (folder and len(files[0].folders) > 1):  # where labels, too, may be folders
        return Proposal()
    keeper = ("folder" if files[0].folders else "file") if folder else ""
    return lives(tables, data, keeper, asked=task == "survival")

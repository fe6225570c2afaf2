"""Drafts of experiment files for the user's data, based on the properties of the data."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.names import legible
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import conversions, expanded, is_there, own
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.files.layout import NoColumnError
from fedfloor.data.files.rows import PACKED
from fedfloor.drafting import folders, guess
from fedfloor.drafting.columns import (
    check_classes,
    completed,
    headline,
    on_rare_class,
    on_roles,
    on_single_class,
    on_suspects,
    on_tails,
    on_target,
    without,
)
from fedfloor.drafting.problems import Mending
from fedfloor.drafting.profile import ROWS
from fedfloor.drafting.readable import check_published, roles, with_candidates
from fedfloor.drafting.samples import forecast, gap, regimes, set_split, trial, windows_of_recordings
from fedfloor.drafting.sketch import Given, Proposal, Sketch, changed
from fedfloor.drafting.text import text_of
from fedfloor.drafting.training import ROUNDS, on_excess, on_traffic, promise, set_training
from fedfloor.experiment import LONGEST_NAME
from fedfloor.park.normalise import prepared
from fedfloor.park.park import Park
from fedfloor.runs.parks import findings_of, warn_of_gaps
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.reconstruction import Reconstruction

log = logging.getLogger(__name__)

ENDINGS = (".npz", *own.WHOLE, *(f"{kind}{packed}" for kind in own.TABLES for packed in ("", *PACKED)))


def title(path: Path) -> str:
    r"""Return the name of an experiment: the data's name without suffixes, valid as the name of a folder.

    >>> title(Path("halls/press: A.csv.gz"))
    'press- A'
    >>> title(Path("a\x1b[2J.csv")), len(title(Path("é" * 120 + ".csv")))
    ('a [2J', 100)
    """
    name = expanded(path).resolve().name
    with suppress(StopIteration):
        name = next(name[: -len(end)] for end in ENDINGS if name.casefold().endswith(end) and len(name) > len(end))
    return _folder_name(name) or "data"


def _folder_name(text: str) -> str:
    name = legible(re.sub(r'[/\\\0:*?"<>|]', "-", text)).strip()
    return name.encode()[:LONGEST_NAME].decode(errors="ignore").strip()


@dataclass(frozen=True, eq=False)
class Draft:
    """A draft of an experiment for the user's data.

    Attributes:
        text: the text of the experiment file.
        park: the park of the experiment.
        notes: sentences on the assumed roles of columns and folders and the split, with reasons and alternatives.
    """

    text: str
    park: Park
    notes: tuple[str, ...]


def draft(path: Path, out: Path, changes: Sequence[str]) -> Draft:
    """Inspect data and return a draft of an experiment that trains on them.

    Roles of columns and the split are guessed unless given, and written to the file with the alternatives as comments.
    The default treatment of missing values is ``previous`` for rows with times, otherwise ``mean``; sensors without any
    value are left out.

    Args:
        path: a table, a folder or an ``.npz`` file.
        out: the path of the experiment file, which determines the experiment's name; paths to data are relative to it.
        changes: ``a.b=value`` texts, as for ``--set``.

    Raises:
        SettingError: a mistake or an ambiguity in the data; the message names file, row and column, and the settings to
            add.
    """
    document = given_settings(path, out, changes)
    source = expanded(path)
    excerpts = Excerpts(ROWS if is_there(source) and source.is_file() else 0)
    sketch = Sketch(document, source, Given.of(document, changes), excerpts)

    # what must be set before the data can be read
    dataset = _readable(sketch)

    # what a sample is, and which samples are for tests
    park = _set_samples(sketch, dataset)

    # what is found in them, as they are trained on
    data = sketch.data
    detects = isinstance(park.dataset.task, Reconstruction) and park.dataset.inputs.kind != "image"
    tails = [] if sketch.given.model else on_tails(park.dataset, detects=detects)
    judged = prepared(park, sketch.experiment().data.normalise)
    left = data.get("columns", {}).get("ignore", ())
    notes = [completed(note, left) for note in (*sketch.notes, *tails)]
    _show(path.name, notes, judged, data)

    # the model, its rounds and work
    more = _model(sketch, park, detects=detects)
    for sentence in more:
        log.info("%s: %s.", path.name, sentence)
    notes = [*notes, *findings_of(judged), *more]
    beside = expanded(out).parent
    paths = {key: str(config.seen_from(beside, expanded(data[key]))) for key in ("path", "test") if key in data}
    sketch.set({f"data.{key}": seen for key, seen in paths.items()})
    return Draft(text_of(sketch, park, notes), park, tuple(notes))


def _readable(sketch: Sketch) -> Dataset:
    """Guess the roles of columns, and solve what keeps the data from being read; return the data.

    Raises:
        SettingError: a mistake or an ambiguity that no guess mends.
    """
    check_published(sketch.source, sketch.data, sketch.excerpts)
    conversions.check(sketch.source, sketch.data, sketch.excerpts)
    sketch.decide(roles(sketch.data, sketch.source, sketch.excerpts))
    mending = Mending(sketch)
    try:
        return mending.readable()
    except SettingError as error:
        lack = error if isinstance(error, NoColumnError) else error.__cause__  # in a folder with more on its place
        if not isinstance(lack, NoColumnError) or lack.role not in ("device", "label"):
            raise
        known = with_candidates(lack, sketch.data, sketch.excerpts)
        raise SettingError(str(error).replace(str(lack), str(known)), key=known.key) from None


def _set_samples(sketch: Sketch, dataset: Dataset) -> Park:
    """Decide on split, sensors, windows and normalisation, unless given; return the park that is not normalised yet."""
    source = sketch.source
    set_split(sketch, dataset)
    sketch.decide(windows_of_recordings(sketch))
    data = sketch.park().dataset
    if data.task == CLASSIFICATION:
        check_classes(sketch.data, data, source.name)

    # columns: roles, and sensors that are none
    if source.is_dir():
        sketch.notes = [*folders.folder_words(data, source, sketch.data), *sketch.notes]
    told = (on_roles(sketch.data, data), on_rare_class(sketch.document, data), on_single_class(data))
    sketch.decide(Proposal(notes=[*chain.from_iterable(told)]))
    suspects, left = on_suspects(sketch.data, data, free=not sketch.given.ignored)
    if left:
        sketch.decide(without(sketch.data, left))

    # windows and scales
    ahead = forecast(sketch) if data.task.ahead else Proposal()
    sketch.set(ahead.settings)
    sketch.decide(gap(sketch))
    target = on_target(sketch.data, sketch.park().dataset)
    sketch.decide(Proposal(notes=[*target, *suspects, *ahead.notes]))
    sketch.decide(regimes(sketch))
    tried = trial(sketch)
    sketch.decide(tried)
    return sketch.park({"data.normalise": None}) if "data.window" in tried.settings else sketch.measured()


def _model(sketch: Sketch, park: Park, *, detects: bool) -> list[str]:
    """Decide on the model, its rounds and work, unless given; return sentences on them."""
    unmarked = headline(sketch.document, park.dataset)
    excess = [] if {"model", "method"} & {*sketch.document} or detects else on_excess(park.dataset)
    sketch.set(unmarked.settings)
    training = set_training(sketch, park, detects=detects)
    promised = promise(sketch, park)
    sketch.set(promised.settings)
    traffic = on_traffic(sketch.document, park)
    return [*unmarked.notes, *excess, *training, *promised.notes, *traffic]


def given_settings(path: Path, out: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Return the given settings of the experiment, checked before any guess.

    Raises:
        SettingError: a wrong setting.
    """
    document: dict[str, Any] = {
        "name": _folder_name(out.stem) or title(path),
        "rounds": ROUNDS,
        "data": {"path": str(path)},
    }
    for change in changes:
        config.apply(document, change)
    match document["data"]:
        case {"remaining": True, **others} if not {"bins", "task"} & others.keys():
            document = changed(document, {"data.task": {"kind": "regression"}})
    config.from_table(document)
    return document


def _show(name: str, notes: Sequence[str], park: Park, data: Mapping[str, Any]) -> None:
    """Log the notes on a draft, and warn of gaps and of sensors with doubtful names."""
    for sentence in notes:
        log.info("%s: %s%s", name, sentence, "" if sentence[-1] in ".?" else ".")
    warn_of_gaps(park)
    columns = data.get("columns", {})
    for sentence in () if columns.get("values") else guess.doubtful(park.dataset.inputs.columns):
        log.warning("%s: %s.", name, completed(sentence, columns.get("ignore", ())))

"""Drafts of experiment files for the user's data, based on the properties of the data."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import conversions, expanded, own
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.files.layout import NoColumnError
from fedfloor.data.files.rows import PACKED
from fedfloor.drafting import folders, guess
from fedfloor.drafting.columns import (
    check_classes,
    completed,
    leave_out,
    on_rare_class,
    on_roles,
    on_suspects,
    on_tails,
    on_target,
    set_unmarked,
)
from fedfloor.drafting.problems import Mending
from fedfloor.drafting.readable import check_published, guess_roles, with_candidates
from fedfloor.drafting.samples import (
    set_forecast,
    set_gap,
    set_regimes,
    set_split,
    set_what_trials_show,
    set_windows_of_recordings,
)
from fedfloor.drafting.text import text_of
from fedfloor.drafting.training import ROUNDS, on_excess, on_traffic, set_promise, set_training
from fedfloor.park.normalise import prepared
from fedfloor.park.park import Park
from fedfloor.runs.parks import findings_of, warn_of_gaps
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.reconstruction import Reconstruction

log = logging.getLogger(__name__)

ENDINGS = (".npz", *own.WHOLE, *(f"{kind}{packed}" for kind in own.TABLES for packed in ("", *PACKED)))


def title(path: Path) -> str:
    """Return the name of an experiment: the data's name without suffixes, valid as the name of a folder.

    >>> title(Path("halls/press: A.csv.gz"))
    'press- A'
    """
    name = expanded(path).resolve().name
    with suppress(StopIteration):
        name = next(name[: -len(end)] for end in ENDINGS if name.casefold().endswith(end) and len(name) > len(end))
    return _folder_name(name) or "data"


def _folder_name(text: str) -> str:
    return re.sub(r'[/\\\0:*?"<>|]', "-", text).strip()


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


@dataclass(frozen=True)
class Given:
    """What the user has set, and a draft therefore leaves as it is.

    Attributes:
        split, window, time, ignored, model, rounds: whether these are set.
        coded: columns whose coding is set.
    """

    split: bool
    window: bool
    time: bool
    ignored: bool
    model: bool
    rounds: bool
    coded: frozenset[str]

    @classmethod
    def of(cls, document: Mapping[str, Any], changes: Sequence[str]) -> Given:
        """Return what given settings hold.

        Args:
            document: the given settings.
            changes: their texts, as for ``--set``; the number of rounds has a default in the document.
        """
        data = document["data"]
        columns = data.get("columns", {})
        return cls(
            split="split" in data,
            window="window" in data,
            time="time" in columns,
            ignored="ignore" in columns,
            model=bool(document.get("model", {}).get("name")),
            rounds=any(change.startswith("rounds=") for change in changes),
            coded=frozenset(columns.get("categories", ())),
        )


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
    given = Given.of(document, changes)

    # what must be set before the data can be read
    notes, dataset, missing = _readable(document, source, given)

    # what a sample is, and which samples are for tests
    park, split = _samples(document, dataset, source, notes, given)

    # what is found in them, as they are trained on
    data = document["data"]
    detects = isinstance(park.dataset.task, Reconstruction) and park.dataset.inputs.kind != "image"
    if not given.model:
        notes += on_tails(park.dataset, detects=detects)
    judged = prepared(park, config.from_table(document).data.normalise)
    notes = [completed(note, data.get("columns", {}).get("ignore", ())) for note in notes]
    _show(path.name, notes, judged, data)
    notes += findings_of(judged)

    # the model, its rounds and work
    more = set_unmarked(document, park.dataset)
    if not {"model", "method"} & {*document} and not detects:
        more += on_excess(park.dataset)
    data |= {
        key: str(config.seen_from(expanded(out).parent, expanded(data[key]))) for key in ("path", "test") if key in data
    }
    more += set_training(document, park, detects=detects, paced=given.rounds)
    more += set_promise(document, park)
    more += on_traffic(document, park)
    for sentence in more:
        log.info("%s: %s.", path.name, sentence)
    notes += more
    return Draft(text_of(document, park, missing, split, notes), park, tuple(notes))


def _readable(document: dict[str, Any], source: Path, given: Given) -> tuple[list[str], Dataset, str]:
    """Guess the roles of columns, and solve what keeps the data from being read; return notes, data, one on gaps.

    Raises:
        SettingError: a mistake or an ambiguity that no guess mends.
    """
    data = document["data"]
    excerpts = Excerpts(0 if source.is_dir() else guess.ROWS)
    check_published(source, data, excerpts)
    conversions.check(source, data, excerpts)
    notes = guess_roles(data, source, excerpts)
    mending = Mending(document, notes, given.time, given.coded, excerpts)
    try:
        return notes, mending.readable(), mending.comment
    except SettingError as error:
        lack = error if isinstance(error, NoColumnError) else error.__cause__  # in a folder with more on its place
        if not isinstance(lack, NoColumnError) or lack.role not in ("device", "label"):
            raise
        named = with_candidates(lack, data, excerpts)
        raise SettingError(str(error).replace(str(lack), str(named)), key=named.key) from None


def _samples(
    document: dict[str, Any], dataset: Dataset, source: Path, notes: list[str], given: Given
) -> tuple[Park, str]:
    """Set split, sensors, windows and normalisation, unless given; return the park and the kind of its split."""
    data = document["data"]
    park, split = set_split(document, dataset, source, notes, settled="split" in data and not given.split)
    park = set_windows_of_recordings(document, park, notes)
    if park.dataset.task == CLASSIFICATION:
        check_classes(data, park.dataset, source.name)

    # columns: roles, and sensors that are none
    if source.is_dir():
        notes[:0] = folders.folder_words(park.dataset, source, data)
    notes += on_roles(data, park.dataset)
    notes += on_rare_class(document, park.dataset)
    sentences, left = on_suspects(data, park.dataset, free=not given.ignored)
    if left:
        park = leave_out(document, left)

    # windows and scales
    if park.dataset.task.ahead:
        park = set_forecast(document, park, sentences, window=given.window)
    park = set_gap(document, park, notes)
    notes += on_target(data, park.dataset)
    notes += sentences
    notes += set_regimes(data, park.dataset)
    return set_what_trials_show(document, park, notes), split


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
            document["data"]["task"] = {"kind": "regression"}
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

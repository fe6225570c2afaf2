"""An experiment file for data of one's own, drafted from what they are."""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor import config, places
from fedfloor.data import guess, own
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded, is_there
from fedfloor.data.joined import MissingValuesError
from fedfloor.data.lines import PACKED
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.park.skew import LabelSkew, label_skew
from fedfloor.runs.folder import write as write_whole
from fedfloor.runs.parks import build_park, warn_of_gaps
from fedfloor.runs.prepare import warn

log = logging.getLogger(__name__)

ROUNDS = 20
BATCH = 32
ENDINGS = (".npz", *(f"{kind}{packed}" for kind in own.TABLES for packed in ("", *PACKED)))
SMALLEST_PICTURE = 18  # pixels a side, of the network with convolutions


def title(path: Path) -> str:
    """Return what to call an experiment on data: their name without endings, as a folder may be called.

    >>> title(Path("halls/press: A.csv.gz"))
    'press- A'
    """
    name = expanded(path).resolve().name
    with suppress(StopIteration):
        name = next(name[: -len(end)] for end in ENDINGS if name.casefold().endswith(end) and len(name) > len(end))
    return re.sub(r'[/\\\0:*?"<>|]', "-", name).strip() or "data"


def draft(path: Path, out: Path, changes: Sequence[str]) -> tuple[str, Park]:
    """Look at data and write down an experiment that trains on them.

    What a table's columns are is guessed where it is not told, and so written down. Missing values that nothing is said
    about are drafted as ``previous`` where rows have times, else as ``mean``.

    Args:
        path: a table, a folder or an ``.npz`` file.
        out: where the experiment file will be: it speaks of the data as seen from there.
        changes: ``a.b=value`` texts, as for ``--set``.

    Returns:
        The experiment file's text, and its park.

    Raises:
        SettingError: a mistake in the data; the message names file, row and column.
    """
    document: dict[str, Any] = {"name": title(path), "rounds": ROUNDS, "data": {"path": str(path)}}
    for change in changes:
        config.apply(document, change)
    config.from_table(document)  # what was told must be right before anything is guessed beside it
    _guess(document["data"], expanded(path))
    found: Experiment = config.from_table(document)
    note, way = "", found.data.missing
    try:
        park = build_park(found)
    except MissingValuesError as holes:
        way = "previous" if holes.has_time else "mean"
        note = f"{holes.count:,} missing; or " + ('"mean", "drop"' if holes.has_time else '"drop"')
    if note:  # not while the error is held: it holds the whole table
        document["data"]["missing"] = way
        park = build_park(replace(found, data=replace(found.data, missing=way)))
    warn_of_gaps(park)
    for sentence in () if found.data.columns.values else guess.doubtful(park.dataset.inputs.columns):
        log.warning("%s: %s.", path.name, sentence)
    document.setdefault("model", {}).setdefault("name", _network(park.dataset))
    document["data"]["path"] = str(places.seen_from(expanded(out).parent, expanded(path)))
    work = document.setdefault("work", {})
    work.setdefault("batch_size", int(min(BATCH, park.sizes.min())))
    work.setdefault("lr", 0.05)
    document.setdefault("method", {}).setdefault("name", "fedavg")
    return _text(document, park, note), park


def _guess(data: dict[str, Any], path: Path) -> None:
    """Fill in what a table's columns probably are, and say so."""
    if not path.is_file() or (data.get("format") or own.format_of(path)) != "table":
        return
    guessed = guess.guess(path, data)
    for sentence in guess.words(guessed, data):
        log.info("%s: %s.", path.name, sentence)
    data.update(guessed)


def _network(data: Dataset) -> str:
    if data.inputs.kind == "image":
        return "cnn-tutorial" if min(data.shape[1:]) >= SMALLEST_PICTURE else "mlp-2nn"
    return "mlp-sensor" if len(data.shape) == 1 else "cnn-sensor"


def _text(document: dict[str, Any], park: Park, missing: str) -> str:
    """Return a document as TOML, tables below single keys, with a comment on what was found."""
    import tomlkit

    body = tomlkit.document()
    body.add(tomlkit.comment(re.sub(r"[\x00-\x1f\x7f]+", " ", summary(park))))  # a comment is one line
    for key, value in sorted(document.items(), key=lambda item: isinstance(item[1], dict)):
        body.add(key, tomlkit.item(value))
    if missing:
        body["data"]["missing"].comment(missing)
    body["method"]["name"].comment("see: fedfloor methods")
    body["model"]["name"].comment("see: fedfloor models")
    return tomlkit.dumps(body)


def summary(park: Park) -> str:
    """Return in one line what a park holds."""
    data = park.dataset
    if data.inputs.kind == "image":
        what = f"pictures of {data.shape[1]}×{data.shape[2]} pixels, {'grey' if data.shape[0] == 1 else 'colour'}"
    else:
        what = f"{data.shape[0]} sensors" + (f", windows of {data.shape[1]} rows" if len(data.shape) > 1 else "")
    share = np.bincount(data.y, minlength=len(data.classes)) / len(data.y)
    most = ", ".join(f"{name} {100 * part:.0f} %" for name, part in list(zip(data.classes, share, strict=True))[:8])
    more = f", … ({len(data.classes)} classes)" if len(data.classes) > 8 else ""
    factories = f"{park.factories} factor{'y' if park.factories == 1 else 'ies'}"
    return (
        f"{park.devices} devices in {factories}, {len(data.y):,} training and {len(data.y_test):,} test samples: "
        f"{what}; {most}{more}"
    )


def skew(text: str, park: Park) -> LabelSkew | None:
    """Return a park's label skew, and warn where the drafted experiment's method has nothing to choose devices by.

    Args:
        text: the experiment file's.
        park: its park.
    """
    found = label_skew(park)
    warn(config.from_table(tomllib.loads(text)), found)
    return found


def rows(park: Park) -> list[dict[str, Any]]:
    """Return a row per factory: its devices, their samples from the smallest to the largest, and its classes."""
    found = []
    names = park.factory_names or tuple(map(str, range(park.factories)))
    table = park.counts()
    for factory, name in enumerate(names):
        members = list(park.members(factory))
        sizes, counts = park.sizes[members], table[members].sum(axis=0)
        order = np.argsort(-counts, kind="stable")
        shown = ", ".join(f"{park.dataset.classes[c]} {counts[c]:,}" for c in order[:6] if counts[c])
        found.append({
            "factory": name, "devices": len(members), "samples": int(sizes.sum()), "smallest": int(sizes.min()),
            "largest": int(sizes.max()), "classes": shown + (", …" if (counts > 0).sum() > 6 else ""),
        })  # fmt: skip
    return found


def check_free(out: Path, *, force: bool) -> None:
    """Check that an experiment file can be written; one that is there stays, unless ``force``.

    Raises:
        SettingError: it is there, or it is a folder, or its folder is not there.
    """
    there = is_there(out)
    if out.is_dir():
        raise SettingError(f"{out} is a folder. Give the name of a file with --out.")
    if there and not force:
        raise SettingError(f"{out} is there already. Give another name with --out, or overwrite it with --force.")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise SettingError(f"{out}: {out.parent} is no folder that can be written in. Give another place with --out.")


def write(text: str, out: Path, *, force: bool) -> None:
    """Write an experiment file whole or not at all; see :func:`check_free`.

    Raises:
        SettingError: it is there, or cannot be written.
        RunError: the disk is full.
    """
    check_free(out, force=force)
    write_whole(out, text)

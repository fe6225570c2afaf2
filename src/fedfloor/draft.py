"""An experiment file for data of one's own, drafted from what they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.dataset import Dataset, Missing
from fedfloor.park.park import Park
from fedfloor.park.table import MissingValuesError
from fedfloor.runs.launch import build_park

ROUNDS = 20
BATCH = 32
SMALLEST_PICTURE = 18  # pixels a side, of the network with convolutions


def draft(path: Path, out: Path, changes: Sequence[str]) -> tuple[str, Park]:
    """Look at data and write down an experiment that trains on them.

    Missing values that nothing is said about are drafted as ``previous`` where rows have times, else as ``mean``.

    Args:
        path: a table, a folder or an ``.npz`` file.
        out: where the experiment file will be: it speaks of the data as seen from there.
        changes: ``a.b=value`` texts, as for ``--set``.

    Returns:
        The experiment file's text, and its park.

    Raises:
        SettingError: a mistake in the data; the message names file, row and column.
    """
    document: dict[str, Any] = {"name": path.stem.removesuffix(".csv"), "rounds": ROUNDS, "data": {"path": str(path)}}
    for change in changes:
        config.apply(document, change)
    found: Experiment = config.from_table(document)
    note = ""
    try:
        park = build_park(found)
    except MissingValuesError as holes:
        way: Missing = "previous" if holes.has_time else "mean"
        document["data"]["missing"] = way
        note = (
            f'{holes.count:,} missing; or "mean", "drop"'
            if way == "previous"
            else f'{holes.count:,} missing; or "drop"'
        )
        park = build_park(replace(found, data=replace(found.data, missing=way)))
    document.setdefault("model", {}).setdefault("name", _network(park.dataset))
    document["data"]["path"] = os.path.relpath(path.expanduser(), out.expanduser().parent)
    work = document.setdefault("work", {})
    work.setdefault("batch_size", int(min(BATCH, park.sizes.min())))
    work.setdefault("lr", 0.05)
    document.setdefault("method", {}).setdefault("name", "fedavg")
    return _text(document, park, note), park


def _network(data: Dataset) -> str:
    if data.inputs.kind == "image":
        return "cnn-tutorial" if min(data.shape[1:]) >= SMALLEST_PICTURE else "mlp-2nn"
    return "mlp-sensor" if len(data.shape) == 1 else "cnn-sensor"


def _text(document: dict[str, Any], park: Park, missing: str) -> str:
    """Return a document as TOML, tables below single keys, with a comment on what was found."""
    import tomlkit

    body = tomlkit.document()
    body.add(tomlkit.comment(summary(park)))
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


def rows(park: Park) -> list[dict[str, Any]]:
    """Return a row per factory: its devices, their samples from the smallest to the largest, and its classes."""
    found = []
    names = park.factory_names or tuple(map(str, range(park.factories)))
    for factory, name in enumerate(names):
        members = list(park.members(factory))
        sizes, counts = park.sizes[members], park.counts()[members].sum(axis=0)
        order = np.argsort(-counts, kind="stable")
        shown = ", ".join(f"{park.dataset.classes[c]} {counts[c]:,}" for c in order[:6] if counts[c])
        found.append({
            "factory": name, "devices": len(members), "samples": int(sizes.sum()), "smallest": int(sizes.min()),
            "largest": int(sizes.max()), "classes": shown + (", …" if (counts > 0).sum() > 6 else ""),
        })  # fmt: skip
    return found


def write(text: str, out: Path, *, force: bool) -> None:
    """Write an experiment file; one that is there stays, unless ``force``.

    Raises:
        SettingError: it is there, or cannot be written.
    """
    if out.exists() and not force:
        raise SettingError(f"{out} is there already. Give another name with --out, or overwrite it with --force.")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{out}: {error.strerror or error}. Give another place with --out.") from error

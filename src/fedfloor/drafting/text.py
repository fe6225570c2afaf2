"""A draft as an experiment file with comments, and its park in rows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.base.checking import toml_text
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import is_there
from fedfloor.drafting import splits
from fedfloor.drafting.sketch import Sketch, changed
from fedfloor.drafting.training import LEVELS, ROUNDS, TREES, network_of, rounds_of
from fedfloor.park.described import LabelSkew, label_skew
from fedfloor.park.park import Park
from fedfloor.runs.prepare import warn
from fedfloor.tasks.reconstruction import Reconstruction


def text_of(sketch: Sketch, park: Park, notes: Sequence[str]) -> str:
    """Return the document of a draft as TOML with comments on the data and alternatives."""
    import tomlkit

    document = sketch.document
    body = tomlkit.document()
    for sentence in (summary(park), *notes):
        body.add(tomlkit.comment(re.sub(r"[\x00-\x1f\x7f]+", " ", sentence)))  # a comment is a single line
    if "split" in document["data"] and not sketch.given.split:
        split = document["data"]["split"]
        others = [kind + " (rows = N)" * (kind == "last") for kind in splits.KINDS if kind != split["kind"]]
        chosen = tomlkit.inline_table()
        chosen.update(split)
        document = changed(document, {"data.split": chosen.comment(f"or {', '.join(others)}")})
    for key, value in sorted(document.items(), key=lambda item: isinstance(item[1], dict)):
        body.add(key, tomlkit.item(value))
    for key, comment in sketch.comments.items():
        table, _, name = key.rpartition(".")
        body[table][name].comment(comment)
    body["method"]["name"].comment("see: fedfloor list methods")
    body["model"]["name"].comment("see: fedfloor list models")
    if document["method"]["name"] == "boosting":
        settings = document.get("methods", {}).get("boosting", {})
        trees = settings.get("trees", TREES)
        depth = settings.get("depth", LEVELS)
        bins = document["rounds"] - trees * depth
        if bins > 0:  # not given
            body["rounds"].comment(f"{bins} for the bins, then {count(trees, 'tree')} of at most {depth} levels")
        body["method"]["name"].comment(f'trees; with a network: "fedavg", and rounds = {rounds_of(document, park)}')
        body["model"]["name"].comment("of methods with a network, and [work] likewise; see: fedfloor list models")
    if document["method"]["name"] == "pca":
        deeper = network_of(park.dataset, detects=True)
        body["method"]["name"].comment("in one round")
        body["model"]["name"].comment(
            f'a deeper network must be better: "{deeper}", with rounds = {ROUNDS}, method "fedavg"'
        )
    return tomlkit.dumps(body)


def without_labels(data: Dataset) -> bool:
    """Return whether no sample of a detector's data is marked as an anomaly, as without a column of labels."""
    return isinstance(data.task, Reconstruction) and not (data.y.any() or data.y_test.any())


def summary(park: Park) -> str:
    """Return the size and content of a park in one line."""
    data = park.dataset
    if data.inputs.kind == "image":
        holdings = f"pictures of {data.shape[1]}×{data.shape[2]} pixels, {'grey' if data.shape[0] == 1 else 'colour'}"
    else:
        holdings = count(data.shape[0] - len(data.task.unread), "sensor")
        holdings += f", windows of {count(data.shape[1], 'row')}" if len(data.shape) > 1 else ""
    if data.target is not None:
        ahead = f"the next {data.task.ahead} rows of " if data.task.ahead else ""
        low = data.target[:, 0].min()
        high = data.target[:, 0].max()
        unit = getattr(data.task, "unit", "")
        span = "" if ahead else f" from {low:.4g} to {high:.4g}{f' {unit}' if unit else ''}"
        targets = f"{ahead}{', '.join(data.task.called()[:8])}{span}"
    elif without_labels(data):
        targets = "no label of an anomaly"
    else:
        share = np.bincount(data.y, minlength=len(data.classes)) / len(data.y)
        parts = [f"{name} {100 * part:.0f} %" for name, part in zip(data.classes, share, strict=True)]
        targets = ", ".join(parts[:8]) + (f", … ({len(parts)} classes)" if len(parts) > 8 else "")
    return (
        f"{count(park.devices, 'device')} in {count(park.factories, 'factory', 'factories')}, {len(data.y):,} training "
        f"and {count(len(data.y_test), 'test sample')}: {holdings}; {targets}"
    )


def skew_of(text: str, park: Park) -> LabelSkew | None:
    """Return a park's label skew, and warn if it is too small for the device selection of the draft's method."""
    measured = label_skew(park)
    warn(config.from_table(toml_text(text, "the draft")), measured)
    return measured


def rows(park: Park) -> list[dict[str, Any]]:
    """Return a row per factory: its devices, the range of their numbers of samples, and its classes."""
    factories = []
    table = park.counts()
    for factory in range(park.factories):
        members = list(park.members(factory))
        sizes = park.sizes[members]
        counts = table[members].sum(axis=0)
        order = np.argsort(-counts, kind="stable")[:6]
        order = order if park.dataset.target is None else np.sort(order)  # ranges by their numbers
        excerpt = ", ".join(f"{park.dataset.classes[c]} {counts[c]:,}" for c in order if counts[c])
        factories.append({
            "factory": park.display_names.own("factory", factory) or (str(factory) if park.factories > 1 else None),
            "devices": len(members),
            "samples": int(sizes.sum()), "smallest": int(sizes.min()), "largest": int(sizes.max()),
        } | ({} if without_labels(park.dataset) else {
            "classes" if park.dataset.target is None else "ranges": excerpt + (", …" if (counts > 0).sum() > 6 else ""),
        }))  # fmt: skip
    return factories


def check_free(out: Path, *, force: bool) -> None:
    """Check that an experiment file can be written, and does not exist yet unless ``force``.

    Raises:
        SettingError: the file exists, is a folder, or its folder is missing.
    """
    exists = is_there(out)
    if out.is_dir():
        raise SettingError(f"{out} is a folder. Give the name of a file with --out.")
    if exists and not force:
        raise SettingError(f"{out} exists already. Give another name with --out, or overwrite it with --force.")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise SettingError(f"{out}: {out.parent} is not a writable folder. Give another path with --out.")

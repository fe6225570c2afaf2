"""What the commands ``predict`` and ``export`` print."""

from __future__ import annotations

import csv
import io
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedfloor.errors import RunError, SettingError, require
from fedfloor.inference import inputs, onnx, unlike
from fedfloor.inference import predict as predicting
from fedfloor.inference.predict import Prediction
from fedfloor.inference.samples import Samples
from fedfloor.inference.trained import Trained, load_model
from fedfloor.names import count
from fedfloor.runs.folder import write
from fedfloor.terminal import show

log = logging.getLogger(__name__)

FIRST = 20  # rows that are printed where there are more


@dataclass(frozen=True)
class How:
    """What ``predict`` was asked for.

    Args:
        top: classes told of each sample.
        resize, invert: what is done to pictures.
        every: print all rows.
        table: a CSV file to write them to.
        own: import a model or objective of one's own that the file names.
        which: the ``last`` round's model, or the ``best`` one's.
        device: whose the file is; empty: as its folder, name or columns have it.
    """

    top: int = 1
    resize: bool = False
    invert: bool = False
    every: bool = False
    table: Path | None = None
    own: bool = False
    which: str = "last"
    device: str = ""


def predict(run: Path, given: Sequence[Path], how: How, *, as_json: bool) -> None:
    """Predict files with a run's model, and print it.

    Args:
        run: its folder.
        given: files and folders.
        how: the options.
        as_json: print JSON.

    Raises:
        SettingError: an option that cannot be, or no file that is a sample of this model.
        RunError: some files are no samples of it; the others are answered, and these are named at the end.
    """
    trained = load_model(run, how.own, how.which)
    require(1 <= how.top <= len(trained.classes), "--top", how.top, f"from 1 to {len(trained.classes)}")
    if how.table is not None:
        _check_writable("--csv", how.table)
    paths = inputs.files(given)
    if how.device and len(paths) > 1:
        raise SettingError(f"--device {how.device}: for one file, but these are {len(paths)}. Predict them by device.")

    def follow(done: int) -> None:
        if len(paths) > 1:
            print(f"{done} of {len(paths)} files", file=sys.stderr, flush=True)

    failed: dict[Path, str] = {}
    left: list[str] = []
    warnings: list[str] = []

    def watched(parts: Iterator[Samples]) -> Iterator[Samples]:
        for part in parts:
            left.extend(part.left_out)
            warnings.extend(unlike.values(trained, part))
            yield part

    parts = inputs.read(paths, trained, resize=how.resize, invert=how.invert, failed=failed, device=how.device)
    found = predicting.predict(trained, watched(parts), how.top, follow, failed)
    if len(failed) == len(paths):
        raise SettingError("\n".join(failed.values()))
    if how.table is not None:
        write(how.table, _text(found))
    counts = {row["class"]: row["samples"] for row in predicting.by_class(found)}
    warnings += [text for text in [unlike.mix(trained, counts, run if run.is_dir() else run.parent)] if text]
    groups = {
        "by_file": predicting.by(found, lambda one: str(one.file), "file"),
        "by_device": predicting.by(found, lambda one: one.device, "device"),
    }
    if as_json:
        missed = {
            "failed": [{"file": str(path), "error": error} for path, error in failed.items()],
            "left_out": left, "warnings": warnings,
        }  # fmt: skip
        _show_json(trained, found, groups | missed)
    else:
        _print_all(trained, found, groups, how)
    for text in warnings:
        log.warning("%s", text)
    if failed or left:
        of_files = [f"{len(failed)} of {len(paths)} files have no answer:", *failed.values()] if failed else []
        of_rows = ["rows without an answer in files that have some:", *left] if left else []
        raise RunError("\n".join(of_files + of_rows))


def _show_json(trained: Trained, found: Sequence[Prediction], more: dict[str, Any]) -> None:
    """Print predictions, their summary and ``more`` as one JSON document."""
    right, known = predicting.accuracy(found)
    summary: dict[str, Any] = {
        "samples": len(found), "accuracy": right, "labelled": known, "by_class": predicting.by_class(found), **more
    }  # fmt: skip
    if trained.threshold is not None:
        summary["decide"] = dict(zip(("positive", "threshold"), trained.threshold, strict=True))
    show(predicting.documents(found), as_json=True, model=trained.name, round=trained.round, **summary)


def _print_all(
    trained: Trained, found: Sequence[Prediction], groups: dict[str, list[dict[str, Any]]], how: How
) -> None:
    """Print predictions, their summaries by file and device, the threshold and the accuracy."""
    _print(trained, found, how)
    for name, rows in groups.items():
        if len(found) > FIRST and 1 < len(rows) <= FIRST:
            show(rows, as_json=False, title=name.replace("_", " "))
    if trained.threshold is not None:
        name, least = trained.threshold
        print(f"decision: '{name}' where its probability is at least {least:.4g}, as validation data chose")
    right, known = predicting.accuracy(found)
    if right is not None:
        print(f"accuracy: {right:.4f} on {count(known, 'sample')} with a label")
    if how.table is not None:
        print(f"table: {how.table}")


def _print(trained: Trained, found: Sequence[Prediction], how: How) -> None:
    few = found if how.every else found[:FIRST]
    title = f"{trained.name}, trained for {count(trained.round, 'round')}"
    show(predicting.rows(few), as_json=False, title=title)
    if len(few) < len(found):
        print(f"and {len(found) - len(few):,} more: --all prints them, --csv FILE writes them.")
    if len(found) > FIRST:
        show(predicting.by_class(found), as_json=False, title=f"{len(found):,} samples")


def _text(found: Sequence[Prediction]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    top = len(found[0].best) if found else 1
    more = [name for k in range(2, top + 1) for name in (f"predicted_{k}", f"probability_{k}")]
    writer.writerow(["file", "device", "first", "last", "label", "predicted", "probability", *more])
    for one in found:
        place = one.place or ("", "")
        writer.writerow(
            [one.file, one.device or "", *place, one.label or "", *(cell for pair in one.best for cell in pair)]
        )
    return text.getvalue()


def _check_writable(option: str, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise SettingError(
            f"{option} {path}: {'this is a folder' if path.is_dir() else 'no such folder'}. Name a file."
        )


def export(run: Path, out: Path | None, *, as_json: bool, own: bool = False, which: str = "last") -> None:
    """Export a run's model, and print what came of it.

    Args:
        run: its folder, or the model's file.
        out: the file to write; ``model.onnx`` in the run's folder where it is left out.
        as_json: print JSON.
        own: import a model or objective of one's own that the file names.
        which: the ``last`` round's model, or the ``best`` one's.
    """
    trained = load_model(run, own, which)
    where = out or (run if run.is_dir() else run.parent) / "model.onnx"
    _check_writable("--out", where)
    done = onnx.export(trained, where)
    kind = "uint8" if trained.sensors is None else "float32"
    row = asdict(done) | {"file": str(done.file), "input": f"x: {kind} {['n', *trained.shape]}".replace("'", "")}
    if trained.own is not None:
        row["input"] += f", mean and std: float32 [{trained.shape[0]}] of the device it runs on;"
    if as_json:
        show([row | {"tolerance": onnx.TOLERANCE}], as_json=True)
        return
    print(f"model: {done.file} ({done.size_bytes:,} bytes, opset {done.opset})")
    print(f"takes {row['input']} as it stands in files; gives probabilities and logits [n, {len(trained.classes)}]"
          f"{'' if trained.decision is None else ', and the decision [n]'}")  # fmt: skip
    print(
        f"ONNX Runtime and PyTorch differ by at most {done.probabilities:.1e} in probabilities, {done.logits:.1e} in "
        f"logits ({done.samples} samples; {onnx.TOLERANCE:.0e} is allowed)"
    )

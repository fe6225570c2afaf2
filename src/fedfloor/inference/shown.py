"""The output of the commands ``predict`` and ``export``."""

from __future__ import annotations

import csv
import io
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import numpy as np

from fedfloor.errors import RunError, SettingError
from fedfloor.inference import inputs, onnx
from fedfloor.inference.answers import Results, Row, answers_of, check_top, odd_sensors, results
from fedfloor.inference.samples import FileSamples
from fedfloor.inference.trained import Trained, load_model
from fedfloor.models.saved import devices
from fedfloor.names import count
from fedfloor.runs.folder import write
from fedfloor.terminal import show

log = logging.getLogger(__name__)

LONGEST = 150  # characters of a file's name without its ending: systems allow 255 bytes
FIRST = 20  # rows printed, at most
LISTED = 10  # files listed in an error, if no file has an answer


def predict(
    run: Path, given: Sequence[Path], *, top: int, resize: bool, invert: bool, every: bool, table: Path | None,
    own: bool, which: str, device: str, as_json: bool,
) -> None:  # fmt: skip
    """Predict files with a run's model, and print the answers; ``--help`` describes the options.

    Raises:
        SettingError: an invalid option, or no file is a sample of this model.
        RunError: some files do not fit the model; the others are answered.
    """
    trained, paths = load_model(run, own, which, device), inputs.files(given)
    check_top(trained, top)
    if table is not None:
        _check_writable("--csv", table)
    if device and len(paths) > 1:
        raise SettingError(
            f"--device {device}: requires a single file, but {len(paths)} are given. Predict device by device."
        )

    def follow(done: int) -> None:
        if len(paths) > 1:
            print(f"{done} of {len(paths)} files", file=sys.stderr, flush=True)

    failed: dict[Path, str] = {}
    left: list[str] = []
    warnings: list[str] = []

    def watched(parts: Iterator[FileSamples]) -> Iterator[FileSamples]:
        for part in parts:
            left.extend(part.left_out)
            warnings.extend(odd_sensors(trained, part))
            yield part

    parts = inputs.read(paths, trained, resize=resize, invert=invert, failed=failed, device=device)
    answers = results(trained, answers_of(trained, watched(parts), follow, failed), top)
    if len(failed) == len(paths):
        more = [f"… and {len(failed) - LISTED} more files"] if len(failed) > LISTED else []
        raise SettingError("\n".join([*list(failed.values())[:LISTED], *more]))
    if table is not None:
        write(table, _csv(answers.table()))
    warnings += answers.warnings(run if run.is_dir() else run.parent)
    if as_json:
        about: Row = {"model": trained.name, "round": trained.round, "samples": len(answers)}
        about |= answers.summary() | answers.groups(people=False)
        errors = [{"file": str(path), "error": error} for path, error in failed.items()]
        show(answers.documents(), as_json=True, **about, failed=errors, left_out=left, warnings=warnings)
    else:
        _print(trained, answers, every=every)
        if table is not None:
            print(f"table: {table}")
    for text in warnings:
        log.warning("%s", text)
    if failed or left:
        lines = [f"{len(failed)} of {len(paths)} files have no answer:", *failed.values()] if failed else []
        lines += ["rows without an answer in files that have some:", *left] if left else []
        raise RunError("\n".join(lines))


def _print(trained: Trained, answers: Results, *, every: bool) -> None:
    """Print answers, summaries by file and device, and closing lines."""
    few = len(answers) if every else min(FIRST, len(answers))
    title = f"{trained.name}, trained for {count(trained.round, 'round')}"
    show(answers.rows(few), as_json=False, title=title)
    if few < len(answers):
        print(f"and {len(answers) - few:,} more: print them with --all, or write them with --csv FILE.")
    if len(answers) > FIRST:
        answers.overview()
        for name, rows in answers.groups(people=True).items():
            if 1 < len(rows) <= FIRST:
                show(rows, as_json=False, title=name.replace("_", " "))
    for line in answers.closing():
        print(line)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    writer.writerows(["" if cell is None else cell for cell in row.values()] for row in rows)
    return text.getvalue()


def _check_writable(option: str, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise SettingError(
            f"{option} {path}: {'this is a folder' if path.is_dir() else 'no such folder'}. Name a file."
        )


def export(
    run: Path, out: Path | None, *, as_json: bool, own: bool = False, which: str = "last", device: str = ""
) -> None:
    """Export the model of a run or of one of its devices, and print the result."""
    if device:
        devices(run)
    trained = load_model(run, own, which, device)
    where = out or (run if run.is_dir() else run.parent) / "model.onnx"
    _check_writable("--out", where)
    done = onnx.export(trained, where)
    kind = "uint8" if trained.sensors is None else "float32"
    row = {key: value for key, value in asdict(done).items() if key != "differences"} | done.differences
    row |= {"file": str(done.file), "input": f"x: {kind} {['n', *trained.shape]}".replace("'", "")}
    if trained.own is not None:
        row["input"] += f", mean and std: float32 [{trained.shape[0]}] of the device on which it runs;"
    if as_json:
        show([row | {"tolerance": onnx.TOLERANCE}], as_json=True)
        return
    print(f"model: {done.file} ({done.size_bytes:,} bytes, opset {done.opset})")
    answer = trained.answered(np.zeros((1, *trained.shape), np.uint8 if trained.sensors is None else np.float32))
    outputs = [f"{name} {['n', *part.shape[1:]]}".replace("'", "") for name, part in answer.parts().items()]
    outputs += [] if trained.decision is None else ["the decision [n]"]
    print(f"takes {row['input']} as stored in files; returns {', '.join(outputs)}")
    if answer.phrase:
        print(f"answer: {answer.phrase}")
    gaps = ", ".join(f"{gap:.1e} in {name}" for name, gap in done.differences.items())
    print(
        f"ONNX Runtime and PyTorch differ by at most {gaps} ({done.samples} samples; {onnx.TOLERANCE:.0e} is allowed)"
    )


def file_name(name: str) -> str:
    """Return a file name for a device, valid on every system; a long name is cut and ends with a hash.

    >>> file_name("press A/1"), file_name(".."), len(file_name(80 * "ü"))
    ('press A%2F1', '%2E.', 113)
    """
    text = re.sub(r"^\.", "%2E", quote(name, safe=" "))
    return text if len(text) <= LONGEST else f"{text[:100]}-{sha256(name.encode()).hexdigest()[:12]}"


def export_all(run: Path, out: Path | None, *, as_json: bool, own: bool = False) -> None:
    """Export the model of every device of a run with different models."""
    known, folder = devices(run), out or run / "onnx"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingError(f"--out {folder}: {error.strerror or error}. Give the path of a folder.") from error
    rows = []
    for name in known:
        done = onnx.export(load_model(run, own, device=name), folder / f"{file_name(name)}.onnx")
        gaps = {part: gap if as_json else f"{gap:.1e}" for part, gap in done.differences.items()}
        rows.append({"device": name, "file": str(done.file), "bytes": done.size_bytes} | gaps)
    show(rows, as_json=as_json, title="models, and differences between ONNX Runtime and PyTorch")

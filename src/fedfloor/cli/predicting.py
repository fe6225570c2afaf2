"""Commands that use a trained model: predictions for files, and the export to ONNX."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from fedfloor.base.errors import RunError, SettingError
from fedfloor.base.names import count
from fedfloor.base.strict import csv_text
from fedfloor.cli.options import Json, OwnCode
from fedfloor.cli.shared import note
from fedfloor.runs.terminal import say, show

if TYPE_CHECKING:
    from fedfloor.inference.answers import Results
    from fedfloor.inference.samples import FileSamples
    from fedfloor.inference.trained import Trained

log = logging.getLogger(__name__)

Row = dict[str, Any]
LONGEST = 150  # characters of a file's name without its ending: systems allow 255 bytes
FIRST = 20  # rows printed, at most
LISTED = 10  # files listed in an error, if no file has an answer
Model = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its model.safetensors.")]
Which = Annotated[
    str,
    typer.Option(
        "--which",
        metavar="last|best",
        help="The model of the last round, or of the round that is best on validation data.",
    ),
]
Table = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every sample to this file.")]
OfDevice = Annotated[
    str, typer.Option("--device", metavar="NAME", help="The device of the file, in place of those that it names.")
]
Horizon = Annotated[
    float | None,
    typer.Option("--within", metavar="TIME", help="The horizon of the chance to fail, in the unit of the lives."),
]


def predict(
    run: Model,
    files: Annotated[list[Path], typer.Argument(metavar="FILES…", help="Pictures, tables, .npz, or folders of them.")],
    top: Annotated[int, typer.Option("--top", metavar="K", help="List the K most likely classes.")] = 1,
    resize: Annotated[bool, typer.Option("--resize", help="Scale pictures of other sizes.")] = False,
    invert: Annotated[bool, typer.Option("--invert", help="Invert the brightness of pictures.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every sample, not only the first 20.")] = False,
    table: Table = None,
    device: OfDevice = "",
    within: Horizon = None,
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Predict pictures or sensor data with a trained model."""
    from fedfloor.inference import inputs
    from fedfloor.inference.answers import answers_of, check_top, results
    from fedfloor.inference.trained import load_model
    from fedfloor.inference.unscored import note as unscored_note
    from fedfloor.runs.folder import write

    trained = load_model(run, own, which, device, by_device=True, within=within)
    paths = inputs.files(files)
    check_top(trained, top)
    if table is not None:
        _check_writable("--csv", table)
    _check_single(device, len(paths))
    failed = dict[Path, str]()
    left = list[str]()
    warnings = list[str]()
    unscored = Counter[str]()
    parts = inputs.read(paths, trained, resize=resize, invert=invert, failed=failed, device=device)
    follow = (lambda done: note(f"{done} of {len(paths)} files")) if len(paths) > 1 else None
    watched = _watched(trained, parts, left, warnings, unscored)
    answers = results(trained, answers_of(trained, watched, follow, failed), top)
    _check_some(len(paths), failed)
    if table is not None:
        rows = answers.table()
        write(table, csv_text([rows[0] if rows else (), *(row.values() for row in rows)]))
    warnings += answers.warnings()
    warnings += unscored_note(unscored, () if trained.task.targets else trained.classes, len(answers))
    if as_json:
        errors = [{"file": str(path), "error": error} for path, error in failed.items()]
        about = _about(trained, answers) | {"failed": errors, "left_out": left, "warnings": warnings}
        about |= {"unscored": dict(unscored)}
        show(answers.documents(), as_json=True, **about)
    else:
        _print(trained, answers, every=every, table=table)
    for text in warnings:
        log.warning("%s", text)
    _check_complete(len(paths), failed, left)


def _watched(
    trained: Trained, parts: Iterator[FileSamples], left: list[str], warnings: list[str], unscored: Counter[str]
) -> Iterator[FileSamples]:
    """Yield the samples of files; note what was left out, sensors unlike those of the training, and odd labels."""
    from fedfloor.inference.unlike import odd_sensors

    for part in parts:
        left.extend(part.left_out)
        unscored.update(part.unscored)
        warnings.extend(odd_sensors(trained, part))
        yield part


def _check_some(files: int, failed: Mapping[Path, str]) -> None:
    """Raise SettingError if no file has an answer."""
    if len(failed) == files:
        more = [f"… and {files - LISTED} more files"] if files > LISTED else []
        raise SettingError("\n".join([*list(failed.values())[:LISTED], *more]))


def _check_single(device: str, files: int) -> None:
    if device and files > 1:
        raise SettingError(
            f"--device {device}: requires a single file, but {files} are given. Predict device by device."
        )


def _about(trained: Trained, answers: Results) -> Row:
    """Return the model and the summaries of its answers, as in the JSON document."""
    about: Row = {"model": trained.name, "round": trained.round, "samples": len(answers)}
    return about | answers.summary() | answers.groups(people=False)


def _check_complete(files: int, failed: Mapping[Path, str], left: Sequence[str]) -> None:
    """Raise RunError if files, or rows of the other files, have no answer."""
    lines = [f"{len(failed)} of {files} files have no answer:", *failed.values()] if failed else []
    lines += ["rows without an answer in files that have some:", *left] if left else []
    if lines:
        raise RunError("\n".join(lines))


def _print(trained: Trained, answers: Results, *, every: bool, table: Path | None) -> None:
    """Print answers, summaries by file and device, closing lines, and the place of the table."""
    few = len(answers) if every else min(FIRST, len(answers))
    title = f"{trained.name}, trained for {count(trained.round, 'round')}"
    show(answers.rows(few), as_json=False, title=title)
    if few < len(answers):
        say(f"and {len(answers) - few:,} more: print them with --all, or write them with --csv FILE.")
    if len(answers) > FIRST:
        answers.overview()
        for name, rows in answers.groups(people=True).items():
            if 1 < len(rows) <= FIRST:
                show(rows, as_json=False, title=name.replace("_", " "))
    for line in answers.closing():
        say(line)
    if table is not None:
        say(f"table: {table}")


def _check_writable(option: str, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise SettingError(
            f"{option} {path}: {'this is a folder' if path.is_dir() else 'no such folder'}. Name a file."
        )


def export(
    run: Model,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: RUN/model.onnx.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="The device whose model is exported.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Export every device's model; --out is a folder.")] = False,
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Export a trained model as ONNX, for devices without PyTorch."""
    from fedfloor.inference.trained import load_model
    from fedfloor.models.saved import devices

    if every and (device or which != "last"):
        raise SettingError("--all exports every device's last model. Leave --device and --which out.")
    if every:
        _export_all(run, out, as_json=as_json, own=own)
        return
    if device:
        devices(run)
    _export(load_model(run, own, which, device), run, out, as_json=as_json)


def _export(trained: Trained, run: Path, out: Path | None, *, as_json: bool) -> None:
    import numpy as np

    from fedfloor.inference import onnx

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
    say(f"model: {done.file} ({done.size_bytes:,} bytes, opset {done.opset})")
    answer = trained.answered(np.zeros((1, *trained.shape), np.uint8 if trained.sensors is None else np.float32))
    outputs = [f"{name} {['n', *part.shape[1:]]}".replace("'", "") for name, part in answer.parts().items()]
    outputs += [] if trained.decision is None else ["the decision [n]"]
    say(f"takes {row['input']} as stored in files; returns {', '.join(outputs)}")
    if answer.phrase:
        say(f"answer: {answer.phrase}")
    gaps = ", ".join(f"{gap:.1e} in {name}" for name, gap in done.differences.items())
    say(f"ONNX Runtime and PyTorch differ by at most {gaps} ({done.samples} samples; {onnx.TOLERANCE:.0e} is allowed)")


def file_name(name: str) -> str:
    """Return a file name for a device, valid on every system; a long name is cut and ends with a hash.

    >>> file_name("press A/1"), file_name(".."), len(file_name(80 * "ü"))
    ('press A%2F1', '%2E.', 113)
    """
    text = re.sub(r"^\.", "%2E", quote(name, safe=" "))
    return text if len(text) <= LONGEST else f"{text[:100]}-{sha256(name.encode()).hexdigest()[:12]}"


def _export_all(run: Path, out: Path | None, *, as_json: bool, own: bool) -> None:
    """Export the model of every device of a run with different models."""
    from fedfloor.inference import onnx
    from fedfloor.inference.trained import load_model
    from fedfloor.models.saved import devices

    known = devices(run)
    folder = out or run / "onnx"
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

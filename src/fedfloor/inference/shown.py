"""The output of the commands ``predict`` and ``export``."""

from __future__ import annotations

import csv
import io
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from fedfloor.errors import RunError, SettingError
from fedfloor.inference import inputs, onnx
from fedfloor.inference.answers import check_top, results
from fedfloor.inference.results import Results, Row, answers_of, odd_sensors
from fedfloor.inference.samples import FileSamples
from fedfloor.inference.trained import Trained, load_model
from fedfloor.models.saved import devices
from fedfloor.names import count
from fedfloor.runs.folder import write
from fedfloor.terminal import show

log = logging.getLogger(__name__)

FIRST = 20  # rows that are printed where there are more


@dataclass(frozen=True)
class How:
    """The options of ``predict``.

    Args:
        top: classes listed for each sample.
        resize, invert: treatment of pictures.
        every: print all rows.
        table: a CSV file to write them to.
        own: import a model or objective of one's own that the file names.
        which: the ``last`` round's model, or the ``best`` one's.
        device: of the file; empty: as its folder, name or columns have it.
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
    trained = load_model(run, how.own, how.which, how.device)
    check_top(trained, how.top)
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

    def watched(parts: Iterator[FileSamples]) -> Iterator[FileSamples]:
        for part in parts:
            left.extend(part.left_out)
            warnings.extend(odd_sensors(trained, part))
            yield part

    parts = inputs.read(paths, trained, resize=how.resize, invert=how.invert, failed=failed, device=how.device)
    found = results(trained, answers_of(trained, watched(parts), follow, failed), how.top)
    if len(failed) == len(paths):
        raise SettingError("\n".join(failed.values()))
    if how.table is not None:
        write(how.table, _csv(found.table()))
    warnings += found.warnings(run if run.is_dir() else run.parent)
    if as_json:
        missed: Row = {
            "failed": [{"file": str(path), "error": error} for path, error in failed.items()],
            "left_out": left, "warnings": warnings,
        }  # fmt: skip
        about: Row = {"model": trained.name, "round": trained.round, "samples": len(found)}
        about |= found.summary() | found.groups(people=False) | missed
        show(found.documents(), as_json=True, **about)
    else:
        _print(trained, found, how)
    for text in warnings:
        log.warning("%s", text)
    if failed or left:
        of_files = [f"{len(failed)} of {len(paths)} files have no answer:", *failed.values()] if failed else []
        of_rows = ["rows without an answer in files that have some:", *left] if left else []
        raise RunError("\n".join(of_files + of_rows))


def _print(trained: Trained, found: Results, how: How) -> None:
    """Print answers, their summaries by file and device, and the closing lines."""
    few = len(found) if how.every else min(FIRST, len(found))
    title = f"{trained.name}, trained for {count(trained.round, 'round')}"
    show(found.rows(few), as_json=False, title=title)
    if few < len(found):
        print(f"and {len(found) - few:,} more: --all prints them, --csv FILE writes them.")
    if len(found) > FIRST:
        found.overview()
        for name, rows in found.groups(people=True).items():
            if 1 < len(rows) <= FIRST:
                show(rows, as_json=False, title=name.replace("_", " "))
    for line in found.closing():
        print(line)
    if how.table is not None:
        print(f"table: {how.table}")


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
    """Export a run's model, and print the result.

    Args:
        run: its folder, or the model's file.
        out: the file to write; ``model.onnx`` in the run's folder where it is left out.
        as_json: print JSON.
        own: import a model or objective of one's own that the file names.
        which: the ``last`` round's model, or the ``best`` one's.
        device: whose model, of a run where they differ.
    """
    if device:
        devices(run)
    trained = load_model(run, own, which, device)
    where = out or (run if run.is_dir() else run.parent) / "model.onnx"
    _check_writable("--out", where)
    done = onnx.export(trained, where)
    kind = "uint8" if trained.sensors is None else "float32"
    row = {key: one for key, one in asdict(done).items() if key != "differences"} | done.differences
    row |= {"file": str(done.file), "input": f"x: {kind} {['n', *trained.shape]}".replace("'", "")}
    if trained.own is not None:
        row["input"] += f", mean and std: float32 [{trained.shape[0]}] of the device it runs on;"
    if as_json:
        show([row | {"tolerance": onnx.TOLERANCE}], as_json=True)
        return
    print(f"model: {done.file} ({done.size_bytes:,} bytes, opset {done.opset})")
    answer = trained.answered(np.zeros((1, *trained.shape), np.uint8 if trained.sensors is None else np.float32))
    gives = [f"{name} {['n', *part.shape[1:]]}".replace("'", "") for name, part in answer.parts().items()]
    gives += [] if trained.decision is None else ["the decision [n]"]
    print(f"takes {row['input']} as it stands in files; gives {', '.join(gives)}")
    if answer.phrase:
        print(f"answer: {answer.phrase}")
    gaps = ", ".join(f"{gap:.1e} in {name}" for name, gap in done.differences.items())
    print(
        f"ONNX Runtime and PyTorch differ by at most {gaps} ({done.samples} samples; {onnx.TOLERANCE:.0e} is allowed)"
    )


def export_all(run: Path, out: Path | None, *, as_json: bool, own: bool = False) -> None:
    """Export every device's model of a run where they differ.

    Args:
        run: its folder.
        out: the folder to write to; ``onnx`` in the run's folder where it is left out.
        as_json, own: as of :func:`export`.
    """
    known, folder = devices(run), out or run / "onnx"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingError(f"--out {folder}: {error.strerror or error}. Name a folder.") from error
    rows = []
    for name in known:
        done = onnx.export(load_model(run, own, device=name), folder / f"{quote(name, safe=' ')}.onnx")
        gaps = {part: gap if as_json else f"{gap:.1e}" for part, gap in done.differences.items()}
        rows.append({"device": name, "file": str(done.file), "bytes": done.size_bytes} | gaps)
    show(rows, as_json=as_json, title="models, and by how much ONNX Runtime and PyTorch differ")

"""Training on a table in memory, or on files, without an experiment file: :func:`train`."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedfloor.api.run import Run, announce, chosen_folder, run
from fedfloor.api.source import Changes, in_files
from fedfloor.api.wording import TABLE, in_python, lines_in_memory, worded
from fedfloor.base.checking import plain
from fedfloor.base.errors import SettingError, shown
from fedfloor.data import frames
from fedfloor.drafting.draft import draft
from fedfloor.parts import objects
from fedfloor.parts.named import written
from fedfloor.runs.folder import write
from fedfloor.runs.ledger import Follow


@in_python
def train(
    data: Any, *, device: str | None = None, label: str | None = None, factory: str | None = None,
    time: str | None = None, task: str | None = None, name: str = "table", out: Path | str | None = None,
    model: Any = None, method: Any = None, rounds: int | None = None, seed: int | None = None, references: bool = True,
    ranks: int | None = None, report: Follow | None = None, progress: bool | None = None,
    changes: Changes | None = None,
) -> Run:  # fmt: skip
    """Train a model on a table with rows of several devices, and compare it with training alone and on pooled data.

    Columns, split, model, method and rounds are chosen as by ``fedfloor new``; ``notes`` of the run state the choices.
    The table and the experiment file are written to the run's folder.

    Args:
        data: a table, such as a pandas or Polars DataFrame or a dictionary of arrays by name; or the path of a table, a
            folder or an ``.npz`` file, as for ``fedfloor new``.
        device: the column of the device, such as a machine, that recorded a row; by default guessed.
        label: the column to predict.
        factory: the column of the device's factory.
        time: the column of the time of a row.
        task: ``classification``, ``regression``, ``reconstruction``, ``forecasting`` or
            ``survival``.
        name: the name of the experiment and of the run's folder.
        out: the run's folder; by default ``runs/NAME``, or ``runs/NAME-2`` and so on if earlier runs are there.
        model: a network by name, or a function or class of your own, as for :func:`~fedfloor.load`.
        method: a method by name or as an object.
        rounds: the number of rounds.
        seed: the seed of all random draws.
        references: whether to train also each device alone, all data in one place, and scikit-learn.
        ranks, report, progress: as for :func:`~fedfloor.run`.
        changes: key of the experiment file → value, such as ``{"data.window": {"length": 20, "step": 1}}``.

    Raises:
        SettingError: a mistake or an ambiguity in the data; the message names the column and the setting to add.
        RunError: the run failed.
    """
    framed = frames.is_frame(data)
    if not framed and not isinstance(data, Path | str):
        raise SettingError(
            f"data = {shown(data)}: must be a table, such as a DataFrame or a dictionary of arrays by name, or the "
            "path of one.",
            key="data",
        )
    columns = {"device": device, "label": label, "factory": factory, "time": time}
    pairs: dict[str, Any] = {f"data.columns.{role}": column for role, column in columns.items()}
    chosen, own = (None, {}) if method is None else objects.method(method)
    pairs |= {"data.task.kind": task, "rounds": rounds, "seed": seed, "method.name": chosen}
    pairs |= {f'methods."{chosen}".{key}': setting for key, setting in own.items()}
    pairs |= {} if model is None else {"model.name": model}
    given = in_files({key: value for key, value in (pairs | dict(changes or {})).items() if value is not None})
    texts = [f"{key}={written(plain(value))}" for key, value in given.items()]
    folder = chosen_folder(out, name, resume=False)
    with TemporaryDirectory() as temporary:
        at = Path(temporary) / name
        at.mkdir()
        if framed:
            frames.write(data, at / TABLE)
        source = at / TABLE if framed else Path(data)
        with lines_in_memory() if framed else nullcontext():
            drafted = draft(source, (at if framed else folder) / f"{name}.toml", texts)
        write(at / f"{name}.toml", drafted.text)
        if out is None:
            announce(folder, name)
        folder.mkdir(parents=True, exist_ok=True)
        for path in at.iterdir():
            shutil.move(path, folder / path.name)
    done = run(
        folder / f"{name}.toml", folder, references=references, ranks=ranks, report=report, progress=progress
    )  # fmt: skip
    return replace(done, notes=tuple(map(worded, drafted.notes)))

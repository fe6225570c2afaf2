"""The Python interface to runs: :func:`run`, its :class:`Run`, and its display in a notebook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor import regular
from fedfloor.config import check_methods
from fedfloor.engine import place
from fedfloor.engine.team import MOST_RANKS
from fedfloor.experiment import EngineSettings, Experiment
from fedfloor.figures import ACCURACY, LOSS, named
from fedfloor.machine import cores
from fedfloor.runs import launch, ledger
from fedfloor.runs.ledger import Follow, Line
from fedfloor.runs.orders import Limits, Orders

WIDTH, HEIGHT = 460, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 40  # margins of the curve
CURVE = "#2b7bd1"  # visible on white and on near-black


def html(folder: Path, stopped: str, lines: Sequence[Line]) -> str:
    """Return a run as HTML: its last metrics, its headline against rounds, and its folder.

    >>> print(html(Path("a"), "finished", []), end="")
    <div><p><b>a</b>: finished</p>
    <p>folder: <code>a</code></p></div>
    """
    from fedfloor.templates import render

    about: dict[str, Any] = {"folder": folder, "stopped": stopped, "lines": lines, "points": []}
    figure = named(lines[-1].headline[0]) if lines else ACCURACY
    scored = [(line, value) for line in lines if (value := figure.read(line)) is not None]
    if scored:
        (last, value), (best, top) = scored[-1], max(scored, key=lambda entry: figure.gain(entry[1], 0.0))
        about |= {"name": figure.name, "last": value, "best": best.round, "top": top, "colour": CURVE}
        about |= {"loss": None if figure == LOSS else last.loss, **_curve(scored, share=figure.share)}
    return render("fedfloor.runs", "run.html", **about)


def _curve(scored: Sequence[tuple[Line, float]], *, share: bool) -> dict[str, Any]:
    """Return the coordinates of a metric against rounds in px, for the template."""
    rounds = [line.round for line, _ in scored]
    most = 1.0 if share else max(value for _, value in scored) or 1.0
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(number: int) -> float:
        return LEFT + (number - rounds[0]) / max(rounds[-1] - rounds[0], 1) * (right - LEFT)

    def y(value: float) -> float:
        return floor - value / most * (floor - TOP)

    return {
        "points": [(x(line.round), y(value)) for line, value in scored],
        "grid": [(y(part * most), part * most) for part in (0, 0.25, 0.5, 0.75, 1)],
        "ticks": [(x(n), n) for n in dict.fromkeys((rounds[0], rounds[len(rounds) // 2], rounds[-1]))],
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": right, "ceiling": TOP, "floor": floor,
    }  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        folder: the folder of its ledger, model and checkpoints.
        stopped: reason of the end: ``"finished"``, ``"stopped"`` (a limit) or ``"interrupted"``.
        lines: its ledger; empty on ranks of a ``torchrun`` job other than the first.
    """

    folder: Path
    stopped: str
    lines: tuple[Line, ...]

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the global model at the last evaluation; None without an evaluation."""
        values = [line.accuracy for line in self.lines if line.accuracy is not None]
        return values[-1] if values else None

    @property
    def headline(self) -> tuple[str, float | None]:
        """Name of the headline metric, ``[evaluate] headline``, and its value at the last evaluation."""
        values = [line.headline for line in self.lines if line.headline[1] is not None]
        return values[-1] if values else ("accuracy", None)

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluation of the final model, ``evaluation.json``, with the confusion matrix, devices and factories.

        Devices that only train have a ``role`` and no accuracy.
        """
        body: dict[str, Any] = json.loads(regular.read_text(self.folder / "evaluation.json"))
        return body

    @property
    def model(self) -> Path:
        """The path of the trained model, a safetensors file."""
        return self.folder / "model.safetensors"

    def _repr_html_(self) -> str:
        return html(self.folder, self.stopped, self.lines)


def default_ranks(engine: EngineSettings | None = None) -> int:
    """Return the default number of ranks: one per core, or per CUDA device."""
    if engine is not None and place.placed(engine.kind, engine.device).device == "cuda":
        return min(place.accelerators(), MOST_RANKS)
    return min(cores(), MOST_RANKS)


def run(
    experiment: Experiment, out: Path | str | None = None, *, ranks: int | None = None, resume: bool = False,
    force: bool = False, limits: Limits | None = None, report: Follow | None = None,
) -> Run:  # fmt: skip
    """Run an experiment and return its run.

    Args:
        experiment: the experiment.
        out: the run's folder; default: ``runs/NAME``.
        ranks: number of processes; default: :func:`default_ranks`.
        resume: whether to continue from the folder's last checkpoint.
        force: whether to resume in spite of a changed experiment, version or CPU.
        limits: conditions for an early stop.
        report: called with each ledger line.

    Raises:
    SettingError: a setting of the experiment is wrong; the message names it.
    RunError: the run failed; its last checkpoint is kept.
    """
    folder = Path(out) if out is not None else Path("runs") / experiment.name
    orders = Orders(folder, resume, force, limits or Limits())
    check_methods(experiment)
    size = default_ranks(experiment.engine) if ranks is None else ranks
    stopped = launch.start(experiment, orders, size, report or launch.ignore)
    lines = ledger.read(folder / "ledger.jsonl") if launch.is_first() else []
    return Run(folder, stopped, tuple(lines))

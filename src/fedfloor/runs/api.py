"""The Python interface to runs: :func:`run`, its :class:`Run`, and its display in a notebook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedfloor.config import check_methods
from fedfloor.engine import place
from fedfloor.engine.team import MOST_RANKS
from fedfloor.experiment import EngineSettings, Experiment
from fedfloor.figures import ACCURACY, LOSS, Figure, named
from fedfloor.machine import cores
from fedfloor.runs import launch, ledger
from fedfloor.runs.ledger import Follow, Line
from fedfloor.runs.orders import Limits, Orders

WIDTH, HEIGHT = 460.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 12.0, 40.0
CURVE = "#2b7bd1"  # visible on white and on near-black


def html(folder: Path, stopped: str, lines: Sequence[Line]) -> str:
    """Return a run as HTML: its last metrics, its headline against rounds, and its folder."""
    figure = named(lines[-1].headline[0]) if lines else ACCURACY
    scored = [(line, value) for line in lines if (value := figure.read(line)) is not None]
    head = f"<p><b>{escape(folder.name)}</b>: {escape(stopped)}"
    head += f" after round {lines[-1].round}, {sum(line.wall_s for line in lines):.1f} s of rounds" if lines else ""
    if scored:
        (last, value), (best, top) = scored[-1], max(scored, key=lambda entry: figure.gain(entry[1], 0.0))
        head += f"<br/>{escape(figure.name)} <b>{value:.4f}</b> (best {top:.4f}, round {best.round})"
        head += "" if last.loss is None or figure == LOSS else f", loss {last.loss:.3f}"
    points = [(line.round, value) for line, value in scored]
    where = f"<p>folder: <code>{escape(str(folder))}</code></p>"
    return f"<div>{head}</p>{curve(points, figure) if points else ''}{where}</div>"


def curve(points: Sequence[tuple[int, float]], figure: Figure = ACCURACY) -> str:
    """Return a metric against rounds as SVG; text and grid have the colour of the surrounding text.

    >>> curve([(1, 0.5), (2, 0.75)]).count("<circle")
    2
    """
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    top = 1.0 if figure.share else max(value for _, value in points) or 1.0
    name = escape(figure.name)

    def x(number: float) -> float:
        return LEFT + (number - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = value / top
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    places = [f"{x(number):.1f},{y(share):.1f}" for number, share in points]
    marks = "".join(
        f'<circle cx="{place.split(",")[0]}" cy="{place.split(",")[1]}" r="3" fill="{CURVE}"/>' for place in places
    )
    line = f'<polyline points="{" ".join(places)}" fill="none" stroke="{CURVE}" stroke-width="2.4"/>'
    grid = "".join(
        f'<path d="M{LEFT:g} {y(share * top):.1f}H{WIDTH - RIGHT:g}" stroke="currentColor" stroke-opacity=".18"/>'
        f'<text x="{LEFT - 6:g}" y="{y(share * top) + 4:.1f}" text-anchor="end">{share * top:.3g}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    ticks = "".join(
        f'<text x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 16:g}" text-anchor="middle">{number}</text>'
        for number in dict.fromkeys((points[0][0], points[len(points) // 2][0], points[-1][0]))
    )
    middle = (HEIGHT - BOTTOM + TOP) / 2
    title = f"{name} {points[-1][1]:.4f} in round {points[-1][0]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'style="width:100%;max-width:{WIDTH:g}px;height:auto;font:12px system-ui,sans-serif;color:inherit">'
        f'<g fill="currentColor">{grid}{ticks}'
        f'<text x="{(LEFT + WIDTH) / 2:g}" y="{HEIGHT - 5:g}" text-anchor="middle">round</text>'
        f'<text transform="translate(12 {middle:g}) rotate(-90)" text-anchor="middle">{name}</text>'
        f"</g>{line}{marks if len(points) <= 40 else ''}</svg>"
    )


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
        body: dict[str, Any] = json.loads((self.folder / "evaluation.json").read_text(encoding="utf-8"))
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

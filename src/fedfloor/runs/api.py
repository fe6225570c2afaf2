"""The library call: ``fedfloor.run(Experiment(...)) -> Run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.config import check_methods
from fedfloor.engine import place
from fedfloor.engine.team import MOST_RANKS
from fedfloor.experiment import EngineSettings, Experiment
from fedfloor.machine import cores
from fedfloor.runs import launch, ledger, notebook
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, Orders


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        folder: where its ledger, model and checkpoints lie.
        stopped: ``"finished"``, ``"stopped"`` (a limit) or ``"interrupted"``.
        lines: its ledger; empty on the other ranks of a ``torchrun`` job.
    """

    folder: Path
    stopped: str
    lines: tuple[Line, ...]

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the global model at the last evaluation."""
        found = [line.accuracy for line in self.lines if line.accuracy is not None]
        return found[-1] if found else None

    @property
    def headline(self) -> tuple[str, float | None]:
        """Name and value, at the last evaluation, of the figure that the run is judged by; ``[evaluate] headline``."""
        found = [line.headline for line in self.lines if line.headline[1] is not None]
        return found[-1] if found else ("accuracy", None)

    @property
    def evaluation(self) -> dict[str, Any]:
        """The final model on the test data: ``evaluation.json``, with the confusion matrix, devices and factories.

        Devices that only train stand in it with their ``role`` and without an accuracy.
        """
        found: dict[str, Any] = json.loads((self.folder / "evaluation.json").read_text(encoding="utf-8"))
        return found

    @property
    def model(self) -> Path:
        """The trained model, a safetensors file."""
        return self.folder / "model.safetensors"

    def _repr_html_(self) -> str:
        return notebook.html(self.folder, self.stopped, self.lines)


def default_ranks(engine: EngineSettings | None = None) -> int:
    """Return how many ranks a run has where nobody says: one per core, or CUDA device.

    Args:
        engine: how plans are carried out; ranks on CPUs where it is left out.
    """
    if engine is not None and place.placed(engine.kind, engine.device).device == "cuda":
        return min(place.accelerators(), MOST_RANKS)
    return min(cores(), MOST_RANKS)


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    ranks: int | None = None,
    resume: bool = False,
    force: bool = False,
    limits: Limits | None = None,
    report: Callable[[Line], None] | None = None,
) -> Run:
    """Run an experiment and return what came of it.

    Args:
        experiment: what to run.
        out: the run's folder; ``runs/NAME`` where it is left out.
        ranks: processes; as many as there are cores where it is left out.
        resume: go on from the folder's last checkpoint.
        force: resume in spite of a changed experiment, version or CPU.
        limits: when to stop early.
        report: called with each ledger line.

    Raises:
        SettingError: something in the experiment is wrong.
        RunError: the run failed; its last checkpoint stays.
    """
    folder = Path(out) if out is not None else Path("runs") / experiment.name
    orders = Orders(folder, resume, force, limits or Limits())
    check_methods(experiment)
    size = default_ranks(experiment.engine) if ranks is None else ranks
    stopped = launch.start(experiment, orders, size, report or launch.ignore)
    lines = ledger.read(folder / "ledger.jsonl") if launch.is_first() else []
    return Run(folder, stopped, tuple(lines))

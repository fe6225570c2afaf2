"""What a run leaves behind beside its ledger: how good the last model is, and the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fedfloor.config import combined
from fedfloor.engine.calibrate import calibrated
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score
from fedfloor.engine.memory import DeviceMemory
from fedfloor.experiment import Experiment
from fedfloor.models.parcel import Packet
from fedfloor.models.saved import COHORTS, DIGEST, FILES, FORMAT, cohort_file
from fedfloor.park.normalised import Normalised
from fedfloor.park.own_scale import FILE
from fedfloor.parts.objectives import spoken
from fedfloor.plan.nodes import model_name
from fedfloor.runs import folder
from fedfloor.runs.decide import Decided
from fedfloor.tasks.classification import CLASSIFICATION


def write_evaluation(
    out: Path, experiment: Experiment, number: int, score: Score, more: Mapping[str, Any] | None = None
) -> None:
    """Write ``evaluation.json``: the figures, the confusion matrix, devices and factories.

    Args:
        out: the run's folder.
        experiment: says on which samples the model was evaluated.
        number: the round it is of.
        score: the evaluation.
        more: of the best round's model, and of what was decided on validation data.
    """
    on = "validation" if experiment.evaluate.on == "validation" else "test"
    told: dict[str, Any] = {"round": number, "on": on}
    told |= {"figures": dict(score.figures)} if score.figures else {}
    told |= {"accuracy": score.accuracy, "loss": score.loss}
    folder.write_json(out / "evaluation.json", told | score.details | dict(more or {}))


def write_memory(out: Path, memory: DeviceMemory) -> None:
    """Write ``memory.json``: what devices keep between visits, in bytes; nothing where they keep nothing.

    Args:
        out: the run's folder.
        memory: of the devices.
    """
    own, extractors = memory.sizes()
    if own:
        told = {"devices": len(own), "bytes_mean": round(sum(own) / len(own)), "bytes_max": max(own)}
        shared = {"extractors": len(extractors), "extractor_bytes": max(extractors, default=0)}
        folder.write_json(out / "memory.json", told | shared)


def write_statistics(out: Path, normalised: Normalised) -> None:
    """Write ``normalisation.json``: what each device was normalised by; nothing where devices keep that to themselves.

    Args:
        out: the run's folder.
        normalised: of the park.
    """
    known = normalised.statistics()
    if known:
        told = {name: {"mean": mean.tolist(), "deviation": std.tolist()} for name, (mean, std) in known.items()}
        folder.write_json(out / FILE, {**normalised.about, "devices": told})


def write_cohorts(
    out: Path, experiment: Experiment, engine: Engine, number: int, packet: Packet, cohorts: Mapping[int, int]
) -> None:
    """Write ``cohorts.json``, which device has which model, and the models but the first, which the run's one is.

    Args:
        out: the run's folder.
        experiment: names the network.
        engine: its network and its park.
        number: the round that the models are of.
        packet: the models.
        cohorts: device → number of its model.
    """
    for cohort in sorted(set(range(1, len(packet))) & {*cohorts.values()}):
        made = Decided("last", number, packet[model_name(cohort)])
        write_model(out, experiment, engine, made, cohort_file(cohort))
    names = engine.park.names
    folder.write_json(out / COHORTS, {names[k] if names else str(k): cohort for k, cohort in sorted(cohorts.items())})


def write_model(out: Path, experiment: Experiment, engine: Engine, made: Decided, name: str | None = None) -> None:
    """Write the last or the best round's model: named tensors, all that is needed to use them, and the digest.

    Args:
        out: the run's folder.
        experiment: names the network.
        engine: its network and its park.
        made: the model, and what is decided by it.
        name: of the file, where it is not the run's one model.
    """
    data = engine.park.dataset
    own: dict[str, Any] = {}
    if engine.park.normalised is not None:
        own = dict(engine.park.normalised.about)
        write_statistics(out, engine.park.normalised)
    goal, settings = spoken(combined(experiment).objective)
    about = {
        "format": FORMAT,
        "model": experiment.model.name,
        "classifier": engine.network.classifier,
        "made": {"classifier": experiment.model.classifier, "objective": [goal, settings]},
        "round": made.round,
        "shape": list(data.shape),
        "classes": list(data.classes),
        "inputs": data.inputs.describe(),
        "normalise": {"scale": data.scale, "mean": engine.mean.tolist(), "std": engine.std.tolist()} | own,
    }
    if data.task != CLASSIFICATION:
        engine.network.flat.copy_(made.model)
        about["task"] = calibrated(engine).describe()
    if made.decision is not None:
        about["decide"] = made.header
    tensors = engine.network.state(made.model)
    # one metadata key: several would be written in an order that differs from process to process
    file, path = save(tensors, metadata={"fedfloor": json.dumps(about)}), out / (name or FILES[made.which])
    beside = path.with_name(path.name + DIGEST)
    beside.unlink(missing_ok=True)  # first, as a kill may come in between: a model without a digest is not checked
    folder.write(path, file)
    folder.write(beside, f"{hashlib.sha256(file).hexdigest()}  {path.name}\n")

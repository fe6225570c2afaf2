"""The files of a run other than its ledger: results, coverage, privacy, divergence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from fedfloor.base import regular
from fedfloor.base.errors import DivergedError, RunError
from fedfloor.base.outside import blamed
from fedfloor.base.strict import json_text
from fedfloor.data.dataset import Dataset
from fedfloor.engine.calibrate import calibrated
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score, evaluate
from fedfloor.engine.local_update import personal
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.questions import question
from fedfloor.experiment import Experiment, FaultSettings
from fedfloor.models.parcel import Packet
from fedfloor.models.saved import DEVICES, DIGEST, FILES, FORMAT, cohort_file
from fedfloor.park.normalise import FILE, Normalise, steps
from fedfloor.park.park import Park
from fedfloor.park.privacy import composed
from fedfloor.park.stream import Windows
from fedfloor.park.survey import REVEALS
from fedfloor.parts.objectives.registry import to_spec
from fedfloor.plan import visit_order
from fedfloor.plan.drivers import Dry
from fedfloor.plan.nodes import Node, Train, keeping, model_name
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.plan.schedule import Answers, NodeResult, ParallelRequest, ProbeRequest, RoundContext, SelectRequest
from fedfloor.runs import folder, ledger, privacy
from fedfloor.runs.decide import Decided
from fedfloor.runs.folder import write_json
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.figures import Figure


def write_evaluation(
    out: Path, experiment: Experiment, number: int, score: Score, more: Mapping[str, Any] | None = None
) -> None:
    """Write ``evaluation.json``: the metrics, the confusion matrix, devices and factories, and ``more``."""
    on = "validation" if experiment.evaluate.on == "validation" else "test"
    body: dict[str, Any] = {"round": number, "on": on} | ({"figures": dict(score.figures)} if score.figures else {})
    body |= {"accuracy": score.accuracy, "loss": score.loss}
    folder.write_json(out / "evaluation.json", body | score.details | dict(more or {}))


def seeded(experiment: Experiment, data: Dataset) -> bool:
    """Return whether another seed may give another result, by draws of the method, of samples or of faults."""
    chosen = data.split not in ("", "time", "last") or data.made is not None or experiment.evaluate.on != "test"
    return experiment.configured.needs.draws or chosen or experiment.faults != FaultSettings()


def of_shared(engine: Engine, model: Tensor, headline: Figure, own: str) -> dict[str, Any]:
    """Return the entry ``shared`` of ``evaluation.json``: the metrics of the shared model besides personal models.

    It has the metrics over all devices and of each device, and under ``sends`` the share of the model's parameters that
    a device sends if it keeps the part ``own``. To be called on every rank.
    """
    score = evaluate(engine, model, headline=headline)
    kept = ("device", "accuracy", "figures")
    devices = [{key: place[key] for key in kept if key in place} for place in score.details["devices"]]
    parcel = engine.network.parcel("all" if own in ("", "all") else keeping(own))
    body = {"accuracy": score.accuracy, "loss": score.loss, "figures": dict(score.figures), "devices": devices}
    return {"shared": body | {"sends": parcel.numbers / parcel.model}}


def write_memory(out: Path, memory: DeviceMemory) -> None:
    """Write ``memory.json``, the bytes that devices keep between visits; no file if they keep none."""
    own, extractors = memory.sizes()
    if own:
        sizes = {"devices": len(own), "bytes_mean": round(sum(own) / len(own)), "bytes_max": max(own)}
        shared = {"extractors": len(extractors), "extractor_bytes": max(extractors, default=0)}
        folder.write_json(out / "memory.json", sizes | shared)


def write_devices(
    out: Path, experiment: Experiment, engine: Engine, number: int, packet: Packet, cohorts: Mapping[int, int]
) -> None:
    """Write the cohorts' models except the first, and ``devices.json``, which names the file of each device's model."""
    for cohort in sorted(set(range(1, len(packet))) & {*cohorts.values()}):
        made = Decided("last", number, packet[model_name(cohort)])
        write_model(out, experiment, engine, made, cohort_file(cohort))
    names = engine.park.names
    records = dict[str, dict[str, Any]]()
    for k in range(engine.park.devices):
        if engine.executor is not None:
            stays = experiment.configured.needs.own if k in engine.memory.held else ""
            file = f"memory/{engine.memory.file_name(k)}" if stays else FILES["last"]
            record: dict[str, Any] = {"file": file, "stays": stays, "run": folder.identity(out)}
        else:
            path = engine.memory.path(k) if not cohorts else None
            record = {"file": cohort_file(cohorts.get(k, 0)) if path is None else f"{path.parent.name}/{path.name}"}
        records[names[k] if names else str(k)] = record
        if engine.task.apart or ("/" in record["file"] and engine.executor is None and engine.task.calibrates):
            own = personal(engine, k, packet["w"]) if "/" in record["file"] else packet[model_name(cohorts.get(k, 0))]
            engine.network.flat.copy_(own)
            record["task"] = calibrated(engine, k).describe()
    folder.write_json(out / DEVICES, records)


def write_model(out: Path, experiment: Experiment, engine: Engine, made: Decided, name: str | None = None) -> None:
    """Write a model's file, with named tensors and all metadata for its use, and the file's digest."""
    data = engine.park.dataset
    own: dict[str, Any] = {}
    if engine.park.normalised is not None:  # mean and deviation of each device, unless they are private
        own = dict(engine.park.normalised.about)
        known = engine.park.normalised.statistics()
        devices = {name: {"mean": mean.tolist(), "deviation": std.tolist()} for name, (mean, std) in known.items()}
        if devices:
            folder.write_json(out / FILE, {**own, "devices": devices})
    goal, settings = to_spec(experiment.configured.objective)
    built: dict[str, Any] = {"classifier": experiment.model.classifier, "objective": [goal, settings]}
    if experiment.model.settings is not None:
        built["settings"] = experiment.model.settings
    about = {
        "format": FORMAT,
        "model": experiment.model.name,
        "classifier": engine.network.classifier,
        "made": built,
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
    # a single metadata key, as the order of several would differ between processes
    file = save(tensors, metadata={"fedfloor": json_text(about)})
    path = out / (name or FILES[made.which])
    beside = path.with_name(path.name + DIGEST)
    beside.unlink(missing_ok=True)  # deleted first, in case of a kill: a model without a digest is not checked
    folder.write(path, file)
    folder.write(beside, f"{hashlib.sha256(file).hexdigest()}  {path.name}\n")


class Coverage:
    """A counter of the training samples per class in a park's rounds, with a stream cache separate from the park's.

    A visit with work in epochs trains on each of its samples once per epoch. A visit with work in steps trains on
    steps · min(batch size, n) of its n samples, distributed over the classes in the same proportions: exact if
    mini-batches use all n equally often, an expectation otherwise. Lost visits count as zero.
    """

    def __init__(self, park: Park) -> None:
        self.park = park
        labels = park.dataset.labels
        self._windows = Windows(park.stream, park.seed, labels, park.indices, len(park.dataset.classes))

    def of(self, outcome: Outcome, visits: Mapping[int, int]) -> dict[str, list[float]]:
        """Return a round's ``samples`` and ``devices`` per class, [F] each; ``visits`` are those of earlier rounds."""
        classes = len(self.park.dataset.classes)
        seen = Counter(visits)
        samples = np.zeros(classes)
        covered: dict[int, NDArray[np.bool_]] = {}
        for train, receipt in zip(visit_order.in_order(outcome.resolved), outcome.receipts, strict=True):
            if receipt.lost:
                continue
            devices = range(self.park.devices) if receipt.device < 0 else (receipt.device,)
            counts = self._counts(devices, receipt, seen[receipt.device])
            seen[receipt.device] += 1
            work = train.work
            held = int(counts.sum())
            passes = work.epochs if work.steps is None else work.steps * min(work.batch_size, held) / held
            samples += counts.sum(axis=0) * float(passes or 0)
            for device, row in zip(devices, counts > 0, strict=True):
                covered[device] = covered[device] | row if device in covered else row
        devices_of = np.sum(list(covered.values()), axis=0) if covered else np.zeros(classes)
        return {"samples": samples.round(3).tolist(), "devices": devices_of.astype(int).tolist()}

    def _counts(self, devices: Sequence[int], receipt: Receipt, visits: int) -> NDArray[np.int64]:
        """Return int64 [len(devices), F], the class counts of devices at a visit, without noise."""
        if self.park.stream.kind == "static":
            return self.park.counts_of(np.asarray(devices, np.int64))
        now = self._windows.at(devices, receipt.tick, [visits] * len(devices))
        return np.array([block.counts[position - block.first] for block, position in now], np.int64)


log = logging.getLogger(__name__)

DELTA = 1e-5
SECRET = "secret"
SEEDED = "seeded"
SEEDED_NOTE = (
    "The noise is drawn from the experiment's public seed: it shows the cost of privacy and gives no protection. ε is "
    "valid on real machines, whose noise is secret."
)


def reports(experiment: Experiment, plan: Node, before: int = 0) -> Counter[int]:
    """Return the number of census reports of each device in a round; empty if censuses contain no noise.

    A ``Probe`` for the census or the classes, and a ``Select`` whose policy reads the census, cause reports of all
    their devices. Repeated reports in the same tick are identical and count once, except for recycled streams, where
    a visit may have changed the window: there every question counts, which is an upper bound.
    """
    epsilon = experiment.park.census_epsilon
    if epsilon is None or math.isinf(epsilon):
        return Counter()
    walked = _CensusReports()
    walked.over(plan, RoundContext(0, 0))
    at_once = set(walked.reports)
    reports = walked.reports + [(device, 0) for device in range(before) if (device, 0) not in at_once]
    return Counter(device for device, _ in (reports if experiment.data.stream.kind == "recycle" else set(reports)))


class _CensusReports(Dry):
    """An executor that records (device, tick) of every census report."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, int]] = []

    def probe(self, request: ProbeRequest) -> Answers:
        """Record a question for class counts; those of the whole local data are the same at every tick."""
        kind = question(request.node)
        self.reports += [
            (device, request.tick if kind.drifts else -1) for device in request.node.devices if kind.counts
        ]
        return {}

    def select(self, request: SelectRequest) -> Sequence[int]:
        if request.node.reads_census:
            self.reports += [(device, request.tick) for device in request.node.candidates]
        return super().select(request)

    def parallel(self, request: ParallelRequest) -> NodeResult:
        mine = [index for index, child in enumerate(request.node.children) if not isinstance(child, Train)]
        for branch in request.branches(mine):
            self.branch(branch, request)
        return NodeResult(request.packet, request.node)


def write_privacy(
    out: Path, experiment: Experiment, counted: Mapping[int, int], park: Park,
    models: Mapping[str, Mapping[str, Any]] | None = None, exact: Mapping[str, Mapping[str, Any]] | None = None,
    *, secret: bool = False,
) -> None:  # fmt: skip
    """Write ``privacy.json``: the privacy loss of noisy models and censuses, and all answers without noise.

    A window of n contains a sample up to ⌈n/size⌉ times, so that a report multiplies its ε by that number.
    """
    source = {"noise": SECRET} if secret else {"noise": SEEDED, "note": SEEDED_NOTE}
    revealed = asked(park, experiment.data.normalise)
    epsilon = experiment.park.census_epsilon
    if epsilon is not None and not math.isinf(epsilon):
        revealed |= {**_censuses(epsilon, counted, park, secret=secret), **source}
    revealed |= {name: {**about, **source} for name, about in (models or {}).items()}
    revealed |= {"answers": dict(exact)} if exact else {}
    if revealed:
        folder.write_json(out / privacy.STATEMENT, revealed)


def asked(park: Park, normalise: Normalise) -> dict[str, Any]:
    """Return the answers to the normalisation's questions that each device sends without noise."""
    questions = [step for step in steps(park, normalise) if step.up]
    if not questions:
        return {}
    kinds = Counter(step.kind for step in questions)
    about = {"questions": len(questions), "bytes_up": sum(step.up for step in questions), "noise": "none"}
    answers = {kind: {"times": times, "reveals": REVEALS[kind]} for kind, times in kinds.items()}
    return {"normalise": {**about, "answers": answers}}


def _censuses(epsilon: float, counted: Mapping[int, int], park: Park, *, secret: bool) -> dict[str, Any]:
    times = -(-park.holdings // park.sizes)
    worst = max(counted, key=lambda k: counted[k] * int(times[k]), default=None)
    most, each = (0, epsilon) if worst is None else (counted[worst], epsilon * int(times[worst]))
    whole = composed(each, most)
    advanced = composed(each, most, DELTA)
    figures = {"census_epsilon": epsilon, "report_epsilon": each, "reports": most, "epsilon": whole}
    figures |= {"epsilon_advanced": advanced, "delta": DELTA}
    if not most:
        log.info("census: no device reported its class counts.")
        return figures
    log.info(
        "census: at most %d reports of a device with ε = %g each, together ε = %g (or ε = %.4g with δ = %g).",
        most, each, whole, advanced, DELTA,
    )  # fmt: skip
    if not secret:
        log.info("census: %s", SEEDED_NOTE)
    if each > epsilon:
        log.warning(
            "census: windows hold samples of device %d up to %d times, which multiplies the park.census_epsilon of a "
            "report.", worst, int(times[worst]),
        )  # fmt: skip
    return figures


NAME = "diverged.json"
FAILED = "failed.json"
WAITING = "waiting.json"


@contextmanager
def noted(folder: Path) -> Iterator[None]:
    """Record the round, which follows the ledger's last one, if training diverges in the body."""
    try:
        yield
    except DivergedError as error:
        with contextlib.suppress(RunError):  # the first error takes precedence
            path = folder / "ledger.jsonl"
            lines = ledger.read(path) if path.exists() else []
            write_json(folder / NAME, {"round": lines[-1].round + 1 if lines else 1, "why": str(error)})
        raise


def write_failure(folder: Path, number: int, error: Exception) -> None:
    """Record the error of a failed round, unless training diverged, which :func:`noted` records."""
    if not isinstance(error, DivergedError):
        write_json(folder / FAILED, {"round": number, "why": str(blamed(error) or error) or type(error).__name__})


@dataclass(frozen=True)
class Wait:
    """A round of real machines that waits for devices, as ``waiting.json`` has it.

    Args:
        round: its number.
        why: what is missing.
        since, until: the start and the latest end of the wait, s since 1970.
    """

    round: int
    why: str
    since: float
    until: float


def write_wait(folder: Path, wait: Wait | None) -> None:
    """Record for the page that a round waits, if the disk allows; None: it no longer does."""
    with contextlib.suppress(OSError, RunError):
        if wait is None:
            (folder / WAITING).unlink(missing_ok=True)
        else:
            write_json(folder / WAITING, asdict(wait))


def forget(folder: Path) -> None:
    """Delete the record of an earlier divergence, failure or wait."""
    for name in (NAME, FAILED, WAITING):
        (folder / name).unlink(missing_ok=True)


def round_of(folder: Path) -> int | None:
    """Return the round in which a run diverged, or None if it did not."""
    path = folder / NAME
    return int(json.loads(regular.read_text(path))["round"]) if path.exists() else None

"""The cohort engine: simultaneous jobs with the same work are trained as one stack."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from fedfloor.base.errors import RunError
from fedfloor.data.dataset import Indices
from fedfloor.engine import union
from fedfloor.engine.aggregation import Aggregation, kept
from fedfloor.engine.cohort import data, forward, visits, walk
from fedfloor.engine.cohort.data import Pool, Resident
from fedfloor.engine.cohort.forward import Chooser
from fedfloor.engine.cohort.program import Order, Program, Recorded, Spec, refusal
from fedfloor.engine.cohort.walk import CohortAnswer, Job, UnionJob, VisitJob, settled, work_of
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.executor import LOCAL
from fedfloor.engine.visit import VisitStats
from fedfloor.models.parcel import Packet
from fedfloor.parts.objectives import registry as objectives
from fedfloor.plan import drivers
from fedfloor.plan.nodes import Parallel
from fedfloor.plan.schedule import NodeResult, ParallelRequest, Walking

if TYPE_CHECKING:
    from fedfloor.engine.ranks import Trainer

log = logging.getLogger(__name__)

Precision = Literal["float32", "tf32", "bf16"]
PROGRAMS = 6  # programs that are kept: each recorded step occupies its memory


@dataclass(eq=False)
class Cohort:
    """The training of many devices as one stack, on the accelerator or CPU that holds the engine's network.

    Args:
        precision: the precision of matrix products on an accelerator: ``float32``, ``tf32``, or ``bf16`` by autocast.
        fixed: whether steps reuse their buffers from visit to visit, as CUDA graphs must; None: on CUDA.
    """

    precision: Precision = "float32"
    room_bytes: int | None = None  # memory for models and activations; None: most of the free memory
    record: bool = True  # whether steps are recorded as CUDA graphs on CUDA devices
    fixed: bool | None = None
    _programs: OrderedDict[tuple[object, ...], Program] = field(default_factory=OrderedDict, repr=False)
    _resident: Resident | None = field(default=None, repr=False)
    _forwards: dict[str, str | forward.Forward] = field(default_factory=dict, repr=False)
    _logged: set[str] = field(default_factory=set, repr=False)
    _chooser: Chooser = field(default_factory=Chooser, repr=False)
    _fitting: dict[int, int] = field(default_factory=dict, repr=False)
    _most: int | None = field(default=None, repr=False)

    # -- walking ----------------------------------------------------------------------------------------------------

    def walk(self, trainer: Trainer, walking: Walking) -> NodeResult:
        walked = walk.driven(trainer, walking, self._room(trainer.engine))
        result = drivers.driven(walked, lambda jobs: self.done(jobs, trainer.extractor))
        return replace(result, receipts=settled(result.receipts))

    def branches(
        self, trainer: Trainer, request: ParallelRequest, mine: Collection[int]
    ) -> tuple[Aggregation, list[NodeResult]]:
        branches = walk.branches(trainer, request, mine, self._room(trainer.engine))
        aggregation, done = drivers.driven(branches, lambda jobs: self.done(jobs, trainer.extractor))
        return aggregation, [replace(result, receipts=settled(result.receipts)) for result in done]

    def _room(self, engine: Engine) -> int:
        """Return the number of models that fit; compute the engine's cached properties before branches copy it."""
        _ = engine.separable, engine.headed
        return data.models(self.room_bytes, engine)

    def unites(self, engine: Engine, node: Parallel, packet: Packet) -> bool:
        return union.fits(engine, node, packet) and not self.refused(engine)

    # -- requests -------------------------------------------------------------------------------------------------

    def done(self, jobs: Sequence[Job], extractor: FrozenExtractor) -> list[CohortAnswer]:
        """Carry out jobs, those of equal work as one stack, the rest one by one; return their answers in order."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, job in enumerate(jobs):
            kind = (type(job), *visits.alike(work_of(job)), tuple(sorted(job.packet)))
            groups.setdefault(kind, []).append(index)
        answers: dict[int, CohortAnswer] = {}
        for places in groups.values():
            answers.update(zip(places, self._alike([jobs[index] for index in places], extractor), strict=True))
        return [answers[index] for index in range(len(jobs))]

    def _alike(self, jobs: list[Job], extractor: FrozenExtractor) -> list[CohortAnswer]:
        engine = jobs[0].engine
        if isinstance(jobs[0], VisitJob):
            work = jobs[0].work
            why = self.refused(engine) or refusal(work.objective, objectives.objective(work.objective, work.settings))
            if not why and not work.only(*visits.STACKED):
                why = "their work has fields that a cohort does not implement"
            if why:
                self._log(engine, f"visits are computed one by one: {why}.")
                return [self._alone(job, extractor) for job in jobs if isinstance(job, VisitJob)]
        batch = data.batch(engine, jobs[0])
        if batch not in self._fitting:
            self._fitting[batch] = data.stackable(self.room_bytes, engine, batch)
        most = min(self._most or len(jobs), self._fitting[batch])
        if most < len(jobs):
            self._log(engine, f"{len(jobs)} devices do not fit into memory together: {most} are trained at a time.")
        answers: list[CohortAnswer] = []
        while len(answers) < len(jobs):
            part = jobs[len(answers) : len(answers) + most]
            try:
                answers += self._together(part, extractor)
            except torch.cuda.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self._programs.clear()
                torch.cuda.empty_cache()
                self._most = most = max(1, len(part) // 2)
                self._log(
                    engine, f"the accelerator's memory is full: {most} devices are trained at a time from now on."
                )
        return answers

    def _together(self, jobs: Sequence[Job], extractor: FrozenExtractor) -> list[CohortAnswer]:
        if isinstance(jobs[0], UnionJob):
            return visits.united(self, cast("Sequence[UnionJob]", jobs))
        return visits.visited(self, cast("Sequence[VisitJob]", jobs), extractor)

    def _alone(self, job: VisitJob, extractor: FrozenExtractor) -> CohortAnswer:
        carried = LOCAL.visit(job.engine, job.work, job.packet, job.key, extractor)
        if carried is None:
            return CohortAnswer(job.packet, list, lost=True)
        sent, receipt = carried
        stats = VisitStats(receipt.steps, receipt.loss_first, receipt.loss_last, receipt.accuracy)
        return CohortAnswer(kept(sent, job.engine.network.flat), lambda: [stats], receipt.memory, receipt.samples)

    def refused(self, engine: Engine) -> str:
        """Return the reason why an engine's network cannot be stacked, or "" if it can."""
        forward_or_reason = self._forward(engine, "")
        return forward_or_reason if isinstance(forward_or_reason, str) else ""

    def _forward(self, engine: Engine, path: str) -> forward.Forward | str:
        if path not in self._forwards:
            network = engine.network
            made, kind = forward.stacked(network, self._chooser.convolve, path)
            why = "" if engine.separable else "batch norm or dropout, or another layer that mixes samples"
            if not why and not path:
                why = forward.agrees(network, made, engine.park.dataset.shape)
            name = type(network.module).__name__
            self._forwards[path] = f"model '{name}' cannot be stacked ({why})" if why else made
            if not why and kind == "vmap" and not path:
                self._log(engine, f"model '{name}' is not a plain chain of known layers: torch.func.vmap stacks it.")
        return self._forwards[path]

    # -- what visits need -------------------------------------------------------------------------------------------

    def samples(self, engine: Engine, wanted: Sequence[data.Whose]) -> tuple[Pool, list[list[Indices]]]:
        """Return the pool with the samples of groups of devices, and each device's present rows in it, by group."""
        if self._resident is None and data.fits(engine):
            self._resident = Resident(engine)
        return data.held(engine, self._resident, wanted)

    def program(self, spec: Spec, engine: Engine, pool: Pool, *, headed: bool) -> Program:
        """Return the program of a specification; on an accelerator a kept program is used again where it fits."""
        network = engine.network
        made = self._forward(engine, (network.classifier or "") if headed else "")
        if isinstance(made, str):
            raise RunError(f"{made}: its visits cannot be computed as one stack.")
        if not self._stays(network.flat.device):
            return Program(spec, network, made, pool)
        resident = self._resident is not None and pool is self._resident.pool
        spec = replace(spec, models=data.rounded(spec.models), steps=1 << (spec.steps - 1).bit_length())
        key = (spec, headed, resident, pool.x.shape[1:], pool.x.dtype)
        program = self._programs.pop(key, None)
        if program is None:
            while len(self._programs) >= PROGRAMS:
                self._programs.popitem(last=False)
            program = Program(spec, network, made, pool)
        elif not resident:
            before = program.pool.x.data_ptr()
            program.pool.put(pool.x, pool.y)
            if program.pool.x.data_ptr() != before:
                program.recorded = None
        self._programs[key] = program
        return program

    def run(
        self, program: Program, weights: Tensor, rate: float, plan: Order, anchors: list[Tensor], height: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Execute all steps of a program; return the losses and the numbers of correctly classified samples, [S, K]."""
        steps = len(plan.many)
        many = len(weights)
        # no cache of cast weights, as they change in between; disabled unless bf16
        with torch.autocast(weights.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False):
            recorded = self._record(program, plan) if self.record and self._stays(weights.device) else None
            program.load(weights, rate, plan, anchors, height)
            if recorded is not None:
                recorded.replay(plan.many.tolist())
            else:
                for at, live in enumerate(plan.many.tolist()):
                    program.step(at, live)
        return program.losses[:steps, :many].clone(), program.hits[:steps, :many].clone()

    def _record(self, program: Program, plan: Order) -> Recorded | None:
        """Return a program's recorded steps with those that a plan needs; None where they cannot be recorded."""
        device = program.weights.device
        try:
            if program.recorded is None:
                program.recorded = Recorded(program.step_at, program.spec.models, device)
            program.share.zero_()
            program.recorded.prepare(plan.many.tolist())
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.record = False
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            log.warning("steps are not recorded as CUDA graphs: %s", str(error).splitlines()[0])
            return None
        return program.recorded

    def _stays(self, device: torch.device) -> bool:
        return device.type == "cuda" if self.fixed is None else self.fixed

    def _log(self, engine: Engine, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            if engine.team.rank == 0:
                log.info("%s", text)

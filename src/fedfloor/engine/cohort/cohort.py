"""The cohort engine: whoever asks for the same work at the same time is stepped together."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedfloor.data.dataset import Indices
from fedfloor.engine import local_update, union
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.cohort import data, forward, visits, walk
from fedfloor.engine.cohort.data import Pool, Resident
from fedfloor.engine.cohort.forward import Chooser
from fedfloor.engine.cohort.program import Order, Program, Recorded, Spec, refusal
from fedfloor.engine.cohort.walk import Ask, CohortAnswer, Driven, Uniting, Visiting, settled, work_of
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.visit import VisitStats
from fedfloor.errors import RunError
from fedfloor.models.parcel import Packet
from fedfloor.parts import objectives
from fedfloor.plan.nodes import Parallel
from fedfloor.plan.schedule import NodeResult, ParallelRequest, Walking

if TYPE_CHECKING:
    from fedfloor.engine.ranks import Trainer

log = logging.getLogger(__name__)

Precision = Literal["float32", "tf32", "bf16"]
PROGRAMS = 6  # kept: a recorded step holds on to its memory


@dataclass(eq=False)
class Cohort:
    """Steps many devices together, on the device that the engine's network lies on.

    Args:
        precision: of matrix products on an accelerator: ``float32``, ``tf32``, or ``bf16`` by autocast.
        room_bytes: what models and activations may take at a time; None: most of what is free.
        record: whether steps are recorded as CUDA graphs, where there is CUDA.
        fixed: whether steps have buffers that stay from visit to visit, as recorded ones must; None: on CUDA.
    """

    precision: Precision = "float32"
    room_bytes: int | None = None
    record: bool = True
    fixed: bool | None = None
    _programs: OrderedDict[tuple[object, ...], Program] = field(default_factory=OrderedDict, repr=False)
    _resident: Resident | None = field(default=None, repr=False)
    _looked: dict[str, str | forward.Forward] = field(default_factory=dict, repr=False)
    _said: set[str] = field(default_factory=set, repr=False)
    _chooser: Chooser = field(default_factory=Chooser, repr=False)
    _fitting: dict[int, int] = field(default_factory=dict, repr=False)
    _most: int | None = field(default=None, repr=False)

    # -- walking ----------------------------------------------------------------------------------------------------

    def walk(self, trainer: Trainer, walking: Walking) -> NodeResult:
        """Drive a walk, as a rank does by itself."""
        driven = walk.driven(trainer, walking, self._room(trainer.engine))
        passed = walk.answered(driven, lambda asks: self.done(asks, trainer.extractor))
        return replace(passed, receipts=settled(passed.receipts))

    def branches(
        self, trainer: Trainer, request: ParallelRequest, mine: Collection[int]
    ) -> tuple[Aggregation, list[NodeResult]]:
        """Walk the branches ``mine`` of a ``Parallel``."""
        room, met = self._room(trainer.engine), list[tuple[Aggregation, list[NodeResult]]]()

        def whole() -> Driven:
            met.append((yield from walk.branches(trainer, request, mine, room)))
            return NodeResult({}, request.node)

        walk.answered(whole(), lambda asks: self.done(asks, trainer.extractor))
        aggregation, done = met[0]
        return aggregation, [replace(one, receipts=settled(one.receipts)) for one in done]

    def _room(self, engine: Engine) -> int:
        """Return how many models there is room for; what the engine finds out once is known to its branches' copies."""
        _ = engine.separable, engine.headed
        return data.models(self.room_bytes, engine)

    def unites(self, engine: Engine, node: Parallel, packet: Packet) -> bool:
        """Return whether a node is a super node that is done in one step."""
        return union.fits(engine, node, packet) and not self.refused(engine)

    # -- requests -------------------------------------------------------------------------------------------------

    def done(self, asks: Sequence[Ask], extractor: FrozenExtractor) -> list[CohortAnswer]:
        """Do what is asked for: what is alike together, the rest one by one."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, one in enumerate(asks):
            kind = (type(one), *visits.alike(work_of(one)), tuple(sorted(one.packet)))
            groups.setdefault(kind, []).append(index)
        answers: dict[int, CohortAnswer] = {}
        for places in groups.values():
            for index, answer in zip(places, self._alike([asks[index] for index in places], extractor), strict=True):
                answers[index] = answer
        return [answers[index] for index in range(len(asks))]

    def _alike(self, asks: list[Ask], extractor: FrozenExtractor) -> list[CohortAnswer]:
        engine = asks[0].engine
        if isinstance(asks[0], Visiting):
            work = asks[0].work
            why = self.refused(engine) or refusal(work.objective, objectives.objective(work.objective, work.settings))
            if not why and not work.only(*visits.FIELDS):
                why = "their work has fields that a cohort does not implement"
            if why:
                self._say(engine, f"visits are done one by one: {why}.")
                return [self._alone(one, extractor) for one in asks if isinstance(one, Visiting)]
        most = min(self._most or len(asks), self._stackable(engine, asks))
        if most < len(asks):
            self._say(engine, f"{len(asks)} devices do not fit side by side: {most} at a time.")
        answers: list[CohortAnswer] = []
        while len(answers) < len(asks):
            part = asks[len(answers) : len(answers) + most]
            try:
                answers += self._together(part, extractor)
            except torch.cuda.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self._forget()
                self._most = most = max(1, len(part) // 2)
                self._say(engine, f"the accelerator's memory is full: {most} devices at a time from now on.")
        return answers

    def _stackable(self, engine: Engine, asks: Sequence[Ask]) -> int:
        """Return how many of these fit side by side; worked out once for a size of mini-batch."""
        batch = data.batch(engine, asks[0])
        if batch not in self._fitting:
            self._fitting[batch] = data.stackable(self.room_bytes, engine, batch)
        return self._fitting[batch]

    def _together(self, asks: Sequence[Ask], extractor: FrozenExtractor) -> list[CohortAnswer]:
        united = [one for one in asks if isinstance(one, Uniting)]
        if united:
            return visits.united(self, united)
        return visits.visited(self, [one for one in asks if isinstance(one, Visiting)], extractor)

    def _alone(self, ask: Visiting, extractor: FrozenExtractor) -> CohortAnswer:
        sent, receipt = local_update.local_update(ask.engine, ask.work, ask.packet, ask.key, extractor)
        own = ask.engine.network.flat
        packet = {name: value.clone() if value is own else value for name, value in sent.items()}
        stats = VisitStats(receipt.steps, receipt.loss_first, receipt.loss_last, receipt.accuracy)
        return CohortAnswer(packet, lambda: [stats], receipt.memory, receipt.samples)

    def refused(self, engine: Engine) -> str:
        """Return why an engine's network cannot be stacked; nothing where it can."""
        forward_or_reason = self._forward(engine, "")
        return forward_or_reason if isinstance(forward_or_reason, str) else ""

    def _forward(self, engine: Engine, path: str) -> forward.Forward | str:
        if path not in self._looked:
            network = engine.network
            made, kind = forward.stacked(network, self._chooser.convolve, path)
            why = "" if engine.separable else "batch norm or dropout, or another layer that mixes samples"
            if not why and not path:
                why = forward.agrees(network, made, engine.park.dataset.shape)
            name = type(network.module).__name__
            self._looked[path] = f"model '{name}' cannot be stacked ({why})" if why else made
            if not why and kind == "vmap" and not path:
                self._say(
                    engine, f"model '{name}' is no plain chain of known layers: it is stacked by torch.func.vmap."
                )
        return self._looked[path]

    # -- what visits need -------------------------------------------------------------------------------------------

    def samples(self, engine: Engine, wanted: Sequence[data.Whose]) -> tuple[Pool, list[list[Indices]]]:
        """Return where the samples of groups of devices lie, and which rows each device holds now."""
        if self._resident is None and data.fits(engine):
            self._resident = Resident(engine)
        return data.held(engine, self._resident, wanted)

    def program(self, spec: Spec, engine: Engine, pool: Pool, *, headed: bool) -> Program:
        """Return a program; on an accelerator one that is kept, where there is one."""
        network = engine.network
        made = self._forward(engine, (network.classifier or "") if headed else "")
        if isinstance(made, str):
            raise RunError(f"{made}: its visits go one by one.")
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
        """Take all steps of a program; return losses and hits, [S, K]."""
        steps, many = len(plan.many), len(weights)
        with self._casting(weights.device):
            recorded = self._record(program, plan) if self.record and self._stays(weights.device) else None
            program.load(weights, rate, plan, anchors, height)
            if recorded is not None:
                recorded.replay(plan.many.tolist())
            else:
                for at, live in enumerate(plan.many.tolist()):
                    program.step(at, live)
        return program.losses[:steps, :many].clone(), program.hits[:steps, :many].clone()

    def _record(self, program: Program, plan: Order) -> Recorded | None:
        """Return a program's recorded steps, those of a plan among them; None where they cannot be recorded."""
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

    def _casting(self, device: torch.device) -> AbstractContextManager[object]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)  # weights change in between

    def _forget(self) -> None:
        self._programs.clear()
        torch.cuda.empty_cache()

    def _say(self, engine: Engine, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            if engine.team.rank == 0:
                log.info("%s", text)

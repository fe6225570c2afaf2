"""What a cohort does where memory is short: gradients over all samples, and visits that memory ran out for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cohorts import floor_
from fedfloor.engine.cohort import data, visits
from fedfloor.engine.cohort.cohort import Cohort
from fedfloor.engine.cohort.program import Program
from fedfloor.park.stream import Recycle
from rounds import Job, method


def test_activations_by_hand() -> None:
    """Samples 2 × 5 × 7 and kernels of 3 × 2 give 3 × 3 × 6 = 54 numbers from 18 patches of 2 · 6; 4 outputs follow."""
    module = nn.Sequential(nn.Conv2d(2, 3, (3, 2)), nn.Flatten(), nn.Linear(54, 4)).train()
    network = SimpleNamespace(module=module, flat=torch.zeros(1))
    of = SimpleNamespace(network=network, park=SimpleNamespace(dataset=SimpleNamespace(shape=(2, 5, 7))))
    assert data.activations(of) == 2 * 5 * 7 + 54 + 18 * 2 * 6 + 54 + 4  # type: ignore[arg-type]
    assert module.training
    assert not module[0]._forward_hooks


def test_gradients_over_all_samples_take_the_room_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FEDL's are of all of a device's samples, up to ten, at once; its steps are of four. Six models fit with four."""
    jobs = [Job(method("fedl"), floor_(), folder=tmp_path / str(side)) for side in (0, 1)]
    cohort = Cohort()
    of = jobs[1].engine
    together = list[int]()
    of.cohort = cohort
    cohort.room_bytes = 6 * int(data.COPIES * of.network.flat.numel() + data.UNFOLDED * 4 * data.activations(of)) * 4
    asked = Program.gradient

    def seen(self: Program, rows: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        together.append(len(rows))
        return asked(self, rows, share)

    monkeypatch.setattr(Program, "gradient", seen)
    first, second = (job.run() for job in jobs)
    assert data.stackable(cohort.room_bytes, of, 4) == 6
    assert max(together) == data.stackable(cohort.room_bytes, of, 10) == 5
    for key, value in first.packet.items():
        assert float((value - second.packet[key]).abs().max()) <= 1e-5 * float(value.abs().max())


def test_visits_that_memory_ran_out_for_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory at a visit's end, in FEDL's second gradient: half of the devices at a time, and visited anew."""
    here = replace(floor_(), stream=Recycle(3))  # what a device holds moves on with its visits
    jobs = [Job(method("fedl"), here, folder=tmp_path / str(side)) for side in (0, 1)]
    jobs[1].engine.cohort = Cohort()
    worked_out = visits._Full._gradients.func
    calls = list[int]()

    def full(self: visits._Full) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise torch.cuda.OutOfMemoryError("full")
        return worked_out(self)

    monkeypatch.setattr(visits._Full._gradients, "func", full)
    first, second = (job.run() for job in jobs)
    assert jobs[0].engine.memory.visits == jobs[1].engine.memory.visits
    for key, value in first.packet.items():
        assert float((value - second.packet[key]).abs().max()) <= 1e-5 * float(value.abs().max())

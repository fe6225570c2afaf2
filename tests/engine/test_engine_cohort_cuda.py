"""A cohort on CUDA equals the loop on the CPU; run by whoever has a CUDA device (benchmarks/gpu.sh)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohorts import HEAVY, NETWORKS, PLANS, TWO, WORKS, both, engine, floor_, same
from fedfloor.engine.cohort.cohort import Cohort
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.methods.catalog import METHODS
from fedfloor.models.network import Network
from fedfloor.park.stream import Fifo
from fedfloor.plan.nodes import Node, Parallel, Work
from floor import dropout, park, start, visits, walk
from rounds import Job, method

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(autouse=True)
def _full_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_every_kind_of_work_is_the_same(work: Work) -> None:
    same(*both(Parallel(visits(range(6), work)), on="cuda"))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("stream", [None, Fifo(3)], ids=["static", "fifo"])
def test_every_shape_of_plan_is_the_same(plan: Node, stream: Fifo | None) -> None:
    here = floor_() if stream is None else replace(floor_(), stream=stream)
    same(*both(plan, here, on="cuda", loss_chance=0.2))


@pytest.mark.parametrize("name", NETWORKS[:-1])
def test_every_network_is_the_same(name: str) -> None:
    here = park((40, 33, 37), shape=(3, 20, 20))
    same(*both(Parallel(visits((0, 1, 2), replace(HEAVY, batch_size=8))), here, name, on="cuda"))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_the_same_in_float32(name: str) -> None:
    here = park((40, 33, 37), shape=(1, 20, 20))
    plan = Parallel(visits((0, 1, 2), Work(steps=20, batch_size=2, rate=0.01, momentum=0.5)))
    same(*both(plan, here, name, torch.float32, on="cuda"))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same(name: str, tmp_path: Path) -> None:
    jobs = [Job(method(name), floor_(), folder=tmp_path / str(side), loss=0.2) for side in (0, 1)]
    cuda = jobs[1].engine
    jobs[1].engine = replace(cuda, network=cuda.network.to(torch.device("cuda")), cohort=Cohort())
    first, second = (job.run() for job in jobs)
    for one, other in zip(jobs[0].outcomes, jobs[1].outcomes, strict=True):
        assert one.resolved == other.resolved
    for key, value in first.packet.items():
        assert second.packet[key].device.type == "cpu"
        assert float((value - second.packet[key]).abs().max()) <= 1e-4 * float(value.abs().max())


@pytest.mark.parametrize("name", ["momentum and decay", "prox", "mmd", "classifier"])
def test_recorded_steps_are_the_steps(name: str) -> None:
    plan = Parallel(visits((*range(6), 0, 1, 2), WORKS[name]))  # sizes differ: half of them, a quarter go on
    told = []
    for record in (True, False):
        of = engine(floor_(), "mlp-2nn", torch.float64, Cohort(record=record), on="cuda")
        first = walk(of, plan)
        told.append((first, walk(of, plan, first.packet, number=2)))  # the second time nothing is recorded anew
        assert of.cohort is not None
        assert of.cohort.record is record
    for one, other in zip(*told, strict=True):
        same(one, other)


def test_a_cohort_that_is_split_is_the_same() -> None:
    loop = engine(floor_(), "mlp-2nn", torch.float64, None)
    plan = Parallel(visits(range(6), TWO))
    cut = engine(floor_(), "mlp-2nn", torch.float64, Cohort(room_bytes=16 * 8 * len(loop.network.flat)), on="cuda")
    begin = start(loop)
    same(walk(loop, plan, begin), walk(cut, plan, begin))


def test_the_loop_itself_trains_on_cuda() -> None:
    loop, there = (engine(floor_(), "mlp-2nn", torch.float64, None, on=on) for on in ("cpu", "cuda"))
    for plan in PLANS.values():
        begin = start(loop)
        same(walk(loop, plan, begin), walk(there, plan, begin))


def test_dropout_masks_are_keyed_on_cuda_too() -> None:
    here = floor_()
    cuda = torch.device("cuda")
    found = list[torch.Tensor]()
    for _ in range(2):
        network = Network(dropout(here.dataset.shape, len(here.dataset.classes)).to(cuda))
        network.flat.zero_()
        of = Engine(here, network, Alone(), DeviceMemory(None), 0)
        torch.rand(7, device=cuda)  # what others draw in between makes no difference
        found.append(walk(of, Parallel(visits(range(6), TWO))).packet["w"])
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-6)  # other masks would be far off

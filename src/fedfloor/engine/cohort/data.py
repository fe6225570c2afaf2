"""The pool of many devices' samples, and the number of models that fit beside it in the accelerator's memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.data.dataset import Indices
from fedfloor.engine.cohort.walk import Job, UnionJob, VisitJob, work_of
from fedfloor.engine.engine import Engine, scaling
from fedfloor.park.stream import Altering

ON_PROCESSORS = 1 << 30  # bytes by default
FREE_SHARE = 0.6  # of an accelerator's free memory
COPIES = 6  # of the trained numbers: models before and after, the step's model, gradients, velocity, arrived models
UNFOLDED = 2.0  # activations are kept for the backward pass, and their gradients beside them
RESIDENT_SHARE = 0.25  # share of the accelerator's memory that all devices' samples may occupy


def models(room_bytes: int | None, engine: Engine) -> int:
    """Return the number of branches whose models fit into the memory at a time."""
    flat = engine.network.flat
    return max(1, _room(room_bytes, flat.device) // (COPIES * engine.network.size))


def batch(engine: Engine, job: Job) -> int:
    """Return the greatest number of samples in a step of a job."""
    work = work_of(job)
    if isinstance(job, UnionJob):
        return len(job.node.children) * work.batch_size
    sizes = engine.park.holdings
    return min(work.batch_size, int(sizes.max() if job.key.device >= 0 else sizes.sum()))


def stackable(room_bytes: int | None, engine: Engine, batch: int) -> int:
    """Return the number of models that fit into memory, each with the activations of a mini-batch; at least 1."""
    flat = engine.network.flat
    numbers = COPIES * flat.numel() + UNFOLDED * batch * activations(engine)
    return max(1, int(_room(room_bytes, flat.device) / (numbers * flat.element_size())))


def rounded(many: int) -> int:
    """Return ``many`` rounded up to four significant bits, so that few programs serve all numbers of models.

    >>> [rounded(many) for many in (1, 8, 9, 16, 17, 100)]
    [1, 8, 9, 16, 18, 104]
    """
    step = 1 << max(0, (many - 1).bit_length() - 4)
    return -(-many // step) * step


def _room(room_bytes: int | None, device: torch.device) -> int:
    if room_bytes is not None:
        return room_bytes
    if device.type != "cuda":
        return ON_PROCESSORS
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(FREE_SHARE * (torch.cuda.mem_get_info(device)[0] + held))


def activations(engine: Engine) -> int:
    """Return the number of activations per sample in all layers, with the unfolded patches of convolutions."""
    total = 0

    def note(layer: nn.Module, _inputs: tuple[Tensor, ...], out: object) -> None:
        nonlocal total
        if isinstance(out, Tensor):
            total += out.numel()
            if isinstance(layer, nn.Conv2d):
                total += out.shape[-1] * out.shape[-2] * layer.in_channels * prod(layer.kernel_size)

    module = engine.network.module
    shape = engine.park.dataset.shape
    handles = [part.register_forward_hook(note) for part in module.modules() if not list(part.children())]
    was_training = module.training
    try:
        module.eval()
        with torch.no_grad():
            module(engine.network.flat.new_zeros(1, *shape))
    finally:
        module.train(was_training)
        for handle in handles:
            handle.remove()
    return total + prod(shape)


class Pool:
    """Samples with their classes, read by row. The pool may grow; it stays at its address as long as it fits.

    Args:
        scale: turns stored samples [rows, …] into floats; None: they are features, which are floats already.
    """

    def __init__(self, x: Tensor, y: Tensor, scale: Scale | None = None) -> None:
        self.x = x
        self.y = y
        self.scale = scale

    def values(self, rows: Tensor) -> Tensor:
        x = self.x.index_select(0, rows.flatten())
        if self.scale is not None:
            x = self.scale(x)
        whole: Tensor = x.unflatten(0, rows.shape)
        return whole

    def put(self, x: Tensor, y: Tensor) -> None:
        if len(x) > len(self.x):
            room = 1 << (len(x) - 1).bit_length()
            self.x, self.y = x.new_zeros(room, *x.shape[1:]), y.new_zeros(room)
        self.x[: len(x)].copy_(x, non_blocking=True)
        self.y[: len(y)].copy_(y, non_blocking=True)


class Scale:
    """Turns stored samples [n, C, …] into floats, as :class:`fedfloor.engine.engine.Samples` does."""

    def __init__(self, engine: Engine, stored: Tensor) -> None:
        data = engine.park.dataset
        form = (1, -1, *(1,) * (stored.dim() - 2))
        self._missing = data.inputs.holes
        floats = stored.is_floating_point()
        self._factor, self._mean, self._shift = scaling(engine.mean, engine.std, data.scale, form, floats)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self._factor.dtype) if self._mean is None else x - self._mean
        x = x * self._factor
        if self._shift is not None:
            x = x + self._shift
        return x.masked_fill(x.isnan(), 0.0) if self._missing else x


class Resident:
    """All devices' samples in one tensor on the accelerator; a device's are added at its first visit."""

    def __init__(self, engine: Engine) -> None:
        park = engine.park
        device = engine.network.flat.device
        total = int(park.sizes.sum())
        first = park.samples(0)[0]
        x = torch.empty((total, *first.shape[1:]), dtype=torch.from_numpy(first[:0]).dtype, device=device)
        self.pool = Pool(x, torch.zeros(total, dtype=torch.int64, device=device), Scale(engine, x))
        self._first = np.concatenate([[0], park.sizes.cumsum()])
        self._loaded: set[int] = set()

    def rows(self, engine: Engine, devices: Sequence[int], tick: int, visits: Sequence[int]) -> list[Indices]:
        """Return each device's present rows of the pool; its samples are added if necessary."""
        rows = []
        for k, part in zip(devices, engine.park.windows.held(devices, tick, visits), strict=True):
            first = int(self._first[k])
            stop = int(self._first[k + 1])
            if k not in self._loaded:
                x, y = engine.park.samples(k)
                self.pool.x[first:stop].copy_(torch.from_numpy(x))
                self.pool.y[first:stop].copy_(torch.from_numpy(y))
                self._loaded.add(k)
            rows.append(np.arange(first, stop)[part] if isinstance(part, slice) else first + part)
        return rows


def fits(engine: Engine) -> bool:
    """Return whether all devices' stored samples may be kept in the memory of the engine's accelerator."""
    if isinstance(engine.park.stream, Altering):
        return False
    device = engine.network.flat.device
    park = engine.park
    whole = int(park.sizes.sum()) * park.dataset.sample_bits // 8
    if device.type != "cuda":
        return whole <= park.cache_bytes
    return whole <= RESIDENT_SHARE * torch.cuda.get_device_properties(device).total_memory


class Whose(NamedTuple):
    """Devices whose samples are needed at a tick, and how often each was trained so far."""

    devices: Sequence[int]
    tick: int
    visits: Sequence[int]


def held(engine: Engine, resident: Resident | None, wanted: Sequence[Whose]) -> tuple[Pool, list[list[Indices]]]:
    """Return the pool with the samples of groups of devices, and each device's rows in it, by group."""
    if resident is not None:
        return resident.pool, [resident.rows(engine, *whose) for whose in wanted]
    parts = [engine.park.together(*whose) for whose in wanted]
    device = engine.network.flat.device
    x = torch.from_numpy(np.concatenate([part[0] for part in parts])).to(device)
    y = torch.from_numpy(np.concatenate([part[1] for part in parts])).to(device)
    stops = iter(np.cumsum([many for part in parts for many in part[2]]).tolist())
    rows = [
        [np.arange(stop - many, stop) for many, stop in zip(part[2].tolist(), stops, strict=False)] for part in parts
    ]
    return Pool(x, y, Scale(engine, x)), rows


def of_visit(job: VisitJob) -> Whose:
    """Return the devices whose samples a visit needs; for a visit to the cloud, all devices."""
    engine = job.engine
    device = job.key.device
    devices = range(engine.park.devices) if device < 0 else (device,)
    return Whose(devices, job.key.tick, (engine.memory.visits[device],) * len(devices))


def of_union(job: UnionJob) -> Whose:
    """Return the devices whose samples a super node needs."""
    seen = job.engine.memory.visits
    devices = [key.device for key in job.keys]
    return Whose(devices, job.keys[0].tick, [seen[k] for k in devices])

"""The placement of training (``[engine] kind``, ``device``), and the reuse of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedfloor.base.errors import SettingError

if TYPE_CHECKING:
    import torch

    from fedfloor.engine.cohort.cohort import Cohort, Precision

# from glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_memory() -> None:
    """Let glibc's malloc reuse large blocks for the rest of this process.

    By default it returns every freed block above a threshold to the system, and the next training step pays for fresh,
    zeroed pages: up to half of the time of a small convolutional network. Results do not change. With another C library
    the function has no effect.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def give_back() -> None:
    """Return the free memory of an idle process to the system; :func:`keep_memory` stays in effect."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


Kind = Literal["auto", "ranks", "cohort"]
Where = Literal["auto", "cpu", "cuda"]


class Placement(NamedTuple):
    """An engine's kind, ``ranks`` or ``cohort``, and its training device, ``cpu`` or ``cuda``."""

    kind: str
    device: str

    @property
    def described(self) -> dict[str, str]:
        return {} if self == ("ranks", "cpu") else {"engine": f"{self.kind} on {self.device}"}


def accelerators() -> int:
    """Return the number of CUDA devices without initialising CUDA, so that ranks can still be forked."""
    import torch

    return torch.cuda.device_count()


def placed(kind: Kind, device: Where) -> Placement:
    """Return the placement of training on this machine: ranks or a cohort, on CPU or CUDA.

    ``auto`` is a cohort on CUDA if a CUDA device is found, else ranks on CPUs. An explicit ``ranks`` stays on CPUs
    unless the device is explicit, too. SettingError: CUDA is chosen and not found.

    >>> placed("ranks", "auto"), placed("cohort", "cpu")
    (Placement(kind='ranks', device='cpu'), Placement(kind='cohort', device='cpu'))
    """
    if device == "auto":
        device = "cuda" if kind != "ranks" and accelerators() else "cpu"
    elif device == "cuda" and not accelerators():
        raise SettingError(
            "engine.device = 'cuda': PyTorch finds no CUDA device here. Use 'auto' or 'cpu', or install a PyTorch that "
            "is built for CUDA on a machine that has one."
        )
    if kind == "auto":
        kind = "cohort" if device == "cuda" else "ranks"
    return Placement(kind, device)


def device_of(place: Placement, rank: int) -> torch.device:
    """Return the device on which a rank trains: the ranks of a host take its CUDA devices in turn."""
    import torch

    if place.device == "cpu":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", rank))
    return torch.device("cuda", local % torch.cuda.device_count())


def engaged(place: Placement, precision: Precision, device: torch.device) -> Cohort | None:
    """Return the cohort, or None for ranks; sets the precision of this process's matrix products on CUDA."""
    import torch

    from fedfloor.engine.cohort.cohort import Cohort

    if place.device == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return Cohort(precision) if place.kind == "cohort" else None

"""Properties of the machine: free memory, cores, processor, and the number of threads."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfloor.base.errors import SettingError

CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> float:
    """Return the bytes of memory still available to this process; infinity if the system does not report them.

    This is the least of the machine's available memory and the limits of the control group and of the process.
    """
    return min(_machine_bytes(), _cgroup_bytes(), _limit_bytes())


def require_memory(settings: str, needed_bytes: float, advice: str) -> None:
    """Raise a SettingError if arrays need more memory than :func:`free_bytes`."""
    if needed_bytes < 1 << 20:
        return
    free = free_bytes()
    if needed_bytes > free:
        raise SettingError(
            f"{settings}: needs {_gigabytes(needed_bytes)} of memory or more, but {_gigabytes(free)} are free. "
            f"{advice}",
            key="memory",
        )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size < 1e15 else f"{float(size) / 1e9:.1e} GB"


def _machine_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # not available on this system
        return math.inf


def _cgroup_bytes() -> float:
    try:
        most = (CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
        cache = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    files = sum(int(line.split()[1]) for line in cache if line.startswith(("active_file ", "inactive_file ")))
    return math.inf if most == "max" else float(int(most) - used + files)  # the file cache can be released


def _limit_bytes() -> float:
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return math.inf
    return math.inf if most == resource.RLIM_INFINITY else float(most - pages * resource.getpagesize())


VARIABLES = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread in the body."""
    import torch  # late, because the command line reads this file first

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_settings() -> Iterator[None]:
    """Restore the number of threads, the global random generators and PyTorch's global flags after the body."""
    import random

    import numpy as np
    import torch

    from fedfloor.base.chance import DRAWING

    threads = torch.get_num_threads()
    kind = torch.get_default_dtype()
    drawn = random.getstate()
    numbers = np.random.get_state()
    generator = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    exact = _determinism()
    products = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    flags = [
        (part, name, getattr(part, name))
        for part, name in (
            (products, "allow_tf32"), (cudnn, "allow_tf32"), (cudnn, "deterministic"), (cudnn, "benchmark"),
        )
    ]  # fmt: skip
    try:
        yield
    finally:
        for part, name, value in flags:
            setattr(part, name, value)
        if _determinism() != exact:  # the call imports PyTorch's compiler, which takes seconds
            torch.use_deterministic_algorithms(exact[0], warn_only=exact[1])
        with DRAWING:
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            torch.set_rng_state(generator)
        np.random.set_state(numbers)
        random.setstate(drawn)
        torch.set_default_dtype(kind)
        torch.set_num_threads(threads)


def _determinism() -> tuple[bool, bool]:
    """Return whether PyTorch uses deterministic algorithms only, and whether it merely warns of others."""
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the kind of processor; results are identical to the bit only on the same kind."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(errors="replace").splitlines() if about.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())

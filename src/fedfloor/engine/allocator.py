"""Keeping freed memory for the next step instead of handing it back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


def keep_memory() -> None:
    """Let glibc's malloc reuse large blocks for the rest of this process.

    By default it returns every block above a threshold to the system when it is freed, and the next training step
    pays for fresh, zeroed pages: up to half of the time of a small convolutional network. Results do not change; where
    the C library is another one, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def give_back() -> None:
    """Hand what is free to the system, of a process that has nothing to do; :func:`keep_memory` goes on holding."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

"""Reading of NumPy's files by several threads at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular

T = TypeVar("T")
TIMES = 8


def read_again(read: Callable[[], T]) -> T:
    """Return ``read()``, which opens a NumPy file and is called again if its header could not be parsed.

    NumPy parses headers by ``ast.literal_eval``, whose counter of depth is shared by all threads: when two of them
    parse at once, one may fail with a ``SystemError`` that says nothing about its file (CPython issue 106905, mended
    in later versions of Python).

    Raises:
        SystemError: the header could not be parsed in any of :data:`TIMES` attempts.
    """
    for _ in range(TIMES - 1):
        try:
            return read()
        except SystemError:
            continue
    return read()


def mapped(path: Path) -> NDArray[Any]:
    """Return a ``.npy`` file's array, read-only and mapped: no pickle is loaded, and no value yet.

    Raises:
        OSError: the file cannot be opened; see also :class:`fedfloor.base.regular.IrregularFileError`.
        ValueError: no complete ``.npy`` file, or Python objects.
    """
    regular.check(path)
    return read_again(lambda: np.lib.format.open_memmap(path, mode="r"))

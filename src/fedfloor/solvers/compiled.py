"""Numba, where a kernel is defined: files with kernels are imported by the function that needs them, not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function at its first call and keep the machine code on disk.

    Division by zero gives inf or nan, as in NumPy, and no exception.
    """
    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))

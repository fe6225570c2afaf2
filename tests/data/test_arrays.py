"""NumPy files whose headers another thread's parsing has disturbed."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.base.arrays import TIMES, mapped, read_again
from fedfloor.base.errors import SettingError
from fedfloor.data.files.npz import read_arrays
from refusals import refused


@pytest.fixture
def disturbed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the next attempts to parse a literal fail as they do when another thread parses, too."""
    parse: Callable[..., Any] = ast.literal_eval

    def disturb(attempts: int) -> None:
        left = [attempts]

        def failing(text: str) -> object:
            if left[0]:
                left[0] -= 1
                raise SystemError("AST constructor recursion depth mismatch (before=72, after=68)")
            return parse(text)

        monkeypatch.setattr(ast, "literal_eval", failing)

    return disturb


@pytest.mark.parametrize("attempts", [1, 3])
def test_an_archive_is_read_again(attempts: int, disturbed: Callable[[int], None], tmp_path: Path) -> None:
    """CPython issue 106905: a device was refused, since its file was taken for damaged."""
    x = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "all.npz", x=x, y=np.array(["good", "bad"]))
    disturbed(attempts)
    read = read_arrays(tmp_path / "all.npz", list)
    assert np.array_equal(read["x"], x)
    assert read["y"].tolist() == ["good", "bad"]


def test_a_map_is_opened_again(disturbed: Callable[[int], None], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0))
    disturbed(2)
    assert np.array_equal(mapped(tmp_path / "x.npy"), np.arange(6.0))


def test_a_header_that_never_parses_is_refused(disturbed: Callable[[int], None], tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.arange(6.0))
    disturbed(TIMES)
    with refused("damaged-npz", SettingError):
        read_arrays(tmp_path / "all.npz", list)


def test_an_error_of_the_file_is_not_read_again() -> None:
    calls = []

    def damaged() -> None:
        calls.append(1)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        read_again(damaged)
    assert len(calls) == 1

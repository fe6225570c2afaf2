"""The list of long tests: written from pytest's durations, and held to the tests that are there."""

from __future__ import annotations

import re

import pytest

import long


@pytest.mark.parametrize("file", sorted({name.partition("::")[0] for name in long.names()}))
def test_every_long_test_is_there(file: str) -> None:
    path = long.FILE.parent / file
    defined = set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name.partition("::")[2] for name in long.names() if name.startswith(f"{file}::")} <= defined


def test_cases_count_by_their_mean() -> None:
    log = """
      0.70s call     tests/a/test_a.py::test_mean[1]
      0.10s setup    tests/a/test_a.py::test_mean[1]
      0.10s call     tests/a/test_a.py::test_mean[2]
      0.40s call     tests/a/test_a.py::test_both
      0.20s setup    tests/a/test_a.py::test_both
      0.49s call     tests/a/test_a.py::test_short
    """
    assert long.measured(log) == ["a/test_a.py::test_both"]

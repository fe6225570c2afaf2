"""The dependencies' bounds: no release with a published advisory is admitted, and what is installed satisfies them."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

requirements = pytest.importorskip("packaging.requirements")

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
LISTED = {one.name: one for one in map(requirements.Requirement, (*PROJECT["dependencies"], *EXTRAS))}
# the last release that an advisory names
ADVISORIES = [
    ("cryptography", "49.0.0", "CVE-2026-69247"), ("filelock", "3.20.2", "CVE-2026-22701"),
    ("mlflow-skinny", "3.12.0", "CVE-2026-2635"), ("onnx", "1.20.1", "CVE-2026-27489"),
    ("pillow", "12.2.0", "CVE-2026-55379"), ("pyarrow", "23.0.0", "CVE-2026-25087"),
    ("protobuf", "6.31.0", "CVE-2025-4565"), ("transformers", "5.9.0", "CVE-2026-9856"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "release", "advisory"), ADVISORIES)
def test_releases_with_advisories_are_not_admitted(name: str, release: str, advisory: str) -> None:
    assert not LISTED[name].specifier.contains(release), advisory


def test_paho_has_an_upper_bound() -> None:
    """Its second major release changed every callback."""
    assert not LISTED["paho-mqtt"].specifier.contains("3.0.0")


def test_typer_is_one_that_builds_on_click() -> None:
    """From 0.26 on it carries a copy, whose options lack what ``cli/groups.py`` reads: no command ran."""
    assert not LISTED["typer"].specifier.contains("0.26.0")


@pytest.mark.parametrize("name", [name for name in LISTED if name != "fedfloor"])
def test_what_is_installed_satisfies_the_bounds(name: str) -> None:
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert LISTED[name].specifier.contains(installed, prereleases=True)

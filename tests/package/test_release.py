"""A release: the same bytes twice, a bill of materials that names all that a wheel needs, and a short changelog."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fedfloor import __version__

ROOT = Path(__file__).parents[2]
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "release.py"))
MOST_LINES = 40


def wheel(folder: Path, requires: list[str]) -> Path:
    """Make a wheel that holds its metadata only."""
    path = folder / "fedfloor-9.9.9-py3-none-any.whl"
    about = [
        "Metadata-Version: 2.1",
        "Name: fedfloor",
        "Version: 9.9.9",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("fedfloor-9.9.9.dist-info/METADATA", "\n".join(about))
    return path


def test_the_bill_names_every_need_with_its_version(tmp_path: Path) -> None:
    made = wheel(tmp_path, ["jinja2>=3", "colorama; sys_platform == 'win32'", "mlflow; extra == 'tracking'"])
    assert RELEASE["required"](made) == ["jinja2"]
    bill = RELEASE["bill"]("fedfloor", made, ["jinja2"], 86_400)
    known = {each["bom-ref"]: each for each in bill["components"]}
    assert known["jinja2"]["version"] == metadata.version("jinja2")
    assert set(known) == {"jinja2", "markupsafe", "plotly.js-basic-dist-min"}
    assert bill["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    assert bill["metadata"]["component"]["hashes"][0]["content"] == RELEASE["sha256"](made)
    links = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert links["fedfloor"] == ["jinja2", "plotly.js-basic-dist-min"]
    assert links["jinja2"] == ["markupsafe"]
    assert {ref for on in links.values() for ref in on} <= set(known)
    assert bill == RELEASE["bill"]("fedfloor", made, ["jinja2"], 86_400)


def test_what_the_bill_says_of_plotly_is_what_the_page_carries() -> None:
    page = (ROOT / "src/fedfloor/report/plotly-basic.min.js").read_text(encoding="utf-8")[:400]
    name, version, licence = RELEASE["CARRIED"]["fedfloor"]
    assert f"v{version}" in page
    assert licence in page
    assert "basic" in name


@pytest.mark.slow
def test_wheels_are_built_to_the_same_bytes_twice(tmp_path: Path) -> None:
    words = [sys.executable, "release.py", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.whl"))) == len(list(tmp_path.glob("*.cdx.json"))) == 2


def test_each_version_has_few_lines_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## \[([^]]+)\][^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert __version__ in parts
    assert [name for name, body in parts.items() if len(body.strip().splitlines()) > MOST_LINES] == []
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")

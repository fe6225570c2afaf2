"""The page on Python, executed: its blocks in order, as a notebook's cells."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import fedfloor

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SHORTER = {  # one round and few devices are enough to see that a cell works
    "seeds=range(3)": "seeds=range(2)", "devices=100": "devices=4", "fraction=0.1": "fraction=0.5",
    "rounds=50": "rounds=1", '"cifar-10"': '"labels"', "Dirichlet(0.1)": "Dirichlet(0.5)",
}  # fmt: skip


def cells() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_page_names_public_names_only() -> None:
    for cell in cells():
        assert not re.findall(r"fedfloor\.[a-z_]+ import|import fedfloor\.", cell)
        names = {name for line in re.findall(r"from fedfloor import (.*)", cell) for name in line.split(", ")}
        names |= set(re.findall(r"\bfedfloor\.(\w+)", cell))
        assert names <= set(fedfloor.__all__)


def test_the_page_lists_every_kind_of_settings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for module in ("park.partition", "park.stream", "park.augment", "data.reading", "tasks.regression", "parts.work"):
        for name in fedfloor.base.public.PUBLIC[module]:
            assert f"`{name}`" in text or name in {"Mobility", "WorkSettings"}, name


@pytest.mark.slow
def test_the_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    space: dict[str, object] = {"__name__": "__main__"}
    import __main__

    for cell in cells():
        for long, short in SHORTER.items():
            cell = cell.replace(long, short)
        exec(compile(cell, "cell", "exec"), space)
        for name in ("Damped", "Capped", "small"):  # as in a notebook, whose names are those of __main__
            if name in space:
                monkeypatch.setattr(__main__, name, space[name], raising=False)
    shown = repr(space["run"]).splitlines()
    printed = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0].splitlines()
    for line in printed:
        assert line == "  ..." or any(_words(line) == _words(other)[: len(_words(line))] for other in shown), line
    assert os.listdir("runs")


def _words(line: str) -> list[str]:
    return re.sub(r"[\d.,]+", "", line).split()

"""Commands whose standard streams are closed, as some supervisors and cron jobs leave them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_run_needs_no_open_stream(closed: str, tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]},{i % 7},{'worn' if i % 7 > 3 else 'good'}" for i in range(80)]
    (tmp_path / "plant.csv").write_text("\n".join(["machine,load,state", *rows]) + "\n")
    fedfloor = f"{sys.executable} -m fedfloor"
    drafted = f"{fedfloor} new plant.csv --set data.columns.device=machine --set data.columns.label=state"
    settings = "--set rounds=1 --set method.name=fedavg --set model.name=logistic --out run"
    command = f"({drafted} && {fedfloor} run plant.toml {settings}) {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert (tmp_path / "run" / "report.html").exists()
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert len(ledger.splitlines()) == 1
    assert ledger.startswith("{")

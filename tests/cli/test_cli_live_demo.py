"""The demonstration on real processes: what ``make demo-live`` shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedfloor.base.errors import RunError
from fedfloor.cli.demonstration import Demonstration
from parks import needs_mosquitto

pytestmark = [pytest.mark.slow, pytest.mark.live, needs_mosquitto]
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'fedfloor[onnx]'")
pytest.importorskip("starlette", reason="Starlette is not installed: pip install 'fedfloor[watch]'")


def test_every_step_comes_out_and_nothing_is_left(tmp_path: Path) -> None:
    words = ["park", "live", "demo", "--out", str(tmp_path / "park"), "--json"]
    done = subprocess.run([sys.executable, "-m", "fedfloor", *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    results = [row["result"] for row in rows]
    assert [row["came out"] for row in rows] == [True] * 8
    assert results[1:3] == ["1 of 1 devices serve version 1", "7 of 7 devices serve version 1"]
    assert results[3].endswith("drift: none")
    assert "channel 0" in results[4]
    assert results[6:] == ["8 of 8 devices serve version 2", "8 of 8 devices serve version 1"]
    before, after = (float(re.findall(r"accuracy (\d\.\d+)", results[step])[0]) for step in (0, 5))
    assert after > before > 0.4
    assert "http://127.0.0.1:" in done.stderr
    assert {path.name for path in (tmp_path / "park").iterdir()} == {"run", "logs"}


def test_a_step_that_does_not_come_out_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Demonstration(None, lambda _: None)  # type: ignore[arg-type]
    shown._step("first", lambda: (False, "3 of 8 devices serve version 1"))
    shown._step("second", lambda: pytest.fail("carried out"))
    assert [row["came out"] for row in shown.rows] == [False]
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "error: no such park")
    )
    shown.trial = type("Trial", (), {"place": Path("park")})()  # type: ignore[assignment]
    with pytest.raises(RunError, match="fedfloor model release failed: error: no such park"):
        shown._command("model", "release", "run")

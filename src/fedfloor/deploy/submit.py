"""Handing the cloud's loop to Flower, and following it: ``flwr run`` starts it where the SuperLink is."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tomlkit

from fedfloor.deploy.settings import CloudSettings
from fedfloor.errors import DivergedError, RunError, SettingError
from fedfloor.runs import folder, ledger
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, interrupts

log = logging.getLogger(__name__)

ENDED = "cloud.json"  # in the run's folder: how the cloud's loop ended
LOOK_S = 0.2
ALIVE_S = 10.0  # between two questions whether the loop still runs
OVER = "finished"  # what Flower says of a run that is no more, well or not
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def run(settings: CloudSettings, file: Path, *, resume: bool, limits: Limits, report: Callable[[Line], None]) -> str:
    """Let Flower run the loop on the SuperLink's machine, which must be this one; return why it stopped.

    Args:
        settings: the cloud's.
        file: where they stand.

    Raises:
        RunError: Flower does not take it, or the loop failed.
        SettingError: Flower is not installed, or the experiment does not fit.
    """
    ended = settings.out / ENDED
    ended.unlink(missing_ok=True)
    flower = _Flower(settings)
    number = flower.start(file.resolve(), resume=resume, last=limits.stop_after or 0)
    done, asked = len(_lines(settings.out)) if resume else 0, time.monotonic()
    with interrupts() as interrupted:
        while not ended.exists():
            time.sleep(LOOK_S)
            done = _reported(settings.out, done, report)
            if interrupted():
                flower.call("stop", number, flower.link)
                return "interrupted"
            if time.monotonic() - asked > ALIVE_S:
                asked = time.monotonic()
                status = flower.status(number)
                if not status and not ended.exists():
                    raise RunError(
                        f"the SuperLink does not know run {number} any more: it was started again. Register the "
                        "factories' keys (flwr supernode register nodes/NAME.pub park), then --resume."
                    )
                if status.startswith(OVER) and not ended.exists():
                    raise RunError(
                        f"the cloud's loop ended without a word: flwr log {number} says more. Then --resume."
                    )
    _reported(settings.out, done, report)
    told = json.loads(ended.read_text())
    if "why" not in told:
        kinds = {kind.__name__: kind for kind in (SettingError, DivergedError)}
        raise kinds.get(told["error"], RunError)(told["text"])
    return str(told["why"])


def _lines(out: Path) -> list[Line]:
    path = out / "ledger.jsonl"
    return ledger.read(path) if path.exists() else []


def _reported(out: Path, done: int, report: Callable[[Line], None]) -> int:
    lines = _lines(out)
    for line in lines[done:]:
        report(line)
    return max(done, len(lines))


class _Flower:
    """Flower's command line."""

    def __init__(self, settings: CloudSettings) -> None:
        found = shutil.which(
            "flwr", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        )
        if found is None:
            raise SettingError("the cloud needs Flower: pip install 'fedfloor[deploy]'.")
        self._program, self.link = found, "park"
        home = Path(os.environ.get("FLWR_HOME") or settings.out.parent / "flwr")
        self._env = {**QUIET, **os.environ, "FLWR_HOME": str(home.resolve())}
        if not (home / "config.toml").exists():
            safe = {"root-certificates": str(settings.root.resolve())} if settings.root else {"insecure": True}
            link = {"address": str(settings.superlink), **safe}
            home.mkdir(parents=True, exist_ok=True)
            folder.write(home / "config.toml", tomlkit.dumps({"superlink": {"default": self.link, self.link: link}}))

    def start(self, file: Path, *, resume: bool, last: int) -> str:
        """Start a run and return its number."""
        more = f"settings={json.dumps(str(file))} resume={str(resume).lower()} stop-after={last}"
        app = Path(__file__).parent / "flower_app"
        told = json.loads(self.call("run", str(app), self.link, "--run-config", more, "--format", "json"))
        if not told.get("success"):
            raise RunError(f"Flower did not take the run: {told.get('error-message') or told}.")
        return str(told["run-id"])

    def status(self, number: str) -> str:
        """Return what Flower says of a run; nothing of one that it does not know."""
        said = json.loads(self.call("ls", self.link, "--run-id", number, "--format", "json"))
        runs: list[dict[str, str]] = said.get("runs", [])
        text = str(said.get("error-message", ""))
        if not said.get("success", True) and "not found" not in text.lower():  # it cannot be reached for now
            log.warning("the SuperLink gives no answer: %s", text.strip() or "no reason")
            return "unreachable"
        return runs[0].get("status", "") if runs else ""

    def call(self, *words: str) -> str:
        """Run a command and return what it prints.

        Raises:
            RunError: it failed.
        """
        done = subprocess.run([self._program, *words], capture_output=True, text=True, env=self._env, timeout=300)
        if done.returncode and not done.stdout.strip():
            raise RunError(f"flwr {words[0]}: {done.stderr.strip()[-500:]}")
        return done.stdout

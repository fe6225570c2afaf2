"""The state of several runs, such as those of a comparison: their curves, and all about the one in progress."""

from __future__ import annotations

from pathlib import Path

from fedfloor.base.names import REFERENCES
from fedfloor.deploy.processes import LIST
from fedfloor.watch.files import Row
from fedfloor.watch.state import Watched

MOST_RUNS = 32  # most runs with a curve


class WatchedRuns:
    """The watched folder of a comparison or a sweep, whose runs are folders in it.

    Attributes:
        document: section → content of the state of the run in progress, otherwise of the last one; ``runs`` holds the
            curves of all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.document: Row = {}
        self._runs: dict[Path, Watched] = {}
        self._current: Path | None = None
        self._rows: list[Row] = []

    def poll(self) -> Row:
        """Read all files; return the changed sections, and under ``append`` the new rows of lists."""
        for path in members(self.folder):
            self._runs.setdefault(path, Watched(path))
        changes = {path: watched.poll() for path, watched in self._runs.items()}
        current = max(self._runs, key=self._priority)
        mine = changes[current]
        if current != self._current:
            self._current, mine = current, dict(self._runs[current].document)
        rows = [_row(path.name, watched.document) for path, watched in self._runs.items()]
        if rows != self._rows:
            self._rows = rows
            mine = {**mine, "runs": rows}
        if mine:
            self.document = {**self._runs[current].document, "runs": rows}
        return mine

    def _priority(self, path: Path) -> tuple[bool, bool, float]:
        """Return whether a run is in progress, whether it is no reference, and the time of its last round."""
        run = self._runs[path].document["run"]
        return run["state"] == "running", run["method"] not in REFERENCES, run["since"] or 0.0

    def device(self, number: int) -> Row | None:
        """Return the rounds of a device in the run in progress; see :meth:`Watched.device`."""
        return None if self._current is None else self._runs[self._current].device(number)


def members(folder: Path) -> list[Path]:
    """Return the run folders in a folder."""
    return sorted(path.parent for path in folder.glob("*/experiment.toml"))[:MOST_RUNS]


def watched(folder: Path, *, waiting: bool = False, alarms: Path | None = None) -> Watched | WatchedRuns:
    """Return the reader of a folder: of a run, of a park, or of several runs.

    Raises:
        SettingError: the folder is none of these.
    """
    own = any((folder / name).is_file() for name in ("experiment.toml", LIST, "run/experiment.toml"))
    if not waiting and alarms is None and not own and members(folder):
        return WatchedRuns(folder)
    return Watched(folder, waiting=waiting, alarms=alarms)


def _row(name: str, document: Row) -> Row:
    """Return a run's row: its state, and its headline and loss by round."""
    run = document["run"]
    keys = ("method", "seed", "state", "round", "rounds", "headline", "value")
    points = [[line["round"], line["value"], line["loss"]] for line in document["rounds"]]
    return {"name": name, **{key: run[key] for key in keys}, "points": points}

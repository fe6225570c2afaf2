"""A device's personal part of a model, as written by its training: an input of released models without that part."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import shown
from fedfloor.ranges import RefusedError, table, whole
from fedfloor.rollout.statement import MOST_BYTES

log = logging.getLogger(__name__)
FILE = re.compile(r"own-[0-9a-f]{32}\.npy", re.ASCII)


@dataclass
class OwnPart:
    """The personal part of a run's model on a device.

    Args:
        path: file of the part, which training replaces after each visit.
        numbers: number of its values P.
        run: name of the run.
    """

    path: Path
    numbers: int
    run: str
    _stamp: tuple[int, ...] = ()  # time of the last change of the file that was read
    _values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def of(cls, about: object, folder: Path) -> OwnPart:
        """Return the part named in a model's metadata, from a device's folder; raise RefusedError if none is named."""
        known = table(about, 3, "own")
        numbers = whole(known.get("numbers"), 1, MOST_BYTES // 4, "own.numbers")
        file, run = known.get("file"), known.get("run")
        if not isinstance(file, str) or not FILE.fullmatch(file) or not isinstance(run, str):
            raise RefusedError("form", "'own' does not name a run and the file of a personal part.")
        return cls(folder / file, numbers, shown(run))

    def now(self) -> NDArray[np.float32]:
        """Return the current values [P] of the file; if it is missing or damaged, the last values read.

        Raises:
            RefusedError: the file was never readable.
        """
        stamp = (0, 0, 0)
        with contextlib.suppress(OSError):
            status = self.path.stat()
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._values = self._read()
            except RefusedError as error:
                if not self._values.size:
                    raise
                log.error("%s The values read before remain in use.", error)
        return self._values

    def _read(self) -> NDArray[np.float32]:
        try:
            stored = np.lib.format.open_memmap(self.path, mode="r")  # does not load pickles, nor the values yet
        except FileNotFoundError:
            raise RefusedError(
                "own", f"this device has no personal part: it has not trained in run {self.run} ({self.path})."
            ) from None
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise RefusedError("own", f"{self.path} is damaged ({error}).") from error
        if stored.dtype != np.dtype("<f4") or stored.shape != (self.numbers,):
            held = f"{stored.dtype} {list(stored.shape)}"
            raise RefusedError("own", f"{self.path} holds {held}; the model requires float32 [{self.numbers}].")
        values = np.array(stored)
        if not np.isfinite(values).all():
            raise RefusedError("own", f"{self.path} holds infinite or undefined numbers.")
        return values

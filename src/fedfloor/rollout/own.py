"""A device's own part of a model, as its training wrote it: an input of released models that leave it to devices."""

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
    """The part of one run's model that is the device's own.

    Args:
        path: its file, which training replaces after each visit.
        numbers: P, how many it has.
        run: the run's name.
    """

    path: Path
    numbers: int
    run: str
    _stamp: tuple[int, ...] = ()  # of the file that was read last
    _values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def of(cls, about: object, folder: Path) -> OwnPart:
        """Return the part that a model's metadata name, in a device's folder of models; a RefusedError: they do not."""
        known = table(about, 3, "own")
        numbers = whole(known.get("numbers"), 1, MOST_BYTES // 4, "own.numbers")
        file, run = known.get("file"), known.get("run")
        if not isinstance(file, str) or not FILE.fullmatch(file) or not isinstance(run, str):
            raise RefusedError("form", "own names no file of a device's part, or no run.")
        return cls(folder / file, numbers, shown(run))

    def now(self) -> NDArray[np.float32]:
        """Return the numbers [P] that the file has now; where it is gone or damaged, those that it had before.

        Raises:
            RefusedError: it had none before.
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
                log.error("%s The numbers read before are used on.", error)
        return self._values

    def _read(self) -> NDArray[np.float32]:
        try:
            stored = np.lib.format.open_memmap(self.path, mode="r")  # which loads no pickles, and nothing yet
        except FileNotFoundError:
            raise RefusedError(
                "own", f"this device has no part of its own: it has not trained in run {self.run} ({self.path})."
            ) from None
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise RefusedError("own", f"{self.path} is damaged ({error}).") from error
        if stored.dtype != np.dtype("<f4") or stored.shape != (self.numbers,):
            held = f"{stored.dtype} {list(stored.shape)}"
            raise RefusedError("own", f"{self.path} holds {held}; the model takes float32 [{self.numbers}].")
        values = np.array(stored)
        if not np.isfinite(values).all():
            raise RefusedError("own", f"{self.path} holds infinite or undefined numbers.")
        return values

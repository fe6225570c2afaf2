"""The models of a run whose devices have different ones: each device's own, or that of its cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import some
from fedfloor.models.saved import FILES, devices
from fedfloor.tasks.answer import Answer

Answers = Callable[[NDArray[Any]], Answer]  # samples [n, *shape] → their answer

KEPT = 32  # models in memory
NAMED = 5  # devices in a message


class DeviceModels:
    """The models of a run's devices, read when they are needed.

    Args:
        run: the run's folder.
        shared: whether devices without an own model are answered by the shared one; otherwise they are refused.
        read: device → the answers of its model.

    Attributes:
        without: the devices answered by the shared model so far, "" for samples without a device.
    """

    def __init__(self, run: Path, read: Callable[[str], Answers], *, shared: bool) -> None:
        self.run = run
        self.shared = shared
        self.without: dict[str, None] = {}
        self._records = devices(run)
        self._read = lru_cache(KEPT)(read)

    def check(self, names: Sequence[str]) -> None:
        """Refuse samples of devices without a model; ``names`` may repeat, and "" is no device.

        Raises:
            SettingError: a device is not of the run, and the run has no shared model.
        """
        strange = next((name for name in dict.fromkeys(names) if name not in self._records), None)
        if self.shared or strange is None:
            return
        which = (
            f"'{strange}' is none of its devices.{nearest(strange, self._records)}" if strange else "no shared model."
        )
        raise SettingError(
            f"{self.run} has a model for each cohort of devices, and {which} Name a device with --device NAME, or give "
            f"a table with a column of devices: {some([*self._records], NAMED)}."
        )

    def of(self, device: str) -> Answers | None:
        """Return the answers of a device's model; None for the shared one: ``without`` then has it.

        Raises:
            SettingError: a file of the model is missing or damaged; see also :meth:`check`.
        """
        self.check([device])
        if not self.shared or (device in self._records and self._own(self._records[device])):
            return self._read(device)
        self.without[device] = None
        return None

    def _own(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record has a threshold of its own, or its file is an own model that is on this machine."""
        return "task" in record or (record["file"] != FILES["last"] and (self.run / record["file"]).is_file())

    def answered(self, x: NDArray[Any], names: Sequence[str], shared: Answers) -> Answer:
        """Return the answer for samples [n, *shape], each by the model of its device; n is at least 1."""
        whose = np.array(names)
        answers = []
        rows = []
        for name in dict.fromkeys(names):
            mine = np.flatnonzero(whose == name)
            answers.append((self.of(name) or shared)(x[mine]))
            rows.append(mine)
        place = torch.from_numpy(np.argsort(np.concatenate(rows)))
        several = [answer.parts() for answer in answers]
        return answers[0].changed(lambda name, _: torch.cat([parts[name] for parts in several])[place])

    def warnings(self) -> list[str]:
        """Return a sentence on the samples answered by the shared model, if any."""
        named = [f"'{name}'" for name in self.without if name]
        whose = [f"devices without a model of their own in the run ({some(named, NAMED)})"] if named else []
        whose += ["samples without a device"] if "" in self.without else []
        advice = "--device NAME takes a device's model for a whole file."
        return [f"{' and '.join(whose)} are answered by the shared model. {advice}"] if whose else []

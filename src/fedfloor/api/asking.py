"""Questions before training from Python: :func:`ask`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfloor.api.source import load
from fedfloor.api.wording import in_python
from fedfloor.experiment import Experiment
from fedfloor.runs import asking
from fedfloor.runs.asking import Asked


@in_python
def ask(source: Experiment | Path | str, *, changes: Mapping[str, Any] | None = None) -> Asked:
    """Ask before training whether all sites measure the same thing, as ``fedfloor ask`` does.

    Args:
        source: a table or a folder of tables, whose columns are guessed; or an experiment, as for
            :func:`~fedfloor.load`.
        changes: key of the experiment file → value, such as ``{"data.sort": True}``.

    Raises:
        SettingError: no such file, or no tables of sensors.
    """
    path = None if isinstance(source, Experiment) else asked_path(source)
    return asking.of_experiment(load(source, changes=changes)) if path is None else asking.of_path(path)


def asked_path(source: Path | str) -> Path | None:
    """Return the path of data; None for an experiment file, or the name of an experiment or a data set."""
    path = Path(source)
    named = isinstance(source, str) and len(path.parts) == 1 and not path.suffix and not path.exists()
    return None if named or path.suffix == ".toml" else path

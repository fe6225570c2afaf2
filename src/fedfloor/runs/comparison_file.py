"""The experiment of a whole comparison: a run's own file has the settings of its method alone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.names import COMPARISON_FILE
from fedfloor.experiment import Experiment
from fedfloor.runs import folder


def keep(experiment: Experiment, out: Path) -> None:
    """Write the experiment from which all runs of a comparison follow into its folder.

    The file has the entries of all methods, so that the comparison can be repeated with other seeds or methods; also
    those of earlier calls, whose runs are in the folder.
    """
    file = out / COMPARISON_FILE
    if file.is_file():
        with suppress(SettingError):  # a damaged file is written anew
            experiment = replace(experiment, methods={**config.read(file).methods, **experiment.methods})
    folder.write(file, config.brief(experiment))

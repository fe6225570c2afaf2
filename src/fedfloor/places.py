"""Paths in experiment files: they begin at the file, wherever a command is started."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedfloor.data.files import expanded, is_there
from fedfloor.experiment import Experiment


def looked_for(given: Path, folder: Path) -> Path:
    """Return where a path in an experiment file leads: beside the file, or else from the working folder on."""
    there = folder / given
    return given if is_there(given) and not is_there(there) else there


def placed(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment as a file in ``folder`` must say it: relative paths begin there, absolute ones stay."""
    return with_paths(experiment, lambda given: given if given.is_absolute() else seen_from(folder, given))


def seen_from(folder: Path, path: Path) -> Path:
    """Return a path as it is from a folder on; ``..`` leads out of where a link really is."""
    return Path(os.path.relpath(path.parent.resolve() / path.name, folder.resolve()))


def with_paths(experiment: Experiment, change: Callable[[Path], Path]) -> Experiment:
    """Change the paths to data, a trained model and a network's profile; ``~`` is the user's home."""

    def changed(table: Any, *keys: str) -> Any:
        given = {key: getattr(table, key) for key in keys}
        return dataclasses.replace(table, **{key: str(change(expanded(one))) for key, one in given.items() if one})

    data, model = changed(experiment.data, "path", "root", "test"), changed(experiment.model, "init_from")
    network = experiment.network
    if network.profile is not None and network.profile.endswith(".toml"):  # else it is a name
        network = changed(network, "profile")
    return dataclasses.replace(experiment, data=data, model=model, network=network)

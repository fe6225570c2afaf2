"""Questions before training from Python: :func:`ask`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fedfloor import config
from fedfloor.api.source import Changes, load
from fedfloor.api.wording import in_python
from fedfloor.base.errors import SettingError
from fedfloor.data.files import expanded
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.files.tree import DataFile, files_in, tables
from fedfloor.drafting import lives
from fedfloor.drafting.sketch import Proposal, changed
from fedfloor.experiment import Experiment
from fedfloor.runs import asking
from fedfloor.runs.asking import Asked

Asking = Annotated[Experiment | Path | str, "a table, a folder of tables, an experiment file, or a name"]


@in_python
def ask(source: Asking, *, changes: Changes | None = None) -> Asked:
    """Ask before training whether all sites measure the same thing, as ``fedfloor ask`` does.

    Args:
        source: a table or a folder of tables, whose columns are guessed; or an experiment, as for
            :func:`~fedfloor.load`.
        changes: key of the experiment file → value, such as ``{"data.sort": True}``.

    Raises:
        SettingError: no such file, or no tables of sensors.
    """
    path = None if isinstance(source, Experiment) else asked_path(source)
    return asking.of_experiment(load(source, changes=changes)) if path is None else of_path(path)


def of_path(path: Path) -> Asked:
    """Ask the devices of a table or a folder of tables; those of lives, a row each, have the roles of a draft.

    Raises:
        SettingError: no such path, or no table in it.
    """
    source = expanded(path)
    data: dict[str, Any] = {"path": str(path)}
    with suppress(SettingError):  # tables that cannot be read are named below
        every = files_in(source) if source.is_dir() else [DataFile(source, source.name, (), None)]
        files = [file for file in every if file.path.is_file() and file.path.name.casefold().endswith(tables(every))]
        decision = lives.of_tables(files, data, "", Excerpts(), folder=source.is_dir()) if files else Proposal()
        if decision.notes:
            return asking.of_experiment(config.from_table({"data": changed(data, decision.settings)}))
    return asking.of_path(path)


def asked_path(source: Path | str) -> Path | None:
    """Return the path of data; None for an experiment file, or the name of an experiment or a data set."""
    path = Path(source)
    named = isinstance(source, str) and len(path.parts) == 1 and not path.suffix and not path.exists()
    return None if named or path.suffix == ".toml" else path

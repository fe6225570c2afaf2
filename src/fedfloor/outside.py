"""Names from outside the package: ``module:name`` of a user's own method, model or objective.

A name is imported by :func:`load` alone, which is called for names in the own experiment file of a process or
from Python. Everything that may run because of a message uses :func:`loaded`, which imports nothing.
"""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from fedfloor.errors import FedfloorError, RunError, SettingError, nearest

SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LOADED: dict[str, Any] = {}  # as sys.modules: objects that this process has imported by name


def load(spec: str, role: str) -> Any:
    """Return the object of ``module:name``; the working folder is searched first.

    Args:
        spec: such as ``my_module:MyMethod``.
        role: its role, for the error message.

    Raises:
        SettingError: no such module or name, or the module fails when it is imported.

    >>> load("math:sqrt", "model")(9.0)
    3.0
    """
    module_name, _, name = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise SettingError(
                f"{role} '{spec}': no module '{module_name}'. Looked in the current folder and the installed packages; "
                "start fedfloor in the folder that holds the file, or set PYTHONPATH."
            ) from error
        raise SettingError(f"{role} '{spec}': importing it failed: {error}") from error
    except Exception as error:
        raise SettingError(f"{role} '{spec}': importing it failed: {type(error).__name__}: {error}") from error
    if not name or not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise SettingError(f"{role} '{spec}': module '{module_name}' has no '{name}'.{nearest(name, public)}")
    _LOADED[spec] = getattr(module, name)
    return _LOADED[spec]


def blamed(error: BaseException) -> RunError | None:
    """Return the error of the user's code as one that names its file, line and function; None for other errors.

    The user's code lies neither in this package nor where packages are installed. Its deepest frame counts,
    whatever it has called.
    """
    if not isinstance(error, Exception) or isinstance(error, FedfloorError):
        return None
    homes = [str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file() and not any(Path(frame.filename).is_relative_to(home) for home in homes)
    ]  # fmt: skip
    if not frames or not _LOADED:
        return None
    last = frames[-1]
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return RunError(f"{last.filename}, line {last.lineno}, in {last.name}: {text}. The line is: {last.line}")


def name_of(kind: type[Any]) -> str:
    """Return the name of a class of which this process holds an instance; :func:`loaded` finds it from now on."""
    spec = f"{kind.__module__}:{kind.__qualname__}"
    _LOADED[spec] = kind
    return spec


def loaded(spec: str, role: str) -> Any:
    """Return an object that :func:`load` has imported before; nothing is imported here.

    Raises:
        SettingError: this process has not loaded the name.
    """
    if spec not in _LOADED:
        raise SettingError(
            f"{role} '{spec}' is not loaded: a plan names parts of your own only where the experiment file or the "
            "method's module names them, too. Name it under [method], or import it in the method's module."
        )
    return _LOADED[spec]

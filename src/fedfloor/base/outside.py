"""Names in the user's code: ``module:name`` of a method, model or objective.

Only :func:`load` imports a name, and is called only for names in a process's own experiment file or from Python. Code
that may run because of a message uses :func:`loaded`, which imports nothing. A command that reads a file which may be a
stranger's permits or refuses each import by :func:`asking`. A class or function that is given from Python as an object
has a name of this form, too: :func:`name_of`.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import Any

from fedfloor.base.errors import FedfloorError, RunError, SettingError, nearest
from fedfloor.base.names import SPEC

ANY = (Exception, SystemExit, KeyboardInterrupt)  # what user code may raise where a signal raises none of them
Ask = Callable[[str], None]  # takes a name; raises SettingError to refuse its import
_ASK: ContextVar[Ask | None] = ContextVar("ask", default=None)
_LOADED: dict[str, Any] = {}  # like sys.modules: the objects imported by name in this process
_GIVEN: dict[str, Any] = {}  # the objects given from Python that are no attributes of their module, by their names
MAIN = "__main__"  # the module of a script, and of a notebook's cells


def load(spec: str, role: str) -> Any:
    """Return the object of ``module:name``; the working folder is searched first.

    Args:
        spec: the name, such as ``my_module:MyMethod``.
        role: the role of the object, for error messages.

    Raises:
        SettingError: the module or name does not exist, its import fails, or :func:`asking` refuses it.

    >>> load("math:sqrt", "model")(9.0)
    3.0
    """
    module_name, _, name = spec.partition(":")
    if spec in _GIVEN:
        return _GIVEN[spec]
    ask = _ASK.get()
    if ask is not None and spec not in _LOADED:
        ask(spec)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise SettingError(
                f"{role} '{spec}': no module '{module_name}' in the current folder or the installed packages. Start "
                "fedfloor in the folder of the file, or set PYTHONPATH.",
                key="own-code",
            ) from error
        raise SettingError(f"{role} '{spec}': importing it failed: {located(error)}") from error
    except (Exception, SystemExit) as error:
        raise SettingError(f"{role} '{spec}': importing it failed: {located(error)}") from error
    if not name or not hasattr(module, name):
        if module_name == MAIN:
            raise SettingError(
                f"{role} '{spec}' was defined in a notebook or a script, not in this process. Run the cell that "
                f"defines '{name}' first, or move it into a file and import it from there."
            )
        public = [n for n in vars(module) if not n.startswith("_")]
        raise SettingError(
            f"{role} '{spec}': module '{module_name}' has no '{name}'.{nearest(name, public)}", key="own-code"
        )
    _LOADED[spec] = getattr(module, name)
    return _LOADED[spec]


def paths() -> dict[str, str]:
    """Return the variables with which another process finds what was imported by name here; {} if nothing was."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} if _LOADED else {}


@contextmanager
def asking(ask: Ask) -> Iterator[None]:
    """Call ``ask`` before :func:`load` imports a name for the first time, while the body runs."""
    token = _ASK.set(ask)
    try:
        yield
    finally:
        _ASK.reset(token)


def blamed(error: BaseException) -> RunError | None:
    """Return the error of user code as an error with file, line and function; None for other errors."""
    if not isinstance(error, Exception | SystemExit) or isinstance(error, FedfloorError):
        return None
    frame = _frame(error)
    if frame is None or not _LOADED:
        return None
    return RunError(f"{_place(frame)}: {_text(error)}. The line is: {frame.line}")


def located(error: BaseException) -> str:
    """Return an error's type and text, with file, line and function if user code raised it.

    >>> located(ValueError("3 layers"))
    'ValueError: 3 layers'
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frame = _frame(error)
    return _text(error) if frame is None else f"{_text(error)} ({_place(frame)})"


def reason(error: BaseException) -> str:
    """Return an error's own sentence if it has one; otherwise :func:`located`."""
    return str(error) if isinstance(error, FedfloorError) else located(error)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").removesuffix(".")


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def _frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the deepest frame in user code, neither in this package nor among installed packages; None without one."""
    homes = [str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file() and not any(Path(frame.filename).is_relative_to(home) for home in homes)
    ]  # fmt: skip
    return frames[-1] if frames else None


def name_of(kind: Any) -> str:
    """Return ``module:name`` of a class or function in this process, and register it for :func:`loaded`.

    One that is no attribute of its module, such as a class defined in a function, or one whose name has been given to
    another class since, has a name that only this process knows, with a number if the name is in use.
    """
    module = kind.__module__
    plain = kind.__qualname__.rpartition(".")[2]
    names = (plain if number == 1 else f"{plain}_{number}" for number in count(1))
    for spec in (f"{module}:{name}" for name in names):
        held = _GIVEN.get(spec, _attribute(spec))
        if held is kind:
            break
        if held is None:
            _GIVEN[spec] = kind
            break
    _LOADED[spec] = kind
    return spec


def _attribute(spec: str) -> Any:
    """Return the object of ``module:name`` in a module that is imported already; None without one."""
    module, _, name = spec.partition(":")
    return getattr(sys.modules.get(module), name, None)


def only_here(spec: str) -> bool:
    """Return whether only this process has the object of a name, so that no other can import it."""
    return spec in _GIVEN or spec.partition(":")[0] == MAIN


def own_name(part: object) -> str | None:
    """Return the name in the user's code of a part, given as its name or a table with its ``kind``; None without one.

    >>> own_name({"kind": "my_limits:PerLayer"}), own_name("norm"), own_name(4.0)
    ('my_limits:PerLayer', None, None)
    """
    kind = part.get("kind") if isinstance(part, Mapping) else part
    return kind if isinstance(kind, str) and SPEC.fullmatch(kind) else None


def loaded(spec: str, role: str) -> Any:
    """Return an object already imported by :func:`load`, without an import.

    Raises:
        SettingError: this process has not loaded the name.
    """
    if spec not in _LOADED:
        raise SettingError(
            f"{role} '{spec}' is not loaded: your own parts in a plan must occur in the experiment file or the "
            "method's module, too. Name it under [method], or import it in the method's module.",
            key="own-code",
        )
    return _LOADED[spec]

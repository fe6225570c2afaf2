"""Errors and notes of the package in the words of Python: arguments in place of the command line's options."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from fedfloor.api.door import admitted
from fedfloor.base.errors import FedfloorError
from fedfloor.config import value
from fedfloor.data.files.recipes import ConversionError
from fedfloor.experiment import Experiment

P = ParamSpec("P")
T = TypeVar("T")
WORDS = {
    "resume": "resume=True", "force": "force=True", "out": "out=…", "references": "references=True",
    "own-code": "own=True", "stop-after": "limits=Limits(stop_after=…)", "ranks": "ranks", "methods": "methods",
    "seeds": "seeds", "rounds": "first", "grid": "grid", "trials": "trials",
}  # fmt: skip
TABLE = "table.parquet"  # the file of a table in memory
IN_MEMORY = re.compile(rf"(?<![\w/\\.-]){re.escape(TABLE)}\b")
OPTION = re.compile(f"--({'|'.join(WORDS)})")
RUN = re.compile(r"`fedfloor run (--[^`=]+)`")
SETTING = re.compile(r"\[(?P<table>\w+)\] (?P<key>\w+)(?: = (?P<flag>true|false)\b)?")
TABLES = re.compile(r"\{ \w+ = [^{}]* \}")
TASK = re.compile(r"--task (\w+)")
READ = re.compile(rf'^ *table = pandas\.read_parquet\(".*/{re.escape(TABLE)}"\)\n', re.M)
WRITTEN = re.compile(r'^(?P<blanks> *)(?P<made>table.*)\.to_parquet\("[^"]*"\)\n', re.M)
SET = re.compile(
    r"""--set\ (?:'(?P<single>[^'=]+=[^']*)'|"(?P<double>[^"=]+=[^"]*)"|(?P<bare>[\w."]+=(?:[^\s,;:)]*[^\s,;:).])?))""",
    re.X,
)


def worded(text: str) -> str:
    """Return a message with arguments in place of options, and a table in memory in place of its file.

    Settings have the keys that ``changes`` takes, and values in the notation of Python.

    >>> worded("Continue it with --resume, or give another folder with --out.")
    'Continue it with resume=True, or give another folder with out=….'
    >>> worded("such as [data] partition = { alpha = 1 }, or [park] devices. Set [deploy] simulate = true.")
    "such as data.partition = {'alpha': 1}, or park.devices. Set deploy.simulate = True."
    >>> worded("continue it nevertheless with `fedfloor run --resume --force`.")
    'continue it nevertheless with resume=True, force=True.'
    >>> worded("such as --set data.columns.time=hour, or --set 'data.bins=[1, 2]'.")
    "such as changes={'data.columns.time': 'hour'}, or changes={'data.bins': [1, 2]}."
    >>> print(worded("table.parquet, row 2: --set 'data.decimal=,' --set 'data.thousands=.'."))
    the table, row 2: changes={'data.decimal': ',', 'data.thousands': '.'}.
    """
    text = RUN.sub(lambda found: found[1].replace(" ", ", "), IN_MEMORY.sub("the table", text))
    text = TABLES.sub(_inline, SETTING.sub(_setting, text))
    text = TASK.sub(r"task='\1'", SET.sub(_change, text)).replace("} changes={", ", ")
    return OPTION.sub(lambda found: WORDS[found[1]], text)


def in_memory(text: str) -> str:
    """Return lines that convert a table's file as lines that convert the table in memory.

    >>> lines = ["    table = pandas.read_parquet('at/table.parquet')", "    table = table.dropna()"]
    >>> lines += ["    table.reset_index().to_parquet('out.parquet')", "Then: fedfloor new out.parquet."]
    >>> print(in_memory("\\n".join(lines).replace("'", '"')))
        table = table.dropna()
        table = table.reset_index()
    Then give this table.
    """
    text = WRITTEN.sub(_kept, READ.sub("", text))
    return re.sub(r"Then: fedfloor new \S+\.parquet\b", "Then give this table", text)


@contextmanager
def lines_in_memory() -> Iterator[None]:
    """Reword the lines of a conversion that the body asks for: its table is in memory."""
    try:
        yield
    except ConversionError as error:
        error.args = (in_memory(str(error)),)
        raise


def _kept(found: re.Match[str]) -> str:
    return "" if found["made"] == "table" else f"{found['blanks']}table = {found['made']}\n"


def _setting(found: re.Match[str]) -> str:
    """Return a key of a file as one of ``changes``; words after a table's name, such as ``[decide] is``, are none."""
    table = found["table"]
    key = found["key"]
    if key not in keys_of().get(table, ()):
        return found[0]
    return f"{table}.{key}" + (f" = {found['flag'].capitalize()}" if found["flag"] else "")


def _inline(found: re.Match[str]) -> str:
    """Return an inline table of TOML as a dictionary."""
    given = value(found[0])
    return repr(given) if isinstance(given, dict) else found[0]


@cache
def keys_of() -> dict[str, set[str]]:
    """Return the keys of each table of an experiment."""
    tables = {field.name: field.default_factory for field in fields(Experiment)}
    made = {name: make() for name, make in tables.items() if make is not MISSING}
    return {name: {field.name for field in fields(table)} for name, table in made.items() if is_dataclass(table)}


def _change(found: re.Match[str]) -> str:
    key, _, text = (found["single"] or found["double"] or found["bare"]).partition("=")
    given = value(text)
    shown = text if isinstance(given, str) and text[:1] in ("[", "{") else repr(given)  # a list with an ellipsis
    return f"changes={{{key!r}: {shown}}}"


def in_python(function: Callable[P, T]) -> Callable[P, T]:
    """Return a public function that checks its arguments, and whose errors and notes name them."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            given = admitted(function, args, kwargs)
            with _notes_worded():
                return function(*given.args, **given.kwargs)
        except FedfloorError as error:
            error.args = (worded(str(error)), *error.args[1:])
            raise

    return call


class _Worded(logging.Handler):
    """A handler that rewords the notes of one public call, and passes each of them on once.

    Args:
        handlers: the package's own handlers.
        propagates: whether notes reach the root's handlers, too.
    """

    def __init__(self, handlers: Sequence[logging.Handler], *, propagates: bool) -> None:
        super().__init__()
        self._handlers = handlers
        self._propagates = propagates
        self._known = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a note on, unless it was passed on before."""
        note = copy(record)
        note.msg = worded(record.getMessage())
        note.args = ()
        if note.msg in self._known:
            return
        self._known.add(note.msg)
        for handler in self._handlers:
            if note.levelno >= handler.level:
                handler.handle(note)
        root = logging.getLogger()
        if self._propagates and (root.handlers or not self._handlers):
            root.handle(note)


@contextmanager
def _notes_worded() -> Iterator[None]:
    """Reword the package's notes in the body; a call within another one belongs to it."""
    logger = logging.getLogger("fedfloor")
    handlers = logger.handlers
    propagates = logger.propagate
    if any(isinstance(handler, _Worded) for handler in handlers):
        yield
        return
    logger.handlers = [_Worded(handlers, propagates=propagates)]
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.propagate = propagates

"""Errors of the package in the words of Python: arguments in place of the command line's options."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fedfloor.config import value
from fedfloor.errors import FedfloorError

P = ParamSpec("P")
T = TypeVar("T")
WORDS = {
    "resume": "resume=True", "force": "force=True", "out": "out=…", "references": "references=True",
    "own-code": "own=True", "stop-after": "limits=Limits(stop_after=…)", "ranks": "ranks", "methods": "methods",
    "seeds": "seeds",
}  # fmt: skip
OPTION = re.compile(f"--({'|'.join(WORDS)})")
TASK = re.compile(r"--task (\w+)")
SET = re.compile(
    r"""--set\ (?:'(?P<quoted>[^'=]+)=(?P<text>[^']*)'|(?P<key>[\w."]+)=(?P<word>[^\s,;:)]*[^\s,;:).])?)""", re.X
)


def worded(text: str) -> str:
    """Return a message with arguments in place of options.

    >>> worded("Continue it with --resume, or give another folder with --out.")
    'Continue it with resume=True, or give another folder with out=….'
    >>> worded("such as --set data.columns.time=hour, or --set 'data.bins=[1, 2]'.")
    "such as changes={'data.columns.time': 'hour'}, or changes={'data.bins': [1, 2]}."
    """
    text = TASK.sub(r"task='\1'", SET.sub(_change, text))
    return OPTION.sub(lambda found: WORDS[found[1]], text)


def _change(found: re.Match[str]) -> str:
    key, text = found["quoted"] or found["key"], found["text"] or found["word"] or ""
    given = value(text)
    shown = text if isinstance(given, str) and text[:1] in ("[", "{") else repr(given)  # a list with an ellipsis
    return f"changes={{{key!r}: {shown}}}"


def in_python(function: Callable[P, T]) -> Callable[P, T]:
    """Return a public function whose errors name its arguments."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FedfloorError as error:
            error.args = (worded(str(error)), *error.args[1:])
            raise

    return call

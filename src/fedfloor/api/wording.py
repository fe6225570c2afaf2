"""Errors of the package in the words of Python: arguments in place of the command line's options."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fedfloor.errors import FedfloorError

P = ParamSpec("P")
T = TypeVar("T")
WORDS = {
    "resume": "resume=True", "force": "force=True", "out": "out=…", "references": "references=True",
    "own-code": "own=True", "stop-after": "limits=Limits(stop_after=…)", "ranks": "ranks", "methods": "methods",
    "seeds": "seeds", "set ": "changes: ",
}  # fmt: skip
OPTION = re.compile(f"--({'|'.join(WORDS)})")


def worded(text: str) -> str:
    """Return a message with arguments in place of options.

    >>> worded("Continue it with --resume, or give another folder with --out.")
    'Continue it with resume=True, or give another folder with out=….'
    >>> worded("--ranks 0: must be 1 to 512."), worded("such as --set data.columns.time=hour")
    ('ranks 0: must be 1 to 512.', 'such as changes: data.columns.time=hour')
    """
    return OPTION.sub(lambda found: WORDS[found[1]], text)


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

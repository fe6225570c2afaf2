"""Errors caused by users, whose messages name the setting, the value, the allowed values and a remedy."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path, PurePath

SHOWN = 200  # characters of a value in a message
MEANT = 1000  # characters of a word, at most, in place of which another one may be meant
BEGINNING = 3  # characters of a word, at least, of which a longer name with this beginning may be meant
# What JSON of others raises when it is read and its values are used: also whole numbers beyond every float, infinite
# numbers of things, and nesting without end
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


# The beginning of a message: an option, a table of a file with its key, a setting, or a thing with its name in quotes
SUBJECT = re.compile(
    r"(?P<option>--[a-z][\w-]*)|\[\[?(?P<table>[\w.-]+)\]\]?(?: (?P<key>[\w.]+)(?= =|:| is | has no effect))?"
    r"|(?P<setting>[a-z][\w.-]*)(?= =|:| is |, )|(?P<thing>[a-z]+) '"
)

# Endings of files, whose names are no settings
FILES = (
    ".csv", ".tsv", ".txt", ".gz", ".zip", ".xlsx", ".parquet", ".npz", ".npy", ".mat", ".toml", ".json", ".jsonl",
    ".pem", ".onnx", ".pt", ".safetensors", ".sqlite", ".log",
)  # fmt: skip


class FedfloorError(Exception):
    """The base class of errors caused by a user's input, shown without a traceback.

    Args:
        message: the message.
        key: what is refused, for programs that treat errors differently, whatever the words of the message: by default
            what the message begins with (:func:`subject`), or the class's own.
    """

    exit_code = 1
    key = ""

    def __init__(self, message: object = "", *, key: str = "") -> None:
        super().__init__(message)
        self.key = key or self.key or subject(str(message))


class SettingError(FedfloorError):
    """An error: an invalid setting, option or file (exit code 2)."""

    exit_code = 2


class RunError(FedfloorError):
    """An error: the run itself failed (exit code 1); earlier results are kept on disk."""


class DivergedError(RunError):
    """An error: training diverged, with a loss or a parameter that is not finite."""

    key = "diverged"


def subject(message: str) -> str:
    """Return what a message begins with: an option, a setting, or a thing such as a method; "" if it is none of these.

    >>> subject("--rounds 9: the run has 3"), subject("work.lr = -1: must be above 0"), subject("[data] test = 'x': no")
    ('--rounds', 'work.lr', 'data.test')
    >>> subject("[decide] is for classes"), subject("method 'fedcs' needs a network"), subject("The disk is full")
    ('decide', 'method', '')
    >>> subject("plant.csv, row 3: 2 cells")
    ''
    """
    found = SUBJECT.match(message)
    if found is None or (found["setting"] or "").endswith(FILES):
        return ""
    return ".".join(part for part in found.groups() if part)


def nearest(word: str, allowed: Iterable[str], cutoff: float = 0.55) -> str:
    """Return ``" Did you mean 'x'?"`` for the most similar allowed word, "" if none is similar.

    Capitals, blanks, signs and a common file ending do not count. A number names another thing: ``s12`` is no mistake
    for ``s1``, nor for a plain word beside it. If none is similar, it is the only word with the same beginning.

    >>> nearest("fedsrr", ["fedavg", "fedsr"]), nearest("Temp", ["Temperature", "Flow"]), nearest("X 1", ["x_1", "x_2"])
    (" Did you mean 'fedsr'?", " Did you mean 'Temperature'?", " Did you mean 'x_1'?")
    >>> nearest("zzz", ["fedavg"]), nearest("trees.toml", ["demo.toml"]), nearest("s12", ["s1"]), nearest("a", ["a"])
    ('', '', '', '')
    >>> nearest("load5", ["load"]), nearest("load5", ["load4", "load"]), nearest("load5", ["load4", "laod5"])
    (" Did you mean 'load'?", '', " Did you mean 'laod5'?")
    >>> nearest("load", ["load4", "speed"]), nearest("load" * 300, ["load" * 299])
    (" Did you mean 'load4'?", '')
    """
    if len(word) > MEANT:  # no mistyped name; the comparison would take minutes
        return ""
    ordered = sorted(allowed) if isinstance(allowed, AbstractSet) else allowed  # of equal names always the same one
    names = [name for name in ordered if name != word]
    told_by_number = bool(_numbers(word)) and any(_letters(name) == _letters(word) for name in names if _numbers(name))
    others = [name for name in names if _same_numbers(word, name, told_by_number)]
    likeness = {name: _likeness(word, name) for name in others}
    found = max(others, key=likeness.__getitem__, default="")
    if not found or likeness[found][0] < cutoff:
        begun = [name for name in others if len(word) >= BEGINNING and name.casefold().startswith(word.casefold())]
        found = begun[0] if len(begun) == 1 else ""
    return f" Did you mean '{found}'?" if found else ""


def _same_numbers(one: str, other: str, told_by_number: bool) -> bool:
    """Return whether two words have the same numbers, or one of them has none where names are not told by numbers."""
    numbers = _numbers(one)
    others = _numbers(other)
    return numbers == others or not (told_by_number or (numbers and others))


def _numbers(word: str) -> list[str]:
    return re.findall(r"\d+", word)


def _letters(word: str) -> str:
    return re.sub(r"\d+", "", word).casefold()


def _likeness(one: str, other: str) -> tuple[float, bool, float]:
    """Return the similarity of two words without what does not count, from 0 to 1, and what decides between equals.

    Of two equally similar words the one with the same letters in another order, then the one more similar as written.
    """
    ending = PurePath(one).suffix
    length = len(ending) if other.endswith(ending) else 0
    plain = [re.sub(r"[\W_]+", "", text[: len(text) - length].casefold()) or text for text in (one, other)]
    ratio, written = (difflib.SequenceMatcher(None, *pair).ratio() for pair in (plain, (one, other)))
    return ratio, sorted(plain[0]) == sorted(plain[1]), written


def shown(got: object, most: int = SHOWN) -> str:
    """Return a value for a message: on one line, without control characters, cut to ``most`` characters.

    >>> shown("lenet"), shown([1, 2]), shown(True), len(shown("x" * 5000))
    ("'lenet'", '[1, 2]', 'true', 201)
    """
    text = str(got).lower() if isinstance(got, bool) else repr(got)  # as in TOML
    text = " ".join(text.split()) if "\n" in text else text  # of arrays and networks
    return text if len(text) <= most else f"{text[:most]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text for a message, cut to 300 characters, with a full stop.

    >>> first_line(ValueError("no such layer\\nat line 3")), first_line(KeyError())
    ('no such layer.', 'KeyError.')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300].rstrip(".") + "."


def unknown(noun: str, got: str, allowed: Iterable[str]) -> SettingError:
    """Return the error for an unknown name, with the nearest known name."""
    names = sorted(allowed)
    known = ", ".join(names)
    return SettingError(f"unknown {noun} {shown(got)}.{nearest(got, names)} Known: {known}.", key=f"unknown {noun}")


def quoted(text: str, error: Exception) -> str:
    """Return the line of a text given in a parser's error, or "".

    >>> quoted("a = 1\\nlr = 0,05", ValueError("Expected newline (at line 2, column 7)"))
    ': lr = 0,05'
    """
    number = re.search(r"at line (\d+)", str(error))
    return f": {text.split(chr(10))[int(number[1]) - 1].strip()[:80]}" if number else ""


def require(ok: bool, noun: str, got: object, allowed: str) -> None:
    """Raise a :class:`SettingError` unless ``ok``.

    >>> require(False, "rounds", 0, "a whole number of at least 1")
    Traceback (most recent call last):
    fedfloor.base.errors.SettingError: rounds = 0: must be a whole number of at least 1.
    """
    if not ok:
        message = f"{noun} = {shown(got)}: must be {allowed}."
        raise SettingError(message, key=subject(message) or noun)


def require_private(noun: str, remedy: str, *, private: bool) -> None:
    """Raise a :class:`SettingError` unless a password or token travels privately, to a verified server.

    >>> require_private("source.password", "Set source.security.", private=True)
    """
    if not private:
        raise SettingError(
            f"{noun}: would cross the network in clear text, or reach a server that is not verified. {remedy}"
        )


def require_once(noun: str, names: Sequence[str], what: str) -> None:
    """Raise a :class:`SettingError` if a name occurs twice.

    >>> require_once("tags", ["a", "b", "a"], "names that are given once each")
    Traceback (most recent call last):
    fedfloor.base.errors.SettingError: tags = 'a': must be names that are given once each.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, noun, twice, what)


def disk_error(path: Path, error: OSError) -> RunError:
    """Return the error for a file of the run that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"the disk is full: {path.name} could not be written in {path.parent}. "
            "The last checkpoint is intact: free disk space, then continue with --resume.",
            key="disk-full",
        )
    return RunError(
        f"{path} could not be written: {error.strerror or error}. The last checkpoint is intact: correct "
        "the problem, then continue with --resume.",
        key="unwritable",
    )

"""Labels in several spellings: ``[data] spellings`` names the class that each text denotes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from fedfloor.base.errors import SettingError
from fedfloor.base.names import toml_key
from fedfloor.base.strict import json_text


def check(spellings: Mapping[str, str] | None, classes: Sequence[str]) -> None:
    """Refuse spellings without an entry, and of a text that is a class itself."""
    if spellings is None:
        return
    if not spellings:
        raise SettingError('data.spellings = {}: must name a text and its class, such as { nok = "NOK" }.')
    for text, name in spellings.items():
        if name in spellings or text in classes:
            odd = name if name in spellings else text
            raise SettingError(
                f"data.spellings: '{odd}' is a class and another spelling of one. Name the class itself for each text."
            )


def respelt(labels: Sequence[str], spellings: Mapping[str, str] | None) -> list[str]:
    """Return labels with the class in place of its other spellings.

    >>> respelt(["NOK", "nok", "OK"], {"nok": "NOK"})
    ['NOK', 'NOK', 'OK']
    """
    return [(spellings or {}).get(label, label) for label in labels]


TRUTH = {"false": 0.0, "true": 1.0}


def truths(values: Sequence[str]) -> dict[str, str]:
    """Return true and false as pandas, R or SQL, and JSON write them → as the values of a model have them.

    >>> truths(["FALSE", "TRUE"])["True"], truths(["ok", "worn"])
    ('TRUE', {})
    """
    own = {value.casefold(): value for value in values}
    if own.keys() != TRUTH.keys() or len(values) != len(own):
        return {}
    return {form(word): own[word] for word in own for form in (str.title, str.upper, str.lower)}


def option(spellings: Mapping[str, str]) -> str:
    """Return the option by which texts denote classes.

    >>> print(option({"n.i.O.": "NIO", "nok": "NOK"}))
    --set 'data.spellings={"n.i.O."="NIO",nok="NOK"}'
    """
    pairs = (f"{toml_key(text)}={json_text(name, ensure_ascii=False)}" for text, name in spellings.items())
    return "--set " + shlex.quote("data.spellings={" + ",".join(pairs) + "}")

"""References to code in messages: an entry of a table that each process makes of its own experiment, or a fixed word.

No message can make a machine import, open or download anything by name. A work, rule or question refers to parts by

- words of a closed list: built-in objectives, mixing rules and extractors, and the values of their settings;
- several numbers, such as class weights, in one text;
- ``{"name": i, "digest": d}`` for everything else (``module:Name``, files, models at a hub): entry i of the receiver's
  own table, and the digest of the sender's source.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import getsourcefile, signature
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import SPEC
from fedfloor.base.outside import load, loaded
from fedfloor.base.ranges import RefusedError
from fedfloor.experiment import Experiment
from fedfloor.methods import bounds
from fedfloor.methods.catalog import EXACT
from fedfloor.methods.chosen import kind_of, texts
from fedfloor.parts import named
from fedfloor.parts.mixing.mix import Mix
from fedfloor.parts.mixing.registry import MIXES
from fedfloor.parts.mixing.weighting import Reweighted
from fedfloor.parts.objectives.extractors import EXTRACTORS, FeatureExtractor
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.objectives.registry import PLANNED, REWEIGHTED
from fedfloor.plan.nodes import TRAVEL, Work

FIELDS = ("objective", "mix", "settings")  # fields of nodes and works that refer to parts
# texts in a work, the settings of a question for profiles
WORDS = frozenset({"all", "classifier"} | named.literals(Work))
CONTRACTS = (Objective, Mix, FeatureExtractor)
NUMBERS = re.compile(r"|[0-9.e+-]+( [0-9.e+-]+)+")  # no number, or two or more


@dataclass(frozen=True)
class PartNames:
    """The numbered table of an experiment's references to code and files outside the package.

    Args:
        entries: text of each reference, and the digest of its source or file.
        codecs: the experiment's chains of codecs, as text.
    """

    entries: tuple[tuple[str, str], ...]
    codecs: tuple[str, ...] = ()

    def refer(self, value: Any) -> Any:
        """Return a plan, a work or settings as JSON in which references are replaced by their numbers.

        >>> PartNames((("goals:Smooth", "ab"),)).refer({"objective": "goals:Smooth", "epochs": 1})
        {'objective': {'name': 0, 'digest': 'ab'}, 'epochs': 1}
        """
        if isinstance(value, list):
            return [self.refer(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        return {key: self.reference(item) if key in FIELDS else self.refer(item) for key, item in value.items()}

    def reference(self, value: Any) -> Any:
        """Return the value of a field, or the settings of a part, with references replaced by numbers."""
        if isinstance(value, Mapping):
            return {key: self.reference(item) for key, item in value.items()}
        number = {text: i for i, (text, _) in enumerate(self.entries)}.get(value) if isinstance(value, str) else None
        return value if number is None else {"name": number, "digest": self.entries[number][1]}

    def resolve(self, value: Any) -> Any:
        """Return the inverse of :meth:`refer`.

        Raises:
            RefusedError: a reference is neither in the table nor built in, a digest differs, or the JSON is malformed.
        """
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        for key in TRAVEL:
            if value.get(key, "") not in ("", *self.codecs):
                raise RefusedError(
                    "codec",
                    f"its models are coded by {value[key]!r:.80}; this machine's experiment has "
                    f"{', '.join(map(repr, self.codecs)) or 'no codecs'}: compare the experiment files.",
                )
        return {key: self.resolved(item) if key in FIELDS else self.resolve(item) for key, item in value.items()}

    def resolved(self, value: Any) -> Any:
        """Return the value of a field, or the settings of a part, with numbers replaced by references."""
        if isinstance(value, Mapping) and set(value) != {"name", "digest"}:
            return {key: self.part_text(item) for key, item in value.items()}
        return self.part_text(value)

    def part_text(self, value: Any) -> Any:
        """Return a setting's value; refuse a text that is neither built in nor in the table."""
        if isinstance(value, str):
            if value not in words() and not NUMBERS.fullmatch(value):
                raise RefusedError(
                    "foreign code", f"{value!r:.80} is neither built in nor named in this machine's experiment file."
                )
            return value
        if not isinstance(value, Mapping):
            if value is None or isinstance(value, (bool, int, float)):
                return value
            raise RefusedError(
                "header", f"a setting is a {type(value).__name__}; must be a number, a text or a boolean."
            )
        number = value.get("name")
        if set(value) != {"name", "digest"} or type(number) is not int or not 0 <= number < len(self.entries):
            raise RefusedError(
                "foreign code",
                f"it refers to name {number!r:.20}; this machine's experiment has {len(self.entries)}: compare the "
                "experiment files.",
            )
        text, digest = self.entries[number]
        if value["digest"] != digest:
            raise RefusedError(
                "foreign code", f"the source of '{text}' differs from the sender's: compare the source files."
            )
        return text


def table(experiment: Experiment) -> PartNames:
    """Return the table of an experiment whose method :attr:`Experiment.configured` has made.

    It holds the experiment's references and the parts that the method's module defines or imports, as the method's
    plans may refer to them.

    Raises:
        SettingError: a part cannot be imported.
    """
    given = [text for key, text in texts(experiment) if key != "model"]  # not referred to by messages
    named_here = [loaded(text, "part") for text in given if SPEC.fullmatch(text)]
    kinds = [
        kind_of(experiment, experiment.method.name),
        *(member for member in named_here if isinstance(member, type)),
    ]
    parts = {
        f"{member.__module__}:{member.__qualname__}"
        for module in {kind.__module__ for kind in kinds}
        for member in vars(sys.modules[module]).values()
        if isinstance(member, type)
        and set(CONTRACTS) & set(member.__mro__)
        and not member.__module__.startswith("fedfloor.")
    }
    for spec in sorted(parts):
        load(spec, "part")
    names = dict.fromkeys(text for text in (*given, *sorted(parts)) if text not in words())
    method = experiment.configured
    parts_ = method.parts
    ways = parts_.travel, parts_.travel_down, parts_.edge_travel, parts_.edge_travel_down, method.needs.travel_down
    chains = tuple(text for text in ways if text)
    return PartNames(tuple((text, source_digest(text)) for text in names), chains)


def source_digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a reference's source, its file, or the text itself."""
    content = text.encode()
    try:
        if SPEC.fullmatch(text):
            content += regular.read_bytes(Path(getsourcefile(loaded(text, "part")) or ""))
        elif Path(text).is_file():
            content = regular.read_bytes(Path(text))  # its path may differ
    except (OSError, TypeError, SettingError):  # built in, or unreadable
        pass
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=1)
def words() -> frozenset[str]:
    """Return the closed list of words: names of built-in parts, and the allowed texts in their settings.

    Extractors that read or download a file are excluded: a message may refer only to those in the receiver's table.
    """
    extractors = {
        name: extractor for name, extractor in EXTRACTORS.items() if "weights" not in signature(extractor).parameters
    }
    known: dict[str, Any] = {**PLANNED, **EXACT, REWEIGHTED: Reweighted, **MIXES, **extractors}
    return frozenset(known) | WORDS | {text for made in known.values() for text in named.literals(made)}


def work(value: object, names: PartNames) -> Work:
    """Return the checked work of a message.

    Raises:
        RefusedError: the value is malformed, out of range, or refers to a part unknown to this process.
    """
    if not isinstance(value, Mapping):
        raise RefusedError("header", "its work is malformed.")
    body = Work.fields(names.resolve(value))
    settings = body.pop("settings", {})
    try:
        if not isinstance(settings, dict):
            raise SettingError("settings must be a table.")
        named.check("work", "of a message", Work, body)
        made = Work(**body, settings=settings)
    except (TypeError, SettingError) as error:
        raise RefusedError("header", f"its work is not valid: {str(error).rstrip('.')}.") from error
    if why := bounds.flaw(made):
        raise RefusedError("header", why)
    return made

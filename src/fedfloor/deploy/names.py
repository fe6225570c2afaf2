"""Names on the wire: a number in a table that each process makes of its own experiment, or a built-in word.

No message can make a machine import, open or download anything by name. A work, a rule or a question names its parts by

- words of a closed list: built-in objectives, mixing rules and extractors, and the words that their settings take;
- several numbers, such as class weights, in one text;
- ``{"name": i, "digest": d}`` for everything else (``module:Name``, files, names at a hub): entry i of the receiver's
  own table, and the digest of what the sender means by it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import getsourcefile, signature
from math import inf
from pathlib import Path
from typing import Any

from fedfloor.config import combined, kind_of, texts
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.outside import SPEC, load, loaded
from fedfloor.parts import named
from fedfloor.parts.extractors import EXTRACTORS, FeatureExtractor
from fedfloor.parts.mix import MIXES, Mix
from fedfloor.parts.objective import Objective
from fedfloor.parts.objectives import PLANNED, REWEIGHTED
from fedfloor.parts.weighting import Reweighted
from fedfloor.plan.nodes import TRAVEL, Work
from fedfloor.ranges import RefusedError

FIELDS = ("objective", "mix", "settings")  # of nodes and works: those that name parts
# words of a work, which is the settings of a question for profiles
WORDS = frozenset({"all", "classifier"} | named.literals(Work))
CONTRACTS = (Objective, Mix, FeatureExtractor)
NUMBERS = re.compile(r"|[0-9.e+-]+( [0-9.e+-]+)+")  # none, or two and more
MOST = 1 << 31  # epochs, steps, samples of a mini-batch


@dataclass(frozen=True)
class PartNames:
    """The names from outside the package that an experiment gives its method, numbered.

    Args:
        entries: the text of each, and the digest of its source or file.
        codecs: the chains of codecs that the experiment names, by their text.
    """

    entries: tuple[tuple[str, str], ...]
    codecs: tuple[str, ...] = ()

    def refer(self, value: Any) -> Any:
        """Return a plan, a work or settings as JSON in which entries of the table stand by number.

        >>> PartNames((("goals:Smooth", "ab"),)).refer({"objective": "goals:Smooth", "epochs": 1})
        {'objective': {'name': 0, 'digest': 'ab'}, 'epochs': 1}
        """
        if isinstance(value, list):
            return [self.refer(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        return {key: self.reference(item) if key in FIELDS else self.refer(item) for key, item in value.items()}

    def reference(self, value: Any) -> Any:
        """Return a field that names parts, or the settings of a part, as :meth:`refer` does."""
        if isinstance(value, Mapping):
            return {key: self.reference(item) for key, item in value.items()}
        number = {text: i for i, (text, _) in enumerate(self.entries)}.get(value) if isinstance(value, str) else None
        return value if number is None else {"name": number, "digest": self.entries[number][1]}

    def resolve(self, value: Any) -> Any:
        """Return the inverse of :meth:`refer`.

        Raises:
            RefusedError: a name is neither in the table nor built in, a digest differs, or the JSON has another form.
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
        """Return a field that names parts, or the settings of a part, as :meth:`resolve` does."""
        if isinstance(value, Mapping) and set(value) != {"name", "digest"}:
            return {key: self.part_text(item) for key, item in value.items()}
        return self.part_text(value)

    def part_text(self, value: Any) -> Any:
        """Return a setting's value, of which a text must be known here."""
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
    """Return the table of an experiment whose method :func:`~fedfloor.config.combined` has made.

    Beside what the experiment names it holds the parts that the method's module defines or imports, as a plan of that
    method may name them.

    Raises:
        SettingError: a part cannot be imported.
    """
    given = [text for key, text in texts(experiment) if key != "model"]  # which no message names
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
    parts_ = combined(experiment).parts
    ways = parts_.travel, parts_.travel_down, parts_.edge_travel, parts_.edge_travel_down
    chains = tuple(text for text in ways if text)
    return PartNames(tuple((text, source_digest(text)) for text in names), chains)


def source_digest(text: str) -> str:
    """Return 16 digits of the SHA-256 of a name's source, of its file, or of the text itself."""
    content = text.encode()
    try:
        if SPEC.fullmatch(text):
            content += Path(getsourcefile(loaded(text, "part")) or "").read_bytes()
        elif Path(text).is_file():
            content = Path(text).read_bytes()  # where it lies may differ
    except (OSError, TypeError, SettingError):  # built in, or unreadable
        pass
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=1)
def words() -> frozenset[str]:
    """Return the closed list: names of built-in parts, and the texts that their settings may have.

    It lacks extractors that read a file or download one: a message may name those of the receiver's experiment only.
    """
    extractors = {
        name: extractor for name, extractor in EXTRACTORS.items() if "weights" not in signature(extractor).parameters
    }
    known: dict[str, Any] = {**PLANNED, REWEIGHTED: Reweighted, **MIXES, **extractors}
    return frozenset(known) | WORDS | {text for made in known.values() for text in named.literals(made)}


def work(value: object, names: PartNames) -> Work:
    """Return the work of a message.

    Raises:
        RefusedError: it is no work, or names a part that this process has not resolved itself.
    """
    if not isinstance(value, Mapping):
        raise RefusedError("header", "it holds no work.")
    body = Work.fields(names.resolve(value))
    settings = body.pop("settings", {})
    try:
        if not isinstance(settings, dict):
            raise SettingError("settings must be a table.")
        named.check("work", "of a message", Work, body)
        made = Work(**body, settings=settings)
    except (TypeError, SettingError) as error:
        raise RefusedError("header", f"its work cannot be done: {error}.") from error
    clip = min(1.0 if limit is None else limit for limit in (made.clip_norm, made.sample_clip))
    weights = (made.rate, made.weight_decay, made.sample_noise)
    shares = all(0 <= number < 1 for number in (made.momentum, made.beta1, made.beta2))
    if not (shares and 0 < made.eps < inf and clip > 0 and all(0 <= number < inf for number in weights)):
        raise RefusedError("header", "its work has a rate, momentum, decay or bound out of range.")
    counts = [number for number in (made.epochs, made.steps) if number is not None]
    if len(counts) != 1 or not all(1 <= number < MOST for number in (*counts, made.batch_size)):
        raise RefusedError("header", "its work needs epochs or steps, and a batch size, of at least 1.")
    return made

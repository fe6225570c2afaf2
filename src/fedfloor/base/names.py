"""Names of sites for display, counts with nouns, and the names of references."""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from unicodedata import category

from fedfloor.base.strict import json_text

MOST = 6  # names in a list, at most
SELDOM = 0.1  # share of a name's occurrences that a misspelt one has, at most
SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # a name in the user's code: module:name
SHORTEST = 5  # letters of a word whose misspelling is recognised, at least


@dataclass(frozen=True)
class Names:
    """The names of a park's devices and factories for display; plans and files use numbers.

    Args:
        devices: number → name, for devices with a name.
        factories: the names by number, "" for a factory without a name; empty if the number of factories is unknown.

    >>> names = Names({7: "pump-7"}, ("valve1",))
    >>> names.site("device", 7), names.site("edge", 0), names.site("device", 3)
    ('pump-7', 'valve1', 'device 3')
    """

    devices: Mapping[int, str] = field(default_factory=dict)
    factories: tuple[str, ...] = ()

    def own(self, kind: str, number: int) -> str:
        """Return the name in the data of a ``"device"``, a ``"factory"`` or its ``"edge"``; "" without a name."""
        if kind == "device":
            return self.devices.get(number, "")
        return self.factories[number] if number < len(self.factories) else ""

    def site(self, kind: str, number: int) -> str:
        """Return a site's name, otherwise its kind and number; a single factory has no number.

        >>> Names().site("factory", 2), Names(factories=("",)).site("edge", 0), Names().site("cloud", 0)
        ('factory 2', 'edge', 'cloud')
        """
        only = kind == "cloud" or (kind != "device" and len(self.factories) == 1)
        return self.own(kind, number) or (kind if only else f"{kind} {number}")

    def short(self, kind: str, number: int) -> str:
        """Return a site's name, otherwise its number, for places where the kind of site is clear."""
        return self.own(kind, number) or str(number)

    def many(self, devices: Iterable[int], most: int = MOST) -> str:
        """Return the names of at most ``most`` devices; if one has no name, their numbers as ranges.

        >>> Names({0: "a", 1: "b"}).many([1, 0]), Names().many([5, 0, 1, 2]), Names({0: "a"}).many([0, 1])
        ('a, b', '0–2, 5', '0–1')
        """
        numbers = sorted(set(devices))
        named = [name for k in numbers if (name := self.devices.get(k))]
        return some(named if len(named) == len(numbers) else _ranges(numbers), most)

    def insert(self, message: str) -> str:
        """Return a message with each ``device NUMBER`` replaced by ``device 'NAME'``.

        >>> Names({3: "pump-7"}).insert("the loss of device 3 became nan on device 4")
        "the loss of device 'pump-7' became nan on device 4"
        """

        def name(match: re.Match[str]) -> str:
            own = self.own("device", int(match[1]))
            return f"device '{own}'" if own else match[0]

        return re.sub(r"\bdevice (\d+)\b", name, message)

    def table(self) -> dict[str, dict[str, str]]:
        """Return the names as JSON: ``devices`` and ``factories``, each number → name."""
        named = {str(m): name for m, name in enumerate(self.factories) if name}
        return {"devices": {str(k): name for k, name in self.devices.items()}, "factories": named}


NUMBERED = Names()  # sites by their numbers


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> count(1, "factory", "factories"), count(12000, "sample")
    ('1 factory', '12,000 samples')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def some(names: Sequence[str], most: int) -> str:
    """Return the first names, followed by … if more exist.

    >>> some(["a", "b"], 2), some(["a", "b", "c"], 2)
    ('a, b', 'a, b, …')
    """
    return ", ".join([*names[:most], *["…"] * (len(names) > most)])


def excerpt(names: Sequence[str], most: int) -> str:
    """Return the first few names, and the number of the rest.

    >>> excerpt(["a", "b", "c", "d", "e"], 3)
    'a, b, c and 2 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _ranges(numbers: list[int]) -> list[str]:
    """Return ascending numbers as ranges."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return [str(low) if low == high else f"{low}–{high}" for low, high in spans]


LOCAL_ONLY = "local-only"
POOLED = "pooled"
SCIKIT_LEARN = "scikit-learn"
PERSISTENCE = "persistence"
SEASONAL = "seasonal"
MEAN_ABS_Z = "mean-abs-z"
REFERENCES = (LOCAL_ONLY, POOLED, SCIKIT_LEARN, PERSISTENCE, SEASONAL, MEAN_ABS_Z)
PCA = "pca"  # the method that trains nothing, so that no device can train alone
AUTOENCODER = "--set method.name=fedavg --set model.name=ae-dense --set rounds=20"  # training in its place
ROUNDLESS = (SCIKIT_LEARN, PERSISTENCE, SEASONAL, MEAN_ABS_Z)  # references without rounds of training
REFERENCES_FOLDER = "references"  # in a run's folder, for its references
COMPARISON_FILE = "comparison.toml"  # in a comparison's folder: the experiment with the entries of all methods


def plain(name: str) -> str:
    """Return a name in small letters without blanks, and without punctuation that follows a letter within words.

    Signs and points of numbers, and marks at the end such as those of grades, distinguish names.

    >>> [plain(name) for name in ("NIO", "n.i.O.", "Out of tolerance", "out_of-tolerance")]
    ['nio', 'nio', 'outoftolerance', 'outoftolerance']
    >>> [plain(name) for name in ("-1", "1.2", "A-", "A+")]
    ['-1', '1.2', 'a-', 'a+']
    """
    return re.sub(r"(?<=[^\W\d_])([._,;/\\]+(?!\d)|-(?=[^\W\d_]))", "", "".join(name.casefold().split()))


def legible(name: str) -> str:
    """Return a name with a blank in place of control characters, such as line breaks and marks of direction.

    >>> legible("Temp\\n[°C]"), legible("\\x1b[31mload"), legible("10\u00a0%") == "10\u00a0%"
    ('Temp [°C]', '[31mload', True)
    """
    if all(sign.isprintable() or category(sign) == "Zs" for sign in name):
        return name
    return " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of a name and a later one that differs only in capitals, blanks or marks, or as a number is written.

    >>> alike(["ok", "0", "OK", "0.0", "a", "A", "-1", "07", "7"])
    [('ok', 'OK'), ('0', '0.0'), ('07', '7')]
    """
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        try:
            key = f"{float(name):.15g}"
        except ValueError:
            key = plain(name)
        other = first.setdefault(key, name)
        if other != name and max(len(other), len(name)) > 1:  # 'A' and 'a' are characters
            pairs.append((other, name))
    return pairs


def misspelt(counts: Mapping[str, int]) -> dict[str, str]:
    """Return each rare name → the frequent one that is probably meant: a word of it differs in one or two letters.

    A rare name has at most :data:`SELDOM` of the frequent one's occurrences. Short words, and words that differ in
    digits or begin differently, such as ``normal`` and ``abnormal``, are names of their own.

    >>> misspelt({"running": 900, "runing": 2, "failed": 90, "faild": 1, "fault 1": 50, "fault 2": 1, "grade A": 9})
    {'runing': 'running', 'faild': 'failed'}
    >>> misspelt({"normal": 500, "abnormal": 5, "open": 70, "opened": 1, "still running": 30, "still runing": 1})
    {'still runing': 'still running'}
    """
    found = {}
    for name, many in counts.items():
        near = [other for other, more in counts.items() if many <= SELDOM * more and _slip(name, other)]
        if near:
            found[name] = max(near, key=lambda other: counts[other])
    return found


def meant(name: str, known: Iterable[str]) -> str:
    """Return the known name that another one probably stands for: in another spelling, or with a typing error; or "".

    >>> meant("n.i.O.", ["OK", "NIO"]), meant("A2", ["A1", "A3"]), meant("runing", ["running"]), meant("nok", ["ok"])
    ('NIO', '', 'running', '')
    """
    names = [*known]
    spelt = [one for one, _ in alike([*names, name]) if alike([one, name])]
    return next(iter([*spelt, *(one for one in names if _slip(name, one))]), "")


def _slip(name: str, other: str) -> bool:
    """Return whether two names differ in one word, by one or two letters after its first."""
    words, others = (re.findall(r"[^\W_]+", text.casefold()) for text in (name, other))
    pairs = [pair for pair in zip(words, others, strict=False) if pair[0] != pair[1]]
    if len(words) != len(others) or len(pairs) != 1:
        return False
    one, two = pairs[0]
    changes = difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    apart = [one[a:b] + two[c:d] for tag, a, b, c, d in changes if tag != "equal"]
    few = sum(max(b - a, d - c) for tag, a, b, c, d in changes if tag != "equal") <= 2
    return few and min(len(one), len(two)) >= SHORTEST and one[0] == two[0] and "".join(apart).isalpha()


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, quoted if it has other letters than a bare key.

    >>> toml_key("speed"), toml_key("Spritzdruck [bar]")
    ('speed', '"Spritzdruck [bar]"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json_text(name, ensure_ascii=False)


def typed(key: str, text: str) -> str:
    """Return the option that sets a key to a text, as it is typed in a shell.

    A text that is another value in TOML, such as ``2`` or ``true``, is in double quotes.

    >>> print(typed("data.columns.label", "state"), typed("data.columns.label", "my label"))
    --set data.columns.label=state --set 'data.columns.label=my label'
    >>> print(typed("data.columns.label", "2"), typed("data.sheet", "Jan's"))
    --set 'data.columns.label="2"' --set 'data.sheet=Jan'"'"'s'
    """
    try:
        tomllib.loads(f"x = {text}")
        plain = False
    except tomllib.TOMLDecodeError:
        plain = bool(text) and text == text.strip()
    return f"--set {shlex.quote(f'{key}={text if plain else json_text(text, ensure_ascii=False)}')}"


def toml_list(names: Iterable[str]) -> str:
    """Return texts as a list of TOML.

    >>> print(toml_list(['a "b"']))
    ["a \\"b\\""]
    """
    return json_text([*names], ensure_ascii=False)

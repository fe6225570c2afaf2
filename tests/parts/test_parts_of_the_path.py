"""Codecs, limits and attacks of one's own that are wrong are refused with the name of the part and what it must do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedfloor
from fedfloor import config
from refusals import refused

WRONG = """
from dataclasses import dataclass, replace
from fedfloor import Attack, Codec, NormLimit, TopK

@dataclass(frozen=True)
class Unfinished(Codec):
    changes = True

@dataclass(frozen=True)
class Corrects(TopK):
    def correct(self, change):
        return change

@dataclass(frozen=True)
class Shortens(TopK):
    def correct(self, change, kept):
        return change[:5]

@dataclass(frozen=True)
class Forgets(TopK):
    def keep(self, change, corrected, decoded, kept):
        pass

@dataclass(frozen=True)
class Sends(TopK):
    def leave(self, x, layout, rng):
        side, numbers = super().leave(x, layout, rng)
        return side, numbers[:-1]

@dataclass(frozen=True)
class Announces(TopK):
    def side(self, layout):
        return 3

@dataclass(frozen=True)
class Decodes(TopK):
    def arrive(self, side, numbers, layout, rng):
        return numbers

@dataclass(frozen=True)
class Unmasked(TopK):
    summed = True

@dataclass(frozen=True)
class Whole(NormLimit):
    def pieces(self, network):
        return [network.parcel("all")]

@dataclass(frozen=True)
class Nothing(NormLimit):
    def pieces(self, network, travels):
        return []

@dataclass(frozen=True)
class Hollow(NormLimit):
    def pieces(self, network, travels):
        return [replace(network.parcel(travels), parts=())]

@dataclass(frozen=True)
class Short(Attack):
    def sent(self, visit):
        return visit.update[:3]

@dataclass(frozen=True)
class Samples(Attack):
    def data(self, samples):
        return samples.x
"""


TINY = {
    "rounds": 1, "data": {"samples_per_device": 8}, "park": {"devices": 4, "factories": 2}, "model": {"name": "linear"},
    "work": {"batch_size": 8},
}  # fmt: skip


@pytest.fixture
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_ways.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"method": {"travel": "wrong_ways:Unfinished"}}, "method.travel"),
        ({"method": {"travel": "wrong_ways:Corrects"}}, "method.travel"),
        ({"method": {"travel": "wrong_ways:Unmasked"}}, "method.travel"),
        ({"deploy": {"norm_limit": "wrong_ways:Whole"}}, "own-part"),
    ],
    ids=str,
)
def test_a_part_without_its_functions_is_refused_when_it_is_read(more: dict[str, Any], message: str) -> None:
    with refused(message):
        config.from_table(TINY | more)


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"method": {"travel": "wrong_ways:Shortens"}}, "own-codec"),
        ({"method": {"travel": "wrong_ways:Forgets"}}, "own-codec"),
        ({"method": {"travel": "wrong_ways:Sends"}}, "own-codec"),
        ({"method": {"travel": "wrong_ways:Announces"}}, "own-codec"),
        ({"method": {"travel": "wrong_ways:Decodes"}}, "own-codec"),
        (
            {"deploy": {"norm_limit": "wrong_ways:Nothing", "simulate": True}},
            "own-limit",
        ),
        ({"deploy": {"norm_limit": "wrong_ways:Hollow", "simulate": True}}, "own-limit"),
        (
            {"faults": {"attackers": {"kind": "wrong_ways:Short", "count": 1}}},
            "own-attack",
        ),
        (
            {"faults": {"attackers": {"kind": "wrong_ways:Samples", "count": 1}}},
            "own-attack",
        ),
    ],
    ids=str,
)
def test_what_a_part_returns_is_checked(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with refused(message):
        fedfloor.run(config.from_table(TINY | more), tmp_path / "run", ranks=1)

"""What excludes each other is declared by parts and settings, and refused by one loop that names both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedfloor import config
from fedfloor.parts import fitting
from fedfloor.parts.fitting import Choice
from fedfloor.runs import checks
from fedfloor.runs.parks import build_park
from refusals import refused

TINY = {"rounds": 2, "data": {"samples_per_device": 8}, "park": {"devices": 4, "factories": 2}}


def fits(live: bool = False, **more: Any) -> None:
    what = config.from_table({**TINY, **more})
    checks.method_fits(what, what.configured, build_park(what), live=live)


def test_a_choice_is_refused_with_the_name_of_both_and_the_reason() -> None:
    one = Choice("here", excludes={fitting.CLOSE: "leave one out."})
    fitting.check([one, Choice("there", {fitting.LIVE: ""})])
    with refused("combination"):
        fitting.check([Choice("there", {fitting.CLOSE: "which ends"}), one])


def test_a_choice_does_not_exclude_itself() -> None:
    fitting.check([Choice("here", {fitting.CLOSE: ""}, {fitting.CLOSE: "leave it out."})])


@pytest.mark.parametrize(
    ("live", "table", "both"),
    [
        (False, {"round": {"close": {"first": 2}}, "method": {"travel": "secure-sum"}}, ("round.close", "secure-sum")),
        (False, {"round": {"close": {"first": 2}}, "method": {"name": "ifca"}}, ("round.close", "'ifca'")),
        (False, {"round": {"close": {"first": 2}}, "method": {"name": "fedbuff"}}, ("round.close", "'fedbuff'")),
        (False, {"round": {"close": {"first": 2}}, "method": {"name": "local-only"}}, ("round.close", "'local-only'")),
        (
            False,
            {"evaluate": {"patience": 2, "on": "both"}, "method": {"name": "local-only"}},
            ("evaluate.patience", "'local-only'"),
        ),
        (
            False,
            {"evaluate": {"finetune": {"epochs": 1}, "patience": 2, "on": "both"}},
            ("evaluate.patience", "evaluate.finetune"),
        ),
        (True, {"evaluate": {"finetune": {"epochs": 1}}}, ("evaluate.finetune", "real machines")),
        (True, {"evaluate": {"coverage": True}}, ("evaluate.coverage", "real machines")),
        (True, {"method": {"name": "local-only"}}, ("real machines", "'local-only'")),
        (True, {"faults": {"attackers": {"kind": "sign-flip", "count": 1}}}, ("faults.attackers", "real machines")),
        (
            False,
            {
                "method": {"mix": {"kind": "private", "delta": 0.1}, "selection": {"kind": "poisson", "share": 0.5}},
                "deploy": {"simulate": True},
            },
            ("deploy.norm_limit", "mix = 'private'"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_settings_that_exclude_each_other_are_refused(live: bool, table: dict[str, Any], both: tuple[str, str]) -> None:
    with refused("combination") as caught:
        fits(live, **table)
    assert all(name in str(caught.value) for name in both)


OWN = """
from dataclasses import dataclass
from fedfloor import TopK
from fedfloor.parts import fitting
from fedfloor.parts.travel.codecs import Float16

@dataclass(frozen=True)
class Fresh(TopK):
    @property
    def excludes(self):
        return {**super().excludes, fitting.CLOCK: "it needs results of the same model."}

@dataclass(frozen=True)
class Half(Float16):
    @property
    def excludes(self):
        return {**super().excludes, fitting.LIVE: "it is slow."}
"""


def test_a_part_of_ones_own_declares_what_it_excludes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fresh_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"travel": {"kind": "fresh_of_mine:Fresh", "share": 0.5}}
    fits(method=own)
    with refused("combination"):
        config.from_table({**TINY, "method": {"name": "fedbuff", **own}})
    half = {"name": "hierfavg", "edge_travel": "fresh_of_mine:Half"}
    fits(method=half)
    with refused("combination"):
        fits(method=half, live=True)

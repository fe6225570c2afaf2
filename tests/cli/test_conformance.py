"""The contract of methods as a command: the built-in ones keep it, and what is broken is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from commands import Command
from fedfloor import FedAvg
from fedfloor.api.conformance import CHECKS, check_method, checked
from fedfloor.base.errors import RunError
from fedfloor.methods.catalog import METHODS
from refusals import refused

MINE = """
import itertools
from dataclasses import dataclass
from fedfloor.methods.contract import Method
from fedfloor.plan.nodes import Parallel, Train, Work, device

WORK = Work(epochs=1, batch_size=4)
CALLS = itertools.count()


@dataclass(frozen=True)
class Good(Method):
    def plan(self, state, view, rng):
        return Parallel(tuple(Train(device(k), WORK) for k in view.devices))


@dataclass(frozen=True)
class Impure(Method):
    def plan(self, state, view, rng):
        return Parallel((Train(device(list(view.devices)[next(CALLS) % len(view.devices)]), WORK),))


@dataclass(frozen=True)
class Two(Method):
    def plan(self, state, view, rng):
        return Parallel(tuple(Train(device(k), WORK) for k in (0, 1)))
"""
NEEDS = {"rafed": ("network.profile=rafed",)}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_built_in_method_keeps_the_contract(name: str) -> None:
    assert [one for one in checked(name, NEEDS.get(name, ())) if one.why] == []


def test_a_class_of_a_notebook_is_checked_without_what_needs_other_processes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @dataclass(frozen=True)
    class Calm(FedAvg):
        """FedAvg, defined in a cell."""

    Calm.__module__ = "__main__"
    Calm.__qualname__ = "Calm"
    monkeypatch.setattr("fedfloor.runs.launch.single_threaded", lambda: False)  # a notebook's kernel has threads
    names = [check.name for check in check_method(Calm)]
    assert names == [name for name in CHECKS if name != "one rank or two is the same"]
    assert "not checked with two ranks: other processes cannot import __main__:Calm" in caplog.text


def test_what_a_method_of_ones_own_breaks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    (tmp_path / "mine_to_check.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    good = command("check", "method", "mine_to_check:Good", "--json")
    assert (good.code, json.loads(good.out)["kept"]) == (0, True)
    assert [one["check"] for one in json.loads(good.out)["rows"]] == list(CHECKS)
    assert [check.name for check in check_method("mine_to_check:Good")] == list(CHECKS)
    with refused("method-checks", RunError):
        check_method("mine_to_check:Impure")
    impure = command("check", "method", "mine_to_check:Impure")
    assert impure.code == 1
    assert "FAILED  plans are pure: two plans of the same round differ" in impure.out
    two = command("check", "method", "mine_to_check:Two")
    assert "FAILED  runs with one device: the plan names device 1" in two.out
    none = command("check", "method", "mine_to_check:Goood")
    assert none.code == 2
    assert "Did you mean 'Good'?" in none.err


CHANGERS = """
from dataclasses import dataclass, replace
from fedfloor.methods.contract import Method, State
from fedfloor.plan.nodes import Parallel, Train, Work, device

WORK = Work(epochs=1, batch_size=4)


class Base(Method):
    def plan(self, state, view, rng):
        return Parallel(tuple(Train(device(k), WORK) for k in view.devices))


@dataclass(frozen=True)
class Absorbs(Base):
    def absorb(self, state, outcome):
        state.packet["w"].copy_(outcome.packet["w"])
        return state


@dataclass(frozen=True)
class Halves(Base):
    def absorb(self, state, outcome):
        outcome.packet["w"].mul_(0.5)
        return State(outcome.packet, state.notes)


@dataclass(frozen=True)
class Plans(Base):
    def plan(self, state, view, rng):
        state.packet["w"].add_(1)
        return super().plan(state, view, rng)


@dataclass(frozen=True)
class Inits(Base):
    def init(self, view, answers, rng):
        view.start["w"].zero_()
        return State(view.start)


@dataclass(frozen=True)
class Raises(Base):
    def absorb(self, state, outcome):
        return state.packet["w"] / outcome.nothing
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Absorbs", "absorb()"),
        ("Halves", "absorb()"),
        ("Plans", "plan()"),
        ("Inits", "init()"),
        ("Raises", "changing_methods.py, line 45"),
    ],
)
def test_a_method_that_changes_its_arguments_or_fails_is_named(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing_methods.py").write_text(CHANGERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    checks = {each.name: each.why for each in checked(f"changing_methods:{name}")}
    assert words in checks["arguments are left unchanged"]

"""The file of approved messages: what it holds, and how a changed message is shown."""

from __future__ import annotations

import pytest

import refusals
from fedfloor.base.errors import DivergedError, RunError, SettingError, require
from fedfloor.base.ranges import RefusedError
from refusals import refused


def test_every_approved_message_is_that_of_a_test_that_exists() -> None:
    assert [test for test in refusals.approved() if not refusals.exists(test)] == []


def test_the_file_is_written_as_it_is_read() -> None:
    messages = {"a/test_a.py::test_b[x - y]": ["k: one\n\n  two", "l: three"], "b/test_c.py::test_d": ["m: four"]}
    assert refusals.parsed(refusals.written(messages)) == messages


def test_an_error_with_another_key_fails() -> None:
    with pytest.raises(AssertionError, match=r"the key is 'work\.lr', not 'rounds'"), refused("rounds"):
        require(False, "work.lr", -1, "above 0")
    with pytest.raises(pytest.fail.Exception), refused("rounds"):
        pass
    with pytest.raises(SettingError), refused("rounds", RunError):
        require(False, "rounds", 0, "at least 1")
    refusals.met.clear()


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (SettingError("work.lr = -1: must be above 0."), "work.lr"),
        (SettingError("a.csv, row 3: no time.", key="no-time"), "no-time"),
        (DivergedError("the loss is nan."), "diverged"),
        (RefusedError("header", "it is not JSON."), "header"),
        (ValueError("no key"), ""),
    ],
)
def test_the_key_of_an_error(error: Exception, key: str) -> None:
    assert refusals.key_of(error) == key


def test_a_changed_message_is_shown_with_the_command_that_approves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    test = "a/test_a.py::test_b"
    monkeypatch.setattr(refusals, "approved", lambda: {test: ["k: old", "l: same"]})
    monkeypatch.setitem(refusals.met, test, ["k: new", "l: same"])
    shown = refusals.difference(test)
    assert "-k: old\n+k: new" in shown
    assert "same" not in shown
    assert "pytest --approve-messages tests/a/test_a.py::test_b" in shown
    monkeypatch.setitem(refusals.met, test, ["k: old", "l: same"])
    assert refusals.difference(test) == ""


def test_places_and_words_of_libraries_are_left_out() -> None:
    try:
        int("seven")
    except ValueError as cause:
        error = SettingError(f"{refusals.TESTS.parent}/a.csv: not a number ({cause}).")
        error.__cause__ = cause
    assert refusals.plain(error) == "{here}/a.csv: not a number ({…})."

"""Plans and prices of eleven experiments beside the files in ``tests/golden`` (see ``golden.py``)."""

from __future__ import annotations

import pytest

import golden


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.EXPERIMENTS)
def test_plans_and_prices_are_those_recorded(name: str) -> None:
    portable, local = golden.results(name)
    assert list(golden.checked_portable(name, portable)) == []
    assert bool(portable) == (name not in golden.BY_FEATURES)
    assert len(local["ledger"]) == len(portable.get("plans", local["ledger"]))


def test_a_difference_is_found_wherever_it_stands() -> None:
    was = {"plans": ["a", "b"], "priced": [{"seconds": 1.0, "total": {"bytes": 3}}, None]}
    assert list(golden.differences(was, was)) == []
    for place, now in (
        (".plans[1]", {**was, "plans": ["a", "c"]}),
        (".priced[0].seconds", {**was, "priced": [{"seconds": 1.0 + 1e-9, "total": {"bytes": 3}}, None]}),
        (".priced[0].total.bytes", {**was, "priced": [{"seconds": 1.0, "total": {"bytes": 4}}, None]}),
        (".priced[1]", {**was, "priced": [was["priced"][0], {}]}),
        (".plans", {**was, "plans": ["a"]}),
        (": ", {"plans": was["plans"]}),
    ):
        found = list(golden.differences(was, now, relative=golden.RELATIVE))
        assert len(found) == 1
        assert found[0].startswith(place)
    nearly = {**was, "priced": [{"seconds": 1.0 + 1e-13, "total": {"bytes": 3}}, None]}
    assert list(golden.differences(was, nearly, relative=golden.RELATIVE)) == []
    assert len(list(golden.differences(was, nearly))) == 1

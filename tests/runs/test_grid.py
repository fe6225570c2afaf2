"""Grids of settings: how ``--grid`` is read, and which points a method has."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.base.errors import SettingError
from fedfloor.methods.catalog import find
from fedfloor.runs.sweep import Axis, Grid, axis, grids, shown, split

SPLIT = {
    "0.1,0.01": ["0.1", "0.01"],
    " 1 , 2 ": ["1", "2"],
    "lenet": ["lenet"],
    '{ kind = "cosine", start = 0.1, end = 1e-5 },0.01': ['{ kind = "cosine", start = 0.1, end = 1e-5 }', "0.01"],
    "[1, [2, 3]],[4]": ["[1, [2, 3]]", "[4]"],
    "'a,b','c]'": ["'a,b'", "'c]'"],
    r'"a\",b","c\\",d': [r'"a\",b"', r'"c\\"', "d"],
    "'a\\','b'": ["'a\\'", "'b'"],  # no escapes in single quotes
    "1,": ["1", ""],
}


@pytest.mark.parametrize(("text", "pieces"), SPLIT.items(), ids=SPLIT)
def test_values_are_split_at_outer_commas(text: str, pieces: list[str]) -> None:
    assert split(text) == pieces


SCALARS = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_values_come_back_as_they_were_shown(values: list[object]) -> None:
    pieces = split(",".join(map(shown, values)))
    assert len(pieces) == len(values)
    for piece, one in zip(pieces, values, strict=True):
        try:
            assert tomllib.loads(f"x = {piece}")["x"] == one
        except tomllib.TOMLDecodeError:
            assert "\x7f" in repr(values) or "\\x7f" in repr(values) or "\\ud" in repr(values)  # signs TOML has not


REFUSED = {
    "work.lr": "write it as KEY=VALUE,VALUE",
    "=1,2": "write it as KEY=VALUE,VALUE",
    "work.lr=": "a value is missing",
    "work.lr=0.1,,0.2": "a value is missing",
    "work.lr=0.1,0.10": "0.1 is given twice",
    "work.lr={ kind = 1": "'{' is not closed",
    "work.lr=[1,2": "'[' is not closed",
    "work.lr='a,b": "''' is not closed",
    "work.lr=[1},2": "'}' has no opening counterpart",
    "work.lr=1],2": "']' has no opening counterpart",
    "data.name=mnist,labels": "a sweep chooses settings of methods",
    "park.devices=5,10": "a sweep chooses settings of methods",
    "model.name=lenet,mlp-2nn": "are not comparable",
    "rounds=5,10": "change these in the experiment",
    "work=1,2": "a sweep chooses settings of methods",
    "methods.fedsr=1,2": "a sweep chooses settings of methods",
    "method=1,2": "a sweep chooses settings of methods",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError) as said:
        axis(text)
    assert message in str(said.value)


def test_where_a_key_leads() -> None:
    assert axis("work.lr=1,2") == Axis("work.lr", None, ("work", "lr"), (1, 2))
    assert axis("method.laps=1,5") == Axis("method.laps", None, ("laps",), (1, 5))
    assert axis("methods.fedsr.work.epochs=1") == Axis("methods.fedsr.work.epochs", "fedsr", ("work", "epochs"), (1,))
    assert axis('methods."mine.py:Halves".rate=1').method == "mine.py:Halves"
    assert axis("methods.mine:Halves.work.lr=1").method == "mine:Halves"


def test_points_are_every_combination_in_order() -> None:
    grid = Grid({("a",): (1, 2), ("b",): ("x", "y", "z")})
    assert grid.size == 6
    points = [tuple(grid.point(i).values()) for i in range(6)]
    assert points == [(1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z")]
    assert list(grid.point(0)) == [("a",), ("b",)]
    assert (Grid({}).size, Grid({}).point(0)) == (1, {})


def test_each_method_gets_the_axes_that_are_its() -> None:
    axes = [axis("work.lr=1,2"), axis("method.laps=1,5"), axis("methods.fedavg.work.lr=3,4,5")]
    got = grids({name: find(name) for name in ("fedavg", "fedsr", "ring")}, axes)
    assert got["fedavg"].axes == {("work", "lr"): (3, 4, 5)}  # its own in place of the general one
    assert got["fedsr"].axes == got["ring"].axes == {("work", "lr"): (1, 2), ("laps",): (1, 5)}


NOT_FOR_THESE = {
    ("methods.fedsr.laps=1,2",): "--grid methods.fedsr.laps: 'fedsr' is not among --methods fedavg,hierfavg.",
    ("method.laps=1,2",): "--grid method.laps: none of fedavg, hierfavg has a setting 'laps'.",
    ("method.name=fedavg,fedsr",): "none of fedavg, hierfavg has a setting 'name'",
    ("work.lr=1", "work.lr=2"): "--grid work.lr is given twice.",
    ("work.lr=1", "method.work.lr=2"): "--grid method.work.lr is given twice.",
    (): "a sweep needs at least one --grid",
}


@pytest.mark.parametrize(("texts", "message"), NOT_FOR_THESE.items())
def test_axes_that_no_method_can_use(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingError) as said:
        grids({name: find(name) for name in ("fedavg", "hierfavg")}, [axis(text) for text in texts])
    assert message in str(said.value)

"""The program that tries random faults: what it draws, changes and finds again."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import mutate
from fedfloor.tasks import detection

CODE = '''\
"""Says 1 + 1."""
LIMIT: int = 3
ODD: "Literal[1]" = f"{1 + 1} of {LIMIT}"


def f(ä: int, b: int = 2) -> int:
    return ä + b if not ä < 17 else (
        b * 99
    )
'''


@pytest.fixture
def room(tmp_path: Path) -> Path:
    (tmp_path / "src/fedfloor").mkdir(parents=True)
    (tmp_path / "src/fedfloor/small.py").write_text(CODE, encoding="utf-8")
    return tmp_path


def test_every_place_of_a_file_is_changed_alone(room: Path) -> None:
    """Texts, values in them and types are none of the places, and 17 and 99 are no small constants."""
    found = mutate.mutants("small", room)
    assert {(one.was, one.now) for one in found} == {
        ("3", "4"), ("2", "3"), ("ä + b", "ä - b"), ("b * 99", "b + 99"),
        ("not ä < 17", "ä < 17"), ("ä < 17", "ä <= 17"),
    }  # fmt: skip
    for one in found:
        text = one.applied(CODE)
        assert text is not None
        ast.parse(text)
        assert [a for a, b in zip(CODE.splitlines(), text.splitlines(), strict=True) if a != b] == [
            line for line in CODE.splitlines() if line.strip() == one.code
        ]


def test_a_place_is_found_where_its_file_has_changed_and_not_where_it_is_gone(room: Path) -> None:
    one = next(one for one in mutate.mutants("small", room) if one.was == "ä + b")
    assert "return (ä - b) if" in (one.applied("import os\n\n" + CODE) or "")
    assert one.applied(CODE.replace("ä + b if", "ä + b  if")) is None
    assert replace(one, column=0).applied(CODE) is None


def test_a_seed_draws_one_sample_without_repetitions(room: Path) -> None:
    every = mutate.mutants("small", room)
    drawn = mutate.drawn(100, 7, ("small",), room)
    assert sorted(map(repr, drawn)) == sorted(map(repr, every))
    assert mutate.drawn(3, 7, ("small",), room) == mutate.drawn(3, 7, ("small",), room)


def test_rooms_are_those_of_the_table() -> None:
    assert set(mutate.ROOMS) == set(mutate.affected.rooms.imports())


def test_the_tests_of_a_line_come_before_those_of_its_function_and_its_file() -> None:
    tree = ast.parse(CODE)
    one = mutate.Mutant("small", "small.py", 7, 4, "", "", "")
    assert mutate.spans(tree, one) == [range(7, 8), range(6, 10), range(1, 10_000)]


def test_what_imports_a_module_is_tried_again_and_its_room_comes_first() -> None:
    clone = object.__new__(mutate.Clone)
    clone.folder = mutate.ROOT
    file = Path(detection.__file__).relative_to(Path(detection.__file__).parents[3]).as_posix()
    found = clone.importing(mutate.Mutant("tasks", file, 1, 0, "", "", ""))
    assert found[:2] == [file, "tests/tasks/test_detection.py"]


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        ({"verdict": "caught"}, "caught"),
        ({"verdict": "survived", "again": "caught"}, "caught"),
        ({"verdict": "survived", "again": "survived"}, "not caught"),
        ({"verdict": "survived", "judged": "equal rows"}, "no result changes"),
        ({"verdict": "survived", "since": "test_it"}, "caught by a new test"),
    ],
)
def test_what_is_known_of_a_mutant(one: dict[str, str], kind: str) -> None:
    assert mutate.kind_of(one) == kind

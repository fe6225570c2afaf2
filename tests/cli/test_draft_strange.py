"""`fedfloor new` on tables with the usual blemishes of a plant's data: each is refused or noted with a way out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from commands import Command


def quality(path: Path, **cells: str) -> Path:
    """Write 200 parts with a measured grade; ``row_N`` replaces the grade in row N."""
    rng = random.Random(0)
    lines = ["machine,time,heat,grade"]
    for n in range(200):
        grade = cells.get(f"row_{n + 2}", f"{rng.gauss(50, 5):.2f}")
        lines.append(f"m{n // 50},{n % 50},{rng.gauss(180, 3):.1f},{grade}")
    path.write_text("\n".join(lines) + "\n")
    return path


GRADE = ("--set", "data.columns.label=grade")


@pytest.mark.parametrize("text", ["n.i.O.", "<5"])
def test_a_measured_label_with_a_text_is_refused(command: Command, text: str) -> None:
    quality(command.folder / "q.csv", row_7=text)
    command.refused(
        command("new", "q.csv", *GRADE), f"q.csv, row 7, column 'grade': '{text}' is not a number, but", "list all",
        f'.isin(["{text.casefold()}"])\n    table = table[~missing]\n',
    )  # fmt: skip


def test_codes_with_a_text_are_classes(command: Command) -> None:
    lines = [f"m{n % 4},{n % 7},{['normal', '0.007', '0.014', '0.021'][n // 4 % 4]}\n" for n in range(160)]
    (command.folder / "q.csv").write_text("machine,heat,label\n" + "".join(lines))
    assert command("new", "q.csv").code == 0


def test_rows_without_a_measured_label_become_no_class(command: Command) -> None:
    quality(command.folder / "q.csv", row_7="")
    said = command("new", "q.csv", *GRADE)
    command.refused(said, "q.csv, row 7, column 'grade': empty", "Leave these rows out. To", "table[~missing]\n")
    (command.folder / "c.csv").write_text("machine,heat,label\nm1,1,2\nm1,2,\nm2,2,3\n")
    command.refused(command("new", "c.csv"), 'or as a class: table.loc[missing, "label"] = "none"')


def test_marks_of_missing_targets_are_noted(command: Command) -> None:
    quality(command.folder / "q.csv", **{f"row_{n}": "-999" for n in range(5, 200, 20)})
    said = command("new", "q.csv", *GRADE)
    assert "the target 'grade' is -999 in 8 of the rows examined" in said.err


def test_settings_are_checked_before_the_file(command: Command) -> None:
    (command.folder / "q.toml").write_text("mine")
    quality(command.folder / "q.csv")
    command.refused(command("new", "q.csv", "--task", "regresion"), "Did you mean 'regression'?")
    command.refused(command("new", "q.csv"), "q.toml exists already")

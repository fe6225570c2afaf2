"""``fedfloor list parts``: what methods combine with, and what finds choices, groups and allocations by name."""

from __future__ import annotations

from commands import Command
from fedfloor.solvers.allocation import solve as allocation
from fedfloor.solvers.grouping import solve as grouping
from fedfloor.solvers.selection import solve as selection


def test_inventions_of_the_papers_are_found_by_name(command: Command) -> None:
    rows = {(row["part"], row["name"]): row for row in command("list", "parts", "--json").document["rows"]}
    wanted = {
        ("choice", "gbpcs"): "GBP-CS", ("grouping", "icg"): "ICG", ("allocation", "rafed"): "Algorithm 1",
        ("partition", "dominant"): "preferred label", ("stream", "augmented"): "", ("objective", "replay"): "",
    }  # fmt: skip
    for key, words in wanted.items():
        assert rows[key]["what"]
        assert words in rows[key]["what"], key
    assert 'labels = "equal"' in rows["partition", "dominant"]["settings"]


def test_every_solver_is_described() -> None:
    for module in (selection, grouping, allocation):
        assert list(module.WHAT) == list(module.SOLVERS)


def test_one_kind_is_listed_and_an_unknown_one_refused(command: Command) -> None:
    listed = command("list", "parts", "grouping", "--json").document["rows"]
    assert [row["name"] for row in listed] == list(grouping.SOLVERS)
    command.refused(command("list", "parts", "groping"), "unknown kind of part 'groping'")

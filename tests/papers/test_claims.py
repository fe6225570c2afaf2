"""The rules by which a claim's verdict follows from its figures, and the commands that the claims name."""

from __future__ import annotations

import shlex

import pytest

from fedfloor.errors import SettingError
from papers import catalog, claims
from papers.cells import Table, holds
from papers.claims import IN_KIND, NOT, REPRODUCED, Claim, Figure


def made(*figures: Figure, order: tuple[str, ...] = (), deviations: str = "", accuracy: bool = True) -> Claim:
    return Claim(
        "FedX", "Table I", "a claim", REPRODUCED, "why", "command",
        figures=figures, order=order, deviations=deviations, accuracy=accuracy,
    )  # fmt: skip


ours, theirs = Figure("a", "0.900", "0.905 ± 0.001"), Figure("b", "0.800", "0.850")


@pytest.mark.parametrize(
    ("claim", "wanted"),
    [
        (made(ours), REPRODUCED),  # half a point off
        (made(Figure("a", "0.900", "0.930 ± 0.040")), REPRODUCED),  # within the interval, which is narrow
        (made(Figure("a", "0.300", "0.430 ± 0.200")), NOT),  # within one that is wider than a fifth of the figure
        (made(ours, deviations="another network"), IN_KIND),
        (made(ours, theirs), NOT),  # five points off, and no order is claimed
        (made(ours, theirs, order=("a > b",)), IN_KIND),
        (made(ours, order=("a > 0.905",)), NOT),  # the interval contains it
        (made(ours, theirs, order=("a < b",)), NOT),
        (made(ours, order=("a = 0.914",)), REPRODUCED),
        (made(Figure("a", "100", "109"), accuracy=False), REPRODUCED),
        (made(Figure("a", "100", "111"), accuracy=False), NOT),
        (made(Figure("a", None, "17"), Figure("b", None, "–"), order=("a < b",), accuracy=False), REPRODUCED),
        (made(Figure("a", None, "900 µs"), Figure("b", None, "1 ms"), order=("a < b < 2",)), REPRODUCED),
    ],
)
def test_verdicts(claim: Claim, wanted: str) -> None:
    assert claims.verdict(claim) == wanted


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(SettingError, match="'nowhere' is no figure"):
        claims.verdict(made(ours, order=("a > nowhere",)))
    with pytest.raises(SettingError, match=r"0 cells are row 'FedX', column 'accuracy'; exactly one must be"):
        claims.cell("results/fedgs-table2.md", "FedX", "accuracy")
    with pytest.raises(SettingError, match=r"fedsr-tables\.md: 2 cells are row 'FedSR', column 2"):
        claims.cell("results/fedsr-tables.md", "FedSR", 2, "Table II, MNIST")
    with pytest.raises(SettingError, match="0 tables begin with"):
        claims.summarised("# a page\n", claims.read())


def test_commands_name_cells_that_there_are() -> None:
    typed = [shlex.split(claim.command) for claim in claims.read()]
    assert any(command[:2] == ["fedfloor", "reproduce"] for command in typed)
    for words in (one for one in typed if one[:2] == ["fedfloor", "reproduce"]):
        found, only = catalog.find(words[2]), words[words.index("--only") + 1] if "--only" in words else ""
        if isinstance(found, Table):
            assert any(holds(only, cell.key, cell.run) for cell in found.cells), words
        elif hasattr(found, "points"):
            assert any(holds(only, point.key) for point in found.points), words

"""Pages of long runs are made of the cells' files: a digit that is changed in either shows."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import evidence, pages
from papers.catalog import TABLES


def cell(
    table: str, key: str, seed: int, accuracy: float, samples: list[int], rounds: int | None = None
) -> dict[str, object]:
    """What a cell's file holds: 62 classes, of which the last is the rarest."""
    by_class: list[float | None] = [0.5] * 10 + [0.25] * 20 + [None] * 32
    return {
        "table": table, "cell": key, "seed": seed, "rounds_done": rounds or TABLES[table].rounds, "commits": ["a" * 40],
        "provenance": {"torch": "2", "cpu": "one"},
        "evaluations": [{"round": 20, "accuracy": accuracy, "macro_f1": accuracy / 2, "by_class": by_class}],
        "coverage": {"samples": samples, "devices_per_round": [4.0] * 62, "held": [3] * 20 + [1] * 42},
    }  # fmt: skip


def written(results: Path, *cells: dict[str, object]) -> str:
    folder = results / str(cells[0]["table"])
    folder.mkdir()
    for number, one in enumerate(cells):
        (folder / f"{number}.json").write_text(json.dumps(one))
    (text,) = pages.pages(results).values()
    return text


def test_every_step_is_a_cell() -> None:
    every = list(evidence.steps())
    assert len(set(every)) == len(every)
    for step in every:
        table, found = evidence.cell_of(step)
        assert table.experiment(found, table.rounds, step.seed).seed == step.seed
        assert step.last <= table.rounds
    assert {step.cell for step in every if step.table == "fedgs-skew"} == {
        one.key for one in TABLES["fedgs-skew"].cells
    }


def test_the_log_s_page_has_what_was_evaluated(tmp_path: Path) -> None:
    text = written(tmp_path, cell("fedgs-log", "cnn/n5/random-round", 0, 0.339, [1] * 62, 20))
    assert "| 20 | 0.349 | 0.3390 | −0.0100 | 0.3750 | +0.0260 | 0.1695 |" in text  # half of 0.5, half of 0.25
    assert "| 40 | 0.617 | – | – | – | – | – |" in text
    assert "20 of 140 rounds" in text


def test_the_page_of_skewed_labels_pairs_seeds(tmp_path: Path) -> None:
    """The 42 rarest classes are 42/102 of all samples; trained on are as many of them as of the others: 42/62."""
    random = [cell("fedgs-skew", "2nn/labels2/random", seed, 0.6 + seed / 10, [1] * 62) for seed in (0, 1)]
    exact = [cell("fedgs-skew", "2nn/labels2/exact", seed, 0.5 + seed / 10, [1] * 62) for seed in (0, 1)]
    begun = cell("fedgs-skew", "2nn/labels2/gbpcs", 0, 0.5, [1] * 62, 90)
    text = written(tmp_path, *random, *exact, begun)
    row = "0.5500 ± 0.6353 | −0.1000 ± 0.0000 | 0.2750 ± 0.3177 | −0.0500 ± 0.0000"
    assert f"| FedGS, exact | 0, 1 | {row} | {(42 / 62) / (42 / 102):.2f} | 4.0 |" in text
    assert "| at random | 0, 1 | 0.6500 ± 0.6353 | – |" in text  # t₁ · 0.0707/√2 = 12.706 · 0.05
    assert "GBP-CS" not in text.split("Made of")[0]  # not all rounds yet


def test_a_step_s_file_is_in_its_table_s_folder() -> None:
    published = Path(__file__).parents[2] / "results"
    for step in evidence.steps():
        if step.table in pages.MADE and step.file(published).exists():
            assert evidence.finished(step, published), step.name
    assert any(evidence.finished(step, published) for step in evidence.steps())

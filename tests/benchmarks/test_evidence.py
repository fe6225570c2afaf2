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
    for name in ("fedgs-skew", "fedgs-baselines"):
        assert {step.cell for step in every if step.table == name} == {one.key for one in TABLES[name].cells}


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


def test_the_page_of_baselines_pairs_seeds_and_names_divergence(tmp_path: Path) -> None:
    """Rounds 1 and 500: 0.8 is reached in the first of them with FedAdam's second seed alone."""

    def run(key: str, seed: int, first: float, last: float) -> dict[str, object]:
        found = cell("fedgs-baselines", f"2nn/writers/{key}", seed, last, [1] * 62)
        rounds = [
            {"round": number, "accuracy": one, "loss": 1.5, "macro_f1": one}
            for number, one in ((1, first), (500, last))
        ]
        return found | {"evaluations": rounds}

    runs = [run("fedavg", seed, 0.1, 0.75) for seed in (0, 1)]
    runs += [run("fedadam", 0, 0.5, 0.85), run("fedadam", 1, 0.8, 0.87)]
    lost = run("fedmmd", 0, 0.1, 0.2) | {"rounds_done": 3, "diverged": 4}
    begun = run("ida", 0, 0.1, 0.2) | {"rounds_done": 300}
    text = written(tmp_path, *runs, lost, begun)
    assert "| writers | FedAvg | 0, 1 | 0.7500 ± 0.0000 | – | 1.5000 ± 0.0000 | –, – | 82.1 %, 478 |" in text
    assert (
        "| writers | FedAdam | 0, 1 | 0.8600 ± 0.1271 | +0.1100 ± 0.1271 |" in text
    )  # t₁ · 0.01414/√2 = 12.706 · 0.01
    assert "| 500, 1 | 85.0 %, 71 |" in text
    assert "| writers | FedMMD | 0 | diverged, seed 0 |" in text
    assert "IDA" not in text.split("Made of")[0]


def test_the_page_of_hfedms_has_the_figures_of_the_papers_network_beside(tmp_path: Path) -> None:
    def run(key: str, accuracy: float) -> dict[str, object]:
        found = cell("hfedms-table3", f"small/{key}", 0, accuracy, [1] * 62)
        evaluated = [{"round": 500, "accuracy": accuracy, "loss": 0.5, "macro_f1": accuracy}]
        return found | {"evaluations": evaluated}

    folder = tmp_path / "hfedms-runs"
    folder.mkdir()
    for number, one in enumerate(
        (run("stream/fedavg", 0.7), run("stream/fedadam-printed", 0.8), run("static/ida", 0.6))
    ):
        (folder / f"{number}.json").write_text(json.dumps(one))
    text = pages.pages(tmp_path)["hfedms-runs"]
    assert "| stream | FedAdam, η = 0.01 | 0 | 0.8000 | +0.1000 | 0.5000 | 500 | 0.778 |" in text
    assert "| static | IDA | 0 | 0.6000 | – | 0.5000 | – | 0.820 |" in text
    assert "evidence.py --only hfedms-table3" in text
    step = evidence.Step("hfedms-table3", "small/static/ida", 0, 500)
    assert step.file(tmp_path).parent == folder


def test_a_run_that_diverged_is_finished(tmp_path: Path) -> None:
    step = evidence.Step("fedgs-baselines", "2nn/writers/fedmmd", 0, 500)
    assert not evidence.finished(step, tmp_path)
    step.file(tmp_path).parent.mkdir()
    step.file(tmp_path).write_text(json.dumps({"rounds_done": 3}))
    assert not evidence.finished(step, tmp_path)
    step.file(tmp_path).write_text(json.dumps({"rounds_done": 3, "diverged": 4}))
    assert evidence.finished(step, tmp_path)


def test_an_evaluation_has_classes_every_twenty_rounds() -> None:
    line = {"round": 19, "accuracy": 0.12345678, "loss": 2.0, "macro_f1": 0.1, "by_class": [0.123456, None]}
    assert evidence.evaluation(line) == {"round": 19, "accuracy": 0.123457, "loss": 2.0, "macro_f1": 0.1}
    assert evidence.evaluation(line | {"round": 20})["by_class"] == [0.1235, None]


def test_a_step_s_file_is_in_its_table_s_folder() -> None:
    published = Path(__file__).parents[2] / "results"
    by_file: dict[Path, list[bool]] = {}
    for step in evidence.steps():
        if step.table in pages.MADE and step.file(published).exists():
            by_file.setdefault(step.file(published), []).append(evidence.finished(step, published))
    assert by_file
    for file, steps in by_file.items():  # the first step of a file may be published before the next has begun
        assert steps[0], file

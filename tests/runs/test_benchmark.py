"""The benchmark: results go on where they stopped, a page, records run again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import Command
from fedfloor.api import benchmark
from refusals import refused

MINE = """
name = "mine"
rounds = 2

[data]
name = "labels"

[park]
devices = 4
factories = 2

[model]
name = "logistic"

[work]
steps = 2
batch_size = 8
lr = 0.05

[network]
profile = "lte-cat-m2"
"""
WORDS = ("benchmark", "--data", "mine.toml", "--methods", "fedavg,fedsr", "--out", "b", "--ranks", "1")


def test_protocols_are_experiments_with_a_network_and_without_a_method() -> None:
    known = benchmark.read([])
    assert len(known) >= 6
    for name, experiment in known.items():
        assert experiment.name == name
        assert experiment.network.profile == "lte-cat-m2"
        assert "[method]" not in benchmark.protocols()[name].read_text()


def test_published_results_are_of_the_protocols_as_they_are() -> None:
    published = benchmark.results(Path(__file__).parents[2] / "results/benchmark/benchmark.json")
    assert published["protocols"] == {name: benchmark._digest(each) for name, each in benchmark.read([]).items()}


def test_a_protocol_of_ones_own_goes_on_and_is_run_again(command: Command) -> None:
    (command.folder / "mine.toml").write_text(MINE)
    first = command(*WORDS, "--seeds", "0", "--json")
    assert first.code == 0, first
    done = benchmark.results(command.folder / "b/benchmark.json")["records"]
    methods = {record["method"] for record in done}
    assert {"fedavg", "fedsr", "local-only", "pooled"} <= methods
    fedavg = next(record for record in done if record["method"] == "fedavg")
    assert fedavg["seconds 5g-edge"] < fedavg["seconds"]
    file = command.folder / "b/benchmark.json"
    file.write_text(file.read_text().replace(benchmark.processor(), "another kind"))  # as if begun on another machine
    both = command(*WORDS, "--seeds", "0,1", "--page", "page.md", "--json")
    assert both.code == 0, both
    rows = {row["method"]: row for row in both.document["rows"]}
    records = json.loads((command.folder / "b/benchmark.json").read_text())["records"]
    assert records[: len(done)] == done
    assert {record["processor"] for record in records[len(done) :]} == {benchmark.processor()}
    by_seed = [
        {record["seed"]: record["value"] for record in records if record["method"] == method}
        for method in ("fedavg", "fedsr")
    ]
    paired = [by_seed[1][seed] - by_seed[0][seed] for seed in (0, 1)]
    assert rows["fedsr"]["difference"] == pytest.approx(sum(paired) / 2)
    page = (command.folder / "page.md").read_text()
    assert "| fedsr | 2 |" in page
    assert f"another kind, {benchmark.processor()}. Mean over" in page
    first = max(("fedavg", "fedsr"), key=lambda method: rows[method]["value"])
    assert f"| [mine](#mine) | accuracy | `{first}` {100 * rows[first]['value']:.1f} ± " in page
    again = command("benchmark", "--data", "mine.toml", "--out", "b", "--rerun", "2", "--ranks", "1", "--json")
    assert again.code == 0, again
    assert all(row["same"] for row in again.document["rows"])
    for record in records:
        record["value"] = 2.0
    (command.folder / "b/benchmark.json").write_text(
        json.dumps(benchmark.results(command.folder / "b/benchmark.json") | {"records": records})
    )
    assert command("benchmark", "--data", "mine.toml", "--out", "b", "--rerun", "1", "--ranks", "1").code == 1


def test_a_method_that_a_protocol_excludes_is_recorded_with_the_reason(command: Command) -> None:
    (command.folder / "mine.toml").write_text(MINE.replace("lr = 0.05", 'lr = 0.001\noptimizer = "adam"'))
    words = [word.replace("fedavg,fedsr", "fedavg,scaffold") for word in WORDS]
    made = command(*words, "--seeds", "0", "--json")
    assert made.code == 0, made
    records = json.loads((command.folder / "b/benchmark.json").read_text())["records"]
    assert "work.optimizer = 'adam'" in next(record["refused"] for record in records if record["method"] == "scaffold")
    (command.folder / "mine.toml").write_text(MINE.replace("rounds = 2", "rounds = 3"))
    command.refused(command(*words, "--seeds", "0"), "has results of another protocol 'mine'")


def test_methods_that_may_be_alike_are_named() -> None:
    """By hand: paired differences 9, 10, 11 have t = 17.3 and p = 0.0033, doubled 0.0066; 1, −1, 3 have p = 0.48."""
    figures = {"a": (20, 30, 40), "far": (11, 20, 29), "near": (19, 31, 37), "pca": (1, 1, 1)}
    records = [
        {"protocol": "mine", "method": method, "seed": seed, "value": value / 100, "figure": "accuracy"}
        for method, values in figures.items()
        for seed, value in enumerate(values)
    ]
    document = {"records": records, "fedfloor": "1", "torch": "2", "processor": "one", "protocols": {}}
    assert benchmark.alike(document, "mine", "a", ["far", "near"]) == ["near"]
    document["records"] = [record for record in records if record["seed"] == 0]
    assert benchmark.alike(document, "mine", "a", ["far", "near"]) == ["far", "near"]  # one seed shows nothing
    assert "| pca | 3 | 1.0 | " in benchmark.page(document | {"records": records})  # the same with every seed: no ±


def test_a_constant_difference_is_no_evidence_although_its_last_bit_varies() -> None:
    """By hand: 0.9 − 0.8 = 0.0999…98 and 0.8 − 0.7 = 0.1000…09, which a t-test would call certain."""
    records = [
        {"protocol": "mine", "method": method, "seed": seed, "value": value, "figure": "accuracy"}
        for method, values in {"a": (0.9, 0.8, 0.7), "fedavg": (0.8, 0.7, 0.6)}.items()
        for seed, value in enumerate(values)
    ]
    document = {"records": records, "fedfloor": "1", "torch": "2", "processor": "one", "protocols": {}}
    assert benchmark.alike(document, "mine", "a", ["fedavg"]) == ["fedavg"]
    (row,) = (row for row in benchmark.table(document, "mine") if row["method"] == "a")
    assert (row["difference"], row["difference_half_width"]) == (pytest.approx(0.1), None)


def test_mistakes_are_named(command: Command) -> None:
    command.refused(command("benchmark", "turbofan"), "unknown protocol 'turbofan'. Did you mean 'turbofans'?")
    command.refused(command("benchmark", "--rerun", "0"), "--rerun 0")
    command.refused(command("benchmark", "--rerun", "1", "--out", "none"), "has no results of a benchmark")
    (command.folder / "benchmark.json").write_text("[]")
    with refused("results-of-benchmark"):
        benchmark.results(Path(command.folder / "benchmark.json"))

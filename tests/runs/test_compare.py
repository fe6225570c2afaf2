"""Several methods and seeds in one table, stopped and gone on with."""

from __future__ import annotations

import pytest

from commands import Command, lines, pressed
from fedfloor.runs import launch, ledger

COMPARE = ("compare", "tiny.toml", "--ranks", "1", "--methods", "fedavg,fedsr", "--seeds", "0,1")
PAIRS = [f"{method}-seed{seed}" for seed in (0, 1) for method in ("fedavg", "fedsr")]


def figures(rows: list[dict]) -> list[dict]:
    """A table without what depends on the machine."""
    return [{name: value for name, value in row.items() if name != "wall_s"} for row in rows]


def test_compare_has_a_row_per_method_and_a_run_per_pair(command: Command) -> None:
    said = command(*COMPARE, "--out", "all", "--json")
    assert [(row["method"], row["seeds"]) for row in said.document["rows"]] == [("fedavg", [0, 1]), ("fedsr", [0, 1])]
    for row in said.document["rows"]:
        last = [lines(command.folder / "all" / f"{row['method']}-seed{seed}")[-1]["accuracy"] for seed in (0, 1)]
        assert row["accuracy"] == pytest.approx(sum(last) / 2, rel=1e-12)
    assert [text.split(":")[0] for text in said.err.splitlines()[::3]] == [
        name.replace("-seed", " seed ") for name in PAIRS
    ]
    alone = command(
        "run", "tiny.toml", "--ranks", "1", "--out", "alone", "--set", "seed=1", "--set", "method.name=fedsr"
    )
    assert alone.code == 0
    assert lines(command.folder / "alone") == lines(command.folder / "all" / "fedsr-seed1")


def test_methods_that_train_unequally_much_are_named(command: Command) -> None:
    """FedSR's five laps of one epoch are five passes; one lap of two epochs are two."""
    laps = ("--set", "methods.fedsr.laps=1", "--set", "methods.fedavg.work.epochs=5", "--stop-after", "1")
    other = command(*COMPARE, "--out", "other", *laps, "--set", "methods.fedsr.work.epochs=2")
    assert "in a round are 2 (fedsr), 5 (fedavg)." in other.err
    same = command(*COMPARE, "--out", "same", *laps, "--set", "methods.fedsr.work.epochs=5")
    assert "equally much" not in same.err


def test_a_comparison_that_was_killed_goes_on_to_the_same_table(command: Command) -> None:
    whole = command(*COMPARE, "--out", "whole", "--json").document["rows"]
    # as a kill leaves it: one run done, one with a checkpoint and half a line after it, one without a checkpoint
    command("run", "tiny.toml", "--ranks", "1", "--out", "half/fedavg-seed0")
    words = ("run", "tiny.toml", "--ranks", "1", "--set", "method.name=fedsr")
    command(*words, "--out", "half/fedsr-seed0", "--stop-after", "2")
    with (command.folder / "half" / "fedsr-seed0" / "ledger.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    done = (command.folder / "half" / "fedavg-seed0" / "ledger.jsonl").read_bytes()
    refused = command(*COMPARE, "--out", "half")
    assert refused.code == 2
    assert "half/fedavg-seed0 already holds a run. Continue it with --resume" in refused.err
    resumed = command(*COMPARE, "--out", "half", "--resume", "--json")
    assert figures(resumed.document["rows"]) == figures(whole)
    assert (command.folder / "half" / "fedavg-seed0" / "ledger.jsonl").read_bytes() == done
    for name in PAIRS:
        one = command.folder / "whole" / name
        other = command.folder / "half" / name
        assert lines(one) == lines(other)
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


SWEPT = ("sweep", *COMPARE[1:], "--grid", "work.lr=0.1,0.2")


@pytest.mark.parametrize("words", [COMPARE, SWEPT], ids=["compare", "sweep"])
def test_ctrl_c_in_a_last_round_stops_the_whole_command(
    words: tuple[str, ...], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "append", pressed(lambda _path, line: line.round == 3, ledger.append))
        said = command(*words, "--out", "all")
    assert said.code == 130
    assert said.err.endswith("stopped. Continue with the same command and --resume\n")
    (only,) = (command.folder / "all").glob("fed*-seed*")
    assert len(lines(only)) == 3
    before = (only / "ledger.jsonl").read_bytes()
    went_on = command(*words, "--out", "all", "--resume", "--json")
    whole = command(*words, "--out", "whole", "--json")
    assert figures(went_on.document["rows"]) == figures(whole.document["rows"])
    assert (only / "ledger.jsonl").read_bytes() == before


def test_ctrl_c_between_two_runs_stops_the_whole_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "build_park", pressed(lambda what: what.seed == 1, launch.build_park))
    said = command(*COMPARE, "--out", "all")
    assert said.code == 130
    assert "Traceback" not in said.err
    assert said.err.endswith("stopped. Continue with the same command and --resume\n")
    done = {path.name: len(lines(path)) for path in (command.folder / "all").glob("*-seed*")}
    assert done == {"fedavg-seed0": 3, "fedsr-seed0": 3, "fedavg-seed1": 1}


def test_the_last_round_of_the_last_run_leaves_nothing_to_stop(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "append", pressed(lambda _path, line: line.round == 3, ledger.append))
    said = command(*COMPARE[:-4], "--methods", "fedavg", "--out", "all", "--json")
    assert said.code == 0
    assert len(said.document["rows"]) == 1


REFUSED = {
    "--methods fedavg,fedavg": "--methods fedavg,fedavg: give at least one entry, and each only once.",
    "--methods fedavg,": "unknown method ''.",
    "--methods fedavg,fedrs": "unknown method 'fedrs'. Did you mean 'fedsr'?",
    "--methods fedavg --seeds x": "--seeds x: must be whole numbers separated by commas, such as 0,1,2.",
    "--methods fedavg --seeds 0,0": "--seeds 0,0: give at least one entry, and each only once.",
    "--methods fedavg --seeds=-1": "seed = -1: must be a whole number of at least 0.",
    "--methods fedavg --ranks 0": "--ranks 0: must be 1 to 64.",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=REFUSED)
def test_compare_refuses(command: Command, words: str, message: str) -> None:
    command.refused(command("compare", "tiny.toml", "--out", "all", *words.split()), message)

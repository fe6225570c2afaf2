"""The table of a comparison as Markdown."""

from __future__ import annotations

from pathlib import Path

from commands import Command
from fedfloor.report.ledger import collect
from fedfloor.report.words import markdown as table
from run_folders import make_run


def both(folder: Path) -> Path:
    for seed, last in enumerate((0.5, 0.6)):
        make_run(folder / f"a{seed}", [0.1, last], method="fedavg", seed=seed)
        make_run(folder / f"b{seed}", [0.1, last + 0.1 + 0.02 * seed], method="fedsr", seed=seed)
    return folder


def test_the_lines_by_hand(tmp_path: Path) -> None:
    # FedAvg 0.5 and 0.6: mean 0.55, 95 % half width t(1)·s/√2 = 12.7062·0.0707107/1.41421 = 0.6353.
    # FedSR is 0.10 and 0.12 better: mean 0.11, half width 12.7062·0.0141421/1.41421 = 0.1271.
    # 0.6 and 0.72: mean 0.66, half width 12.7062·0.0848528/1.41421 = 0.7624;
    # intervals of shares end at 0 and 1. Losses 1 − accuracy; 1.5 s per round.
    head, _, first, second = table(collect([both(tmp_path)])).splitlines()
    assert head == "| method | accuracy | minus fedavg | macro-F1 | loss | rounds | seeds | s per run |"
    assert first == "| fedavg | 0.5500 (0.0000 to 1.0000) |  | – | 0.450 | 2 | 2 | 3.0 |"
    assert second == "| fedsr | 0.6600 (0.0000 to 1.0000) | 0.1100 (−0.0171 to 0.2371) | – | 0.340 | 2 | 2 | 3.0 |"


def test_the_command_writes_it(command: Command) -> None:
    both(command.folder / "runs")
    said = command("report", "runs", "--markdown", "table.md")
    assert said.code == 0
    assert (command.folder / "table.md").read_text(encoding="utf-8") == table(collect([command.folder / "runs"]))


def test_a_place_that_is_not_there_is_told(command: Command) -> None:
    both(command.folder / "runs")
    said = command("report", "runs", "--markdown", "nowhere/table.md")
    assert said.code == 2
    assert "--markdown nowhere/table.md: No such file" in said.err


def test_exchanged_parts_are_part_of_a_methods_name(tmp_path: Path) -> None:
    for name, own in (("plain", ""), ("parts", '[methods.fedavg.objective]\nkind = "prox"\nmu = 0.1\n')):
        folder = make_run(tmp_path / name, [0.1, 0.2], method="fedavg")
        text = (folder / "experiment.toml").read_text().replace("laps = 5\n", f"laps = 5\n{own}")
        server = 'server = "adam"\nobjective = "plain"\n' if own else ""
        (folder / "experiment.toml").write_text(text.replace('name = "fedavg"\n', f'name = "fedavg"\n{server}'))
    rows = [line.split(" | ")[0] for line in table(collect([tmp_path / "plain", tmp_path / "parts"])).splitlines()[2:]]
    assert rows == ["| fedavg", "| fedavg + prox + adam"]  # what the method's own table says goes first

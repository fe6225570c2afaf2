"""A sweep: equal budgets, validation data, and a file with the best settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Command, lines
from fedfloor import config
from fedfloor.base.errors import RunError, SettingError
from fedfloor.experiment import DataSettings, EvaluateSettings, Experiment, FaultSettings, ParkSettings
from fedfloor.methods import chosen
from fedfloor.park.partition import Dirichlet, Iid, Natural
from fedfloor.parts.work import WorkSettings
from fedfloor.runs import sweep as sweeps
from fedfloor.runs.sweep import Result, Sweep, axis
from refusals import refused

BOTH = ("fedavg", "fedsr")
SWEEP = ("sweep", "tiny.toml", "--ranks", "1", "--methods", "fedavg,fedsr", "--grid", "work.lr=0.3,0.003")


def planned(*texts: str, experiment: Experiment | None = None, trials: int | None = None, seeds: int = 1) -> Sweep:
    return sweeps.plan(experiment or Experiment(), BOTH, [axis(text) for text in texts], range(seeds), trials)


def points(sweep: Sweep, method: str) -> list[dict]:
    return [trial.dotted for trial in sweep.trials if trial.method == method]


# -- the budget --------------------------------------------------------------------------------------------------------


def test_the_budget_is_the_smallest_grid() -> None:
    grid = ("work.lr=0.1,0.2,0.3", "methods.fedsr.laps=1,2,3,4")
    got = planned(*grid)
    assert (got.budget, got.sizes) == (3, {"fedavg": 3, "fedsr": 12})
    assert points(got, "fedavg") == [{"work.lr": lr} for lr in (0.1, 0.2, 0.3)]
    drawn = points(got, "fedsr")
    every = [{"work.lr": lr, "laps": laps} for lr in (0.1, 0.2, 0.3) for laps in (1, 2, 3, 4)]
    places = [every.index(one) for one in drawn]
    assert len(places) == 3
    assert places == sorted(set(places))  # none twice, in the order of the grid
    assert planned(*grid) == got
    others = [points(planned(*grid, experiment=Experiment(seed=seed)), "fedsr") for seed in range(8)]
    assert any(one != drawn for one in others)  # drawn by the seed


def test_a_smaller_budget_is_drawn_for_everybody() -> None:
    got = planned("work.lr=0.1,0.2,0.3", trials=2)
    assert [len(points(got, name)) for name in BOTH] == [2, 2]
    assert [trial.number for trial in got.trials] == [1, 2, 1, 2]


def test_budgets_that_cannot_be_equal() -> None:
    with refused("--trials"):
        planned("work.lr=0.1,0.2,0.3", "methods.fedsr.laps=1,2", trials=4)
    with refused("--trials"):
        planned("methods.fedsr.laps=1,2")
    assert planned("methods.fedsr.laps=1,2", trials=1).budget == 1
    with refused("--trials"):
        planned("work.lr=0.1,0.2", trials=0)


# -- what is tried -----------------------------------------------------------------------------------------------------


def test_a_trial_is_the_experiment_with_its_settings_on_validation_data() -> None:
    what = Experiment(methods={"fedsr": {"laps": 9, "work": {"momentum": 0.5, "steps": 3}}}, rounds=7)
    got = planned("work.epochs=1,2", "methods.fedsr.laps=4,5", experiment=what, trials=2)
    for trial in got.trials:
        one = trial.experiment
        assert one.evaluate == EvaluateSettings(on="validation")
        assert one.method.name == trial.method
        assert replace(one, name="run", evaluate=what.evaluate, method=what.method, methods=what.methods) == what
        method = chosen.method_of(one)
        assert method.work.epochs == trial.settings["work", "epochs"]
        if trial.method == "fedsr":  # epochs take the place of steps, what is not swept stays
            assert (method.work.steps, method.work.momentum) == (None, 0.5)
            assert method.laps == trial.settings[("laps",)]
    assert what.methods == {"fedsr": {"laps": 9, "work": {"momentum": 0.5, "steps": 3}}}


def test_runs_come_seed_by_seed_in_folders_of_their_own() -> None:
    work = planned("work.lr=0.1,0.2", seeds=2).planned_runs(Path("out"))
    assert [run.experiment.seed for run in work] == [0] * 4 + [1] * 4
    assert work[1].label == "fedavg trial 2/2 seed 0"
    assert len({run.out for run in work}) == 8


def test_impossible_settings_are_refused_before_anything_is_trained() -> None:
    for text, message in {
        "work.lr=0.1,fast": r"work\.lr = 'fast': must be",
        "work.lr=0.1,-1": "work.lr = -1",
        "work.rate=0.1,1": "unknown key 'rate'",
        "methods.fedsr.lapse=1,2": "Did you mean 'laps'",
        "work.lr.start=0.1,0.2": "needs kind = one of",
        "method.fraction.x=1,2": "fraction",
    }.items():
        with pytest.raises(SettingError, match=message):
            planned(text, trials=1)


# -- the best ----------------------------------------------------------------------------------------------------------


def won(sweep: Sweep, accuracies: list[tuple[float | None, ...]]) -> dict[str, Result]:
    return sweeps.winners([Result(trial, one) for trial, one in zip(sweep.trials, accuracies, strict=True)])


def test_the_best_trial_has_the_highest_mean_and_ties_go_to_the_earlier_one() -> None:
    got = planned("work.lr=0.1,0.2,0.3", seeds=2)
    best = won(got, [(0.5, 0.5), (0.9, 0.2), (0.2, 0.9), (0.4, 0.4), (0.9, None), (0.4, 0.4)])
    assert {name: one.trial.number for name, one in best.items()} == {"fedavg": 2, "fedsr": 1}
    assert sweeps.winner(best).trial.method == "fedavg"
    level = won(got, [(0.5, 0.5)] * 6)
    assert {name: one.trial.number for name, one in level.items()} == {"fedavg": 1, "fedsr": 1}
    assert sweeps.winner(level).trial.method == "fedavg"
    assert list(won(got, [(None, 0.5)] * 3 + [(0.0, 0.0)] * 3)) == ["fedsr"]


FULL = Experiment(
    name="plant",
    seed=3,
    rounds=7,
    data=DataSettings(partition=Dirichlet(alpha=0.5, at_least=4), samples_per_device=50),
    park=ParkSettings(devices=6, factories=2),
    work=WorkSettings(momentum=0.5, lr=0.2),
    methods={"hierfavg": {"edge_rounds": 2}, "fedsr": {"work": {"steps": 4}, "ring_size": 2}, "ring": {}},
    faults=FaultSettings(visit=0.1),
    evaluate=EvaluateSettings(every=2, validation=0.2),
    provenance={"cpu": "any"},
)


def test_the_file_reads_back_as_the_tuned_experiment(tmp_path: Path) -> None:
    rates = 'work.lr={ kind = "cosine", start = 0.1, end = 1e-5 },0.01'
    got = planned(rates, "methods.fedsr.laps=1,5", "work.epochs=1,2", experiment=FULL, seeds=2)
    best = won(got, [(i / 10, i / 10) for i in (4, 3, 2, 1, 1, 2, 9, 3)])
    (tmp_path / "best.toml").write_text(sweeps.document(got, best, 7, tmp_path))
    read = config.read(tmp_path / "best.toml")
    assert read == replace(
        FULL,
        name="plant-best",
        method=replace(FULL.method, name="fedsr"),
        methods={
            "hierfavg": {"edge_rounds": 2},
            "fedsr": {"ring_size": 2, **best["fedsr"].trial.experiment.methods["fedsr"]},
            "fedavg": {"work": {"lr": {"kind": "cosine", "start": 0.1, "end": 1e-5}, "epochs": 1}},
        },
        provenance={},
    )
    assert read.evaluate.on == "test"
    for name in BOTH:
        assert chosen.method_of(read, name) == chosen.method_of(best[name].trial.experiment)
    text = (tmp_path / "best.toml").read_text()
    for words in ("4 trials of every method", "seeds 0,1", "0.2 of", "0.4000 with", "--grid methods.fedsr.laps=1,5"):
        assert words in text
    assert "every device's training samples" in text
    assert "normalise" not in text  # a default


@pytest.mark.parametrize("what", [Experiment(), FULL, Experiment(name="x", methods={"a.b:C": {}})], ids=repr)
def test_the_brief_form_of_an_experiment_says_the_same(what: Experiment, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(config.brief(what))
    methods = {name: table for name, table in what.methods.items() if table}
    assert config.read(tmp_path / "other.toml") == replace(what, methods=methods, provenance={})


@pytest.mark.parametrize("partition", [Iid(), Natural()])
@pytest.mark.parametrize("data", [{"name": "mnist"}, {"path": "floor.npz"}, {"name": "femnist"}])
def test_the_brief_form_keeps_a_partition_that_is_the_default_of_other_data(
    data: dict[str, str], partition: Iid | Natural, tmp_path: Path
) -> None:
    what = Experiment(data=DataSettings(**data, partition=partition))  # type: ignore[arg-type]
    (tmp_path / "run.toml").write_text(config.brief(what))
    assert config.read(tmp_path / "run.toml").data.partition == partition


def test_a_table_before_a_schedule_does_not_swallow_it(tmp_path: Path) -> None:
    what = Experiment(methods={"fedsr": {"work": {"lr": {"kind": "cosine", "start": 0.1}, "epochs": 1}, "laps": 2}})
    (tmp_path / "run.toml").write_text(config.brief(what))
    assert config.read(tmp_path / "run.toml") == what


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_table_is_what_the_runs_say(command: Command) -> None:
    said = command(*SWEEP, "--seeds", "0,1", "--out", "all", "--json")
    told = said.document
    assert "note: 2 trials of each method, each with 2 seeds" in said.err
    assert "points of" not in said.err  # each grid has as many points as trials
    assert [(row["method"], row["trial"]) for row in told["rows"]] == [(name, i) for name in BOTH for i in (1, 2)]
    for row in told["rows"]:
        folders = [command.folder / "all" / f"{row['method']}-trial{row['trial']}-seed{seed}" for seed in (0, 1)]
        last = [lines(folder)[-1]["accuracy"] for folder in folders]
        assert row["accuracies"] == last
        assert row["validation_accuracy"] == pytest.approx(sum(last) / 2)
        assert 'on = "validation"' in (folders[0] / "experiment.toml").read_text()
        assert json.loads((folders[0] / "park.json").read_text())["test_samples"] == 16  # 4 of 40 from each of 4
    for name in BOTH:
        mine = [row for row in told["rows"] if row["method"] == name]
        assert sum(row["best"] for row in mine) == 1
        assert max(mine, key=lambda row: row["validation_accuracy"])["best"]
        for row in mine:
            assert row["low"] <= row["validation_accuracy"] <= row["high"]
            assert row["as_good"] == (not row["best"] and row["p_holm"] >= 0.05)
    assert told["best"] == "all/best.toml"
    best = {key: value for key, value in told.items() if key != "best"}
    assert json.loads((command.folder / "all" / "sweep.json").read_text()) == best
    again = command(*SWEEP, "--seeds", "0,1", "--out", "all", "--json", "--resume")
    assert again.document == told
    table = command(*SWEEP, "--seeds", "0,1", "--out", "all", "--resume").out
    assert "work.lr" in table
    assert f"best: {told['winner']}; the best settings of each method: all/best.toml" in table
    assert "test them: fedfloor compare all/best.toml --methods " in table


def test_a_trial_is_an_ordinary_run_on_validation_data(command: Command) -> None:
    assert command(*SWEEP, "--out", "all").code == 0
    alone = command.set("method.name=fedsr", "work.lr=0.003", 'evaluate.on="validation"')
    assert alone.code == 0
    assert lines(command.folder / "out") == lines(command.folder / "all" / "fedsr-trial2-seed0")


def test_the_file_goes_into_compare(command: Command) -> None:
    assert command(*SWEEP, "--out", "all", "--set", "seed=1").code == 0
    said = command("compare", "all/best.toml", "--ranks", "1", "--methods", "fedavg,fedsr", "--out", "test", "--json")
    assert said.code == 0, said.err
    for row in said.document["rows"]:
        text = (command.folder / "test" / f"{row['method']}-seed0" / "experiment.toml").read_text()
        assert 'on = "test"' in text
        assert 'name = "tiny-best"' in text


def test_a_trial_that_diverges_loses_and_the_sweep_goes_on(command: Command) -> None:
    words = ("sweep", "tiny.toml", "--methods", "fedavg,fedsr", "--grid", "work.lr=3e38,0.1", "--seeds", "0")
    one = command(*words, "--ranks", "1", "--out", "one", "--json")
    assert one.code == 0, one.err
    assert "note: fedavg trial 1/2 seed 0: the loss of device" in one.err
    assert [row["accuracies"] for row in one.document["rows"] if row["trial"] == 1] == [[None]] * 2
    assert all(row["best"] == (row["trial"] == 2) for row in one.document["rows"])
    two = command(*words, "--ranks", "2", "--out", "two", "--json")
    assert two.document["rows"] == one.document["rows"]
    assert "diverged" in command(*words, "--ranks", "1", "--out", "one", "--resume").out


def test_a_method_whose_trials_all_diverge(command: Command) -> None:
    words = ("sweep", "tiny.toml", "--methods", "fedavg,fedsr", "--grid", "methods.fedavg.work.lr=3e38,2e38")
    said = command(*words, "--grid", "methods.fedsr.work.lr=0.1,0.2", "--ranks", "1", "--out", "all")
    assert said.code == 1
    assert "error: every trial of fedavg diverged" in said.err
    assert "diverged" in said.out
    assert not (command.folder / "all" / "best.toml").exists()


def test_stopping_early_is_the_same_for_all(command: Command) -> None:
    said = command(*SWEEP, "--out", "all", "--stop-after", "1", "--json").document
    assert said["rounds"] == 1
    assert {len(lines(path)) for path in (command.folder / "all").glob("*-trial*")} == {1}
    assert "2 trials of every method, 1 rounds each" in (command.folder / "all" / "best.toml").read_text()


def test_the_final_model_counts_though_no_round_evaluated_it(command: Command) -> None:
    said = command(*SWEEP, "--out", "all", "--set", "evaluate.every=2", "--stop-after", "1", "--json").document
    usual = command(*SWEEP, "--out", "usual", "--stop-after", "1", "--json").document
    assert said["rows"] == usual["rows"]
    for path in (command.folder / "all").glob("*-trial*"):
        assert lines(path)[-1]["accuracy"] is None
        assert json.loads((path / "evaluation.json").read_text())["on"] == "validation"


def test_a_trial_without_its_evaluation(command: Command) -> None:
    got = planned("work.lr=0.1,0.2")
    with refused("trial-lacks", RunError):
        sweeps.results(got, command.folder / "all", set())


def test_points_left_out_are_told(command: Command) -> None:
    said = command(*SWEEP, "--grid", "methods.fedsr.laps=1,2", "--out", "all", "--stop-after", "1")
    assert "note: 2 of the 4 points of fedsr's grid are drawn" in said.err


REFUSED = {
    "--grid data.name=a,b": "a sweep chooses settings of methods",
    "--grid work.lr=0.1,0.2 --trials 3": "--trials of at most 2",
    "--grid work.lr=0.1,0.2 --seeds 0,0": "--seeds 0,0: give at least one entry, and each only once",
    "--grid work.lr=0.1,0.2 --seeds=-1": "seed = -1",
    "--grid work.lr=0.1,0.2 --ranks 0": "--ranks 0: must be 1 to 64.",
    "--grid work.lr=0.1,0.2 --set evaluate.validation=1.0": "evaluate.validation = 1.0",
    "--grid work.lr=0.1,0.2 --set evaluate.on=train": "evaluate.on = 'train'",
    "--grid work.lr=0.1,x": "work.lr = 'x': must be",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=REFUSED)
def test_sweep_refuses(command: Command, words: str, message: str) -> None:
    command.refused(command("sweep", "tiny.toml", "--methods", "fedavg", "--out", "all", *words.split()), message)


def test_a_folder_with_runs_is_not_overwritten(command: Command) -> None:
    assert command(*SWEEP, "--out", "all", "--stop-after", "1").code == 0
    said = command(*SWEEP, "--out", "all")
    command.refused(said, "already holds a run. Continue it with --resume")
    other = command(*SWEEP[:-1], "work.lr=0.3,0.004", "--out", "all", "--resume")
    assert other.code == 2
    assert "was started differently: methods.fedavg.work.lr: 0.003 → 0.004" in other.err

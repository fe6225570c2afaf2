"""Trials of settings of the data, and the drafts that they decide."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Command
from fedfloor import config
from fedfloor.drafting import training
from fedfloor.drafting.splits import never_met
from fedfloor.runs import trials
from fedfloor.runs.parks import build_park

DEVICES = 9
ROWS = 80


def table(
    path: Path, level: float, *, turns: bool = False, wears: bool = True, scale: float = 1.0, clock: str = "time"
) -> Path:
    """Write rows of machines whose sensors have levels of their own; from the middle on, a label moves two sensors.

    Args:
        level: standard deviation of the levels, in deviations of the noise.
        turns: whether machines run one after another, otherwise at the same time.
        wears: whether the label changes in the middle, otherwise each third machine has it from the start.
        scale: what the label moves, in units of three deviations of the noise.
        clock: the name of the time's column.
    """
    rng = np.random.default_rng(5)
    lines = [f"machine,{clock},a,b,c,state"]
    for k in range(DEVICES):
        levels = rng.normal(0, level, 3)
        for t in range(ROWS):
            worn = t >= ROWS // 2 if wears else k % 3 == 0
            values = levels + rng.normal(0, 1, 3) + 3 * scale * np.array([worn, -float(worn), 0])
            time = 60 * (t + (k * ROWS if turns else 0))
            lines.append(f"m{k},{time},{','.join(f'{value:.3f}' for value in values)},{'worn' if worn else 'normal'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def drafted(command: Command, *words: str) -> tuple[dict[str, Any], str]:
    """Return the data of a draft, and its notes."""
    made = command("new", "plant.csv", "--force", *words)
    assert made.code == 0, made.err
    written: dict[str, Any] = tomllib.loads((command.folder / "plant.toml").read_text())
    return written["data"], made.err


def test_levels_of_devices_are_normalised_by_rows_that_new_devices_have(command: Command) -> None:
    """Levels of eight deviations hide a label that moves three, from the middle of recordings of 80 rows on."""
    table(command.folder / "plant.csv", level=8, turns=True)
    data, notes = drafted(command)
    assert data["split"] == {"kind": "device"}
    assert data["normalise"] in ({"kind": "device", "rows": rows} for rows in (67, 40, 27, 20))
    assert "devices have levels of their own" in notes
    words = ("run", "plant.toml", "--ranks", "1", "--set", "rounds=28", "--set", "methods.boosting.rate=1.0", "--json")
    own, alike = (
        command(*words, "--out", kind, *change).document["rows"][0]["accuracy"]
        for kind, change in (("own", ()), ("alike", ("--set", "data.normalise=standard")))
    )
    assert own > alike + 0.1


def test_devices_without_levels_have_one_scale(command: Command) -> None:
    table(command.folder / "plant.csv", level=0, turns=True)
    assert "normalise" not in drafted(command)[0]


def test_levels_that_carry_the_label_stay(command: Command) -> None:
    """Where whole machines are worn, a scale for each would remove what the label is about."""
    table(command.folder / "plant.csv", level=0.1, wears=False)
    words = ("--set", 'data.split={kind="device",test=0.4}', "--set", "seed=3")
    assert "normalise" not in drafted(command, *words)[0]


def test_known_devices_are_normalised_by_all_their_rows(command: Command) -> None:
    """The label alternates within devices that run at the same time: the last rows test, and those before are known."""
    rng = np.random.default_rng(2)
    lines = ["machine,time,a,b,c,state"]
    for k in range(DEVICES):
        levels = rng.normal(0, 30, 3)
        for t in range(ROWS):
            worn = t // 5 % 2 == 1
            values = levels + rng.normal(0, 1, 3) + 3 * worn
            lines.append(f"m{k},{t},{','.join(f'{value:.3f}' for value in values)},{'worn' if worn else 'normal'}")
    (command.folder / "plant.csv").write_text("\n".join(lines) + "\n")
    data, _ = drafted(command, "--set", "data.window={length=1,step=1}")
    assert data["split"] == {"kind": "time"}
    assert data["normalise"] == {"kind": "device"}


def test_levels_are_found_without_labels(command: Command) -> None:
    table(command.folder / "plant.csv", level=8)
    data, notes = drafted(command, "--task", "reconstruction")
    assert data["normalise"] == {"kind": "device"}
    assert "levels explain" in notes
    table(command.folder / "plant.csv", level=0)
    assert "normalise" not in drafted(command, "--task", "reconstruction")[0]


def test_what_is_given_stays(command: Command) -> None:
    table(command.folder / "plant.csv", level=8, turns=True)
    given = ("--set", "data.normalise=standard", "--set", 'data.split={kind="time",test=0.3}')
    data, _ = drafted(command, *given)
    assert (data["normalise"], data["split"]) == ("standard", {"kind": "time", "test": 0.3})


@pytest.mark.parametrize(("turns", "kind"), [(True, "device"), (False, "time")])
def test_recordings_made_one_after_another_are_held_out_whole(command: Command, turns: bool, kind: str) -> None:
    rng = np.random.default_rng(3)
    rows = [
        f"m{k},{60 * (t + 100 * k * turns)},{rng.normal():.3f},{'on' if t % 7 else 'off'}"
        for k in range(6) for t in range(50)
    ]  # fmt: skip
    (command.folder / "plant.csv").write_text("\n".join(["machine,time,a,state", *rows]) + "\n")
    assert drafted(command)[0]["split"] == {"kind": kind}


def test_targets_that_devices_have_once_are_tested_on_whole_devices(command: Command) -> None:
    """By time a model would recognise the cell: its target is the same in all rows."""
    rng = np.random.default_rng(4)
    rows = [f"c{k},{t},{k + rng.normal(0, 0.1):.3f},{700 + 37 * k}" for k in range(12) for t in range(30)]
    (command.folder / "plant.csv").write_text("\n".join(["cell,cycle,a,grade", *rows]) + "\n")
    words = ("--set", "data.columns.device=cell", "--set", "data.columns.label=grade")
    command.refused(command("new", "plant.csv", *words), "a measure, or codes?", "--set data.task=regression")
    data, notes = drafted(command, *words, "--set", "data.task=regression")
    assert data["split"] == {"kind": "device"}
    assert "each device has a single label" in notes


def test_labels_of_devices_that_no_split_can_test_are_named(command: Command) -> None:
    """Of four machines one is worn: a split by device lacks it in training or in testing."""
    rng = np.random.default_rng(4)
    rows = [f"m{k},{t},{rng.normal():.3f},{'worn' if k == 3 else 'good'}" for k in range(4) for t in range(30)]
    (command.folder / "plant.csv").write_text("\n".join(["machine,time,a,state", *rows]) + "\n")
    data, notes = drafted(command)
    assert data["split"] == {"kind": "time"}
    assert "how well devices are recognised" in notes


def test_gains_are_judged_by_devices(tmp_path: Path) -> None:
    """A trial is not better than itself, and errors are in units of the variance: those of the mean are 1."""
    path = table(tmp_path / "plant.csv", level=0)
    data = {
        "path": str(path),
        "split": {"kind": "device"},
        "task": "reconstruction",
        "columns": {"device": "machine", "label": "state"},
    }
    park = build_park(config.from_table({"data": data}))
    trial = trials.HeldOut(park)
    assert trial.errors.mean() == pytest.approx(1, abs=0.05)  # means of folds hardly differ
    assert trial.better(trial, "") == ""
    assert never_met(park.dataset) == ""


def test_lives_above_the_cap_decide_nothing(tmp_path: Path) -> None:
    """A sensor shows wear in the last 20 rows only: with a cap there it explains most, without one hardly any."""
    rng = np.random.default_rng(8)
    lines = ["machine,hour,wear,life"]
    for k in range(DEVICES):
        many = int(rng.integers(60, 300))
        lines += [f"m{k},{t},{max(0, t - many + 20) + rng.normal(0, 0.1):.3f},{many - t}" for t in range(many)]
    (tmp_path / "plant.csv").write_text("\n".join(lines) + "\n")

    def explained(**cap: float) -> float:
        columns = {"device": "machine", "time": "hour", "label": "life"}
        data = {"path": str(tmp_path / "plant.csv"), "split": {"kind": "device"}, "columns": columns}
        return trials.HeldOut(
            build_park(config.from_table({"data": data | {"task": {"kind": "regression", **cap}}}))
        ).explained

    assert explained(cap=20) > 0.8
    assert explained() < 0.5


def test_a_limit_that_decided_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table(command.folder / "plant.csv", level=0)
    words = ("--set", "data.window={length=5,step=1}")
    assert "network" not in drafted(command, *words)[1]
    monkeypatch.setattr(training, "MOST_WINDOWS", 100)
    _, notes = drafted(command, *words)
    assert f"{7 * (ROWS - 4)} windows are more than 100" in notes  # two of the nine devices are for testing
    assert "--set method.name=boosting" in notes


def test_pictures_of_owners_have_classes_and_a_stop(command: Command) -> None:
    """Numbers of 40 characters are classes; a writer with one picture does not make batches of one."""
    rng = np.random.default_rng(6)
    writer = np.repeat([f"w{k}" for k in range(8)], [1, *[20] * 7])
    x = rng.integers(0, 256, (len(writer), 20, 20), dtype=np.uint8)
    arrays = {"x": x, "y": np.arange(len(writer)) % 40, "device": writer}
    test = {"x_test": x[:40], "y_test": np.arange(40), "device_test": np.repeat("new", 40)}
    np.savez(command.folder / "plant.npz", **arrays, **test)
    assert command("new", "plant.npz").code == 0
    written = config.read(command.folder / "plant.toml")
    park = build_park(written)
    assert (park.devices, len(park.dataset.classes)) == (8, 40)
    assert (written.work.batch_size, written.work.short_batches) == (8, True)
    assert (written.rounds, written.evaluate.on, written.evaluate.patience) == (100, "both", 5)
    ran = command("run", "plant.toml", "--ranks", "1", "--out", "out", "--stop-after", "2")
    assert ran.code == 0, ran.err


def test_dealt_windows_that_share_rows_are_no_evidence(command: Command) -> None:
    """A drifting sensor says nothing of the label, but a window is recognised by others that share its rows."""
    rng = np.random.default_rng(7)
    label = rng.integers(0, 2, 40)
    walk = np.cumsum(rng.normal(size=800))
    rows = [f"{t},{walk[t]:.3f},{'on' if label[t // 20] else 'off'}" for t in range(800)]
    (command.folder / "plant.csv").write_text("\n".join(["time,a,state", *rows]) + "\n")
    deal = ("--set", "data.columns.device=", "--set", "park.devices=6", "--set", 'data.partition={kind="iid"}')
    assert "window" not in drafted(command, *deal)[0]


def rows(path: Path, noise: float, strength: float = 1.0) -> Path:
    """Write rows of nine machines: a number is that of a sensor, with noise."""
    rng = np.random.default_rng(4)
    lines = ["machine,a,b,c,target"]
    for k in range(DEVICES):
        for x in rng.normal(0, 1, (ROWS, 3)):
            number = strength * x[0] + rng.normal(0, noise)
            lines.append(f"m{k},{','.join(f'{value:.3f}' for value in x)},{number:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_trees_end_where_more_learn_the_noise(command: Command) -> None:
    """Of a number that is mostly noise, a hundred trees of 720 rows learn what held-out rows do not have."""
    rows(command.folder / "plant.csv", noise=1.5)
    assert command("new", "plant.csv", "--force").code == 0
    noisy = tomllib.loads((command.folder / "plant.toml").read_text())
    trees = noisy["methods"]["boosting"]["trees"]
    assert 3 <= trees <= 60
    assert noisy["rounds"] == 4 + 6 * trees
    given = command("new", "plant.csv", "--force", "--set", "methods.boosting.trees=80")
    assert given.code == 0, given.err
    kept = tomllib.loads((command.folder / "plant.toml").read_text())
    assert kept["methods"]["boosting"]["trees"] == 80
    assert kept["rounds"] == 4 + 6 * 80
    ran = [
        command("run", "plant.toml", "--ranks", "1", "--json", "--out", f"t{many}", "--set", f"rounds={4 + 6 * many}",
                "--set", f"methods.boosting.trees={many}", "--set", "evaluate.every=604").document["rows"][0]
        for many in (trees, 100)
    ]  # fmt: skip
    fewer, more = (row["RMSE"] for row in ran)
    assert fewer < more


def test_all_trees_grow_where_they_do_no_harm(command: Command) -> None:
    rows(command.folder / "plant.csv", noise=0.05)
    assert command("new", "plant.csv", "--force").code == 0
    document = tomllib.loads((command.folder / "plant.toml").read_text())
    assert "methods" not in document
    assert document["rounds"] == 604


def test_a_sensor_fitted_at_the_end_of_training_has_no_value_in_a_trial(command: Command) -> None:
    """Its values are all in the samples that one trial holds out."""
    head, *rows = table(command.folder / "plant.csv", level=0).read_text().splitlines()
    late = [f"{row},{'' if n % ROWS < 0.75 * ROWS else n % 7}" for n, row in enumerate(rows)]
    (command.folder / "plant.csv").write_text("\n".join([f"{head},fitted", *late]) + "\n")
    data, notes = drafted(command, "--set", 'data.split={kind="time"}', "--set", "data.window={length=1}")
    assert data["missing"] == "previous"
    assert "of 'fitted' the most, 75 %" in notes


def test_trees_of_windows_use_some_of_many_statistics(command: Command) -> None:
    """A tree uses three tenths of the statistics of six sensors: the bins of four parts of them take 16 rounds."""
    rng = np.random.default_rng(6)
    for sensors, share in ((6, 0.3), (2, 1.0)):
        names = ",".join(f"s{i}" for i in range(sensors))
        lines = [f"machine,time,{names},state"]
        for k in range(4):
            for t in range(120):
                worn = t // 30 % 2 == 1
                values = rng.normal(2 * worn, 1, sensors)
                lines.append(f"m{k},{t},{','.join(f'{value:.3f}' for value in values)},{'worn' if worn else 'ok'}")
        (command.folder / "plant.csv").write_text("\n".join(lines) + "\n")
        words = ("--set", "data.window={length=10,step=1}", "--set", "methods.boosting.trees=100")
        assert command("new", "plant.csv", "--force", *words).code == 0
        document = tomllib.loads((command.folder / "plant.toml").read_text())
        assert document["methods"]["boosting"].get("columns", 1.0) == share
        assert document["rounds"] == (16 if share < 1 else 4) + 600


def test_trees_that_decide_better_count_though_they_are_too_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions after tree t, of two classes: 0.6 for the chosen one at first, and 1 from tree 11 on.

    Of 0.65·n right ones the share explained is 1 − (0.65·0.32 + 0.35·0.72)/0.5 = 0.08; of 0.76·n certain ones 0.04.
    """
    rng = np.random.default_rng(0)
    lines = ["a,b,state", *(f"{rng.normal():.4f},{rng.normal():.4f},{('bad', 'ok')[row % 2]}" for row in range(400))]
    (tmp_path / "plant.csv").write_text("\n".join(lines) + "\n")
    table = {"path": str(tmp_path / "plant.csv"), "columns": {"device": "", "label": "state"}}
    table |= {"partition": {"kind": "iid"}, "split": {"kind": "stratified"}}
    park = build_park(config.from_table({"name": "own", "data": table, "park": {"devices": 3}}))

    def staged(trial: trials.HeldOut, _: float) -> np.ndarray:
        y = trial._targets
        place = np.random.default_rng(1).permutation(len(y)) / len(y)
        stages = []
        for t in range(trials.BOOSTED):
            right = place < 0.65 + 0.11 * min(t, 59) / 59
            chosen = np.where(right[:, None], y, 1 - y)
            stages.append(chosen if t >= 10 else 0.4 + 0.2 * chosen)
        return np.array(stages)

    monkeypatch.setattr(trials.HeldOut, "boosted", staged)
    assert 50 <= trials.trees(park, None, 1.0, scattered=True) <= 60


def test_rows_drawn_at_random_are_held_out_singly(tmp_path: Path) -> None:
    park = build_park(config.from_table({"name": "own", "data": {"name": "labels"}, "park": {"devices": 3}}))
    blocks, rows = (trials.HeldOut(park, scattered=scattered)._fold for scattered in (False, True))
    assert (np.diff(rows) != 0).all()
    assert (np.diff(blocks) == 0).mean() > 0.5

"""What happens when something is wrong: a clear message, the right exit code, nothing half-written."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from filelock import FileLock

from commands import Command, idx, lines
from fedfloor.runs.folder import check_same
from refusals import refused


def test_data_in_an_experiments_place_are_named(command: Command) -> None:
    (command.folder / "rows.xlsx").write_bytes(b"PK")
    command.refused(
        command("run", "rows.xlsx"), "holds data and is not an experiment file. fedfloor new rows.xlsx writes"
    )
    (command.folder / "plant").mkdir()
    command.refused(
        command("run", "plant"), "plant is a folder and not an experiment file. fedfloor new plant writes one"
    )
    (command.folder / "plant.toml").write_text('name = "plant"\n', encoding="utf-8")
    command.refused(command("price", "plant"), "Did you mean plant.toml?")


@pytest.mark.parametrize(
    "words", [("run", "tiny.toml", "--out", ""), ("run", "tiny.toml", "--out="), ("report", " "), ("new", "--out", "")]
)
def test_an_empty_path_is_not_the_current_folder(command: Command, words: tuple[str, ...]) -> None:
    before = sorted(command.folder.iterdir())
    command.refused(command(*words), "the path is empty. Name a file or folder; the current one is '.'.")
    assert sorted(command.folder.iterdir()) == before


def test_compare_takes_the_experiments_own_method(command: Command) -> None:
    said = command("compare", "tiny.toml", "--ranks", "1", "--stop-after", "1", "--json")
    assert said.code == 0, said.err
    assert [row["method"] for row in said.document["rows"]] == ["fedavg"]


# -- what was typed or written is wrong: exit code 2, and nothing on disk ----------------------------------------------

WRITTEN = {
    "an unknown key": (["work.lrr=1"], "[work] unknown key 'lrr'. Did you mean 'lr'?"),
    "an unknown method": (["method.name=fedsrr"], "unknown method 'fedsrr'. Did you mean 'fedsr'?"),
    "an unknown model": (["model.name=lent"], "unknown model 'lent'. Did you mean 'lenet'?"),
    "an unknown data set": (["data.name=mnits"], "unknown data set 'mnits'. Did you mean 'mnist'?"),
    "a wrong type": (["rounds=ten"], "rounds = 'ten': must be a whole number."),
    "a value out of range": (["work.momentum=1"], "work.momentum = 1.0: must be at least 0 and below 1."),
    "epochs and steps": (["work.epochs=1", "work.steps=2"], "work has epochs = 1 and steps = 2: give one of them."),
    "no number of devices": (["park={}"], "[park] devices is not set"),
    "more factories than devices": (["park.factories=9"], "there are 4 devices, and every factory needs one."),
    "more shards than samples": (
        ["data.partition={kind='shards', per_device=99}"],
        "4 devices × per_device = 99 needs 396 shards, but there are 160 samples.",
    ),
    "a device left empty": (
        ["data.partition={kind='dirichlet', alpha=1e-9}", "park.devices=80", "data.samples_per_device=1"],
        "Use a larger alpha or fewer devices.",
    ),
    "α = 0": (["data.partition={kind='dirichlet', alpha=0}"], "alpha = 0.0: must be a number above 0"),
    "α that no computer can tell from 0": (
        ["data.partition={kind='dirichlet', alpha=5e-324}", "park.devices=80", "data.samples_per_device=1"],
        "Use a larger alpha or fewer devices.",
    ),
    "at_least that cannot be": (
        ["data.partition={kind='dirichlet', alpha=0.1, at_least=40}"],
        "left one of 4 devices with fewer than 40 samples",
    ),
    "a batch larger than a device": (
        ["work.batch_size=41"],
        "work.batch_size = 41 is larger than what device 0 holds (40 samples). Lower work.batch_size",
    ),
    "a batch larger than a device, in the method's table": (
        ["methods.fedavg.work.batch_size=41"],
        "work.batch_size = 41 is larger than what device 0 holds (40 samples).",
    ),
    "a module that is not there": (["model.name=own:net"], "model 'own:net': no module 'own'"),
    "no key": (["=3"], "must be KEY=VALUE"),
}


@pytest.mark.parametrize(("changes", "message"), WRITTEN.values(), ids=WRITTEN)
def test_what_is_written_wrongly(command: Command, changes: list[str], message: str) -> None:
    command.refused(command.set(*changes), message)


OWN_NETWORKS = """
from torch import nn

def eleven(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 11))
"""


def test_a_model_that_does_not_fit_the_classes(command: Command) -> None:
    command.module("bad_input_networks", OWN_NETWORKS)
    said = command.set("model.name=bad_input_networks:eleven")
    command.refused(
        said, "gives (11,) outputs per sample; data.task needs (62,): one per class, target or predicted value."
    )


OWN_METHODS = """
from dataclasses import dataclass
from fedfloor.methods.contract import Method
from fedfloor.plan.nodes import Parallel, Train, Work, device

@dataclass(frozen=True)
class Far(Method):
    def plan(self, state, view, rng):
        return Train(device(4), Work(epochs=1))

@dataclass(frozen=True)
class Mixed(Method):
    def plan(self, state, view, rng):
        return Parallel((Train(device(0), Work(epochs=1)),), mix="by_sample")

@dataclass(frozen=True)
class Aimless(Method):
    def plan(self, state, view, rng):
        return Train(device(0), Work(objective="plian", epochs=1))

@dataclass(frozen=True)
class Planless(Method):
    def plan(self, state, view, rng):
        return None
"""
PLANS = {
    "Far": "the plan names device 4: the park has devices 0 to 3.",
    "Mixed": "unknown mixing rule 'by_sample'. Did you mean 'by_samples'?",
    "Aimless": "unknown objective 'plian'. Did you mean 'plain'?",
    "Planless": "a plan consists of train, sequence, parallel, repeat, select, broadcast, probe, since; got None.",
}


@pytest.mark.parametrize(("name", "message"), PLANS.items(), ids=PLANS)
def test_a_plan_that_cannot_be(command: Command, name: str, message: str) -> None:
    command.module("bad_input_methods", OWN_METHODS)
    command.refused(command.set(f"method.name=bad_input_methods:{name}"), message)


TYPED = {
    "--until foo": "unknown --until 'foo'. Known: AUROC [of CLASS], F1 of CLASS, MAE, ",
    "--until accuracy": "--until accuracy: give a number, such as accuracy=0.8.",
    "--until accuracy=80": "(--until) = 80.0: must be a share, above 0 and at most 1",
    "--until acuracy=1": "unknown --until 'acuracy'. Did you mean 'accuracy'?",
    "--stop-after 0": "(--stop-after) = 0: must be a whole number of at least 1.",
    "--ranks 0": "--ranks 0: must be 1 to 64.",
    "--ranks -1": "--ranks -1: must be 1 to 64.",
    "--ranks 65": "--ranks 65: must be 1 to 64.",
    "--resume": "--resume: out holds no run. Leave --resume out to start one there.",
    "--out tiny.toml": "cannot write in tiny.toml: File exists. Give another folder with --out.",
    "--out tiny.toml/run": "cannot write in tiny.toml/run: Not a directory. Give another folder with --out.",
}


@pytest.mark.parametrize(("words", "message"), TYPED.items(), ids=TYPED)
def test_what_is_typed_wrongly(command: Command, words: str, message: str) -> None:
    command.refused(command.run(*words.split()), message)


@pytest.mark.parametrize("words", ["--stop-after x", "--rank 1", "--ranks two"])
def test_what_is_no_option_or_number(command: Command, words: str) -> None:
    said = command.run(*words.split())
    assert (said.code, said.out, said.new) == (2, "", frozenset())
    assert "Usage: fedfloor run" in said.err
    assert "Traceback" not in said.err


FILES = {
    "tny.toml": "experiment file tny.toml: No such file or directory. Did you mean 'tiny.toml'?",
    "demoo": "unknown experiment 'demoo'. Did you mean 'demo'?",
    ".": ". is a folder and not an experiment file. fedfloor new . writes one for data.",
    "mine": "unknown experiment 'mine'. Did you mean 'mine.toml'?",
    "press.csv": "press.csv holds data and is not an experiment file. fedfloor new press.csv writes one",
    "comma.py": "(at line 2, column 7): lr = 0,05",
    "binary.py": "experiment file binary.py is not valid TOML:",
    "empty.py": "[park] devices is not set",
}


@pytest.mark.parametrize(("name", "message"), FILES.items(), ids=FILES)
def test_files_that_are_no_experiment(command: Command, name: str, message: str) -> None:
    (command.folder / "binary.py").write_bytes(bytes(range(256)))
    (command.folder / "empty.py").write_text("")
    (command.folder / "mine.toml").write_text("")
    (command.folder / "press.csv").write_text("device,a,label")
    (command.folder / "comma.py").write_text("[work]\nlr = 0,05\n")
    command.refused(command("run", name, "--ranks", "1"), message)


# -- data --------------------------------------------------------------------------------------------------------------

MNIST = ("data.name=mnist", "park.devices=2", "work.batch_size=4")


def test_a_data_set_that_is_not_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", "nowhere")
    place = str(Path("nowhere") / "mnist")
    command.refused(
        command.set(*MNIST),
        f"looked in {place}, which does not exist",
        "`fedfloor datasets get mnist`",
        "FEDFLOOR_DATA",
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "train-images-idx3-ubyte.gz is missing"),
        (lambda path: path.write_bytes(b""), "not a gzip file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "cut short"),
        (lambda path: path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1])), "idx3"),
        (lambda path: path.write_bytes(gzip.compress(b"<html>404</html>" * 9)), "idx3"),
    ],
    ids=["missing", "empty", "cut short", "too few bytes", "a web page"],
)
def test_a_damaged_data_file(command: Command, monkeypatch: pytest.MonkeyPatch, spoil, message: str) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(idx(command.folder / "data")))
    spoil(command.folder / "data" / "mnist" / "train-images-idx3-ubyte.gz")
    command.refused(command.set(*MNIST), message, "train-images-idx3-ubyte.gz")


def test_the_same_files_unspoilt_train(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(idx(command.folder / "data")))
    assert command.set(*MNIST).code == 0


def test_more_devices_than_memory_has_room_for(command: Command) -> None:
    for number in (10**11, 2**63 - 1):
        said = command.set(f"park.devices={number}")
        command.refused(said, f"park] devices = {number} with", "of memory or more, but", "Use fewer devices")


# -- a folder that is in use, or holds a run ---------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_not_overwritten(command: Command) -> None:
    assert command.run().code == 0
    before = {path: path.read_bytes() for path in (command.folder / "out").rglob("*") if path.is_file()}
    for again in (command.run(), command.set("seed=1"), command.run("--stop-after", "1")):
        command.refused(again, "out already holds a run. Continue it with --resume, or give another folder with --out.")
    assert before == {path: path.read_bytes() for path in before}


def test_two_processes_do_not_share_a_folder(command: Command) -> None:
    assert command.run("--stop-after", "1").code == 0
    with FileLock(command.folder / "out" / ".lock"):
        said = command.run("--resume")
        command.refused(said, "another process is using out. Wait for its end, stop it, or give another folder")
    assert command.run("--resume").code == 0


def test_a_resume_under_a_changed_experiment(command: Command) -> None:
    assert command.run("--stop-after", "1").code == 0
    changed = ("--set", "work.lr=0.5", "--set", "rounds=4")
    said = command.run("--resume", *changed)
    command.refused(said, "was started differently", "rounds: 3 → 4", "work.lr: not set → 0.5", "--resume --force")
    assert len(lines(command.folder / "out")) == 1
    command.refused(command.run("--force", *changed), "already holds a run. Continue it with --resume --force, or")
    assert command.run("--resume", "--force", *changed).code == 0
    assert len(lines(command.folder / "out")) == 4


def test_a_folder_with_other_things_in_it_keeps_them(command: Command) -> None:
    (command.folder / "out").mkdir()
    (command.folder / "out" / "notes.txt").write_text("mine")
    command.refused(command.set("model.name=lent"), "unknown model")
    assert (command.folder / "out" / "notes.txt").read_text() == "mine"


def test_a_resume_with_other_data_says_so(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text('[provenance]\ndata_sha256 = "a"\n')
    with refused("run-differs"):
        check_same(tmp_path, '[provenance]\ndata_sha256 = "b"\n', force=False)


def test_a_resume_of_a_run_that_was_begun_before_a_setting_was_there(command: Command) -> None:
    assert command.run("--stop-after", "1").code == 0
    path = command.folder / "out" / "experiment.toml"
    table, section, rest = path.read_text().partition("[engine]\n")
    older = rest[rest.index("\n[") :] if "\n[" in rest else ""
    assert section
    path.write_text(table + older)
    command.refused(command.run("--resume", "--set", 'engine.precision="tf32"'), "engine.precision: float32 → tf32")
    assert command.run("--resume").code == 0
    assert len(lines(command.folder / "out")) == 3

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfloor
from fedfloor.base.errors import SettingError
from fedfloor.config import apply, brief, from_table, read, resolved
from fedfloor.deploy import park_file
from fedfloor.deploy.settings import CloudSettings, EdgeSettings
from fedfloor.deploy.settings import read as read_settings
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.chosen import method_of
from fedfloor.network import cell
from fedfloor.park.partition import Dirichlet, Dominant, Iid, Natural, Shards
from fedfloor.parts.work import DEFAULTS, Cosine, Exponential, WorkSettings
from fedfloor.sensors import settings as sensors
from refusals import refused

FULL = """
name = "full"
seed = 3
rounds = 7
[data]
name = "mnist"
root = "somewhere"
partition = { kind = "shards", per_device = 4 }
stream = { kind = "static" }
normalise = "standard"
samples_per_device = 50
[park]
devices = 20
factories = 5
assignment = "random"
[model]
name = "lenet"
[method]
name = "fedsr"
[methods.fedsr]
laps = 3
work.epochs = 2
[methods.fedavg]
fraction = 0.5
[work]
batch_size = 16
lr = { kind = "cosine", start = 0.1 }
[faults]
visit = 0.25
[evaluate]
every = 2
"""

TRAINED = [name for name, kind in METHODS.items() if hasattr(kind, "work")]  # by the work that settings describe


def table(text: str) -> dict:
    return tomllib.loads(text)


def said(text: str) -> str:
    """What is said about a document that is refused."""
    with pytest.raises(SettingError) as error:
        from_table(table(text))
    assert error.value.exit_code == 2
    return str(error.value)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_everything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(FULL)
    got = read(path)
    assert (got.name, got.seed, got.rounds) == ("full", 3, 7)
    assert (got.data.name, got.data.root, got.data.normalise) == ("mnist", str(tmp_path / "somewhere"), "standard")
    assert (got.data.partition, got.data.samples_per_device) == (Shards(per_device=4), 50)
    assert (got.park.devices, got.park.factories, got.park.assignment) == (20, 5, "random")
    assert (got.model.name, got.method.name, got.faults.visit, got.evaluate.every) == ("lenet", "fedsr", 0.25, 2)
    assert got.work == WorkSettings(batch_size=16, lr=Cosine(start=0.1))
    method = method_of(got)
    assert (method.laps, method.work.epochs, method.work.batch_size) == (3, 2, 16)  # type: ignore[attr-defined]


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "named.after.me.toml"
    path.write_text("")
    assert read(path) == fedfloor.Experiment(name="named.after.me")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_text("rounds = 4\r\n", encoding="utf-8-sig")
    assert read(path).rounds == 4


def test_provenance_is_ignored() -> None:
    told = from_table(table("[provenance]\ntorch = '1'\ncores = 4"))
    assert method_of(told) == method_of(fedfloor.Experiment())


PARTITIONS = {
    'kind = "natural", at_least = 30': Natural(at_least=30),
    'kind = "iid"': Iid(),
    'kind = "dirichlet", alpha = 1': Dirichlet(alpha=1.0),
    'kind = "shards"': Shards(per_device=2),
    'kind = "dominant"': Dominant(case=1, samples=None),
    'kind = "dominant", case = 3': Dominant(case=3),
    'kind = "dominant", case = 4, samples = 600': Dominant(case=4, samples=600),
}


@pytest.mark.parametrize(("text", "expected"), PARTITIONS.items(), ids=PARTITIONS)
def test_partition_kinds(text: str, expected) -> None:
    assert from_table(table(f"[data]\npartition = {{ {text} }}")).data.partition == expected


SCHEDULES = {
    "0.05": 0.05,
    "1": 1.0,
    '{ kind = "cosine", start = 0.01, end = 1e-5 }': Cosine(0.01, 1e-5),
    '{ kind = "exponential", start = 0.1, factor = 0.99 }': Exponential(0.1, 0.99),
}


@pytest.mark.parametrize(("text", "expected"), SCHEDULES.items(), ids=SCHEDULES)
def test_schedules(text: str, expected) -> None:
    assert from_table(table(f"[work]\nlr = {text}")).work.lr == expected


# -- precedence: published default < [work] < the method's own table ---------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_left_alone_a_method_has_its_published_work(name: str) -> None:
    method = method_of(from_table(table(f'method.name = "{name}"')))
    assert method == METHODS[name](work=METHODS[name]().work.over(DEFAULTS))  # type: ignore[attr-defined, call-arg]


# FedAvg's published default is 5 epochs
@pytest.mark.parametrize(
    ("shared", "own", "epochs", "steps"),
    [
        ("", "", 5, None),
        ("epochs = 2", "", 2, None),
        ("epochs = 2", "epochs = 3", 3, None),
        ("steps = 7", "", None, 7),
        ("steps = 7", "epochs = 3", 3, None),
        ("epochs = 2", "steps = 9", None, 9),
        ("momentum = 0.5", "steps = 9", None, 9),
    ],
)
def test_the_nearer_table_decides_epochs_or_steps(shared: str, own: str, epochs: int | None, steps: int | None) -> None:
    got = method_of(from_table(table(f"[work]\n{shared}\n[methods.fedavg.work]\n{own}"))).work  # type: ignore[attr-defined]
    assert (got.epochs, got.steps) == (epochs, steps)


def test_only_what_is_said_overrides() -> None:
    text = "[work]\nbatch_size = 8\nlr = 0.5\n[methods.fedavg.work]\nlr = 0.25\nmomentum = 0.9"
    got = method_of(from_table(table(text))).work  # type: ignore[attr-defined]
    assert got == WorkSettings(epochs=5, batch_size=8, lr=0.25, momentum=0.9, weight_decay=0.0, optimizer="sgd")


def test_another_methods_table_does_not_matter() -> None:
    text = "[methods.fedsr]\nlaps = 9\nwork.lr = 0.9"
    assert method_of(from_table(table(text))) == method_of(fedfloor.Experiment())


# -- --set -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("work.lr=0.5", {"work": {"lr": 0.5}}),
        (" work.lr = 0.5 ", {"work": {"lr": 0.5}}),
        ("model.name=mlp-2nn", {"model": {"name": "mlp-2nn"}}),
        ('model.name="mlp-2nn"', {"model": {"name": "mlp-2nn"}}),
        ("data.partition={kind='iid'}", {"data": {"partition": {"kind": "iid"}}}),
        ('methods."a.b:C".k=1', {"methods": {"a.b:C": {"k": 1}}}),
        ("methods.mine:C.k=1", {"methods": {"mine:C": {"k": 1}}}),
        ("model.name=mine:net=x", {"model": {"name": "mine:net=x"}}),
        ("name=", {"name": ""}),
    ],
)
def test_set_changes_one_key(change: str, expected: dict) -> None:
    document: dict = {}
    apply(document, change)
    assert document == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("work", "--set"),
        ("=3", "--set"),
        ("rounds.x=3", "--set"),
    ],
)
def test_set_refuses(change: str, message: str) -> None:
    document = {"rounds": 3}
    with refused(message):
        apply(document, change)
    assert document == {"rounds": 3}


def test_a_setting_of_a_part_that_stands_there_as_a_name_says_how_to_write_it() -> None:
    with refused("--set"):
        apply({"method": {"mix": "krum"}}, "method.mix.outliers=2")


def test_later_changes_win(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(FULL)
    got = read(path, ["seed=4", "seed=5", "method.name=fedavg", "methods.fedsr.laps=1"])
    assert (got.seed, got.method.name, got.methods["fedsr"]["laps"]) == (5, "fedavg", 1)


# -- out and in again --------------------------------------------------------------------------------------------------


@st.composite
def documents(draw: st.DrawFn) -> dict:
    rate = st.floats(1e-6, 10.0)
    schedule = st.fixed_dictionaries({"kind": st.just("cosine"), "start": rate}, optional={"end": st.just(0.0)})
    work = st.fixed_dictionaries(
        {},
        optional={
            "batch_size": st.integers(1, 500),
            "lr": rate | schedule,
            "momentum": st.floats(0, 0.99),
            "weight_decay": st.floats(0, 1),
        },
    )
    passes = st.sampled_from([{}, {"epochs": 2}, {"steps": 3}])
    kinds = [{"kind": "iid"}, {"kind": "shards", "per_device": 3}, {"kind": "natural"}, {"kind": "dominant", "case": 3}]
    partition = st.sampled_from(kinds)
    name = draw(st.sampled_from(sorted(TRAINED)))
    document = {
        "name": draw(st.sampled_from(["a", "ü b"])),
        "seed": draw(st.integers(0, 2**62)),
        "method": {"name": name},
    }
    document["work"] = draw(work) | draw(passes)
    document["methods"] = {name: {"work": draw(work) | draw(passes)}}
    root = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)  # no path holds a NUL
    document["data"] = draw(st.fixed_dictionaries({}, optional={"partition": partition, "root": root}))
    document["park"] = draw(st.fixed_dictionaries({}, optional={"devices": st.integers(1, 99)}))
    return document


@settings(deadline=None)  # a busy machine takes long for the first
@given(documents())
def test_what_is_written_reads_back_as_itself(document: dict) -> None:
    first = from_table(document)
    text = resolved(first)
    again = from_table(table(text))
    assert method_of(again) == method_of(first)
    assert (again.data, again.park, again.work, again.seed) == (first.data, first.park, first.work, first.seed)
    assert resolved(again) == text


@settings(deadline=None)
@given(documents())
def test_the_brief_form_reads_back_as_the_same_experiment(document: dict) -> None:
    first = from_table(document)
    again = from_table(table(brief(first)))
    assert method_of(again) == method_of(first)
    assert replace(again, methods={}) == replace(first, methods={})


def test_every_default_is_written() -> None:
    written = table(resolved(fedfloor.Experiment()))
    work = {"epochs": 5, "batch_size": 32, "lr": 0.01, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    assert written["methods"] == {"fedavg": {"fraction": 1.0, "work": work}}
    assert written["data"]["partition"] == {"kind": "iid"}
    assert written["evaluate"] == {"every": 1, "on": "test", "validation": 0.1, "coverage": False}


# -- a machine without pydantic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_without_pydantic_the_same_is_read(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    document = table(FULL) | {"method": {"name": method}}
    expected = from_table(document)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert from_table(document) == expected
    assert method_of(from_table(document)) == method_of(expected)


def test_without_pydantic_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert "unknown key 'lrr'. Did you mean 'lr'?" in said("[work]\nlrr = 1")
    assert "rounds = 0: must be a whole number of at least 1" in said("rounds = 0")
    assert "rounds = 'ten': must be a whole number." in said('rounds = "ten"')
    assert "work.lr.start is missing" in said("[work]\nlr = { kind = 'cosine' }")


def test_a_resolved_experiment_has_no_default_without_effect(tmp_path: Path) -> None:
    """What belongs to named data sets stands beside no path, and what describes tables beside no named data set."""
    own = tomllib.loads(resolved(from_table({"name": "own", "data": {"path": str(tmp_path / "a.csv")}})))["data"]
    assert not {"name", "root", "samples_per_device"} & own.keys()
    assert own["columns"]["label"] == "label"
    named = tomllib.loads(resolved(from_table({"name": "named", "data": {"name": "labels"}})))["data"]
    assert named["samples_per_device"] == 300
    assert not {"columns", "decimal", "sort", "small"} & named.keys()
    digits = tomllib.loads(resolved(from_table({"name": "digits", "data": {"name": "mnist"}})))["data"]
    assert "samples_per_device" not in digits


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('experiment = "a.toml"\n[cloud]\naddress = "c"\n[[device]]\nname = "a"\nfactory = "n"\n', "a park file"),
        ('[[device]]\nname = "a"\nfactory = "n"\n', "a park file"),
        ('network = { profile = "rafed" }\n[[device]]\nx_m = 1\n', "a cell file"),
        ('park = "p"\nexperiment = "a.toml"\nout = "run"\n', "a settings file"),
        ('[source]\nkind = "folder"\n', "a source file"),
    ],
)
def test_a_file_of_another_kind_is_named_as_such(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "given.toml").write_text(text)
    with refused("kind-of-file"):
        read(tmp_path / "given.toml")


@pytest.mark.parametrize(
    "load",
    [
        park_file.read,
        cell.read,
        sensors.read,
        partial(read_settings, CloudSettings),
        partial(read_settings, EdgeSettings),
    ],
)
def test_an_experiment_is_named_where_another_file_is_needed(tmp_path: Path, load: Callable[[Path], object]) -> None:
    (tmp_path / "plant.toml").write_text('rounds = 3\n[data]\npath = "plant.csv"\n')
    with refused("kind-of-file"):
        load(tmp_path / "plant.toml")


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("data.columns.label=Status", {"label": "Status", "ignore": ["note"], "factory": "hall"}),
        ('data.columns.ignore=["note", "Status", "hall"]', {"ignore": ["note", "Status", "hall"], "factory": ""}),
        ("data.columns.device=hall", {"ignore": ["note", "Status"], "factory": "", "device": "hall"}),
        ('data.columns.categories.Status="one-hot"',
         {"ignore": ["note"], "factory": "hall", "categories": {"Status": "one-hot"}}),
        ('data.columns.values=["Status", "x"]', {"ignore": ["note"], "factory": "hall", "values": ["Status", "x"]}),
    ],
)  # fmt: skip
def test_a_column_that_gets_another_role_leaves_its_old_one(
    change: str, wanted: dict[str, object], tmp_path: Path
) -> None:
    """Messages propose such settings for experiments whose drafts gave the column a place already."""
    text = '[data]\npath = "t.csv"\ncolumns = { ignore = ["note", "Status"], factory = "hall" }\n'
    (tmp_path / "e.toml").write_text(text)
    document = tomllib.loads(text)
    apply(document, change)
    assert document["data"]["columns"] == wanted
    columns = read(tmp_path / "e.toml", [change]).data.columns
    assert all(getattr(columns, key) in (value, tuple(value)) for key, value in wanted.items())  # type: ignore[arg-type]


def test_a_column_with_two_roles_in_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('[data]\npath = "t.csv"\ncolumns = { ignore = ["state"], label = "state" }\n')
    with refused("data.columns"):
        read(tmp_path / "e.toml")

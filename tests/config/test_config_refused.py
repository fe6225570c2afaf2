"""What an experiment file may not say, and what is said about it."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.config import from_table, read, resolved
from fedfloor.methods.chosen import method_of


def said(text: str) -> str:
    with pytest.raises(SettingError) as error:
        from_table(tomllib.loads(text))
    assert error.value.exit_code == 2
    return str(error.value)


UNKNOWN = {
    "wrok.lr = 1": "unknown key 'wrok'. Did you mean 'work'? Known: data, decide, deploy, engine, evaluate, faults",
    "work.lrr = 1": "[work] unknown key 'lrr'. Did you mean 'lr'? Known: batch_size, betas, clip_norm, epochs, eps,",
    "work.lr = { kind = 'cosine', strat = 1 }": "[work.lr] unknown key 'strat'. Did you mean 'start'?",
    "data.partition = { kind = 'shards', per_devices = 2 }": "unknown key 'per_devices'. Did you mean 'per_device'?",
    "data.partition = { kind = 'iid', per_device = 2 }": "[data.partition] unknown key 'per_device'. Known: kind",
    "methods.fedsr.lap = 2": "[methods.fedsr] unknown key 'lap'. Did you mean 'laps'?",
    "methods.fedsr.wrok.lr = 2": "[methods.fedsr] unknown key 'wrok'. Did you mean 'work'?",
    "methods.fedsr.work.epoch = 2": "[methods.fedsr.work] unknown key 'epoch'. Did you mean 'epochs'?",
    "methods.fedsrr.laps = 2": "methods.fedsrr: unknown method 'fedsrr'. Did you mean 'fedsr'?",
    "method.name = 'fed-avg'": "method.name: unknown method 'fed-avg'. Did you mean 'fedavg'? Known: aft, apfl,",
    "method.laps = 3": "[method] unknown key 'laps'. Known: edge_mix, edge_travel, edge_travel_down, mix, name, "
    "objective, selection, server, travel, travel_down.",
    "method.nmae = 'fedavg'": "[method] unknown key 'nmae'. Did you mean 'name'?",
    "methods.mine.method = 'fedavgg'": "methods.mine.method: unknown method 'fedavgg'. Did you mean 'fedavg'?",
    "methods.fedavg.method = 'fedprox'": "'fedavg' is already a method. Choose another name.",
    "methods.mine.method = 3": "methods.mine.method = 3: must be the name of a method, in quotes.",
    "qqq = 1": "unknown key 'qqq'. Known:",
    "data.partition = { kind = 'shard' }": "unknown data.partition.kind 'shard'. Did you mean 'shards'? Known: blo",
    "work.lr = { kind = 'cos', start = 1 }": "unknown work.lr.kind 'cos'. Did you mean 'cosine'? Known: cosine, exp",
}


@pytest.mark.parametrize(("text", "message"), UNKNOWN.items(), ids=UNKNOWN)
def test_a_mistyped_name_names_its_nearest_match(text: str, message: str) -> None:
    assert message in said(text)


TYPES = {
    "rounds = 'ten'": "rounds = 'ten': must be a whole number.",
    "rounds = 2.0": "rounds = 2.0: must be a whole number.",
    "rounds = true": "rounds = true: must be a whole number.",
    "name = 3": 'name = 3: must be a text in quotes. Such as name = "3"; in a shell, --set \'name="3"\'.',
    "decide.positive = 1": 'in quotes. Such as decide.positive = "1"; in a shell, --set \'decide.positive="1"\'.',
    "data.classes = [1, 2]": "data.classes = 1: must be a text in quotes.",
    "data = 3": "data = 3: must be a table. Such as data = { name = … }.",
    "data = 'mnist'": "data = 'mnist': must be a table. Such as data = { name = \"mnist\" }.",
    "data.window = 5": "data.window = 5: must be a table. Such as data.window = { length = 5 }.",
    "data.split = 'last'": 'must be a table. Such as data.split = { kind = "last", rows = … }.',
    "data.partition = 'iid'": "data.partition = 'iid': must be a table. Such as data.partition = { kind = \"iid\" }.",
    "data.partition = { per_device = 2 }": "needs kind = one of blocks, dirichlet, dominant, iid, natural, shards.",
    "data.normalise = 'zscore'": "data.normalise = 'zscore': must be 'auto', 'unit', 'symmetric', "
    "'standard', 'device' or 'robust'",
    "park.devices = [1]": "park.devices = [1]: must be a whole number.",
    "method = 'fedsr'": "method = 'fedsr': must be a table.",
    "methods = 3": "methods = 3: must be a table.",
    "methods.fedsr = 3": "methods.fedsr = 3: must be a table.",
    "methods.fedsr.work = 3": "methods.fedsr.work = 3: must be a table.",
    "methods.fedsr.laps = 2.5": "methods.fedsr.laps = 2.5: must be a whole number.",
    "work.lr = 'fast'": "work.lr = 'fast': must be a number or a table.",
    "work.lr = true": "work.lr = true: must be a number or a table.",
    "work.lr = { kind = 'cosine' }": "work.lr.start is missing: it has no default.",
    "work.lr = { kind = 'cosine', start = '1' }": "work.lr.start = '1': must be a number.",
    "work.lr = { kind = 'exponential', start = '1', factor = 1 }": "work.lr.start = '1': must be a number.",
    "work.lr = { kind = 'exponential', start = 1 }": "work.lr.factor is missing: it has no default.",
    "work.lr = { start = 1 }": "work.lr = {'start': 1}: needs kind = one of cosine, exponential.",
    "work.batch_size = '32'": "work.batch_size = '32': must be a whole number.",
    "faults.visit = '1 %'": "faults.visit = '1 %': must be a number.",
    "data.partition.kind = []": "data.partition.kind = []: must be one of blocks, dirichlet, dominant, iid, natural",
    "work.lr = { kind = { a = 1 }, start = 1 }": "work.lr.kind = {'a': 1}: must be one of cosine, exponential, in",
    "method.objective = 06:30:00": "method.objective = 06:30:00: no setting is a date or time. If it is a name",
    "method.mix = [1]": "method.mix = [1]: must be a text in quotes or a table.",
    "methods.fedavg.mix = 2026-03-01": "methods.fedavg.mix = 2026-03-01: no setting is a date or time.",
    "methods.fedavg.server = []": "methods.fedavg.server = []: must be a name, or a table such as",
    "methods.fedavg.mix = { kind = 'krum', outliers = [1] }": "outliers = [1]: must be a number, a text, true or",
    "name = 2026-03-01": "name = 2026-03-01: no setting is a date or time.",
    'name = "a\\u0000b"': "name = 'a\\x00b': must be a text without NUL characters.",
    "data.samples_per_device = 1e59": "data.samples_per_device = 1e+59: must be a whole number.",
    f"data.samples_per_device = {10**59}": f"= {10**59}: must be a whole number within ±9223372036854775807.",
    "park.devices = 9223372036854775808": "park.devices = 9223372036854775808: must be a whole number within ±",
    "data.size = 3": "data.size = 3: must be a list.",
    f"data.size = {'[' * 30}{']' * 30}": "data.size: lists or tables nested too deeply: at most 20 levels.",
    f"model.name = {'[' * 30}{']' * 30}": "model.name: lists or tables nested too deeply: at most 20 levels.",
    f"work.epochs = '{'x' * 5000}'": f"work.epochs = '{'x' * 199}…: must be a whole number.",
}


@pytest.mark.parametrize(("text", "message"), TYPES.items(), ids=TYPES)
def test_a_wrong_type_says_what_it_must_be(text: str, message: str) -> None:
    assert message in said(text)


RANGES = {
    "rounds = 0": "rounds = 0: must be a whole number of at least 1.",
    "seed = -1": "seed = -1: must be a whole number of at least 0.",
    "name = 'a/b'": "name = 'a/b': must be a folder name",
    "name = '..'": "name = '..': must be a folder name",
    "name = ''": "name = '': must be a folder name",
    'name = "a\\u001b[2J"': "name = 'a\\x1b[2J': must be a folder name",
    f"name = '{'é' * 101}'": "must be a folder name of at most 200 bytes",
    "data.samples_per_device = 0": "data.samples_per_device = 0: must be a whole number of at least 1.",
    "data.partition = { kind = 'dirichlet', alpha = 0 }": "alpha = 0.0: must be a number above 0",
    "data.partition = { kind = 'dominant', samples = 0 }": "samples = 0: must be a whole number from 1 to",
    "data.partition = { kind = 'shards', per_device = 0 }": "per_device = 0: must be a whole number of at least 1.",
    "park.devices = 0": "park.devices = 0: must be a whole number of at least 1.",
    "park.factories = 0": "park.factories = 0: must be a whole number of at least 1.",
    "methods.fedavg.fraction = 0": "methods.fedavg.fraction = 0.0: must be above 0 and at most 1.",
    "methods.fedavg.fraction = 1.5": "methods.fedavg.fraction = 1.5: must be above 0 and at most 1.",
    "methods.fedsr.laps = 0": "methods.fedsr.laps = 0: must be a whole number of at least 1.",
    "methods.fedsr.ring_size = 0": "methods.fedsr.ring_size = 0: must be a whole number of at least 1, or left out.",
    "methods.hierfavg.edge_rounds = 0": "methods.hierfavg.edge_rounds = 0: must be a whole number of at least 1.",
    "methods.hfedms.period = 0": "methods.hfedms.period = 0: must be a whole number of at least 1.",
    "methods.hfedms.memory = -1": "methods.hfedms.memory = -1: must be a whole number of at least 0.",
    "methods.fedgs.iterations = 0": "methods.fedgs.iterations = 0: must be a whole number of at least 1.",
    "methods.fldg.groups = 0": "methods.fldg.groups = 0: must be a whole number of at least 1.",
    "methods.fldgl.hashes = 0": "methods.fldgl.hashes = 0: must be a whole number of at least 1.",
    "methods.kcenter.centers = 0": "methods.kcenter.centers = 0: must be a whole number of at least 1.",
    "methods.ifca.cohorts = 0": "methods.ifca.cohorts = 0: must be a whole number of at least 1.",
    "methods.flhc.after = -1": "methods.flhc.after = -1: must be a whole number of at least 0.",
    "methods.fedrep.head_epochs = -1": "methods.fedrep.head_epochs = -1: must be a whole number of at least 0.",
    "methods.ring.laps = 0": "methods.ring.laps = 0: must be a whole number of at least 1.",
    "methods.ditto.lam = -1": "methods.ditto.lam = -1.0: must be a number of at least 0.",
    "methods.boosting.least = -1": "methods.boosting.least = -1.0: must be a number of at least 0.",
    "work.lr = 0": "work.lr = 0.0: must be a number above 0.",
    "work.lr = nan": "work.lr = nan: must be a number above 0.",
    "work.lr = inf": "work.lr = inf: must be a number above 0.",
    "work.lr = 1e308": "work.lr = 1e+308: must be a number within ±3e+38",
    "evaluate.finetune = { lr = { kind = 'cosine', start = 1e39 } }": "lr.start = 1e+39: must be a number within",
    "work.lr = { kind = 'cosine', start = 1, end = 2 }": "work.lr.end = 2.0: must be between 0 and start.",
    "work.lr = { kind = 'exponential', start = 1, factor = 2 }": "work.lr.factor = 2.0: must be above 0 and at most 1.",
    "work.epochs = 0": "work.epochs = 0: must be a whole number of at least 1.",
    "work.momentum = 1": "work.momentum = 1.0: must be at least 0 and below 1.",
    "work.weight_decay = -1": "work.weight_decay = -1.0: must be at least 0.",
    "work = { epochs = 1, steps = 2 }": "work has epochs = 1 and steps = 2: give one of them.",
    "methods.fedavg.work = { epochs = 1, steps = 2 }": "work has epochs = 1 and steps = 2: give one of them.",
    "methods.fedprox.mu = -1": "[methods.fedprox] objective prox: mu = -1.0: must be a number of at least 0.",
    "methods.moon.temperature = 0": "[methods.moon] objective contrastive: temperature = 0.0: must be above 0.",
    "methods.fedmmd.weight = inf": "[methods.fedmmd] objective mmd: weight = inf: must be a number of at least 0.",
    "methods.fedl.eta = -1": "[methods.fedl] objective corrected: eta = -1.0: must be a number of at least 0.",
    "methods.qffl.q = -1": "q = -1.0: must be a number of at least 0.",
    "method.objective = { kind = 'prox', mu = -1 }": "[method.objective] objective prox: mu = -1: must be a number",
    "method.mix = { kind = 'trimmed_mean', share = 0.5 }": "[method.mix] mix.share = 0.5: must be",
    "method.mix = { kind = 'q_fair', q = -1 }": "[method.mix] mix.q = -1: must be a number of at least 0.",
    "method.mix = { kind = 'krum', outliers = -1 }": "[method.mix] mix.outliers = -1: must be a whole number of at",
    "method.mix = { kind = 'multi_krum', outliers = 1, keep = 0 }": "[method.mix] mix.keep = 0: must be a whole number",
    "method.server = { kind = 'adam', tau = -1 }": "[method.server] server.tau = -1: must be",
    "method.selection = { kind = 'fraction', share = 0 }": "[method.selection] selection.share = 0: must be above 0",
    "faults.visit = 1": "faults.visit = 1.0: must be at least 0 and below 1.",
    "method.server = { kind = 'sgd', rate = 1e308 }": "rate = 1e+308: must be a number within ±3e+38",
    "evaluate.every = 0": "evaluate.every = 0: must be a whole number of at least 1.",
}


@pytest.mark.parametrize(("text", "message"), RANGES.items(), ids=RANGES)
def test_a_value_out_of_range_says_the_range(text: str, message: str) -> None:
    assert message in said(text)


LEAST = re.compile(r"= (-?[\d.]+): must be a (?:whole )?number of at least (\d+)\b")


@pytest.mark.parametrize("text", [text for text, message in RANGES.items() if LEAST.search(message)])
def test_the_least_of_a_range_is_allowed(text: str) -> None:
    """What is refused with "at least N" is not refused as N."""
    given, least = LEAST.search(RANGES[text]).groups()  # type: ignore[union-attr]
    allowed = re.sub(rf"{re.escape(given.removesuffix('.0'))}(?=( \}})?$)", least, text)
    assert allowed != text
    from_table(tomllib.loads(allowed))


# -- files -------------------------------------------------------------------------------------------------------------


def refused_file(path: Path) -> str:
    with pytest.raises(SettingError) as error:
        read(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("rounds = 1\nrounds = 2\nseed = 1\n")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    assert "No such file" in refused_file(tmp_path / "gone" / "mine.toml")
    assert "No such file or directory. Did you mean 'mine.toml'?" in refused_file(tmp_path / "mien.toml")
    assert "Is a directory" in refused_file(tmp_path)
    assert "is not valid TOML" in refused_file(tmp_path / "binary.toml")
    (tmp_path / "deep.toml").write_text(f"deep = {'[' * 5000}{']' * 5000}\n")
    assert "lists or tables nested too deeply" in refused_file(tmp_path / "deep.toml")
    endless = "a" + ".a" * 200_000
    for key in (f"{endless} = 1", f"[{endless}]", "x = { a" + '. "a" ' * 200_000 + "= 1 }"):
        (tmp_path / "deep.toml").write_text(key)
        assert "lists or tables nested too deeply" in refused_file(tmp_path / "deep.toml")
    sentences = "…. " * 1000  # in a text
    (tmp_path / "deep.toml").write_text(f"name = '{sentences}'\nmodel.name = '{'.' * 1000}'\nseed = -1")
    assert "nested" not in refused_file(tmp_path / "deep.toml")
    twice = refused_file(tmp_path / "mine.toml")
    assert "is not valid TOML" in twice
    assert "line 2" in twice


# -- a method of your own ---------------------------------------------------------------------------------------------

OWN = """
from dataclasses import dataclass
import numpy as np
from fedfloor.methods.contract import Method
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import CLOUD, Train, Work

@dataclass(frozen=True)
class Mine(Method):
    depth: int = 2
    work: WorkSettings = WorkSettings(steps=4)

    def plan(self, state, view, rng):
        return Train(CLOUD, self.work.at(view.round, view.rounds))

@dataclass(frozen=True)
class NoWork(Method):
    table: np.ndarray | None = None

    def plan(self, state, view, rng):
        return Train(CLOUD, Work(epochs=1))

class NoDataclass(Method):
    def plan(self, state, view, rng):
        return Train(CLOUD, Work(epochs=1))

@dataclass(frozen=True)
class NoBase:
    def plan(self, state, view, rng):
        return Train(CLOUD, Work(epochs=1))

@dataclass(frozen=True)
class NoChance(Method):
    def plan(self, state, view):
        return Train(CLOUD, Work(epochs=1))
"""


@pytest.fixture
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("_own")
def test_a_method_of_your_own_has_its_table() -> None:
    own = "methods.'own_methods:Mine' = { depth = 7, work.momentum = 0.5 }"
    experiment = from_table(tomllib.loads(f"method.name = 'own_methods:Mine'\nwork.lr = 0.5\n{own}"))
    mine = method_of(experiment)
    assert (mine.depth, mine.work.steps, mine.work.lr, mine.work.momentum) == (7, 4, 0.5, 0.5)  # type: ignore[attr-defined]
    again = from_table(tomllib.loads(resolved(experiment)))
    assert method_of(again) == mine


@pytest.mark.usefixtures("_own")
def test_a_method_of_your_own_with_types_only_it_knows() -> None:
    assert type(method_of(from_table({"method": {"name": "own_methods:NoWork"}}))).__name__ == "NoWork"


OWN_REFUSED = {
    "'own_methods:Mine'.dept": "[methods.own_methods:Mine] unknown key 'dept'. Did you mean 'depth'?",
    "'own_methods:NoWork'.work.lr": "[methods.own_methods:NoWork] unknown key 'work'. Known: table.",
    "'own_methods:NoDataclass'.x": "method 'own_methods:NoDataclass' is not a dataclass with a 'plan'",
    "'own_methods:NoBase'.x": "method 'own_methods:NoBase' has no 'setup', 'init', 'absorb', 'objective', 'server'",
    "'own_methods:NoChance'.x": "method 'own_methods:NoChance': plan must take (self, state, view, rng): too many",
    "'own_methods:np'.x": "method 'own_methods:np' is not a dataclass with a 'plan'",
    "'own_methods:Mien'.x": "module 'own_methods' has no 'Mien'. Did you mean 'Mine'?",
    "'own_method:Mine'.x": "no module 'own_method' in the current folder",
    "':Mine'.x": "method ':Mine': importing it failed",
}


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize(("key", "message"), OWN_REFUSED.items(), ids=OWN_REFUSED)
def test_a_method_of_your_own_is_checked_too(key: str, message: str) -> None:
    assert message in said(f"methods.{key} = 1")


@pytest.mark.parametrize(
    ("code", "message"),
    [("import no_such_thing", "No module named 'no_such_thing'"), ("1/0", "ZeroDivisionError"), ("x =", "SyntaxError")],
)
def test_a_module_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str) -> None:
    (tmp_path / "broken_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    text = said("method.name = 'broken_module:X'")
    assert "method 'broken_module:X': importing it failed" in text
    assert message in text

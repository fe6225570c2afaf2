"""Networks of one's own that seed PyTorch, compute in half precision or fail: each works, or is named."""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfloor
from commands import Command, lines
from fedfloor.base.errors import FedfloorError, RunError, SettingError
from fedfloor.base.outside import load
from fedfloor.config import from_table
from fedfloor.engine.visit import without_single_samples
from fedfloor.models.network import build, unseeded
from refusals import refused

NETS = """
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.begin()
        self.a = nn.Linear(shape[0], 16)
        self.head = nn.Linear(16, classes)
    def begin(self):
        pass
    def forward(self, x):
        return self.head(F.relu(self.a(x)))

class Seeded(Net):
    def begin(self):
        torch.manual_seed(0)

class Fixed(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        own = torch.Generator().manual_seed(0)
        for p in self.parameters():
            p.data.copy_(torch.rand(p.shape, generator=own))

class Unrepeatable(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.a.weight.data += torch.from_numpy(np.random.default_rng().random(self.a.weight.shape)).float()

class Autocast(Net):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)

class TrainedInHalf(Net):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.training):
            return super().forward(x)

class HalfModel(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.to(torch.bfloat16)

class Norm(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.norm = nn.BatchNorm1d(16)
    def forward(self, x):
        return self.head(F.relu(self.norm(self.a(x))))

class Fails(Net):
    def forward(self, x):
        return self.head(x.nothing)

class FailsLater(Net):
    def forward(self, x):
        if len(x) == 3:
            raise ValueError("three samples")
        return super().forward(x)

class Careless(Net):
    def begin(self):
        import random
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True
"""


@pytest.fixture(autouse=True)
def nets(command: Command) -> Iterator[None]:
    (command.folder / "nets.py").write_text(NETS)
    write(command.folder, "own.csv", [20] * 4)
    yield
    sys.modules.pop("nets", None)
    sys.path[:] = [path for path in sys.path if path != str(command.folder)]


def write(folder: Path, name: str, sizes: list[int]) -> None:
    """Write rows of devices, and a table of 40 test rows."""
    rng = np.random.default_rng(0)
    for file, counts in ((name, sizes), ("test.csv", [10] * 4)):
        with (folder / file).open("w", newline="") as table:
            writer = csv.writer(table)
            writer.writerow(["device", *"abcd", "label"])
            for k, count in enumerate(counts):
                for _ in range(count):
                    y = rng.integers(3)
                    writer.writerow([f"m{k}", *(rng.normal(size=4) + y).round(3).tolist(), ["ok", "worn", "hot"][y]])


def table(network: str, **more: object) -> dict[str, object]:
    columns = {"device": "device", "label": "label"}
    return {
        "name": "own", "rounds": 2, "data": {"path": "own.csv", "test": "test.csv", "columns": columns},
        "model": {"name": f"nets:{network}"}, "method": {"name": "fedavg"},
        "work": {"batch_size": 8, "lr": 0.1, "short_batches": True}, **more,
    }  # fmt: skip


def trained(folder: Path, network: str, **more: object) -> Path:
    return fedfloor.run(from_table(table(network, **more)), folder / "run", ranks=1).folder


def test_weights_that_do_not_follow_the_seed_are_named(command: Command) -> None:
    for name, words in (
        ("Seeded", "seeds PyTorch"),
        ("Fixed", "every seed"),
        ("Unrepeatable", "equal seeds"),
        ("Net", ""),
    ):
        load(f"nets:{name}", "model")
        reason = unseeded(f"nets:{name}", (4,), 3)
        assert (words in reason, bool(reason)) == (True, bool(words))


def test_a_run_warns_of_a_network_that_seeds(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    trained(command.folder, "Seeded")
    assert [r.getMessage() for r in caplog.records if "seeds PyTorch" in r.getMessage()]


def test_a_network_that_computes_in_half_precision_predicts_as_it_is_judged(command: Command) -> None:
    run = trained(command.folder, "Autocast")
    judged = lines(run)[-1]
    got = command("predict", str(run), "test.csv", "--own-code", "--json")
    assert (got.code, json.loads(got.out)["accuracy"]) == (0, judged["accuracy"])
    assert judged["loss"] != float(torch.tensor(judged["loss"]).bfloat16())  # summed in single precision
    export = command("export", str(run), "--own-code")
    assert (export.code, "enabled=self.training" in export.err) == (2, True)


def test_a_network_that_only_trains_in_half_precision_is_exported(command: Command) -> None:
    run = trained(command.folder, "TrainedInHalf")
    assert command("export", str(run), "--own-code").code == 0


def test_half_precision_weights_are_refused_by_name(command: Command) -> None:
    with refused("model"):
        trained(command.folder, "HalfModel")


@pytest.mark.parametrize(
    ("engine", "fits"),
    [
        ({"precision": "bf16"}, False),
        ({"precision": "tf32", "device": "cpu"}, False),
        ({"precision": "tf32", "kind": "cohort", "device": "cpu"}, False),
        ({"precision": "bf16", "kind": "cohort", "device": "cpu"}, True),
        ({"precision": "float32"}, True),
    ],
)
def test_a_precision_that_is_not_carried_out_is_refused(engine: dict[str, str], fits: bool, command: Command) -> None:
    if fits:
        assert trained(command.folder, "Net", engine={"device": "cpu", **engine})
        return
    with refused("engine.precision"):
        trained(command.folder, "Net", engine={"device": "cpu", **engine})
    assert not (command.folder / "run" / "experiment.toml").exists()


def test_the_callers_threads_generators_and_flags_are_kept(command: Command) -> None:
    torch.set_num_threads(2)
    flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark, torch.get_default_dtype()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    wanted = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    try:
        trained(command.folder, "Careless")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == wanted
    now = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark, torch.get_default_dtype()
    assert now == flags


def test_an_error_in_forward_has_its_file_and_line(command: Command) -> None:
    place = str(command.folder / "nets.py")
    with pytest.raises(SettingError) as before:
        trained(command.folder, "Fails")
    assert place in str(before.value)
    assert "in forward" in str(before.value)
    with refused("own-code", RunError) as later:
        trained(command.folder, "FailsLater", work={"batch_size": 17, "lr": 0.1})  # 20 rows: 17 and 3
    assert f"{place}, line" in str(later.value)


def test_an_error_in_the_import_of_a_module_has_its_file_and_line(command: Command) -> None:
    (command.folder / "broken.py").write_text("x = 1\ny = x.nothing\n")
    (command.folder / "unparsed.py").write_text("x = 1\ny = = 2\n")
    for module in ("broken", "unparsed"):
        with refused("model") as error:
            fedfloor.run(
                from_table(table("Net") | {"model": {"name": f"{module}:Net"}}), command.folder / "run", ranks=1
            )
        assert f"{command.folder / module}.py, line 2" in str(error.value)


@pytest.mark.parametrize("sizes", [[17, 33, 40], [20, 19, 17], [2, 3, 5], [3, 4]])
def test_the_advice_for_batch_norm_works(sizes: list[int], command: Command) -> None:
    write(command.folder, "own.csv", sizes)
    work = {"batch_size": 2 if max(sizes) < 6 else 16, "lr": 0.1, "short_batches": True}
    with pytest.raises(RunError) as error:
        trained(command.folder, "Norm", work=work)
    advised = int(str(error.value).split("work.batch_size = ")[1].split(",")[0])
    assert fedfloor.run(from_table(table("Norm", work=work | {"batch_size": advised})), command.folder / "b", ranks=1)


def test_a_device_with_one_sample_is_told_what_helps(command: Command) -> None:
    write(command.folder, "own.csv", [20, 1, 20])
    work = {"batch_size": 8, "lr": 0.1}
    for short in (True, False):
        with pytest.raises(FedfloorError) as error:
            trained(command.folder / str(short), "Norm", work=work | {"short_batches": short})
        assert "batch norm" in str(error.value).lower()
        assert "short_batches" not in str(error.value)
    natural = table("Norm", work=work)
    natural["data"] = {**natural["data"], "partition": {"kind": "natural", "at_least": 8}}  # type: ignore[dict-item]
    assert fedfloor.run(from_table(natural), command.folder / "run", ranks=1)
    assert "1 device with one sample" in without_single_samples(16, 17, np.array([1, 17, 40]))
    assert "work.batch_size = 3, with work.short_batches" in without_single_samples(2, 3, np.array([2, 3]))


def test_weights_are_those_of_the_seed_for_a_network_that_draws_from_the_global_generator(command: Command) -> None:
    load("nets:Net", "model")
    same, other = (build("nets:Net", (4,), 3, seed).flat for seed in (0, 1))
    assert torch.equal(same, build("nets:Net", (4,), 3, 0).flat)
    assert not torch.equal(same, other)

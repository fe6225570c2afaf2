from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path

import pytest

import twins_baselines
from twins import METHODS, Pair, apart, compare, table


@pytest.fixture(scope="module")
def half(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST's first 30,000 training pictures and all for testing: visits of half the length, of the same kind."""
    root = tmp_path_factory.mktemp("half")
    (root / "mnist").mkdir()
    for file in (data_root / "mnist").glob("*-ubyte.gz"):
        if file.name.startswith("t10k"):
            shutil.copy(file, root / "mnist")
            continue
        content = gzip.decompress(file.read_bytes())
        head = 16 if "images" in file.name else 8  # bytes: kind, how many, and of pictures height and width
        each = (len(content) - head) // 60_000
        cut = content[:4] + struct.pack(">I", 30_000) + content[8 : head + 30_000 * each]
        (root / "mnist" / file.name).write_bytes(gzip.compress(cut, 1))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_engine_is_its_plain_twin(method: str, half: Path) -> None:
    rounds = 1  # that the second begins where the first ended is seen below, with the objectives
    turns = 2  # the second epoch, lap or mean begins where the first ended, as the fifth does; twins.py makes five
    pair = compare(method, seed=0, rounds=rounds, root=str(half), turns=turns)
    assert len(pair.engine) == len(pair.twin) == rounds
    assert pair.points <= 2  # what was promised
    # Same data, weights, rings and batches: what is left is rounding (pixels times 1/255 or divided by 255, the order
    # in which models are added), some 10^-7 of a weight: enough for pictures on the very border, of which 10,000 that
    # share a range of scores of about 1 hold next to none; 0.1 points are ten of them.
    assert pair.points <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in twins_baselines.CASES if "μ = 1" in case.name], ids=lambda c: c.method
)
def test_the_engine_is_the_plain_twin_of_its_objective(case: twins_baselines.Case, half: Path) -> None:
    # Two rounds, as MOON's term begins with a device's second visit; two epochs, as the second of a visit reads what
    # the first has worked out; twins_baselines.py runs the five epochs of the experiment.
    pair, floor = twins_baselines.compare(case, "mnist", seed=0, rounds=2, root=str(half), epochs=2)
    assert pair.points <= 2  # what was promised
    assert pair.points <= 0.1  # as above
    # Most visits end 10^-7 apart. Where a ReLU's input is within rounding of 0 for some sample, one of the two takes
    # that sample's gradient and the other does not: rate × gradient / batch, 0.01 × 1 / 32 = 3 · 10^-4 of a weight.
    assert pair.weights <= 1e-3
    # That is little beside what the term does: the same visit without it ends elsewhere.
    assert isinstance(floor, twins_baselines.FedProx | twins_baselines.Moon)
    with_term = floor.local(floor.last, 0, 3, 0, 2)
    floor.mu = 0.0
    assert apart(with_term, floor.local(floor.last, 0, 3, 0, 2)) > 5e-3


def test_the_table_has_two_rows_for_each_pair() -> None:
    made = table([Pair("fedavg", 0, (0.5, 0.75), (0.5, 0.7475))])
    assert made["rows"] == [
        ["fedavg", "0", "engine", "50.00", "75.00", "0.25"],
        ["", "", "twin", "50.00", "74.75", ""],
    ]

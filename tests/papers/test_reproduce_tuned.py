"""HFedMS's Fig. 9a by its authors' code: a batch that the global model was trained on, in the rounds after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfloor import models
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.runs.parks import build_park
from papers import catalog, hfedms_training, tuned
from papers.cells import Accuracy, Cell, Table
from papers.tuned import Course, Tuned

BASE = {
    "data": {
        "name": "labels",
        "samples_per_device": 30,
        "partition": {"kind": "natural"},
        "stream": {"kind": "augmented", "window": 10},
    },
    "park": {"devices": 6, "factories": 2},
    "model": {"name": "mlp-2nn"},
}


def cell(name: str, own: dict[str, Any], lr: float = 0.05) -> Cell:
    usual = {"period": 2, "share": 0.5, "growth": {"kind": "log", "alpha": 0.0, "beta": 2}}
    work = {"epochs": 1, "batch_size": 5, "lr": lr}
    settings = {"data": {"name": "labels"}, "methods": {"hfedms": {**usual, **own, "work": work}}}
    return Cell(f"tiny/{name}", "labels", "stream", name, "hfedms", f"tiny-{name}", settings, (Accuracy(None),))


CELLS = cell("d", {}), cell("still", {"variant": "S"}, 1e-30)
TINY = Tuned(Table("tiny-tuned", "what is left", "nobody, Fig. 0", 8, BASE, CELLS, ("a choice",)), 2, 20, samples=5)


def engine(folder: Path) -> Engine:
    what = TINY.table.experiment(CELLS[0], 4)
    park = build_park(what)
    network = models.build(what.model.name, park.dataset.shape, len(park.dataset.classes), what.seed)
    return Engine(park, network, Alone(), DeviceMemory(folder), what.seed)


def test_the_variants_are_table_iii_s_and_go_on_as_long_as_the_code_s() -> None:
    real = catalog.TUNINGS["hfedms-tuned"]
    three = {one.key: one for one in hfedms_training.tables()[0].cells}
    assert [one.label for one in real.table.cells[:3]] == ["HFedMS-S", "HFedMS-D", "S + LASP, no memory"]
    assert all(three[one.key] == one for one in real.table.cells)
    assert (real.samples, real.epochs, real.batch_size, real.rate) == (49, 10, 5, 0.01)
    assert real.before % hfedms_training.PERIOD == 0
    assert len(tuned.asked(real, "", 1.0, [0]).cells) == 3  # of the small network


def test_the_batch_and_the_others_share_no_sample(tmp_path: Path) -> None:
    here = engine(tmp_path)
    mine, rest = tuned.parts(TINY, here)
    whole = here.wrap(*here.park.test())
    assert len(mine) == 5
    assert len(mine) + len(rest) == len(whole)
    both = torch.cat([mine.values(slice(None)), rest.values(slice(None))]).flatten(1).sum(1).sort().values
    assert torch.equal(both, whole.values(slice(None)).flatten(1).sum(1).sort().values)


def test_one_step_on_the_batch_is_minus_the_rate_times_the_gradient(tmp_path: Path) -> None:
    here = engine(tmp_path)
    mine, _ = tuned.parts(TINY, here)
    before = here.network.flat.clone()
    after = tuned.learnt(replace(TINY, epochs=1, batch_size=5, rate=0.5), here, before, mine)
    here.network.flat.copy_(before)
    loss = torch.nn.functional.cross_entropy(here.network.module(mine.values(slice(None))), mine.y)
    slopes = torch.cat([one.flatten() for one in torch.autograd.grad(loss, here.network.parameters)])
    moved = torch.cat([one.flatten() for one in here.network.parameters])  # of before, as autograd leaves it
    here.network.flat.copy_(after)
    now = torch.cat([one.flatten() for one in here.network.parameters])
    assert torch.allclose(now, moved - 0.5 * slopes, atol=1e-6)  # the order of the mini-batch's sum


def test_a_model_that_stays_forgets_nothing_and_the_table_says_by_seed() -> None:
    what = tuned.asked(replace(TINY, epochs=60), "still", 1.0, [0, 1])
    told: list[int] = []
    found = tuned.rows(what, told.append)
    assert told == list(range(1, 2 * 22 + 1))
    for batch, others in zip(found[0]["batch"], found[0]["others"], strict=True):
        assert batch[1] > batch[0]  # it has learnt the batch
        assert batch[1:] == [batch[1]] * 21
        assert others[0] == others[1]
    after = next(row for row in tuned.shown(found) if row["when"] == tuned.RIGHT_AFTER)
    assert after["by seed"] == ", ".join(f"{one[1]:.4f}" for one in found[0]["batch"])


def test_parts_of_a_course() -> None:
    one = Course((0.1, 1.0, *[0.9] * 10, *[0.5] * 10), (0.2, 0.3))
    assert one.parts() == pytest.approx(
        {"before": 0.1, "right after": 1.0, "rounds 1 to 10": 0.9, "rounds 11 to 20": 0.5}
    )


def test_the_files_hold_every_seed(tmp_path: Path) -> None:
    what = tuned.asked(TINY, "tiny/d", 1.0, [0, 1])
    tuned.save(what, tuned.rows(what), tmp_path, "fedfloor reproduce tiny-tuned")
    text = (tmp_path / "table.md").read_text()
    assert "| d | right after |" in text
    assert "a choice" in text
    assert np.array(tuned.rows(what)[0]["batch"]).shape == (2, 22)

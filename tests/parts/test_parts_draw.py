"""Mixing rules and servers that draw: equal on any number of ranks, new in every round and at every meeting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedfloor
from fedfloor import config
from fedfloor.parts.mixing.mix import Meeting, Mix
from fedfloor.parts.server import Server


@dataclass(frozen=True)
class Noise(Mix):
    """Numbers of the generator alone: the first two of every meeting show what it was keyed by."""

    whole: ClassVar[bool] = True

    def mixed(self, met: Meeting) -> Tensor:
        assert met.rng is not None
        return torch.from_numpy(met.rng.normal(0, 0.01, len(met.start))).float()


@dataclass(frozen=True)
class Jump(Server):
    def step(self, model: Tensor, mean: Tensor, moments: Any, rng: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.from_numpy(rng.normal(0, 0.01, len(model))).float(), {}


def model(place: Path, rounds: int, ranks: int, **method: str) -> bytes:
    data = {"name": "labels", "samples_per_device": 20, "partition": {"kind": "iid"}}
    about = {"name": "draws", "rounds": rounds, "park": {"devices": 4, "factories": 2}, "model": {"name": "mlp-2nn"}}
    table = {**about, "data": data, "work": {"epochs": 1, "batch_size": 10}, "method": {"name": "hierfavg", **method}}
    fedfloor.run(config.from_table(table), place, ranks=ranks)
    return (place / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", [{"mix": "test_parts_draw:Noise"}, {"server": "test_parts_draw:Jump"}])
def test_what_is_drawn_is_that_of_the_seed_and_the_round_on_any_number_of_ranks(
    method: dict[str, str], tmp_path: Path
) -> None:
    one, two = (model(tmp_path / str(ranks), 2, ranks, **method) for ranks in (1, 2))
    assert one == two
    assert model(tmp_path / "short", 1, 1, **method) != one


def test_meetings_of_one_round_draw_unlike_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[float] = []
    drawn = Noise.mixed

    def noted(self: Noise, met: Meeting) -> Tensor:
        found = drawn(self, met)
        seen.append(float(found[0]))
        return found

    monkeypatch.setattr(Noise, "mixed", noted)
    rule = "test_parts_draw:Noise"
    model(tmp_path / "run", 2, 1, mix=rule, edge_mix=rule)
    assert len(seen) > 4
    assert len(set(seen)) == len(seen)

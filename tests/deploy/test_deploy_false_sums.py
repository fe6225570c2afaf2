"""A device, or an edge, whose sums no samples have is refused by name, whatever their length; the others' count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

from fedfloor.deploy.message import Message
from live_park import Live, experiment, live

BAD = 3


def lie(park: Live) -> None:
    """Let a real device send its sums with the opposite sign, which does not change their length."""
    agent = park.agents[BAD]
    usual = agent.worker

    def reply(message: Message) -> Any:
        kind, about, arrays = usual().reply(message)
        if kind == "update":
            w = arrays["w"].copy()
            w[1:] *= -1
            arrays = {**arrays, "w": w}
        return kind, about, arrays

    agent.worker = lambda: SimpleNamespace(reply=reply)  # type: ignore[method-assign, assignment, return-value]


@pytest.mark.parametrize("factor", ["false", "10"])
def test_a_device_s_false_sums_are_refused(tmp_path: Path, factor: str) -> None:
    with live(tmp_path, experiment(tmp_path, "bayes", rounds=1, more=f"deploy.norm_limit = {factor}\n")) as park:
        lie(park)
        (line,) = park.run()
    assert line.lost == 1
    assert "contradict" in str(line.measured["failed"][f"d{BAD}"])  # type: ignore[index]


def test_an_edge_s_false_sums_are_refused(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "bayes", rounds=1)) as park:
        edge = next(iter(park.edges.values()))
        usual = edge.walk

        def walk(message: Message) -> Any:
            kind, about, arrays = usual(message)
            false = {name: one.copy() for name, one in arrays.items()}
            for one in false.values():
                one[1:] *= -1
            return kind, about, false

        edge.walk = walk  # type: ignore[method-assign]
        (line,) = park.run()
    assert line.lost == 4
    variance = load_file(tmp_path / "live/model.safetensors")["theta.variance"]
    assert (variance > 0).all()


def test_honest_devices_lose_no_visit_with_secure_sums_of_few_bits(tmp_path: Path) -> None:
    more = 'method.travel = { kind = "secure-sum", bits = 16, bound = 64, together = true }\n'
    with live(tmp_path, experiment(tmp_path, "bayes", rounds=1, more=more)) as park:
        (line,) = park.run()
    assert line.lost == 0

"""Codecs on live devices: the simulation's bits, and on the wire the bytes that are priced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import names
from fedfloor.deploy.message import decode, encode
from fedfloor.plan.nodes import Work
from live_park import experiment, figures, live, simulated
from refusals import refused

NETWORK = "network.profile = 'lte-cat-m2'\n"
CODECS = """method.travel = [{ kind = "top-k", share = 0.05 }, "int8"]
method.travel_down = "float16"
"""
METHODS = {
    "fedavg": "", "fedsr": "", "hierfavg": "", "fedper": "",
    "hfedms": "methods.hfedms = { period = 2, share = 1.0, memory = 5 }\n",
}  # fmt: skip
LACK = ("fedper", "hfedms")  # devices lack what does not travel at first, and are sent the whole model as it is


@pytest.mark.live
@pytest.mark.parametrize("method", METHODS)
def test_bits_are_the_simulations_and_payloads_are_as_long_as_priced(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3, devices=4, model="mlp-2nn", more=METHODS[method] + NETWORK + CODECS)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    if method != "fedper":  # whose saved model has the mean of devices' own parts
        here, there = (tmp_path / name / "model.safetensors" for name in ("live", "simulated"))
        assert here.read_bytes() == there.read_bytes()
    sizes: Counter[str] = Counter()
    for _, payload in park.broker.said:
        message = decode(payload) if payload[:4] == b"FEDF" else None
        if message is not None and message.kind in ("visit", "update"):
            sizes[message.kind] += sum(one.nbytes for one in message.arrays.values())
    priced = Counter[str]()
    for line in wanted:
        priced.update((line.priced or {})["bytes"])
    answers = 4 * 62 * 8 if method == "hfedms" else 0  # class counts of four devices, before the first round
    assert sizes["update"] == priced["device_edge_up"] - answers
    assert sizes["visit"] == priced["device_edge_down"] or method in LACK


@pytest.mark.live
@pytest.mark.parametrize("ways", ["both", "up", "down"])
def test_what_edges_and_cloud_exchange_is_as_long_as_priced(tmp_path: Path, ways: str) -> None:
    up = 'method.edge_travel = "int8"\n'
    down = 'method.edge_travel_down = "int8"\n'
    codecs = {"both": up + down, "up": up, "down": down}[ways] + 'method.travel = "int8"\n'
    what = experiment(tmp_path, "hierfavg", rounds=2, devices=4, model="mlp-2nn", more=NETWORK + codecs)
    _, wanted = simulated(what, tmp_path / "simulated")
    sizes: Counter[str] = Counter()
    with live(tmp_path, what) as park:
        for edge in park.edges.values():

            def answer(frame: bytes, usual: Any = edge.answer) -> bytes:
                said = bytes(usual(frame))
                for message in (decode(frame), decode(said)):
                    sizes[message.kind] += sum(one.nbytes for one in message.arrays.values())
                return said

            edge.answer = answer  # type: ignore[method-assign]
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    priced = Counter[str]()
    for line in wanted:
        priced.update((line.priced or {})["bytes"])
    assert sizes["walk"] == priced["edge_cloud_down"]
    assert sizes["walked"] == priced["edge_cloud_up"]


@pytest.mark.live
@pytest.mark.parametrize("way", ['edge_travel = "int2"', 'edge_travel_down = "int8"', 'edge_travel_down = "bfloat16"'])
def test_rounding_makes_no_honest_edge_look_as_if_it_went_too_far(tmp_path: Path, way: str) -> None:
    more = f"method.{way}\nmethods.hierfavg.work.lr = 1e-5\ndeploy.norm_limit = 2.0\n"
    what = experiment(tmp_path, "hierfavg", rounds=3, devices=4, factories=4, more=more)
    what.write_text(what.read_text().replace("edge_rounds = 2", "edge_rounds = 1"))
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [(line.lost, (line.measured or {})["absent"]) for line in lines] == [(0, [])] * 3


@pytest.mark.live
@pytest.mark.parametrize("lie", ["length", "weight", "infinite", "plain", "branch", "far"])
def test_an_edge_whose_payload_is_none_is_refused_and_the_other_goes_on(tmp_path: Path, lie: str) -> None:
    what = experiment(tmp_path, "hierfavg", rounds=1, devices=4, more='method.edge_travel = "int8"\n')
    with live(tmp_path, what) as park:
        usual = park.edges[1].answer

        def answer(frame: bytes) -> bytes:
            message = decode(usual(frame))
            if message.kind != "walked":
                return encode(message)
            (name, payload) = next(iter(message.arrays.items()))
            words = list(message.about["shown"])
            payload = payload.copy()
            if lie == "length":
                payload = payload[:-1]
            elif lie == "plain":
                payload = np.zeros(48_670, np.float32)
            elif lie == "far":
                payload[: 4 * -(-48_670 // 512)].view("<f4")[:] *= 1e4
            elif lie == "infinite":
                payload[:4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
            else:
                words[1] = {"1": 10**6} if lie == "weight" else {"0": 48}
            return encode(replace(message, arrays={name: payload}, about={**message.about, "shown": words}))

        park.edges[1].answer = answer  # type: ignore[method-assign]
        (line,) = park.run()
    assert line.lost == 4  # two visits to each of its two devices
    assert line.measured is not None
    assert line.measured["absent"] == ["e1"]


def test_codecs_of_another_experiment_are_refused_by_name(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", more='method.travel = "int8"')
    table = names.table(config.read(what, []))
    spec = Work(epochs=1, travel="top-k share=0.01").to_spec() | {"settings": {}}
    with refused("codec", RefusedError):
        names.work(spec, table)
    own = Work(epochs=1, travel=table.codecs[0]).to_spec() | {"settings": {}}
    assert names.work(own, table).travel == "quantise bits=8 bucket=512"

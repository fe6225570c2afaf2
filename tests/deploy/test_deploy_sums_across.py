"""One secure sum across factories: the simulation's bits, and nobody holds or sees a factory's sum."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_deploy_faults import losing
from test_deploy_sums import holds, noted

from fedfloor import config
from fedfloor.base.errors import RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.checks import STAGES
from fedfloor.deploy.device_sum import DeviceSum
from fedfloor.deploy.message import Message, decode
from fedfloor.deploy.summing import ServerSum, check_sums
from fedfloor.engine.summing import SecureAggregation
from fedfloor.parts.mixing.mix import BySamples
from fedfloor.parts.protection.masking import Bytes
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.plan.nodes import Parallel, Train, Work, device
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park
from floor import park
from live_park import experiment, figures, live, simulated
from live_processes import needs_broker, processes
from refusals import refused
from rounds import Job, method

CODEC = SecureSum(across=True)
SECURE = "method.travel = { kind = 'secure-sum', across = true }\ndeploy.norm_limit = false\n"
FACTORIES = (0, 0, 0, 0, 1, 1, 2, 2, 3)
TRAVEL = "secure-sum bits=32 bound=8.0 threshold=0.6 across=true"
VISIT = Work(epochs=1, travel=TRAVEL)


def spread(data: bytes) -> bool:
    """Return whether bytes are as frequent as those of a mask: no value of 256 stands out."""
    return bool(np.bincount(np.frombuffer(data, np.uint8), minlength=256).max() * 256 / len(data) < 1.5)


class Protocol:
    """A sum of devices of four factories without wires; ``gone`` are the devices that drop out before each stage."""

    def __init__(
        self, folder: Path, gone: Sequence[set[int]], changes: Mapping[int, torch.Tensor],
        codec: SecureSum = CODEC, factories: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        factories = factories or FACTORIES
        sizes = tuple(range(20, 20 + len(factories)))
        self.engine = Job(method("fedavg", {}), park(sizes, factory_of=factories), folder=folder).engine
        node = Parallel(tuple(Train(device(k), VISIT) for k in range(len(factories))), mix="by_samples")
        self.start = {"w": self.engine.network.flat.clone()}
        self.made = SecureAggregation(self.engine, node, self.start, codec)
        self.gone = gone
        self.changes = changes
        self.factories = factories
        self.devices = {k: DeviceSum(k, n, codec, BySamples(), factory=factories[k]) for k, n in enumerate(sizes)}
        self.server = ServerSum(self.made, self.made.sums[0], self._ask, self._refuse)
        self.visit = VISIT
        self.place = Key(0, 1, 0, 0, 0)
        self.partial: dict[int, Bytes] = {}  # of each factory: what its edge holds and sends

    def _ask(self, kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        lost = set().union(*self.gone[: {"sum-keys": 1, "sum-shares": 2, "sum-check": 2, "sum-unmask": 4}[kind]])
        return {k: self.devices[k].reply(kind, about)["answer"] for k, about in told.items() if k not in lost}

    def _refuse(self, device: int, kind: str, error: RefusedError) -> None:
        raise AssertionError(f"{device} {kind} {error}")

    def run(self) -> None:
        ring = self.made.fixed.ring
        start = self.start["w"].numpy()
        self.server.begin()
        self.server.hang(self.visit, self.start["w"], self.place)
        receipt = Receipt(0, 0, 0, 3, 24, 1.0, 0.5, 0.2, 0, lost=False)
        for k in sorted(self.changes.keys() - set().union(*self.gone[:3])):
            about = self.server.about(k)
            if about is not None:
                change = self.changes[k].numpy()
                place = replace(self.place, device=k)
                device_sum = self.devices[k]
                vector, _ = device_sum.masked(self.visit, start, change, len(change), receipt, about, place)
                self.made.add(k, {"w": torch.from_numpy(vector)}, 1, [receipt])
                ring.add(self.partial.setdefault(self.factories[k], ring.zeros()), vector)
        self.server.end()


@st.composite
def dropouts(draw: st.DrawFn) -> list[set[int]]:
    left = set(range(len(FACTORIES)))
    gone = list[set[int]]()
    for _ in range(4):
        gone.append(draw(st.sets(st.sampled_from(sorted(left)), max_size=2)) if left else set())
        left -= gone[-1]
    return gone


@settings(max_examples=25, deadline=None)
@given(dropouts(), st.integers(0, 2**32 - 1))
def test_the_sum_is_the_plain_one_for_all_dropouts_that_leave_enough_devices_and_factories(
    tmp_path_factory: pytest.TempPathFactory, gone: list[set[int]], seed: int
) -> None:
    numbers = torch.Generator().manual_seed(seed)
    plain = Protocol(tmp_path_factory.mktemp("a"), gone, {})
    size = plain.engine.network.flat.numel()
    changes = {k: torch.randn(size, generator=numbers) for k in range(len(FACTORIES))}
    secure = Protocol(tmp_path_factory.mktemp("b"), gone, changes)
    secure.run()
    survivors = set(changes) - set().union(*gone[:3])
    group = secure.made.sums[0]
    if secure.made.shortfall(group, survivors):
        assert len(survivors) < 6 or len({FACTORIES[k] for k in survivors}) < 3
        assert "devices" in group.lost
        assert all(spread(part.tobytes()) for part in secure.partial.values())
        return
    if len(survivors - gone[3]) < 6 and group.lost:  # six shares of nine, and fewer where some sent no keys
        assert "are needed" in group.lost
        return
    assert not group.lost
    for k in sorted(survivors):
        plain.made.add(k, {"w": changes[k]}, 1, [Receipt(k, 0, 0, 3, 24, 1.0, 0.5, 0.2, 0, lost=False)])
    wanted = plain.made.sums[0].total
    assert group.total is not None
    assert wanted is not None
    assert group.total.tolist() == wanted.tolist()
    assert all(spread(part.tobytes()) for part in secure.partial.values())  # what edges and cloud hold of a factory


@pytest.mark.parametrize("lie", ["noise", "twice"])
def test_an_edge_that_spoils_or_repeats_its_part_loses_the_sum(lie: str, tmp_path: Path) -> None:
    one = Protocol(tmp_path, [set()] * 4, {})
    one.changes = {k: torch.ones_like(one.start["w"]) for k in range(len(FACTORIES))}
    usual = one.server.end
    ring = one.made.fixed.ring

    def end() -> None:
        more = one.partial[1] if lie == "twice" else np.full(ring.bytes, 7, np.uint8)
        ring.add(one.made.sums[0].total, more)  # type: ignore[arg-type]
        usual()

    one.server.end = end  # type: ignore[method-assign]
    one.run()
    assert "cannot be unmasked: its sum has the weight" in one.made.sums[0].lost


def test_an_edge_that_names_other_devices_than_those_that_trained_is_refused(tmp_path: Path) -> None:
    one = Protocol(tmp_path, [set()] * 4, {})
    zeros = np.zeros(-(-one.made.fixed.ring.bytes // 8) * 8, np.uint8)
    for named, wanted in (([4, 5, 6], {4, 5}), ([4], {4, 5}), ([40], {4, 5})):
        twin = Protocol(tmp_path / str(named), [set()] * 4, {})
        blobs = [b"", f"[[0, {named}]]".encode(), zeros.tobytes()]
        with refused("header", RefusedError):
            check_sums(twin.made, blobs, wanted)
    with refused("payload", RefusedError):
        check_sums(one.made, [b"", b"[[0, [4, 5]]]", b"\0" * 16], {4, 5})


@pytest.mark.live
def test_bits_are_the_simulations_and_no_factorys_sum_is_on_any_wire(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", devices=7, factories=3, more=SECURE + "network.profile = 'lte-cat-m2'\n")
    with noted() as known:
        _, wanted = simulated(what, tmp_path / "simulated")
    uplink = list[Message]()
    with live(tmp_path, what) as there:
        for edge in there.edges.values():
            answer = edge.answer

            def heard(frame: bytes, answer: Any = answer) -> bytes:
                said = answer(frame)
                uplink.append(decode(said))
                return bytes(said)

            edge.answer = heard  # type: ignore[method-assign]
        lines = there.run()
        factory_of = [int(agent.settings.factory) for _, agent in sorted(there.agents.items())]
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    walked = [one for one in uplink if one.kind == "walked"]
    assert len(walked) == 3 * len(lines)
    for one in walked:
        (array,) = one.arrays.values()
        assert spread(array.tobytes())
    frames = [payload for _, payload in there.broker.said] + [
        a.tobytes() for one in uplink for a in one.arrays.values()
    ]
    for factory in range(3):
        pieces = summed(known, 1, [k for k, m in enumerate(factory_of) if m == factory], 7)
        assert not any(piece in frame for frame in frames for piece in pieces)
    updates = [decode(frame) for frame in frames if frame[:4] == b"FEDF" and b'"kind":"update"' in frame[:80]]
    stages = 64 + 6 * 80 + 7 * 32
    sent = sum(one.arrays["w"].nbytes + stages for one in updates)
    assert sent == (wanted[0].priced or {})["bytes"]["device_edge_up"] * len(lines)


def summed(known: Mapping[tuple[int, int], Any], number: int, devices: Sequence[int], many: int) -> list[bytes]:
    """Return pieces of a factory's sum as it could lie in the clear: where it is far from zero."""
    fraction = 31 - 3 - int(np.ceil(np.log2(many * 24 + 1)))
    fixed = sum(np.rint(known[number, k][1].double().numpy() * 24 * 2.0**fraction).astype(np.int64) for k in devices)
    at = int(np.abs(fixed).argmax()) // 64 * 64
    part = np.asarray(fixed)[at : at + 64]
    return [part.astype("<i4").tobytes(), part.tobytes(), (part * 2.0**-fraction).tobytes()]


@pytest.mark.live
@pytest.mark.parametrize("stage", [*STAGES, "visit"])
def test_a_device_that_vanishes_in_a_stage_leaves_the_sum_of_the_others(tmp_path: Path, stage: str) -> None:
    what = experiment(tmp_path, "fedavg", devices=7, factories=3, more=SECURE)
    gone = 2 if stage == "sum-unmask" else 1  # its update was there already
    with losing(lambda key: key.device == 0 and key.round >= gone):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as there:
        usual = there.agents[0].reply

        def done(edge: str, message: Message) -> Any:
            if message.kind == stage:
                there.links[0].die()
            return usual(edge, message)

        there.agents[0].reply = done  # type: ignore[method-assign]
        lines = there.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
def test_without_a_third_factory_the_round_is_lost_and_the_ledger_states_why(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=9, factories=3, more=SECURE)
    with live(tmp_path, what) as there:
        usual = there.edges[2].answer

        def answer(frame: bytes) -> bytes:
            if decode(frame).kind == "walk":
                return b""
            return bytes(usual(frame))

        there.edges[2].answer = answer  # type: ignore[method-assign]
        with pytest.raises(RunError, match="none of 1 rounds"):
            there.run()
    (line,) = ledger.read(tmp_path / "live/ledger.jsonl")
    assert line.lost == 9
    text = (tmp_path / "live/ledger.jsonl").read_text()
    assert "devices of only 2 factories delivered; a secure sum across factories needs 3" in text


@pytest.mark.live
def test_an_edge_passes_no_stage_on_that_is_none_or_for_foreign_devices(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=7, factories=3, more=SECURE)
    with live(tmp_path, what) as there:
        there.run()
        edge = there.edges[0]
        theirs = next(k for k, agent in there.agents.items() if agent.settings.factory == 1)
        ours = next(k for k, agent in there.agents.items() if agent.settings.factory == 0)
        for stage, sums, reason in (
            ("visit", {str(ours): {}}, "sum is unknown"), ("sum-keys", {str(theirs): {}}, "of another factory"),
            ("sum-keys", [], "its sums"), ("sum-keys", {"0\n": {}}, "of another factory"), (None, {}, "sum is unknown"),
        ):  # fmt: skip
            message = Message("sum", "cloud", "live", 1, 1, 1, about={"stage": stage, "sums": sums})
            with pytest.raises(RefusedError, match=reason):
                edge.secure_sum(message)
        kind, about, _ = edge.secure_sum(
            Message(
                "sum", "cloud", "live", 1, 1, 1, about={"stage": "sum-unmask", "sums": {str(ours): {"identity": "x"}}}
            )
        )
        assert (kind, about) == ("sums", {"answers": {}})  # the device refused


@pytest.mark.slow
@pytest.mark.live
@needs_broker
def test_no_factorys_sum_lies_in_the_memory_of_the_cloud_or_of_an_edge(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", 3, devices=6, model="mlp-2nn", factories=3, more=SECURE)
    stands = build_park(config.read(what, [])).factory_of.tolist()
    with noted() as known:
        simulated(what, tmp_path / "simulated", rounds=1)
    start = known[1, 0][0] - known[1, 0][1]
    secret = [p for m in range(3) for p in summed(known, 1, [k for k, at in enumerate(stands) if at == m], 6)]
    with processes(tmp_path, what) as there:
        run = subprocess.Popen(
            [sys.executable, "-c", HELD.format(path=str(tmp_path / "cloud.toml"))], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert run.stdout is not None
        assert run.stdin is not None
        try:
            assert run.stdout.readline() == "1\n", there.logs()  # held after round 1
            for pid in (run.pid, *(edge.pid for edge in there.edges.values())):
                assert holds(pid, [start[:64].numpy().tobytes(), *secret]) == [0]
            run.stdin.write("\n" * 3)
            run.stdin.close()
            assert run.wait(120) == 0
        finally:
            run.kill()


HELD = """
import sys
from pathlib import Path
from fedfloor.deploy.cloud import run
from fedfloor.deploy.settings import CloudSettings, read

def held(line):
    print(line.round, flush=True)
    sys.stdin.readline()

run(read(CloudSettings, Path({path!r})), report=held)
"""

"""The adapter to Flower: which nodes it takes for factories, the way to the edge, a park behind Flower as released."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedfloor.base.errors import RunError
from fedfloor.deploy import uplink
from fedfloor.deploy.live import listens
from fedfloor.deploy.settings import CloudEdge
from fedfloor.runs import ledger
from live_park import experiment, figures, simulated
from live_processes import needs_broker, processes
from parks import free_port, until
from refusals import refused

BIN = Path(sys.executable).parent
FLWR = shutil.which("flwr", path=str(BIN)) or shutil.which("flwr")


class FakeGrid:
    """Flower's grid with nodes that answer, or for which the SuperLink answers with an error."""

    def __init__(self, nodes: Sequence[int], dead: Sequence[int] = ()) -> None:
        self.nodes = list(nodes)
        self.dead = set(dead)
        self.pushed = dict[str, Any]()

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        start = len(self.pushed)
        self.pushed |= {str(start + i): one for i, one in enumerate(messages)}
        return list(self.pushed)[start:]

    def pull_messages(self, identities: Iterable[str]) -> list[Any]:
        return [self.answer(one) for one in sorted(identities, reverse=True)]

    def answer(self, identity: str) -> Any:
        from fedfloor.deploy.flower import content

        node = self.pushed[identity].metadata.dst_node_id
        dead = node in self.dead
        source = 1 if dead else node  # an error reply comes from the SuperLink's own number
        metadata = SimpleNamespace(src_node_id=source, reply_to_message_id=identity)
        return SimpleNamespace(
            metadata=metadata, has_error=lambda: dead, error=SimpleNamespace(reason="node unavailable"),
            content=None if dead else content(b"of %d" % node),
        )  # fmt: skip


def edges(grid: Any) -> Any:
    flower = pytest.importorskip("fedfloor.deploy.flower")
    return flower.ByGrid(grid, [CloudEdge("north", 0), CloudEdge("south", 1)])


def test_a_dead_supernode_is_a_lost_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pytest.importorskip("fedfloor.deploy.flower")
    addressed = lambda frame, node, deadline_s: SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node))  # noqa: E731
    monkeypatch.setattr(flower, "_to_node", addressed)
    made = edges(FakeGrid([70, 71], dead=[70]))
    made._nodes = {0: 70, 1: 71}
    assert made.request({0: b"a", 1: b"b"}, 5.0, {}) == {1: b"of 71"}


def test_without_a_single_node_the_run_ends_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pytest.importorskip("fedfloor.deploy.flower")
    monkeypatch.setattr(flower, "FIND_S", 0.1)
    unknown = flower.ByGrid(FakeGrid([]), [CloudEdge("north", 0)])
    with refused("no-answer", RunError):
        unknown.request({0: b"a"}, 5.0, {})


@dataclass
class Nodes(FakeGrid):
    """Nodes that state their factory and answer as they like: node → the record of a message's kind."""

    answers: dict[int, Callable[[str], Any]]

    def __post_init__(self) -> None:
        FakeGrid.__init__(self, list(self.answers))

    def answer(self, identity: str) -> Any:
        asked = self.pushed[identity].metadata
        metadata = SimpleNamespace(src_node_id=asked.dst_node_id, reply_to_message_id=identity)
        content = self.answers[asked.dst_node_id](asked.message_type)
        return SimpleNamespace(metadata=metadata, has_error=lambda: False, content=content)


def stated(number: Any, frame: Any = b"honest") -> Callable[[str], Any]:
    """A node that states a factory, unless it is None, and answers with a frame: bytes, or a record of its own."""
    from flwr.app import ConfigRecord, RecordDict

    from fedfloor.deploy.flower import content

    record = RecordDict({} if number is None else {"factory": ConfigRecord({"number": number})})
    sent = content(frame) if isinstance(frame, bytes) else frame
    return lambda kind: record if kind == "query.factory" else sent


@pytest.fixture
def found_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Callable[[str], Any]]], dict[int, bytes]]:
    """What the cloud takes of nodes whose factories it asks for."""
    flower = pytest.importorskip("fedfloor.deploy.flower")
    monkeypatch.setattr(flower, "FIND_S", 0.5)
    monkeypatch.setattr(flower, "AGAIN_S", 0.5)

    def addressed(*_: Any, dst_node_id: int, message_type: str, **__: Any) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=dst_node_id, message_type=message_type))

    monkeypatch.setattr(flower, "Message", addressed)

    def ask(answers: dict[int, Callable[[str], Any]]) -> dict[int, bytes]:
        made = flower.ByGrid(Nodes(answers), [CloudEdge("north", 0), CloudEdge("south", 1)])
        return made.request({0: b"a", 1: b"b"}, 1.0, {})  # type: ignore[no-any-return]

    return ask


@pytest.mark.parametrize("number", [None, "abc", [1, 2], b"x", float("inf"), 10**6, -1])
def test_a_node_that_states_no_factory_that_is_wanted_costs_its_own_factory_only(
    found_by: Callable[..., dict[int, bytes]], number: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert found_by({100: stated(number), 200: stated(1)}) == {1: b"honest"}
    assert caplog.text.count("node 100: its factory") == 1


@pytest.mark.parametrize("case", ["nothing", "another name", "no array", "no arrays"])
def test_an_answer_without_a_frame_is_no_answer(
    found_by: Callable[..., dict[int, bytes]], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    one = Array(dtype="uint8", shape=(1,), stype="x", data=b"1")
    records = {
        "nothing": {}, "another name": {"x": ArrayRecord({"frame": one})},
        "no array": {"frame": ArrayRecord({"x": one})}, "no arrays": {"frame": ConfigRecord({"frame": 1})},
    }  # fmt: skip
    assert found_by({100: stated(0, RecordDict(records[case])), 200: stated(1)}) == {1: b"honest"}
    assert "factory 0: its message has no frame" in caplog.text


def test_a_second_node_cannot_take_a_factory(
    found_by: Callable[..., dict[int, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """Where two state it at once, neither has it; one that comes later is refused."""
    flower = pytest.importorskip("fedfloor.deploy.flower")
    answers = {100: stated(0), 200: stated(1), 300: stated(1, b"forged")}
    assert found_by(answers) == {0: b"honest"}
    grid = Nodes({100: stated(0), 200: stated(1)})
    made = flower.ByGrid(grid, [CloudEdge("north", 0), CloudEdge("south", 1), CloudEdge("west", 2)])
    assert made.request({0: b"a", 1: b"b"}, 1.0, {}) == {0: b"honest", 1: b"honest"}
    grid.nodes.append(300)
    grid.answers[300] = stated(1, b"forged")
    assert made.request({0: b"a", 1: b"b", 2: b"c"}, 1.0, {}) == {0: b"honest", 1: b"honest"}
    assert "node 300: its factory 1 is refused" in caplog.text


def test_the_door_answers_whoever_has_the_key(tmp_path: Path) -> None:
    with uplink.socket_opened(tmp_path, lambda message: message[::-1]):
        place = json.loads((tmp_path / uplink.SOCKET).read_text())
        assert (tmp_path / uplink.SOCKET).stat().st_mode & 0o777 == 0o600
        with pytest.raises(AuthenticationError):
            Client((uplink.HERE, place["port"]), authkey=b"guessed")
        assert uplink.socket_request(tmp_path, b"abc" * 1_000_000, 10.0) == b"cba" * 1_000_000
    with refused("edge", RunError):
        uplink.socket_request(tmp_path, b"abc", 1.0)


def test_an_edge_that_does_not_answer_is_late(tmp_path: Path) -> None:
    with (
        uplink.socket_opened(tmp_path, lambda message: b"" if until(lambda: False, 2) else message),
        refused("edge", RunError),
    ):
        uplink.socket_request(tmp_path, b"abc", 0.1)


@pytest.mark.slow
@pytest.mark.live
@needs_broker
@pytest.mark.skipif(FLWR is None, reason="Flower is not installed")
def test_a_park_behind_flower_is_its_simulation_to_the_bit(tmp_path: Path) -> None:
    """Flower as released, without a change: its SuperLink, a SuperNode for each factory, and ``flwr run``."""
    what = experiment(tmp_path, "hierfavg", rounds=2, devices=4)
    _, wanted = simulated(what, tmp_path / "simulated")
    port = free_port()
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "park"\n\n[superlink.park]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home),
             "PATH": f"{BIN}:{os.environ['PATH']}"}  # fmt: skip
    with ExitStack() as stack, processes(tmp_path, what, flower=True) as park:

        def start(name: str, *words: object, **more: str) -> None:
            with (tmp_path / f"{name}.log").open("wb") as log:
                one = subprocess.Popen(
                    list(map(str, words)), env={**os.environ, **quiet, **more}, stdout=log, stderr=log
                )
            stack.callback(one.wait)
            stack.callback(one.terminate)

        here = "--host", "127.0.0.1", "--port"
        start(
            "superlink",
            BIN / "flower-superlink",
            "--insecure",
            *here,
            port,
            "--disable-runtime-dependency-installation",
        )
        assert until(lambda: listens(port), 120), park.logs()
        for m in park.edges:
            node = BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *here, free_port()
            file = str(tmp_path / f"edge-e{m}.toml")
            start(
                f"node-{m}",
                *node,
                "--node-config",
                f"factory={m}",
                FEDFLOOR_EDGE=file,
                FLWR_HOME=str(tmp_path / f"n{m}"),
            )
        assert until(lambda: all((tmp_path / f"state-{m}" / uplink.SOCKET).exists() for m in park.edges), 120), (
            park.logs()
        )
        words = [str(FLWR), "run", str(Path(uplink.__file__).parent / "flower_app"), "park", "--run-config",
                 f'settings="{tmp_path / "cloud.toml"}"']  # fmt: skip
        done = subprocess.run(words, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        model = tmp_path / "live/model.safetensors"
        assert until(model.exists, 300), park.logs()
    assert model.read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in ledger.read(tmp_path / "live/ledger.jsonl")] == [figures(line) for line in wanted]

"""Real machines that are asked before training: the cloud judges their sums, and refuses hostile answers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ask import FAULTS, FIRST, written
from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import asking, cloud
from fedfloor.deploy.message import Message
from fedfloor.deploy.settings import CloudEdge, CloudSettings, DataSource, Deadlines, Named
from fedfloor.runs.asking import Asked, of_experiment
from live_park import Inside, Live, live
from refusals import refused

DEVICES = 4
WHAT = """
name = "live"
rounds = 1
park = {{ devices = {devices}, factories = 2 }}
model.name = "logistic"
method.name = "fedavg"
work = {{ batch_size = 10, lr = 0.05 }}
data.path = "{folder}/plant"
data.device = "file"
data.columns.label = "state"
data.agree = "{agree}"
{more}
"""


def plant(folder: Path, fault: str, agree: str = "refuse", more: str = "") -> Path:
    import numpy as np

    draw = np.random.default_rng(5)
    tables = replace(FIRST, sites=DEVICES).made(draw)
    sensors = [name for name in tables["site-1"] if name not in ("time", "state")]
    if fault:
        FAULTS[fault][1](tables, "site-2", sensors, draw)
    written(tables, folder / "plant")
    what = folder / "experiment.toml"
    what.write_text(WHAT.format(devices=DEVICES, folder=folder, agree=agree, more=more))
    return what


def source(folder: Path, k: int) -> DataSource:
    return DataSource("folder", folder / "plant" / f"site-{k + 1}.csv")


def settings(park: Live, join_s: float = 60) -> CloudSettings:
    """The cloud's settings as provisioned, which list the devices."""
    edges = tuple(
        CloudEdge(f"e{m}", m, devices=tuple(Named(f"d{k}", k) for k in edge.own)) for m, edge in park.edges.items()
    )
    return replace(park.settings(), edges=edges, deadlines=Deadlines(join_s=join_s, round_s=120))


def asked(park: Live, join_s: float = 60) -> Asked:
    return cloud.asked(settings(park, join_s), Inside(park.edges))


def test_a_park_finds_what_the_simulation_finds(tmp_path: Path) -> None:
    what = plant(tmp_path, "°F beside °C")
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park:
        found = asked(park)
    (one,) = found.findings
    (same,) = of_experiment(config.read(what, [])).findings
    assert (one.kind, one.sites, one.sensors) == ("unit", ("d1",), ("temp",))
    assert one.sentence == same.sentence.replace("site-2", "d1")
    assert [row["rows"] for row in found.by_site()] == [400] * DEVICES
    assert all(site.offset == 0 for site in found.sites)


def test_a_run_begins_only_if_devices_agree(tmp_path: Path) -> None:
    what = plant(tmp_path, "a class in capitals")
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park, refused("data.agree"):
        park.run()
    assert not (tmp_path / "live/ledger.jsonl").exists()


def test_devices_that_agree_train(tmp_path: Path) -> None:
    what = plant(tmp_path, "", more='data.normalise = "standard"')
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park:
        assert len(park.run()) == 1
    stated = (tmp_path / "live/privacy.json").read_text()
    assert '"sites"' in stated


def test_a_device_that_is_missing_or_refuses_is_named(tmp_path: Path) -> None:
    what = plant(tmp_path, "", agree="off")
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park:
        park.links[3].die()
        found = {one.sites: one.sentence for one in asked(park, join_s=1).findings}
    assert found.keys() == {("d0",), ("d1",), ("d2",), ("d3",)}
    assert "has not answered" in found["d3",]
    assert "does not set data.agree" in found["d0",]


@pytest.mark.parametrize(
    "answer",
    [None, "x", {}, {"rows": {}, "now": 1.0}, {"rows": None, "now": "late"}, {"rows": {"rows": 1e300}, "now": 1e400}],
)
def test_a_hostile_answer_is_refused_and_named(tmp_path: Path, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    what = plant(tmp_path, "")
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park:
        monkeypatch.setattr(park.agents[2], "site", lambda run: answer)
        found = asked(park)
    (one,) = found.findings
    assert (one.kind, one.sites) == ("unreadable", ("d2",))
    assert "refused" in one.sentence


def answer(body: dict[str, Any]) -> Message:
    return Message("sites", "e0", about=body)


@pytest.mark.parametrize("body", [{"sites": 5}, {"sites": [1, None]}, {"wrong": {"9" * 5000: 1}}, {"silent": 7}, {}])
def test_an_edge_without_listed_devices_is_named_if_it_names_none(body: dict[str, Any]) -> None:
    def query() -> dict[int, Message]:
        return {0: answer(body)} if body else {}

    (one,) = asking.gathered(query, [CloudEdge("e0", 0)], 0.0, lambda *_: None)
    assert (one.name, one.problems) == ("e0", ("it has named no device.",))


def test_devices_that_an_edge_names_are_asked_about() -> None:
    body = {"wrong": {"10": "no table."}, "silent": ["9"]}
    found = asking.gathered(lambda: {0: answer(body)}, [CloudEdge("e0", 0)], 0.0, lambda *_: None)
    assert [(one.name, one.problems) for one in found] == [
        ("device-9", ("it has not answered.",)), ("device-10", ("no table.",)),
    ]  # fmt: skip


def test_a_clock_that_is_an_hour_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = plant(tmp_path, "")
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park:
        agent = park.agents[0]
        right = agent.site
        monkeypatch.setattr(agent, "site", lambda run: right(run) | {"now": right(run)["now"] - 3600})
        (one,) = asked(park).findings
    assert (one.kind, one.sites) == ("clock", ("d0",))
    assert "behind the cloud's" in one.sentence


@pytest.mark.parametrize(
    "travel",
    ['method.travel = "secure-sum"', "work = { sample_clip = 1.0, sample_noise = 1.0 }", "park.census_epsilon = 1.0"],
)
def test_with_masks_or_noise_a_device_states_nothing(tmp_path: Path, travel: str) -> None:
    lines = plant(tmp_path, "").read_text()
    what = tmp_path / "experiment.toml"
    lines = lines.replace("work = { batch_size = 10, lr = 0.05 }", "")
    what.write_text(
        lines.replace("park = { devices = 4, factories = 2 }", "park.devices = 4\npark.factories = 2") + travel
    )
    read = config.read(what, [])
    with live(tmp_path, what, data=lambda k: source(tmp_path, k)) as park, refused("question", RefusedError):
        asking.stated(park.agents[0].settings, read, read.configured, None)
    from fedfloor.runs.asking import before

    with refused("data.agree"):
        before(read, resume=False)


def test_a_device_answers_without_pytorch(tmp_path: Path) -> None:
    plant(tmp_path, "")
    code = (
        "import sys; from pathlib import Path; from fedfloor import config; from fedfloor.deploy import asking, device;"
        "from types import SimpleNamespace as S; from fedfloor.deploy.settings import DataSource;"
        f"p = Path({str(tmp_path)!r}); read = config.read(p / 'experiment.toml', []);"
        "s = S(data=DataSource('folder', p / 'plant' / 'site-1.csv'), name='d0');"
        "print(asking.stated(s, read, read.configured, None)['rows'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["400", "False"]

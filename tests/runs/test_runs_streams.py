"""Runs whose data stream: read from a file, stopped, killed, forecast, priced, and what their censuses told."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedfloor
from commands import lines
from fedfloor import config
from fedfloor.experiment import Experiment
from fedfloor.park.partition import Mobility
from fedfloor.park.stream import Cycle, Fifo, Recycle
from fedfloor.plan import text, walk
from fedfloor.plan.nodes import Parallel, Probe, Repeat, Select, Sequence, Work
from fedfloor.runs import forecast, launch, pricing, results
from fedfloor.runs.orders import Limits, Orders
from refusals import refused
from streaming import streamed

SUPPORT = Path(__file__).parents[1] / "support"
TABLE = {
    "rounds": 4, "data": {"samples_per_device": 30, "stream": {"kind": "recycle", "window": 8}},
    "park": {"devices": 6, "factories": 2}, "model": {"name": "logistic"}, "method": {"name": "streaming:Choosy"},
    "work": {"batch_size": 8}, "faults": {"visit": 0.2},
}  # fmt: skip


def experiment(**changes: object) -> Experiment:
    return config.from_table({**TABLE, **changes})


def figures(out: Path) -> tuple[object, bytes]:
    return lines(out), (out / "model.safetensors").read_bytes()


def priced_lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_streams_are_read_from_a_file_and_written_again(tmp_path: Path) -> None:
    written = tmp_path / "one.toml"
    written.write_text(
        'data.stream = { kind = "fifo", window = 8, drift = { kind = "cycle", strength = 0.5, period = 2 } }\n'
        "park = { devices = 6, factories = 2, census_epsilon = 0.5, mobility = { every = 3, share = 0.2 } }\n"
    )
    read = config.read(written)
    assert read.data.stream == Fifo(8, Cycle(0.5, 2))
    assert (read.park.census_epsilon, read.park.mobility) == (0.5, Mobility(3, 0.2))
    for said in (config.resolved(read), config.brief(read)):
        (tmp_path / "two.toml").write_text(said)
        again = config.read(tmp_path / "two.toml")
        assert (again.data.stream, again.park) == (read.data.stream, read.park)
    here = launch.build_park(read)
    assert (here.stream, here.census_epsilon, here.mobility) == (read.data.stream, 0.5, Mobility(3, 0.2))
    assert config.from_table({"data": {"stream": {"kind": "recycle", "window": 3}}}).data.stream == Recycle(3)
    assert config.from_table({"park": {"census_epsilon": math.inf}}).park.census_epsilon == math.inf


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"kind": "fifo"}, "missing-setting"),
        ({"kind": "fifo", "window": 0}, "data.stream.window"),
        ({"kind": "recycle", "window": 2.5}, "data.stream.window"),
        ({"kind": "recicle", "window": 2}, "unknown data.stream.kind"),
        ({"window": 2}, "data.stream"),
        ({"kind": "fifo", "window": 2, "drift": {"kind": "cycle", "strength": 2}}, "data.stream.drift.strength"),
        ({"kind": "fifo", "window": 2, "drift": {"strenth": 1}}, "unknown-key"),
    ],
)
def test_streams_that_cannot_be_are_told_in_plain_words(stream: dict[str, object], words: str) -> None:
    with refused(words):
        config.from_table({"data": {"stream": stream}})


def test_mini_batches_larger_than_the_window_are_refused(tmp_path: Path) -> None:
    with refused("work.batch_size"):
        fedfloor.run(experiment(method={"name": "fedavg"}, work={"batch_size": 9}), tmp_path / "run", ranks=1)


# -- stopped and killed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["fifo", "recycle", "augmented"])
def test_a_run_stopped_and_resumed_is_as_if_it_had_not_been(tmp_path: Path, stream: str) -> None:
    what = experiment(data={**TABLE["data"], "stream": {"kind": stream, "window": 8}})  # type: ignore[dict-item]
    park = launch.build_park(what)
    launch.start(what, Orders(tmp_path / "whole"), 1, launch.ignore, park)
    for last in (2, None):
        orders = Orders(tmp_path / "parts", resume=last != 2, limits=Limits(last))
        launch.start(what, orders, 2, launch.ignore, park)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")
    assert sum(line["lost"] for line in lines(tmp_path / "whole")) > 0  # type: ignore[misc]


KILLED = """
import os, sys
from pathlib import Path
from fedfloor import config
from fedfloor.runs import launch, loop
from fedfloor.runs.orders import Orders
loop.CHECKPOINT_S = float(sys.argv[3])
out, last = Path(sys.argv[2]), int(sys.argv[4])
orders = Orders(out, resume=(out / "experiment.toml").exists())
die = lambda line: os.kill(os.getpid(), 9) if line.round == last else None
launch.start(config.read(Path(sys.argv[1])), orders, 1, die)
"""


@pytest.mark.slow
def test_a_run_killed_under_a_recycled_stream_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    # killed after rounds that were checkpointed (pause 0) and after one that only the ledger knows (pause 60)
    file = tmp_path / "file.toml"
    file.write_text(config.brief(experiment()))
    fedfloor.run(config.read(file), tmp_path / "whole", ranks=1)
    for pause, last, code in (("0", 1, -9), ("60", 3, -9), ("0", 2, -9), ("0", 9, 0)):
        program = [sys.executable, "-c", KILLED, str(file), str(tmp_path / "out"), pause, str(last)]
        assert subprocess.run(program, cwd=SUPPORT, check=False).returncode == code
    assert figures(tmp_path / "out") == figures(tmp_path / "whole")


# -- forecast and price ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["fifo", "recycle", "augmented"])
def test_a_forecast_knows_whom_training_will_choose_and_what_it_will_cost(tmp_path: Path, stream: str) -> None:
    # lost visits, noise on the census, devices that move: all of it is drawn, none hangs on what training brings
    what = experiment(
        data={**TABLE["data"], "stream": {"kind": stream, "window": 8}},  # type: ignore[dict-item]
        park={**TABLE["park"], "census_epsilon": 1.0, "mobility": {"every": 4, "share": 0.5}},  # type: ignore[dict-item]
        network={"profile": "lte-cat-m2"},
    )
    fedfloor.run(what, tmp_path / "run", ranks=1)
    trained = priced_lines(tmp_path / "run")
    park = launch.build_park(what)
    told = list(forecast.rounds(what, park, 4))
    assert [text.digest(one.plan) for one in told] == [line["plan_hash"] for line in trained]
    assert [one.price.seconds for one in told] == [line["priced"]["seconds"] for line in trained]  # type: ignore[index]
    assert sum(line["lost"] for line in trained) > 0  # type: ignore[misc]
    # a round spans three ticks: the rounds begin at 0, 3, 6, 9, and devices move at 4 and 8
    home = park.factory_of.tolist()
    where = [park.factory_at(tick).tolist() for tick in (0, 3, 6, 9)]
    assert where[0] == where[1] == home != where[2] != where[3]
    for one, stands in zip(told, where, strict=True):
        assert isinstance(one.plan, Parallel)
        for m, branch in enumerate(one.plan.children):
            assert walk.devices(branch) <= {k for k in range(6) if stands[k] == m}


@pytest.mark.parametrize("choose", ["round", "iteration"])
def test_a_drawn_round_begins_when_it_does_and_after_those_who_were_trained(choose: str) -> None:
    # rounds of three ticks: the third begins at 6, with guests and by the windows that two rounds of visits left
    what = experiment(
        park={**TABLE["park"], "mobility": {"every": 4, "share": 0.5}},  # type: ignore[dict-item]
        method={"name": "fedgs"}, methods={"fedgs": {"iterations": 3, "devices": 2, "random": 0, "choose": choose}},
        work={"batch_size": 8, "steps": 1}, network={"profile": "lte-cat-m2"},
    )  # fmt: skip
    park = launch.build_park(what)
    assert park.factory_at(6).tolist() != park.factory_of.tolist()
    told = {one.number: one.plan for one in forecast.rounds(what, park, 3)}
    drawn = forecast.plan_of(what, park, 3)
    if choose == "round":
        assert drawn == told[3]
    meeting = drawn if choose == "iteration" else walk.children(drawn)[1]
    for m, branch in enumerate(walk.children(meeting)):
        assert walk.devices(branch) == {k for k in range(6) if park.factory_at(6)[k] == m} or choose == "round"


def test_a_visit_computes_on_its_window(tmp_path: Path) -> None:
    table = {"method": {"name": "fedavg"}, "network": {"profile": "lte-cat-m2"}}
    static = experiment(**table, data={"samples_per_device": 30})
    here, there = (launch.build_park(one) for one in (static, experiment(**table)))
    whole, window = (pricing.build_price_model(static, park, 1) for park in (here, there))
    assert whole is not None
    assert window is not None
    assert window.sites.samples.tolist() == [8.0] * 6
    for k in range(6):  # y · D / f with D as many bits as eight samples have of thirty
        assert window.sites.pass_s[k] == pytest.approx(whole.sites.pass_s[k] * 8 / 30)
        assert window.sites.passes(k, Work(steps=1, batch_size=8)) == 1.0


def test_a_guest_reaches_the_cloud_by_its_hosts_base_station() -> None:
    what = experiment(network={"profile": "lte-cat-m2"}, park={"devices": 4, "factories": 4, "mobility": {"every": 1}})
    park = launch.build_park(what)
    price_model = pricing.build_price_model(what, park, 1)
    assert price_model is not None
    assert price_model.at(park.factory_at(0)) is price_model
    moved = next(
        stands for tick in range(1, 9) if (stands := park.factory_at(tick)).tolist() != park.factory_of.tolist()
    )
    assert price_model.at(moved).sites.factory_of.tolist() == moved.tolist()
    assert price_model.at(moved).sites.pass_s.tolist() == price_model.sites.pass_s.tolist()
    assert price_model.at(moved).at(park.factory_of).sites.factory_of.tolist() == park.factory_of.tolist()


# -- what censuses tell ------------------------------------------------------------------------------------------------


def test_reports_are_counted_once_a_tick() -> None:
    # ticks 0, 1, 2: all three of the Repeat; devices 0 and 1 are asked by Probe at tick 0, too, and 0 again at tick 3
    work = Work(steps=1)
    asked = Repeat(3, Select("varied", (0, 1, 2), 1, work))
    blind = Repeat(3, Select("uniform", (0, 1, 4), 1, work))
    plan = Sequence((Probe((0, 1), "census"), Probe((0, 3), "loss"), Parallel((asked, blind)), Probe((0,), "census")))
    noisy = replace(experiment().park, census_epsilon=0.5)
    fifo = replace(experiment(), park=noisy, data=replace(experiment().data, stream=Fifo(8)))
    assert results.reports(fifo, plan) == {0: 4, 1: 3, 2: 3}
    # with recycled windows another visit may have come between two questions of one tick
    assert results.reports(replace(experiment(), park=noisy), plan) == {0: 5, 1: 4, 2: 3}
    assert results.reports(experiment(), plan) == {}
    # a method that read everybody's before it wrote the plan: of 0 and 1 the Probe at tick 0 is that report
    assert results.reports(fifo, plan, before=4) == {0: 4, 1: 3, 2: 3, 3: 1}
    assert results.reports(fifo, Probe((0,), "census"), before=2) == {0: 1, 1: 1}
    assert results.reports(replace(fifo, park=replace(noisy, census_epsilon=math.inf)), plan) == {}


def test_a_run_tells_what_its_reports_come_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # 4 rounds of 3 ticks, and every factory's devices are all asked: 12 reports with ε = 0.5 are 6 together
    what = experiment(park={**TABLE["park"], "census_epsilon": 0.5}, faults={})  # type: ignore[dict-item]
    park = launch.build_park(what)
    launch.start(what, Orders(tmp_path / "run", limits=Limits(2)), 1, launch.ignore, park)
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["reports"] == 6
    with caplog.at_level("INFO"):
        launch.start(what, Orders(tmp_path / "run", resume=True), 1, launch.ignore, park)
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert told.pop("answers").keys() == {"holding", "update", "receipt"}
    assert told == {
        "census_epsilon": 0.5, "report_epsilon": 0.5, "reports": 12, "epsilon": 6.0, "epsilon_advanced": 6.0,
        "delta": 1e-5, "noise": "seeded", "note": results.SEEDED_NOTE,
    }  # fmt: skip
    assert "gives no protection" in results.SEEDED_NOTE
    assert results.SEEDED_NOTE in caplog.text
    assert "at most 12 reports of a device with ε = 0.5 each, together ε = 6 " in caplog.text
    # noise changes who is chosen, and a run without it tells nothing
    plain = replace(what, park=replace(what.park, census_epsilon=None))
    fedfloor.run(plain, tmp_path / "plain", ranks=1)
    stated = json.loads((tmp_path / "plain" / "privacy.json").read_text())
    assert stated.keys() == {"answers"}  # exact class counts are listed, noisy ones are accounted for
    assert stated["answers"]["census"]["times"] == told["reports"]
    hashes = [[line["plan_hash"] for line in priced_lines(tmp_path / name)] for name in ("run", "plain")]
    assert hashes[0] != hashes[1]


def test_a_window_larger_than_the_local_set_tells_more_of_each_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # windows of 9 of sets of 6, 10, 4, 9 and 5: up to 2, 1, 3, 1 and 2 times; 5 reports of 3ε are more than 7 of 2ε
    here = streamed(Fifo(9))
    what = replace(experiment(), park=replace(experiment().park, census_epsilon=0.5))
    with caplog.at_level("WARNING"):
        results.write_privacy(tmp_path, what, {0: 7, 1: 9, 2: 5}, here)
    told = json.loads((tmp_path / "privacy.json").read_text())
    assert (told["report_epsilon"], told["reports"], told["epsilon"]) == (1.5, 5, 7.5)
    assert "samples of device 2 up to 3 times" in caplog.text
    results.write_privacy(tmp_path, what, {}, here)
    assert json.loads((tmp_path / "privacy.json").read_text())["epsilon"] == 0.0


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "hierfavg", "ring", "centralized", "moon", "scaffold", "fedl"])
def test_methods_run_on_streams(tmp_path: Path, method: str) -> None:
    for stream in ("fifo", "recycle"):
        what = experiment(
            method={"name": method}, rounds=2, data={"samples_per_device": 12, "stream": {"kind": stream, "window": 8}}
        )
        fedfloor.run(what, tmp_path / stream, ranks=1)
    first, second = (lines(tmp_path / stream) for stream in ("fifo", "recycle"))
    # the streams part only where devices are visited more or less often than once a tick
    apart = method in ("fedsr", "hierfavg") or any(line["lost"] for line in first[:1])
    assert (first != second) == apart

"""Models of devices' own on live devices: the simulation's bits, and nothing of them on the wire."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import names, own
from fedfloor.deploy.message import Message
from fedfloor.deploy.settings import DataSource
from fedfloor.deploy.worker import Worker
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.questions import Outputs
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.inference.trained import load_model
from fedfloor.models.saved import model_file
from fedfloor.plan.nodes import Work
from fedfloor.runs import prepare
from fedfloor.runs.orders import Limits
from fedfloor.runs.parks import build_park
from live_park import device_settings, experiment, figures, live, simulated
from refusals import refused

METHODS = {
    "fedper": "", "fedrep": "methods.fedrep.head_epochs = 1", "fedbn": "", "ditto": "", "apfl": "",
}  # fmt: skip
# numbers that are looked for in messages, and how often
CHUNK = 16
CHUNKS = 20


def engine_of(read: Experiment) -> Engine:
    return prepare.engine(read, read.configured, build_park(read), Alone(), DeviceMemory(None))[0]


def assert_kept(folder: Path, read: Experiment, payloads: list[bytes]) -> None:
    """Check that devices hold what the simulation holds for them, and that no message has numbers of it."""
    begin = engine_of(read).network.flat.numpy()
    for device in range(build_park(read).devices):
        files = [load_file(path) for path in (folder / f"device-{device}/memory").glob("*.safetensors")]
        parts = [part for file in files for name, part in file.items() if name.startswith("own ")]
        assert parts
        for path in (folder / "simulated/memory").glob(f"{device}-*.safetensors"):
            wanted = {name: part.tobytes() for name, part in load_file(path).items()}
            assert wanted in [{name: part.tobytes() for name, part in file.items()} for file in files]
        for part in parts:
            new = ~np.isin(part, begin)
            starts = [at for at in range(0, len(part) - CHUNK + 1, CHUNK) if new[at : at + CHUNK].all()]
            changed = [part[at : at + CHUNK].tobytes() for at in starts]
            assert changed
            for piece in changed[:: max(1, len(changed) // CHUNKS)]:
                assert not any(piece in payload for payload in payloads)


@pytest.mark.live
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stay", [False, True], ids=["experiment", "devices"])
def test_the_simulations_figures_and_shared_bits_and_nothing_of_the_devices_own_on_the_wire(
    tmp_path: Path, method: str, stay: bool
) -> None:
    what = experiment(tmp_path, method, rounds=3, devices=4, model="mlp-2nn", more=METHODS[method])
    read, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=(lambda _: DataSource()) if stay else None) as park:
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    network = engine_of(read).network
    kept = read.configured.needs.own
    here, there = (load_file(tmp_path / name / "model.safetensors") for name in ("live", "simulated"))
    mine = [] if kept == "all" else network.parcel(kept).parts
    for name, (first, last) in network.layout.items():
        if not any(part.start <= first and last <= part.stop for part in mine):
            assert np.array_equal(here[name], there[name]), name
    if method != "fedbn":  # whose part is empty on a network without normalisation
        assert_kept(tmp_path, read, [payload for _, payload in park.broker.said])
        with pytest.raises(SettingError, match="only on that machine"):
            model_file(tmp_path / "live", device="2")
        shutil.copytree(tmp_path / "device-2/memory", tmp_path / "live/memory")  # as on the device's machine
        x = np.random.default_rng(0).integers(0, 256, (3, 1, 28, 28), np.uint8)
        here, there = (load_model(tmp_path / name, device="2").predict(x) for name in ("live", "simulated"))
        assert np.array_equal(here, there)
    assert model_file(tmp_path / "live")[0] == tmp_path / "live/model.safetensors"


@pytest.mark.live
@pytest.mark.parametrize("secure", ["", "method.travel = 'secure-sum'\ndeploy.norm_limit = false\n"])
def test_batch_norm_stays_with_each_device(tmp_path: Path, secure: str) -> None:
    keys = ("name = 'machines'", "window = { length = 6, step = 2 }", "machines = { life = 30, factories = 2 }")
    more = "\n".join(f"data.{key}" for key in keys)
    what = experiment(tmp_path, "fedbn", rounds=3, devices=6, model="cnn-sensor-bn", more=secure + more)
    read, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    assert_kept(tmp_path, read, [payload for _, payload in park.broker.said])


def test_a_model_of_which_nothing_travels_trains(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedper", devices=2)  # a head alone
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]


@pytest.mark.live
def test_agents_and_a_cloud_that_start_again_go_on_with_the_own_parts(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedper", rounds=4, devices=4, model="mlp-2nn")
    read, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.run(limits=Limits(stop_after=2))
        for k in (0, 3):
            park.links[k].die()
            park.join(k)
        lines = park.run(resume=True)
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    assert_kept(tmp_path, read, [payload for _, payload in park.broker.said])


@pytest.mark.live
def test_after_the_first_visit_only_the_shared_part_travels(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedper", rounds=3, devices=4, model="mlp-2nn", more="methods.fedper.own = 'body'")
    read, _ = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    network = engine_of(read).network
    shared = 4 * network.parcel("head").numbers
    moved = [(line.measured or {})["bytes"] for line in lines]
    assert moved[0]["device_edge_down"] > 4 * network.size > 5 * moved[1]["device_edge_down"]
    for one in moved[1:]:
        assert 8 * shared < one["device_edge_down"]  # a visit and an evaluation of each
        assert one["device_edge_up"] < network.size


def worker(folder: Path, method: str = "fedper", more: str = "") -> Worker:
    what = experiment(folder, method, devices=4, model="mlp-2nn", more=more)
    read = config.read(what, [])
    park = own.alone(build_park(read), read, 1, tests=True)
    return Worker(device_settings(folder, what, 1, 0), read, read.configured, names.table(read), park)


def visit(one: Worker, work: Work, scope: str, numbers: int) -> Message:
    told = {**asdict(work), "settings": dict(work.settings)}
    about = {
        "device": 1, "layout": one.layout, "held": None, "trained": 0, "tick": 0, "visit": 0, "work": told,
        "frozen": False, "rest": "", "kept": [],
    }  # fmt: skip
    return Message("visit", "e0", "run", 1, 1, 1, scope, about=about, arrays={"w": np.zeros(numbers, np.float32)})


@pytest.mark.parametrize("sends", ["body", "all but body", "nothing", "arrived", "all but norms", "mlp.*"])
def test_a_device_refuses_to_send_what_its_experiment_keeps(tmp_path: Path, sends: str) -> None:
    one = worker(tmp_path)
    allowed = Work(epochs=1, sends="all but head")
    size = one.engine.network.flat.numel()
    kind, _, arrays = one.reply(visit(one, allowed, "all", size))
    assert kind == "update"
    assert arrays["w"].size == one.engine.network.parcel("body").numbers  # although all of the model came
    with refused("work", RefusedError):
        one.reply(visit(one, replace(allowed, sends=sends), "all", size))


def test_a_device_refuses_other_shapes_and_questions_that_it_did_not_agree_to(tmp_path: Path) -> None:
    one = worker(tmp_path)
    size = one.engine.network.flat.numel()
    with refused("shape", RefusedError):
        one.reply(visit(one, Work(epochs=1, sends="all but head"), "all but head", size))
    about = {"device": 1, "held": None, "trained": 0, "tick": 0, "what": "outputs", "settings": {"scored": -1}}
    for numbers in (size, 3):
        whole = Message(
            "probe", "e0", "run", 1, 1, 1, "all", about=about, arrays={"w": np.zeros(numbers, np.float32)}
        )  # fmt: skip
        with refused("shape", RefusedError):
            one.reply(whole)
    profile = about | {"what": "profile", "settings": {"epochs": 1, "sends": "all but head"}}
    message = Message("probe", "e0", "run", 1, 1, 1, "all", about=profile, arrays={"w": np.zeros(size, np.float32)})
    with refused("foreign code", RefusedError):
        one.reply(message)
    (tmp_path / "other").mkdir()
    other = worker(tmp_path / "other", "fedavg")
    with refused("question", RefusedError):
        other.reply(Message("probe", "e0", "run", 1, 1, 1, "all", about=about, arrays={"w": np.zeros(3, np.float32)}))


@pytest.mark.parametrize("spoil", ["length", "bin", "half", "loss"])
def test_the_cloud_refuses_outputs_that_no_evaluation_gives(tmp_path: Path, spoil: str) -> None:
    one = worker(tmp_path)
    engine = one.engine
    asked = Outputs({"scored": -1})
    vector = asked.answer(engine, 1, {"w": engine.network.flat}, 0)
    asked.fits(vector, 1, engine)
    if spoil == "length":
        vector = vector[:-1]
    else:
        vector[{"loss": 0}.get(spoil, -1)] = {"bin": 99.0, "half": 0.5, "loss": -1.0}[spoil]
    with pytest.raises(RefusedError):
        asked.fits(vector, 1, engine)


@pytest.mark.live
@pytest.mark.parametrize("method", ["ifca", "flhc", "local-only"])
def test_several_models_are_refused_by_name(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, devices=4, model="mlp-2nn")
    with (
        live(tmp_path, what) as park,
        pytest.raises(SettingError, match=f"'{method}'.*exchange a single model"),
    ):
        park.run()

"""The largest message of a model, compared with the memory of brokers before anything is sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedfloor import config
from fedfloor.deploy import cloud, provision, sizes
from fedfloor.deploy.channel import ENVELOPE
from fedfloor.plan.nodes import CLOUD, Parallel, Train, Work, device
from fedfloor.runs.parks import build_park
from live_park import Inside, experiment, live
from parks import plant
from refusals import refused

LOGISTIC = 4 * (784 * 62 + 62)  # bytes of the weights of logistic regression on the labels


def needed(folder: Path, method: str, more: str = "") -> int:
    read = config.read(experiment(folder, method, devices=8, more=more), [])
    return sizes.largest(read, build_park(read)) - ENVELOPE


def test_a_message_holds_the_model_and_what_a_method_adds(tmp_path: Path) -> None:
    """SCAFFOLD sends its control variate beside the model; a secure sum sends a model of int64."""
    assert needed(tmp_path, "hierfavg") == LOGISTIC
    assert needed(tmp_path, "scaffold", "methods.scaffold.work.momentum = 0.0") == 2 * LOGISTIC


def test_an_edge_returns_a_model_for_each_sum_that_others_complete() -> None:
    """Of 8 branches 0, 2, 4, 6 in a factory none meet; 0–3 make one node; 0, 1 and 4 make two."""
    work = Work(epochs=1, batch_size=4, rate=0.1)

    def node(mix: str = "by_samples") -> Parallel:
        return Parallel(tuple(Train(device(k), work) for k in range(8)), at=CLOUD, mix=mix)

    assert sizes.unfinished(node(), [0, 1, 0, 1, 0, 1, 0, 1]) == 4
    assert sizes.unfinished(node(), [0, 0, 0, 0, 1, 1, 1, 1]) == 1
    assert sizes.unfinished(node(), [0, 0, 1, 1, 0, 1, 1, 1]) == 3  # of 2, 3, 5, 6, 7: 2–3, 5, 6–7
    assert sizes.unfinished(node("median"), [0, 0, 0, 1, 1, 1, 1, 1]) == 5


def test_a_model_above_the_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    what = 'name = "given"\ndata = { name = "labels", samples_per_device = 20 }\npark.devices = 4\n'
    (tmp_path / "given.toml").write_text(what + 'model.name = "cnn-fedgs"\nmethod.name = "hierfavg"\n')
    park = dataclasses.replace(plant(tmp_path), message_mb=1)
    with refused("message_mb"):
        provision.provision(park, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    provision.provision(dataclasses.replace(park, message_mb=27), tmp_path / "out")


def test_data_on_other_machines_are_a_note(tmp_path: Path) -> None:
    (tmp_path / "given.toml").write_text('name = "given"\ndata.path = "nowhere"\nmethod.name = "hierfavg"\n')
    done = provision.provision(plant(tmp_path), tmp_path / "out")
    assert any("message_mb" in note for note in done.notes)


def test_a_cloud_refuses_before_round_1(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2, model="cnn-fedgs")) as park:
        settings = dataclasses.replace(park.settings(), message_mb=1)
        with refused("message_mb"):
            cloud.run(settings, Inside(park.edges))
    assert not (tmp_path / "live").exists()

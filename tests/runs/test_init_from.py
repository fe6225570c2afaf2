"""Beginning with a trained model: what finds its place, what begins afresh, and what does not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import refusals
from commands import Command, lines
from fedfloor.engine.evaluate import evaluate
from fedfloor.experiment import ModelSettings
from fedfloor.models import saved
from fedfloor.models.network import Adapt, Network
from fedfloor.park.park import Park
from fedfloor.parts.objectives.layers import Gated
from fedfloor.runs.prepare import begin, matched
from floor import bits, engine, park
from model_files import write_model
from networks import build

SHAPE = (1, 18, 18)
CLASSES = ("a", "b", "c")
HERE = park(shape=SHAPE)


def trained(folder: Path, name: str = "cnn-tutorial", adapt: Adapt | None = None, **header: object) -> Network:
    """Write a trained model into a folder and return it."""
    network = build(name, SHAPE, 3, seed=7, adapt=adapt)
    network.flat.mul_(1.25)
    head = {"classes": CLASSES, "classifier": network.classifier, "tensors": network.state(network.flat), **header}
    write_tensors(folder, name, **head)
    return network


def write_tensors(folder: Path, name: str, tensors: dict[str, Tensor], **header: object) -> None:
    write_model(folder, name, SHAPE, **header)  # type: ignore[arg-type]
    path = folder / "model.safetensors"
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file(tensors, path, metadata=about)


def begun(folder: Path, name: str = "cnn-tutorial", adapt: Adapt | None = None, here: Park = HERE) -> Network:
    """Return a network that begins with the model in a folder."""
    network = build(name, here.dataset.shape, len(here.dataset.classes), seed=0, adapt=adapt)
    begin(network, ModelSettings(name, init_from=str(folder)), here.dataset, logged=True)
    return network


class Wrapped(nn.Module):
    """A network in another one, with a number of its own."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gamma * self.base(x)
        return out


def wrap(
    module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
) -> tuple[nn.Module, str | None]:
    return Wrapped(module), f"base.{classifier}"


# -- what finds its place ----------------------------------------------------------------------------------------------


def test_the_same_network_is_the_trained_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = trained(tmp_path)
    assert bits(begun(tmp_path).flat) == bits(model.flat)
    assert caplog.messages == [
        f"model.init_from: 10 of 10 tensors are from {tmp_path / 'model.safetensors'} (round 3); none is random."
    ]
    assert bits(begun(tmp_path / "model.safetensors").flat) == bits(model.flat)


def test_a_gated_head_begins_afresh_on_a_trained_extractor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = trained(tmp_path)
    network = begun(tmp_path, adapt=Gated(2, 8).adapt)
    fresh = build("cnn-tutorial", SHAPE, 3, 0, None, Gated(2, 8).adapt)
    (head,) = network.span("11")
    assert bits(network.flat[: head.start]) == bits(model.flat[: head.start])
    assert bits(network.flat[head]) == bits(fresh.flat[head])
    assert "8 of 15 tensors" in caplog.text
    assert "random: 11.gates.0.weight, 11.gates.0.bias, 11.gates.1.weight and 4 more." in caplog.text


def test_a_gated_model_goes_on_and_gives_its_extractor_to_others(tmp_path: Path) -> None:
    model = trained(tmp_path, adapt=Gated(1, 8).adapt)
    assert bits(begun(tmp_path, adapt=Gated(1, 8).adapt).flat) == bits(model.flat)
    (head,) = model.span("11")
    for other in (None, Gated(3, 4).adapt):  # heads that are not there begin afresh, and whole: none keeps a bias of 3
        network = begun(tmp_path, adapt=other)
        fresh = build("cnn-tutorial", SHAPE, 3, 0, None, other)
        assert bits(network.flat[: head.start]) == bits(model.flat[: head.start])
        assert bits(network.flat[head.start :]) == bits(fresh.flat[head.start :])


def test_a_wrapped_network_is_filled_by_the_bare_one(tmp_path: Path) -> None:
    model = trained(tmp_path / "bare")
    network = begun(tmp_path / "bare", adapt=wrap)
    assert network.flat[0] == 1  # gamma
    assert bits(network.flat[1:]) == bits(model.flat)
    wrapped = trained(tmp_path / "wrapped", adapt=wrap)
    assert bits(begun(tmp_path / "wrapped", adapt=wrap).flat) == bits(wrapped.flat)


def test_batch_norm_begins_with_its_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "support")
    model = trained(tmp_path, "floor:batch_norm")
    assert bits(begun(tmp_path, "floor:batch_norm").flat) == bits(model.flat)


def test_nothing_asked_for_leaves_the_network() -> None:
    network = build("logistic", SHAPE, 3, seed=0)
    before = bits(network.flat)
    begin(network, ModelSettings("logistic"), HERE.dataset, logged=True)
    assert bits(network.flat) == before


def test_names_are_matched_with_the_prefixes_that_match_most() -> None:
    assert matched({"a.0.w": (1,), "a.1.w": (2,)}, {"b.c.0.w": (1,), "b.c.1.w": (2,), "w": (1,)}) == {
        "a.0.w": "b.c.0.w", "a.1.w": "b.c.1.w",
    }  # fmt: skip
    assert matched({"w": (1,)}, {"w": (2,)}) == {}


# -- what does not fit -------------------------------------------------------------------------------------------------


def refused(
    folder: Path, *said: str, name: str = "cnn-tutorial", adapt: Adapt | None = None, here: Park = HERE
) -> None:
    network = build(name, here.dataset.shape, len(here.dataset.classes), seed=0, adapt=adapt)
    before = bits(network.flat)
    with refusals.refused("model.init_from") as caught:
        begin(network, ModelSettings(name, init_from=str(folder)), here.dataset, logged=True)
    assert all(one in str(caught.value) for one in ("model.init_from: ", str(folder), *said)), caught.value
    assert bits(network.flat) == before


def test_another_network_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, "lenet")
    refused(tmp_path, "(network 'lenet') does not fit network 'cnn-tutorial'", "0.weight is (6, 1, 5, 5) in the file, "
            "(32, 1, 3, 3) in the network", "Give a run of the same network, or leave init_from out.")  # fmt: skip


def test_other_data_are_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    said = "was trained on 3 classes and samples of shape (1, 18, 18), these data have"
    refused(tmp_path, f"{said} 4 and (1, 18, 18).", here=park(shape=SHAPE, classes=4))
    refused(tmp_path, f"{said} 3 and (1, 20, 20).", here=park(shape=(1, 20, 20)))


def test_tensors_that_are_missing_or_too_many_are_refused(tmp_path: Path) -> None:
    model = trained(tmp_path / "good")
    whole = load_file(tmp_path / "good" / "model.safetensors")
    about = {"classes": CLASSES, "classifier": model.classifier}
    write_tensors(tmp_path / "less", "cnn-tutorial", {k: v for k, v in whole.items() if k != "3.bias"}, **about)
    write_tensors(tmp_path / "more", "cnn-tutorial", whole | {"gamma": torch.ones(1)}, **about)
    write_tensors(tmp_path / "nan", "cnn-tutorial", whole | {"3.bias": whole["3.bias"] * torch.nan}, **about)
    for adapt in (None, Gated(1, 4).adapt):
        refused(tmp_path / "less", "3.bias is missing in the file", adapt=adapt)
        refused(tmp_path / "more", "gamma is not in the network", adapt=adapt)
        refused(tmp_path / "nan", "3.bias holds infinite or undefined numbers", adapt=adapt)


def test_a_file_that_does_not_say_its_classifier_must_fit_whole(tmp_path: Path) -> None:
    trained(tmp_path, classifier=None)
    refused(tmp_path, "11.bias is not in the network, 11.weight is not in the network", adapt=Gated(1, 4).adapt)


def test_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"no model")
    refused(tmp_path / "none", "no such run.")
    refused(tmp_path / "empty", "is not a run's folder")
    refused(tmp_path / "bad", "is not a trained model, or damaged")


# -- in a run ----------------------------------------------------------------------------------------------------------

STILL = ("--set", "method.name=centralized", "--set", "work.steps=1", "--set", "work.lr=1e-30", "--set", "rounds=1")


def test_a_run_begins_with_the_model_and_says_it_from_its_own_folder(command: Command) -> None:
    assert command.run().code == 0
    first = command.folder / "out"
    said = command("run", "tiny.toml", "--ranks", "1", "--out", "on/it", "--set", "model.init_from=out", *STILL)
    assert said.code == 0, said.err
    assert "2 of 2 tensors are from out/model.safetensors (round 3)" in said.err
    second = command.folder / "on" / "it"
    assert 'init_from = "../../out"' in (second / "experiment.toml").read_text()
    before, after = (load_file(one / "model.safetensors") for one in (first, second))
    assert {name: bits(one) for name, one in before.items()} == {name: bits(one) for name, one in after.items()}
    again = command("run", "on/it/experiment.toml", "--ranks", "2", "--out", "again")
    assert again.code == 0, again.err
    assert lines(command.folder / "again") == lines(second)


def test_a_resume_needs_the_model_it_began_with(command: Command) -> None:
    command.run()
    begun_ = ("run", "tiny.toml", "--ranks", "1", "--out", "next", "--set", "model.init_from=out", "--stop-after", "1")
    assert command(*begun_).code == 0
    assert command(*begun_[:-1], "2", "--resume").code == 0
    (command.folder / "out").rename(command.folder / "moved")
    moved = [word.replace("=out", "=moved") for word in begun_[:-2]]
    model = command.folder / "moved" / "model.safetensors"
    kept = model.read_bytes()
    model.write_bytes(kept.replace(b'\\"round\\": 3', b'\\"round\\": 4'))
    assert model.read_bytes() != kept
    command.refused(command(*moved, "--resume"), "was started differently: provenance.init_sha256: ")
    model.write_bytes(kept)
    assert command(*moved, "--resume").code == 0  # it is the same model in another place
    command.refused(command(*begun_[:-4], "--resume"), "init_sha256", "→ not set")


def test_a_run_that_cannot_begin_leaves_nothing(command: Command) -> None:
    command.refused(command.set("model.init_from=nowhere"), "model.init_from: nowhere: no such run.")
    command.refused(command.set("model.init_from=3"), "model.init_from = 3: must be a text in quotes")


def test_the_extractor_is_felt(tmp_path: Path) -> None:
    # a trained model evaluated before and after the way through a file is the same
    of = engine(HERE, "cnn-tutorial")
    model = trained(tmp_path)
    expected = evaluate(of, model.flat.clone())
    assert evaluate(of, begun(tmp_path).flat.clone()) == expected
    assert json.dumps(expected.details) != json.dumps(evaluate(of, build("cnn-tutorial", SHAPE, 3, 0).flat).details)


def test_drawing_initial_weights_and_reading_them_exclude_each_other() -> None:
    with refusals.refused("model.init"):
        ModelSettings("mlp-2nn", init="glorot", init_from="runs/a")


@pytest.mark.parametrize("change", [{"shape": 7}, {"classes": 1.5}, {"shape": None}, {"classifier": ["a"]}])
def test_a_header_of_other_types_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    trained(tmp_path)
    path = tmp_path / "model.safetensors"
    about, tensors = saved.content(path)
    save_file(tensors, path, metadata={"fedfloor": json.dumps({**about, **change})})
    refused(tmp_path, "its shape and its classes must be lists")

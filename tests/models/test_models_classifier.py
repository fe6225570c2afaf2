"""The classifier: which layer it is, where its parameters lie, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.experiment import Experiment, ModelSettings
from fedfloor.models.network import Network
from fedfloor.models.zoo import LISTED_ON, NETWORKS, REPRODUCING
from networks import build
from refusals import refused

GREY = (1, 28, 28)
WINDOW = (4, 9)

OWN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(8, classes)  # defined first, called last
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8), nn.ReLU())

    def forward(self, x):
        return self.head(self.body(x))

class Named(Net):
    classifier = "tail"

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.head = nn.Linear(8, 8)
        self.tail = nn.Sequential(nn.Linear(8, classes), nn.Linear(classes, classes))

    def forward(self, x):
        return self.tail(super().forward(x))

class Misnamed(Net):
    classifier = "tial"

class Module(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.head = nn.Identity()
        self.classifier = nn.Linear(8, classes)

    def forward(self, x):
        return self.classifier(super().forward(x))

class FrozenTail(Named):
    classifier = None

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.tail[1].requires_grad_(False)

class Idle(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.heads = nn.ModuleList([self.head])

class Recurrent(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.cell = nn.GRU(shape[0], 6, batch_first=True)
        self.head = nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.cell(x.transpose(1, 2))[1][-1])

def by_convolution(shape, classes):
    return nn.Sequential(nn.Conv2d(shape[0], classes, shape[1:]), nn.Flatten())

def tied(shape, classes):
    one = nn.Linear(classes, classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes), one, nn.ReLU(), one)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_classifiers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def own_network(name: str, classifier: str | None = None, shape: tuple[int, ...] = GREY) -> Network:
    return build(f"own_classifiers:{name}", shape, 10, 0, classifier)


def marked(network: Network, path: str) -> list[str]:
    """The names of the tensors that are set to 7 when a layer's span is."""
    network.flat.zero_()
    for part in network.span(path):
        network.flat[part] = 7
    state = network.state(network.flat)
    assert all(set(value.unique().tolist()) in ({0.0}, {7.0}) for value in state.values())
    return [name for name, value in state.items() if bool(value.any())]


# -- which layer it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in REPRODUCING[2]])
def test_every_networks_classifier_is_its_last_linear_layer(name: str) -> None:
    shape, classes = LISTED_ON[name]
    network = build(name, shape, classes, seed=0)
    path = str(len(network.module) - 1)  # type: ignore[arg-type]
    last = network.module.get_submodule(path)
    assert isinstance(last, nn.Linear)
    assert network.classifier == path
    assert network.span(path) == [slice(network.trained - network.classifier_parameters, network.trained)]
    assert network.classifier_parameters == (last.in_features + 1) * classes


def test_the_classifier_of_hfedms() -> None:
    network = build("cnn-hfedms", GREY, 62, seed=0)
    assert network.classifier_parameters == 6_262 == 100 * 62 + 62


FOUND = {"Net": "head", "Named": "tail", "Module": "classifier", "FrozenTail": "tail.0", "by_convolution": None}


@pytest.mark.parametrize(("name", "path"), FOUND.items())
def test_the_classifier_of_your_own(name: str, path: str | None) -> None:
    network = own_network(name)
    assert network.classifier == path
    assert (network.classifier_parameters == 0) == (path is None)


def test_it_can_be_set() -> None:
    assert own_network("Named", "tail.1").classifier == "tail.1"
    assert own_network("by_convolution", "0").classifier_parameters == 785 * 10  # gives [10, 1, 1]
    assert build("cnn-hfedms", GREY, 62, 0, "11").classifier == "11"


def test_finding_it_changes_no_weight_and_no_mode() -> None:
    plain = own_network("Net")
    named = own_network("Net", "head")
    assert torch.equal(plain.flat, named.flat)
    assert all(part.training for part in named.module.modules())
    assert not named.module.head._forward_hooks  # type: ignore[union-attr]


REFUSED = {
    "unknown": ("Net", "haed", "model.classifier = 'haed': model 'own_classifiers:Net' has no such layer. Did you"),
    "nearest": ("Net", "haed", "Did you mean 'head'? Layers with trained parameters: head, body.1."),
    "empty": ("Net", "", "model.classifier = '': model 'own_classifiers:Net' has no such layer."),
    "a tensor": ("Net", "head.weight", "has no such layer. Did you mean 'head'?"),
    "untrained": (
        "Net",
        "body.2",
        "is ReLU and has no trained parameters. Layers with trained parameters: head, body.1.",
    ),
    "frozen": ("FrozenTail", "tail.1", "is Linear and has no trained parameters"),
    "width": ("Net", "body.1", "gives (8,) outputs per sample; the classifier must give (10,): one number per class"),
    "idle": ("Idle", "heads", "is never called by forward()"),
    "its own": (
        "Misnamed",
        None,
        "the network's own classifier = 'tial': model 'own_classifiers:Misnamed' has no such",
    ),
}


@pytest.mark.parametrize(("name", "path", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(name: str, path: str | None, said: str) -> None:
    with pytest.raises(SettingError) as error:
        own_network(name, path)
    assert said in str(error.value)


def test_a_setting_wins_over_a_misnamed_attribute() -> None:
    assert own_network("Misnamed", "head").classifier == "head"


# -- where its parameters lie ------------------------------------------------------------------------------------------


def test_the_span_of_a_layer_is_its_parameters() -> None:
    assert marked(own_network("Net"), "head") == ["head.weight", "head.bias"]
    assert marked(own_network("Named"), "tail") == ["tail.0.weight", "tail.0.bias", "tail.1.weight", "tail.1.bias"]
    assert marked(own_network("FrozenTail"), "tail") == ["tail.0.weight", "tail.0.bias"]  # trained ones only
    assert marked(build("lenet", GREY, 10, 0), "3") == ["3.weight", "3.bias"]  # stored channels-last
    assert own_network("Net").span("body.2") == []


def test_neighbours_are_joined_and_others_are_not() -> None:
    network = own_network("tied")
    first = 784 * 10 + 10
    assert network.span("") == [slice(0, network.trained)]
    assert network.span("4") == network.span("2") == [slice(first, first + 110)]  # the same layer twice
    apart = own_network("Net")
    apart.module.both = nn.ModuleList([apart.module.head, nn.Sequential(nn.Identity())])  # type: ignore[list-item]
    assert apart.span("both") == [slice(0, 90)]
    apart.module.ends = nn.ParameterList([apart.parameters[0], apart.parameters[2]])
    assert apart.span("ends") == [slice(0, 80), slice(90, 90 + 784 * 8)]


def test_the_span_of_an_unknown_layer() -> None:
    with refused("layer"):
        own_network("Net").span("haed")


def test_a_recurrent_network_on_windows_lives_in_the_flat_vector() -> None:
    network = own_network("Recurrent", shape=WINDOW)
    assert network.classifier == "head"
    assert network.trained == 3 * 6 * (4 + 6 + 2) + 7 * 10  # three gates: weights from input and state, two biases
    x = torch.rand(3, *WINDOW)
    assert bool(network.module(x).any())
    network.flat.zero_()
    assert not bool(network.module(x).any())


# -- in an experiment --------------------------------------------------------------------------------------------------


def test_it_is_written_beside_the_model(command: Command) -> None:
    assert command.run("--stop-after", "1").code == 0
    with safe_open(command.folder / "out" / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fedfloor"])
    assert about["classifier"] == "1"  # TINY's logistic regression


def test_a_wrong_one_is_refused_and_leaves_nothing(command: Command) -> None:
    command.refused(command.set("model.classifier=head"), "model.classifier = 'head': model 'logistic' has no such")
    command.refused(command.set("model.classifier=1"), "model.classifier = 1: must be a text in quotes.")
    assert command.set('model.classifier="1"', "rounds=1").code == 0
    assert 'classifier = "1"' in (command.folder / "out" / "experiment.toml").read_text()


def test_left_out_it_is_not_written_down() -> None:
    from fedfloor.config import resolved

    assert "classifier" not in resolved(Experiment(model=ModelSettings("logistic")))

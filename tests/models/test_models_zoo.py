"""The networks by name: their sizes by hand, what they take, and what they say to everything else."""

from __future__ import annotations

import math
import re
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.models import build, count
from fedfloor.models.layers import Statistics
from fedfloor.models.zoo import FOR_ANY_SHAPE, LISTED_ON, NETWORKS, REPRODUCING, SMALLEST_SIDE
from refusals import refused

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)
ROW = (52,)
WINDOW = (52, 20)


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def conv(into: int, out: int, side: int) -> int:
    return (into * side * side + 1) * out


def conv1d(into: int, out: int, length: int) -> int:
    return (into * length + 1) * out


def small_cnn(channels: int, classes: int) -> int:
    return conv1d(channels, 32, 5) + conv1d(32, 64, 5) + conv1d(64, 64, 5) + linear(64, classes)


# The papers' counts, each beside its layers: weights and biases; then our own networks for sensors.
def dilated(into: int, width: int, kernel: int) -> int:
    straight = conv1d(into, width, 1) if into != width else 0
    return conv1d(into, width, kernel) + conv1d(width, width, kernel) + 2 * 2 * width + straight


def gates(gates: int, into: int, cells: int) -> int:
    """Weights from the input and from the state, two biases; and a layer norm."""
    return gates * (into + cells + 2) * cells + 2 * cells


def block(width: int, inner: int) -> int:
    norms = 2 * 2 * width
    return norms + linear(width, 3 * width) + linear(width, width) + linear(width, inner) + linear(inner, width)


COUNTS = [
    # McMahan's 2NN, FedSR's MLP: 157,000 + 40,200 + 2,010
    ("mlp-2nn", GREY, 10, 199_210, linear(784, 200) + linear(200, 200) + linear(200, 10)),
    ("logistic", GREY, 10, 7_850, linear(784, 10)),
    # sides 32 → 30 → 15 → 13 → 6 → 4 before the first linear layer; 28 → 26 → 13 → 11 → 5 → 3
    ("cnn-tutorial", COLOUR, 10, 122_570,
     conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + linear(64 * 4 * 4, 64) + linear(64, 10)),
    ("cnn-tutorial", COLOUR, 100, 128_420,
     conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + linear(64 * 4 * 4, 64) + linear(64, 100)),
    ("cnn-tutorial", GREY, 10, 93_322,
     conv(1, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + linear(64 * 3 * 3, 64) + linear(64, 10)),
    # 832 + 51,264 + 6,424,576 + 127,038
    ("cnn-fedgs", GREY, 62, 6_603_710,
     conv(1, 32, 5) + conv(32, 64, 5) + linear(64 * 7 * 7, 2048) + linear(2048, 62)),
    # 832 + 51,264 + 6,424,576 + 204,900 + 6,262
    ("cnn-hfedms", GREY, 62, 6_687_834,
     conv(1, 32, 5) + conv(32, 64, 5) + linear(64 * 7 * 7, 2048) + linear(2048, 100) + linear(100, 62)),
    ("monitor", ROW, 52, 2_756, 52 + 52 * 52),
    # 208 + 3,216 + 50,240 + 4,030
    ("cnn-small", GREY, 62, 57_694, conv(1, 8, 5) + conv(8, 16, 5) + linear(16 * 7 * 7, 64) + linear(64, 62)),
    # sides 32 → 28 → 14 → 10 → 5
    ("lenet", COLOUR, 10, 62_006,
     conv(3, 6, 5) + conv(6, 16, 5) + linear(16 * 5 * 5, 120) + linear(120, 84) + linear(84, 10)),
    # sides 28 → 24 → 12 → 8 → 4: 520 + 25,050 + 40,050 + 510 and 416 + 12,832 + 25,650 + 510 (FLDG, Table I)
    ("cnn-fldg-mnist", GREY, 10, 66_130, conv(1, 20, 5) + conv(20, 50, 5) + linear(800, 50) + linear(50, 10)),
    ("cnn-fldg-fashion", GREY, 10, 39_408, conv(1, 16, 5) + conv(16, 32, 5) + linear(512, 50) + linear(50, 10)),
    ("mlp-sensor", ROW, 22, 8_982, linear(52, 64) + linear(64, 64) + linear(64, 22)),
    ("mlp-sensor", WINDOW, 22, 72_214, linear(52 * 20, 64) + linear(64, 64) + linear(64, 22)),
    ("mlp-sensor-soft", ROW, 22, 8_982, linear(52, 64) + linear(64, 64) + linear(64, 22)),
    ("mlp-sensor-asinh", ROW, 22, 8_982, linear(52, 64) + linear(64, 64) + linear(64, 22)),
    ("linear", WINDOW, 22, 22_902, linear(52 * 20, 22)),
    ("cnn-sensor", WINDOW, 22, 40_630, small_cnn(52, 22)),
    ("cnn-sensor-bn", (18, 30), 1, 34_145, small_cnn(18, 1) + 2 * (32 + 64 + 64)),
    ("cnn-sensor-gn", (18, 30), 1, 34_145, small_cnn(18, 1) + 2 * (32 + 64 + 64)),
    ("mlp-window", WINDOW, 22, 28_950, linear(7 * 52, 64) + linear(64, 64) + linear(64, 22)),
    ("cnn-window", WINDOW, 22, 72_566,
     small_cnn(52, 22) + 2 * (32 + 64 + 64) + linear(7 * 52, 64) + linear(128, 64)),
    ("tcn", (18, 30), 1, 24_641, dilated(18, 32, 3) + 3 * dilated(32, 32, 3) + linear(32, 1)),
    ("lstm", (18, 30), 1, 21_697, gates(4, 18, 64) + linear(64, 1)),
    ("gru", (18, 30), 1, 16_321, gates(3, 18, 64) + linear(64, 1)),
    # 20 numbers are left of 160: 10,304 + 128 + 1,300 + 1,344 + 128 + 10,400
    ("ae-dense", (8, 20), 160, 23_604,
     linear(160, 64) + linear(64, 20) + linear(20, 64) + linear(64, 160) + 2 * 2 * 64),
    # 4 channels in a quarter of the rows
    ("ae-conv", (8, 20), 160, 5_580,
     conv1d(8, 32, 7) + conv1d(32, 4, 7) + conv1d(4, 32, 7) + conv1d(32, 8, 7) + 2 * 2 * 32),
    ("ae-lstm", (8, 20), 160, 43_036, gates(4, 8, 64) + linear(64, 20) + gates(4, 20, 64) + linear(64, 8)),
    ("transformer", (18, 30), 1, 18_753, linear(18, 32) + 30 * 32 + 2 * block(32, 64) + 2 * 32 + linear(32, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "classes", "printed", "by_layers"), COUNTS)
def test_parameter_counts(name, shape, classes: int, printed: int, by_layers: int) -> None:
    assert printed == by_layers
    assert count(name, shape, classes) == printed
    network = build(name, shape, classes, seed=0)
    statistics = 2 * (32 + 64 + 64) if name == "cnn-sensor-bn" else 0
    assert network.flat.numel() == printed + statistics
    assert network.trained == (0 if hasattr(network.module, "set_by") else printed)


def test_every_count_in_a_docstring_is_tested() -> None:
    said = {
        number for builder in NETWORKS.values() for number in re.findall(r"\d{1,3}(?:,\d{3})+", builder.__doc__ or "")
    }
    classifier = "6,262"  # HFedMS's, in test_models_classifier
    assert said - {classifier} == {f"{printed:,}" for *_, printed, _ in COUNTS}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_fits_what_it_is_listed_with(name: str) -> None:
    shape, many = LISTED_ON[name]
    outputs = many if many == prod(shape) else 7  # what reproduces samples has as many as these
    module = build(name, shape, outputs, seed=0).module
    assert module(torch.rand(5, *shape)).shape == (5, outputs)
    assert module.training


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_listed_with_samples_whose_parameters_are_documented(name: str) -> None:
    like = "mlp-sensor" if name.startswith("mlp-sensor-") else name  # its variants have as many
    documented = re.findall(r"[\d,]*\d", NETWORKS[like].__doc__ or "")
    network = build(name, *LISTED_ON[name], seed=0)
    assert f"{sum(part.numel() for part in network.module.parameters()):,}" in documented


def test_every_network_is_listed_and_documented() -> None:
    assert LISTED_ON.keys() == NETWORKS.keys()
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert not [name for name in NETWORKS if f"`{name}`" not in page]


@pytest.mark.parametrize("name", ["cnn-fldg-mnist", "cnn-fldg-fashion"])
def test_fldg_drops_half_after_the_second_convolution_and_before_the_classifier(name: str) -> None:
    layers = list(build(name, GREY, 10, seed=0).module)
    kinds = [type(one).__name__ for one in layers]
    before = [kinds[i - 1] for i, one in enumerate(layers) if isinstance(one, nn.Dropout)]
    after = [kinds[i + 1] for i, one in enumerate(layers) if isinstance(one, nn.Dropout)]
    assert (before, after) == (["Conv2d", "ReLU"], ["MaxPool2d", "Linear"])
    assert [one.p for one in layers if isinstance(one, nn.Dropout)] == [0.5, 0.5]


def test_hfedms_is_fedgs_with_a_hundred_features_before_the_classifier() -> None:
    fedgs, hfedms = (list(build(name, GREY, 62, seed=0).module) for name in ("cnn-fedgs", "cnn-hfedms"))
    assert all(str(one) == str(other) for one, other in zip(fedgs[:9], hfedms[:9], strict=True))
    assert [type(one).__name__ for one in hfedms[9:]] == ["Linear", "ReLU", "Linear"]
    assert (hfedms[9].out_features, hfedms[11].in_features) == (100, 100)


@pytest.mark.parametrize(("name", "side"), SMALLEST_SIDE.items())
def test_convolutions_name_the_smallest_image_they_take(name: str, side: int) -> None:
    assert build(name, (1, side, side), 3, seed=0).module(torch.rand(2, 1, side, side)).shape == (2, 3)
    for shape in ((1, side - 1, side), (side, side), (784,)):
        with refused("model"):
            build(name, shape, 3, seed=0)


# -- sensors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 20, 301])
@pytest.mark.parametrize(("name", "norms"), [("cnn-sensor", 0), ("cnn-sensor-gn", 320)])
def test_windows_of_any_length(name: str, norms: int, length: int) -> None:
    network = build(name, (3, length), 4, seed=0)
    assert network.trained == small_cnn(3, 4) + norms  # whatever the length
    assert network.channels_last  # pictures of height 1
    assert network.module(torch.rand(2, 3, length)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(6,), (1,), (6, 5), (6, 1), (1, 1)])
@pytest.mark.parametrize("name", ["mlp-sensor", *FOR_ANY_SHAPE])
def test_rows_and_windows(name: str, shape: tuple[int, ...]) -> None:
    assert build(name, shape, 4, seed=0).module(torch.rand(2, *shape)).shape == (2, 4)


def test_group_norm_knows_one_sample_at_a_time() -> None:
    module = build("cnn-sensor-gn", (3, 12), 4, seed=0).module
    x = torch.rand(5, 3, 12)
    alone = torch.cat([module(one[None]) for one in x])
    assert torch.allclose(module(x), alone, atol=1e-6)  # float32 of sums in another order
    assert torch.allclose(module(x), module.eval()(x))


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_statistics_of_a_window(rows: int) -> None:
    x = torch.randn(3, 2, rows, dtype=torch.float64)
    place = np.arange(rows)
    line = np.polyfit(place, x.numpy().reshape(-1, rows).T, 1)[0].reshape(3, 2) if rows > 1 else np.zeros((3, 2))
    steps = np.diff(x, axis=2, prepend=x[:, :, :1])
    wanted = [
        x.mean(2), x.numpy().min(2), x.numpy().max(2), x[:, :, -1], line * (rows - 1) / 2,
        np.log(np.std(x.numpy(), 2) + 0.03), np.log(np.std(steps, 2) + 0.03),
    ]  # fmt: skip
    np.testing.assert_allclose(Statistics()(x), np.concatenate(wanted, 1), atol=1e-12)


@pytest.mark.parametrize("rows", [1, 17, 30, 1000])
def test_the_statistics_of_constant_sensors_are_exact(rows: int) -> None:
    """In float32 a sum of equal numbers is rounded, differently in every runtime."""
    level = 10 * torch.randn(50, 3)
    zero = torch.zeros_like(level)
    least = torch.full_like(level, math.log(0.03))
    wanted = torch.cat([level, level, level, level, zero, least, least], 1)
    assert torch.equal(Statistics()(level[:, :, None].expand(-1, -1, rows).contiguous()), wanted)


SERIES = ("mlp-window", "cnn-window", "cnn-sensor", "cnn-sensor-gn", "tcn", "lstm", "gru", "transformer")


@pytest.mark.parametrize("name", SERIES)
def test_a_window_read_backwards_is_another_window(name: str) -> None:
    module = build(name, (3, 12), 4, seed=0).module
    x = torch.rand(2, 3, 12)
    assert not torch.allclose(module(x), module(x.flip(-1)))


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("length", [1, 2, 30])
def test_every_row_of_a_window_counts(name: str, length: int) -> None:
    x = torch.rand(1, 3, length, requires_grad=True)
    build(name, (3, length), 4, seed=0).module(x).pow(2).sum().backward()
    assert x.grad is not None
    assert bool((x.grad.abs().sum(1) > 0).all())


def test_a_convolution_of_a_tcn_never_sees_later_rows() -> None:
    """Without the group norm, whose statistics are of the whole window, a change shows in later rows alone."""
    body = build("tcn", (3, 20), 4, seed=0).module[2].body  # type: ignore[index, union-attr]
    layers = nn.Sequential(*(one for one in body if not isinstance(one, nn.GroupNorm)))
    x = torch.rand(1, 32, 1, 20)
    other = x.clone()
    other[..., 12:] += 1.0
    same = layers(x) == layers(other)
    assert bool(same[..., :12].all())
    assert not bool(same[..., 12:].all())


@pytest.mark.parametrize("name", SERIES)
def test_weights_lie_in_the_flat_vector(name: str) -> None:
    """Recurrent layers keep a list of their weights beside the module's: these too are views of the vector."""
    network = build(name, (3, 12), 4, seed=0)
    x = torch.rand(2, 3, 12)
    before = network.module(x)
    network.flat.mul_(1.5)
    assert not torch.allclose(network.module(x), before)
    network.flat.zero_()
    assert not bool(network.module(x).any())


AUTOENCODERS = REPRODUCING[2][1:]
ANY = [(1, 2), (2, 1), (1, 9), (3, 4), (8, 30), (52, 7), (8, 301)]


@pytest.mark.parametrize("shape", ANY, ids=str)
@pytest.mark.parametrize("name", AUTOENCODERS)
def test_an_autoencoder_is_narrower_between_than_a_sample(name: str, shape: tuple[int, int]) -> None:
    """The rank of the derivative of the output by the input is at most what the narrowest layer lets through."""
    module = build(name, shape, prod(shape), seed=0).module.double()
    x = torch.rand(1, *shape, dtype=torch.float64)
    assert module(x).shape == (1, prod(shape))
    inner: list[int] = []
    for part in module.modules():
        if not list(part.children()):
            part.register_forward_hook(
                lambda _, __, out: inner.append((out[0] if isinstance(out, tuple) else out).numel())
            )
    module(x)
    assert min(inner) <= max(1, prod(shape) // 2) < prod(shape)
    if prod(shape) <= 240:
        slope = torch.autograd.functional.jacobian(lambda one: module(one)[0], x).reshape(prod(shape), -1)
        assert 1 <= int(torch.linalg.matrix_rank(slope, rtol=1e-9)) <= min(inner)


@pytest.mark.parametrize("name", AUTOENCODERS)
def test_an_autoencoder_learns_what_a_narrow_layer_can_hold(name: str) -> None:
    """Windows of one number each, a sine of that height in every channel, are reproduced; noise as large is not."""
    module = build(name, (2, 12), 24, seed=0).module
    torch.manual_seed(0)
    wave = torch.sin(torch.arange(12.0))

    def residual(x: torch.Tensor) -> torch.Tensor:
        return (module(x) - x.flatten(1)).square().mean()

    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(300):
        optimiser.zero_grad()
        residual(torch.randn(32, 1, 1) * wave.expand(1, 2, 12)).backward()
        optimiser.step()
    with torch.no_grad():
        assert 5 * residual(torch.randn(200, 1, 1) * wave.expand(1, 2, 12)) < residual(0.7 * torch.randn(200, 2, 12))


@pytest.mark.parametrize("name", AUTOENCODERS)
def test_an_autoencoder_refuses_what_it_cannot_reproduce(name: str) -> None:
    with refused("model"):
        build(name, (3, 12), 4, seed=0)
    with refused("model"):
        build(name, (1, 1), 1, seed=0)


SHAPES = {"a row": ROW, "a window": WINDOW, "a small image": (1, 8, 8), "an image": GREY}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_named_instead_takes_the_samples(name: str, shape: tuple[int, ...]) -> None:
    try:
        build(name, shape, 3, seed=0)
    except SettingError as error:
        message = str(error)
        assert message.startswith(f"model '{name}' ")
        instead = re.findall("'(.+?)'", message.partition("Choose")[2])
        assert {"mlp-2nn", "logistic"} <= set(instead)
        for other in instead:
            build(other, shape, 3, seed=0)
        fitting = {"mlp-sensor"} if len(shape) == 1 else {"mlp-sensor", "cnn-sensor"} if len(shape) == 2 else set()
        assert fitting <= set(instead)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (
            "cnn-tutorial",
            WINDOW,
            "model",
        ),
        (
            "cnn-sensor",
            ROW,
            "model",
        ),
        (
            "cnn-sensor",
            GREY,
            "model",
        ),
        ("mlp-sensor", GREY, "model"),
    ],
)
def test_samples_of_another_kind_are_refused(name: str, shape: tuple[int, ...], said: str) -> None:
    with refused(said):
        build(name, shape, 3, seed=0)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_list(command: Command) -> None:
    rows = {row["model"]: row for row in command("list", "models", "--json").document["rows"]}
    assert list(rows) == list(NETWORKS)
    hfedms = rows["cnn-hfedms"]
    assert (hfedms["parameters"], hfedms["classifier"], hfedms["classifier_parameters"]) == (6_687_834, "11", 6_262)
    assert (hfedms["shape"], hfedms["classes"]) == ([1, 28, 28], 62)
    assert "LeNet-5" in command("list", "models").out


def test_the_card_of_one(command: Command) -> None:
    said = command("list", "models", "mlp-sensor", "--shape", "52", "--json").document
    assert said["parameters"] == 8_982
    assert [row["parameters"] for row in said["rows"]] == [linear(52, 64), linear(64, 64), linear(64, 22)]
    assert [row["layer"] for row in said["rows"]] == ["1", "3", "5"]
    assert said["card"].startswith("Return a small multilayer perceptron")
    assert "8,982" in command("list", "models", "mlp-sensor").out


def test_the_card_of_your_own(command: Command) -> None:
    text = "from torch import nn\n\ndef net(shape, classes):\n    return nn.Linear(shape[-1], classes)\n"
    command.module("own_card", text)
    said = command("list", "models", "own_card:net", "--shape", "5", "--classes", "3")
    assert said.code == 0
    command.refused(command("list", "models", "own_card:net"), "give its shape and classes, such as --shape 1,28,28")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lenett"], "unknown model 'lenett'. Did you mean 'lenet'?"),
        (["lenet", "--shape", "52,20"], "Choose 'cnn-window', 'mlp-window', 'cnn-sensor'"),
        (["lenet", "--shape", "1,0,28"], "--shape = '1,0,28': must be whole numbers of at least 1."),
        (["lenet", "--shape", "1x28x28"], "--shape 1x28x28: must be whole numbers separated by commas"),
        (["lenet", "--classes", "0"], "--classes = 0: must be a whole number of at least 1."),
        (["--shape", "1,28,28"], "--shape and --classes need the name of a model"),
    ],
)
def test_refused(command: Command, words: list[str], message: str) -> None:
    command.refused(command("list", "models", *words), message)

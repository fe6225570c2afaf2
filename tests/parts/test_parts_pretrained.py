"""Extractors with weights: MobileNetV2 from a folder and networks as ONNX, both with weights made here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedfloor.parts.objectives.extractors import MobileNet, Onnx, Scaling, mean_features
from refusals import refused

BYTES = Scaling(1 / 255, np.zeros(1), np.ones(1))


def shown(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).random(shape).astype(np.float32)


# -- MobileNetV2 -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a MobileNetV2 of random weights, a third as wide as usual."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.35))
        with torch.no_grad():
            for layer in network.modules():
                if isinstance(layer, torch.nn.Conv2d):  # the usual first weights fade to nothing on 53 layers
                    torch.nn.init.kaiming_normal_(layer.weight)
        network.save_pretrained(folder)
    return folder


def test_mobilenet_is_the_network_on_scaled_pictures(weights: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At its own size a picture is moved to −1 … 1, and the last convolution averaged over its pixels."""
    import transformers

    one = MobileNet(str(weights), side=32)
    x = shown(3, 3, 32, 32)
    found = one.features(x)
    assert capfd.readouterr() == ("", "")  # no bars, no reports of loading
    assert found.dtype == np.float32
    assert found.shape == (3, one.dimension((3, 32, 32))) == (3, 1280)
    network = transformers.MobileNetV2Model.from_pretrained(weights).eval()
    with torch.no_grad():
        last = network(torch.from_numpy(2 * x - 1)).last_hidden_state
    np.testing.assert_allclose(found, last.mean(dim=(2, 3)).numpy(), rtol=1e-4, atol=1e-5)
    assert found.std(axis=0).max() > 1e-3  # and it tells them apart
    np.testing.assert_array_equal(one.features(x), found)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 1, 1), (1, 40, 17)])
def test_grey_pictures_are_three_equal_colours(weights: Path, shape: tuple[int, ...]) -> None:
    one = MobileNet(str(weights), side=32)
    grey = shown(2, *shape)
    found = one.features(grey)
    np.testing.assert_array_equal(found, one.features(np.repeat(grey, 3, axis=1)))
    assert np.isfinite(found).all()


def test_a_constant_picture_stays_constant_whatever_its_size(weights: Path) -> None:
    one = MobileNet(str(weights), side=32)
    found = [one.features(np.full((1, 1, *size), 0.25, np.float32)) for size in ((28, 28), (5, 50), (32, 32))]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-3, atol=1e-4)


def test_the_mean_of_a_device_by_mobilenet(weights: Path) -> None:
    one = MobileNet(str(weights), side=32)
    x = np.random.default_rng(1).integers(0, 256, (66, 1, 8, 8), np.uint8)
    together = one.features(BYTES.values(x)).mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean_features(one, x, BYTES), together, rtol=1e-4, atol=1e-5)


def test_larger_pictures_pass_in_smaller_parts(weights: Path) -> None:
    """16 pictures of 96×96 at a time: of 18 the last two are a part of their own, and say what they say alone."""
    one = MobileNet(str(weights))
    x = shown(18, 1, 12, 12)
    np.testing.assert_allclose(one.features(x)[16:], one.features(x[16:]), rtol=1e-4, atol=1e-5)


def test_a_network_with_its_classifier_does_too(weights: Path, tmp_path: Path) -> None:
    import transformers

    network = transformers.MobileNetV2ForImageClassification(
        transformers.MobileNetV2Config(depth_multiplier=0.35, num_labels=3)
    )
    network.mobilenet_v2.load_state_dict(transformers.MobileNetV2Model.from_pretrained(weights).state_dict())
    network.save_pretrained(tmp_path)
    x = shown(1, 3, 32, 32)
    np.testing.assert_array_equal(
        MobileNet(str(tmp_path), side=32).features(x), MobileNet(str(weights), side=32).features(x)
    )


def test_no_weights(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    shape = (1, 28, 28)
    with refused("extractor"):
        MobileNet("/nowhere/at/all").dimension(shape)
    with refused("extractor"):
        MobileNet(str(tmp_path)).dimension(shape)
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text((weights / "config.json").read_text())
    (half / "model.safetensors").write_bytes(b"no tensors")
    with refused("extractor"):
        MobileNet(str(half)).dimension(shape)

    def offline(name: str, **_: Any) -> None:
        raise OSError(f"We couldn't connect to load {name}\nand more lines")

    monkeypatch.setattr(transformers.MobileNetV2Model, "from_pretrained", offline)
    with refused("extractor"):
        MobileNet().dimension(shape)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused("extractor"):
        MobileNet("some/name").dimension(shape)


def test_weights_of_another_network(tmp_path: Path) -> None:
    """Tensors that a file lacks would be drawn at random."""
    transformers = pytest.importorskip("transformers")
    transformers.MobileNetV1Model(transformers.MobileNetV1Config(depth_multiplier=0.25)).save_pretrained(tmp_path)
    with refused("extractor"):
        MobileNet(str(tmp_path)).dimension((1, 28, 28))


# -- ONNX --------------------------------------------------------------------------------------------------------------

Dims = list[int | str]


def save(
    path: Path,
    nodes: list[tuple[str, list[str], list[str]]],
    takes: dict[str, Dims],
    gives: dict[str, Dims],
    kind: int = 1,
) -> str:
    """Write an ONNX file of a few operators; kind 1 is float32."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    h = onnx.helper
    graph = h.make_graph(
        [h.make_node(*node) for node in nodes],
        "made",
        [h.make_tensor_value_info(name, kind, dims) for name, dims in takes.items()],
        [h.make_tensor_value_info(name, kind, dims) for name, dims in gives.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return str(path)


MEAN = [("GlobalAveragePool", ["x"], ["y"])]


@pytest.mark.parametrize("rows", ["n", 1])
@pytest.mark.parametrize(("inside", "outside"), [(["c", "h", "w"], ["c", 1, 1]), ([3, 8, 8], [3, 1, 1])])
def test_a_file_that_averages_pictures(tmp_path: Path, rows: int | str, inside: Dims, outside: Dims) -> None:
    """The mean of each colour; one picture at a time where the file says so."""
    one = Onnx(save(tmp_path / "m.onnx", MEAN, {"x": [rows, *inside]}, {"y": [rows, *outside]}))
    assert one.dimension((3, 8, 8)) == 3
    x = shown(5, 3, 8, 8)
    found = one.features(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x.mean(axis=(2, 3)), rtol=1e-5)
    np.testing.assert_array_equal(one.features(x), found)


def test_pictures_are_brought_to_the_size_and_colours_of_the_file(tmp_path: Path) -> None:
    """The mean of a constant grey picture is that grey in all three colours, at any size."""
    one = Onnx(save(tmp_path / "m.onnx", MEAN, {"x": ["n", 3, 16, 20]}, {"y": ["n", 3, 1, 1]}))
    np.testing.assert_allclose(one.features(np.full((2, 1, 28, 28), 0.3, np.float32)), 0.3, rtol=1e-5)


def test_a_file_for_sensors(tmp_path: Path) -> None:
    one = Onnx(save(tmp_path / "r.onnx", [("Abs", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]}))
    x = shown(3, 4) - 0.5
    np.testing.assert_array_equal(one.features(x), np.abs(x))
    with refused("extractor"):
        one.features(shown(3, 5))


def test_one_of_several_outputs(tmp_path: Path) -> None:
    nodes = [*MEAN, ("Abs", ["x"], ["z"])]
    path = save(tmp_path / "two.onnx", nodes, {"x": ["n", 1, 2, 2]}, {"z": ["n", 1, 2, 2], "y": ["n", 1, 1, 1]})
    assert Onnx(path, output="y").dimension((1, 2, 2)) == 1
    for one in (Onnx(path), Onnx(path, output="q")):
        with refused("extractor"):
            one.dimension((1, 2, 2))


ABS = [("Abs", ["x"], ["y"])]


ANY: Dims = ["n", 3, 8, 8]
REFUSED = {
    "no-pool": (ABS, {"x": ANY}, ANY, 1, "extractor"),
    "channels-last": (MEAN, {"x": ["n", 8, 8, 3]}, ["n", 8, 1, 1], 1, "extractor"),
    "four": (MEAN, {"x": [4, 3, 8, 8]}, [4, 3, 1, 1], 1, "extractor"),
    "rows": (ABS, {"x": ["n", 3]}, ["n", 3], 1, "extractor"),
    "bytes": (ABS, {"x": ANY}, ANY, 2, "extractor"),
    "two-inputs": ([("Add", ["x", "u"], ["y"])], {"x": ["n"], "u": ["n"]}, ["n"], 1, "extractor"),
    "fails": (
        [("MatMul", ["x", "x"], ["y"])],
        {"x": ["n", 3, "h", "w"]},
        ["n", 3, "h", "w"],
        1,
        "extractor",
    ),
}


@pytest.mark.parametrize(("nodes", "takes", "gives", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_files_that_do_not_fit(
    tmp_path: Path, nodes: list[tuple[str, list[str], list[str]]], takes: dict[str, Dims], gives: Dims, kind: int,
    said: str,
) -> None:  # fmt: skip
    one = Onnx(save(tmp_path / "m.onnx", nodes, takes, {"y": gives}, kind))
    with refused(said):
        one.features(shown(1, 3, 8, 7 if said.startswith("does") else 8))  # 8×7 cannot be multiplied by itself


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    with refused("extractor"):
        Onnx("no.onnx").dimension((1, 8, 8))
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with refused("extractor"):
        Onnx(str(tmp_path / "broken.onnx")).dimension((1, 8, 8))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with refused("extractor"):
        Onnx(str(tmp_path / "broken.onnx")).dimension((1, 8, 8))

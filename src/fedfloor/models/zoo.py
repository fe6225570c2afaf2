"""The papers' networks by name. Each takes the shape of one sample and the number of classes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import nn

from fedfloor.errors import SettingError

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]


def mlp_2nn(shape: Shape, classes: int) -> nn.Module:
    """Return the multilayer perceptron in–200–200–classes: 199,210 parameters on 1×28×28 with 10 classes.

    McMahan et al., AISTATS 2017 ("2NN"); the MLP of FedSR (arXiv 2403.14718).
    """
    inner = [nn.Linear(prod(shape), 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, classes)]
    return nn.Sequential(nn.Flatten(), *inner)


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Return multinomial logistic regression: one linear layer; 7,850 parameters on 1×28×28 with 10 classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def cnn_tutorial(shape: Shape, classes: int) -> nn.Module:
    """Return the CNN of TensorFlow's CIFAR tutorial: 122,570 parameters on 3×32×32 with 10 classes.

    93,322 on 1×28×28 with 10 classes; 128,420 on 3×32×32 with 100, the count printed in FedSR (arXiv 2403.14718).
    """
    channels, height, width = _image("cnn-tutorial", shape, at_least=18)
    left = [((side - 2) // 2 - 2) // 2 - 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * left[0] * left[1], 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def cnn_fedgs(shape: Shape, classes: int) -> nn.Module:
    """Return the CNN of FedGS (arXiv 2202.01512): 6,603,710 parameters on 1×28×28 with 62 classes."""
    channels, height, width = _image("cnn-fedgs", shape, at_least=4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 2048), nn.ReLU(), nn.Linear(2048, classes),
    )  # fmt: skip


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Return LeNet-5 with ReLU and max pooling: 62,006 parameters on 3×32×32 with 10 classes (FLDG's CIFAR-10
    network)."""
    channels, height, width = _image("lenet", shape, at_least=16)
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * left[0] * left[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


def _image(name: str, shape: Shape, at_least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < at_least:
        raise SettingError(
            f"model '{name}' got samples of shape {shape}: it needs images (channels, height, width) of at least "
            f"{at_least}×{at_least} pixels. Choose 'mlp-2nn' or 'logistic' for other data."
        )
    return shape[0], shape[1], shape[2]


NETWORKS: dict[str, Builder] = {
    "mlp-2nn": mlp_2nn,
    "logistic": logistic,
    "cnn-tutorial": cnn_tutorial,
    "cnn-fedgs": cnn_fedgs,
    "lenet": lenet,
}

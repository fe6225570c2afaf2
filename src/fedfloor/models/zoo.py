"""The papers' networks, a small network, and networks for sensors, for a sample's shape and a number of outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from torch import nn

from fedfloor.base.errors import SettingError
from fedfloor.models.layers import (
    GROUPS,
    STATISTICS,
    Asinh,
    Attention,
    Concatenated,
    Dilated,
    Embedded,
    LastRow,
    MeanRow,
    Monitor,
    Recurrent,
    Soft,
    Statistics,
    Unrolled,
    Widened,
)

POOLS = (nn.MaxPool1d, nn.MaxPool2d)


def pool_first(module: nn.Sequential) -> nn.Sequential:
    """Move every max pooling that follows a ReLU before it; return the module.

    max_i max(0, x_i) = max(0, max_i x_i), and the gradient takes the same path: to the largest input if that is
    positive, else nowhere. After a 2×2 pooling the ReLU has a quarter of the work. Layers with parameters do not move,
    so that their names stay.

    >>> [type(layer).__name__ for layer in pool_first(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)))]
    ['Conv2d', 'MaxPool2d', 'ReLU']
    """
    for place in range(len(module) - 1):
        first = module[place]
        second = module[place + 1]
        if isinstance(first, nn.ReLU) and isinstance(second, POOLS) and not second.return_indices:
            module[place] = second
            module[place + 1] = first
    return module


Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]

# The smallest side, in pixels, of the images that a network accepts.
SMALLEST_SIDE = {
    **dict.fromkeys(("cnn-fedgs", "cnn-hfedms", "cnn-small"), 4),
    **dict.fromkeys(("lenet", "cnn-fldg-mnist", "cnn-fldg-fashion"), 16),
    "cnn-tutorial": 18,
}
# Networks for samples of sensors, by the number of dimensions: rows (channels,) or windows (channels, length).
FOR_SENSORS = {
    1: ("mlp-sensor", "mlp-sensor-soft", "mlp-sensor-asinh"),
    2: ("cnn-window", "mlp-window", "cnn-sensor", "mlp-sensor", "mlp-sensor-soft", "mlp-sensor-asinh", "cnn-sensor-gn",
        "cnn-sensor-bn", "tcn", "lstm", "gru", "transformer"),
}  # fmt: skip
FOR_ANY_SHAPE = ("mlp-2nn", "linear", "logistic")
# Networks with an output per number of a sample, for [data] task = "reconstruction", by the samples' dimensions.
REPRODUCING = {1: ("monitor", "ae-dense"), 2: ("monitor", "ae-conv", "ae-dense", "ae-lstm")}


def mlp_2nn(shape: Shape, classes: int) -> nn.Module:
    """Return the multilayer perceptron in–200–200–classes.

    199,210 parameters on 1×28×28 with 10 classes. McMahan et al., AISTATS 2017 ("2NN"); the MLP of FedSR
    (arXiv 2403.14718).
    """
    inner = [nn.Linear(prod(shape), 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, classes)]
    return nn.Sequential(nn.Flatten(), *inner)


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Return multinomial logistic regression: one linear layer.

    7,850 parameters on 1×28×28 with 10 classes.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def linear(shape: Shape, outputs: int) -> nn.Module:
    """Return a linear layer: least squares for numbers; for forecasts NLinear (Zeng et al., AAAI 37 (2023) 11121).

    22,902 parameters on windows of 52 channels × 20 with 22 outputs.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


def cnn_tutorial(shape: Shape, classes: int) -> nn.Module:
    """Return the CNN of TensorFlow's CIFAR tutorial, FedSR's CNN (arXiv 2403.14718).

    122,570 parameters on 3×32×32 with 10 classes; 93,322 on 1×28×28 with 10 classes; 128,420 on 3×32×32 with 100, the
    number printed in the paper.
    """
    channels, height, width = _image("cnn-tutorial", shape)
    left = [((side - 2) // 2 - 2) // 2 - 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * left[0] * left[1], 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def cnn_fedgs(shape: Shape, classes: int) -> nn.Module:
    """Return the CNN of FedGS (arXiv 2202.01512).

    6,603,710 parameters on 1×28×28 with 62 classes.
    """
    extractor, features = _two_padded_convolutions("cnn-fedgs", shape, 32, 64)
    return nn.Sequential(*extractor, nn.Linear(features, 2048), nn.ReLU(), nn.Linear(2048, classes))


def cnn_hfedms(shape: Shape, classes: int) -> nn.Module:
    """Return the CNN of HFedMS (arXiv 2211.03300): FedGS's CNN with 100 semantic features before the classifier.

    6,687,834 parameters on 1×28×28 with 62 classes, 6,262 of them in the classifier. The paper's text mentions two
    fully connected layers; its table and the authors' code have three.
    """
    extractor, features = _two_padded_convolutions("cnn-hfedms", shape, 32, 64)
    return nn.Sequential(
        *extractor, nn.Linear(features, 2048), nn.ReLU(), nn.Linear(2048, 100), nn.ReLU(), nn.Linear(100, classes)
    )


def cnn_small(shape: Shape, classes: int) -> nn.Module:
    """Return a CNN with the layers of HFedMS's CNN and a hundredth of its size: 8 and 16 channels, 64 features.

    57,694 parameters on 1×28×28 with 62 classes.
    """
    extractor, features = _two_padded_convolutions("cnn-small", shape, 8, 16)
    return nn.Sequential(*extractor, nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))


def _two_padded_convolutions(name: str, shape: Shape, first: int, second: int) -> tuple[list[nn.Module], int]:
    """Return the layers up to flattening that FedGS's and HFedMS's CNNs have in common, and the number of features."""
    channels, height, width = _image(name, shape)
    layers = [
        nn.Conv2d(channels, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    ]  # fmt: skip
    return layers, second * (height // 4) * (width // 4)


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Return LeNet-5 with ReLU and max pooling, FLDG's network for CIFAR-10.

    62,006 parameters on 3×32×32 with 10 classes.
    """
    channels, height, width = _image("lenet", shape)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * _left(height) * _left(width), 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


def cnn_fldg_mnist(shape: Shape, classes: int) -> nn.Module:
    """Return FLDG's network for MNIST, 20 and 50 channels, with dropout.

    66,130 parameters on 1×28×28 with 10 classes. Table I of the paper lists a padding of 2, but its 800 = 50·4·4 inputs
    of the first fully connected layer result without padding; so there is none here.
    """
    return _fldg("cnn-fldg-mnist", shape, classes, 20, 50)


def cnn_fldg_fashion(shape: Shape, classes: int) -> nn.Module:
    """Return FLDG's network for Fashion-MNIST, 16 and 32 channels, with dropout.

    39,408 parameters on 1×28×28 with 10 classes. There is no padding, for the reason given at cnn-fldg-mnist.
    """
    return _fldg("cnn-fldg-fashion", shape, classes, 16, 32)


def _fldg(name: str, shape: Shape, classes: int, first: int, second: int) -> nn.Module:
    channels, height, width = _image(name, shape)
    return nn.Sequential(
        nn.Conv2d(channels, first, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(first, second, 5), nn.Dropout(0.5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(second * _left(height) * _left(width), 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, classes),
    )  # fmt: skip


def _left(side: int) -> int:
    """Return a side after two unpadded 5×5 convolutions, each with 2×2 pooling."""
    return ((side - 4) // 2 - 4) // 2


def mlp_sensor(shape: Shape, classes: int) -> nn.Module:
    """Return a small multilayer perceptron in–64–64–classes for rows or windows of sensors.

    8,982 parameters on rows of 52 channels with 22 classes; 72,214 on windows of 52 channels × 20 with 22 classes.
    """
    _sensors("mlp-sensor", shape, 1, 2)
    inner = [nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(nn.Flatten(), *inner)


def mlp_sensor_soft(shape: Shape, classes: int) -> nn.Module:
    """Return mlp-sensor with inputs that are unchanged within 3 standard deviations, and compressed beyond.

    A failing sensor's value at 100 deviations becomes 8.3; 8,982 parameters, as in mlp-sensor.
    """
    _sensors("mlp-sensor-soft", shape, 1, 2)
    return nn.Sequential(Soft(), *mlp_sensor(shape, classes).children())


def mlp_sensor_asinh(shape: Shape, classes: int) -> nn.Module:
    """Return mlp-sensor with asinh of its input, for sensors with heavy tails, such as counters and vibration energies.

    A value at 10³ deviations becomes 7.6, and values near the mean hardly change; 8,982 parameters, as in mlp-sensor.
    """
    _sensors("mlp-sensor-asinh", shape, 1, 2)
    return nn.Sequential(Asinh(), *mlp_sensor(shape, classes).children())


def mlp_window(shape: Shape, classes: int) -> nn.Module:
    """Return mlp-sensor-soft on seven statistics of each sensor of a window: level, range, trend, variation.

    28,950 parameters on windows of 52 channels with 22 classes, whatever their length.
    """
    _sensors("mlp-window", shape, 2)
    return nn.Sequential(Statistics(), *mlp_sensor_soft((STATISTICS * shape[0],), classes).children())


def over_time(into: int, out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution over the rows of windows, which have the form of pictures of height 1."""
    return nn.Conv2d(into, out, (1, kernel), stride=(1, stride), padding=(0, kernel // 2))


def cnn_sensor(shape: Shape, classes: int) -> nn.Module:
    """Return a small 1-D CNN for windows of sensors of any length.

    Three convolutions over time, the last two with stride 2, then the mean over time; 40,630 parameters on windows of
    52 channels with 22 classes, whatever their length. Windows are processed as pictures of height 1, channels-last,
    which makes a step on a CPU 1.1 to 1.4 times as fast as ``Conv1d``.
    """
    return _convolutions_over_time("cnn-sensor", shape, classes)


def _convolutions_over_time(
    name: str, shape: Shape, classes: int, norm: Callable[[int], nn.Module] | None = None
) -> nn.Module:
    _sensors(name, shape, 2)
    layers: list[nn.Module] = [nn.Unflatten(1, (shape[0], 1))]
    for into, out, stride in ((shape[0], 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [over_time(into, out, 5, stride), *([] if norm is None else [norm(out)]), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def cnn_sensor_gn(shape: Shape, classes: int) -> nn.Module:
    """Return cnn-sensor with group norm after each convolution, for devices with different data.

    34,145 parameters on windows of 18 channels with one output, whatever their length. The statistics are taken over
    time and an eighth of the channels of one sample (Wu and He, ECCV 2018): unlike batch norm's, they neither depend on
    other samples of a mini-batch nor are averaged over devices.
    """
    return _convolutions_over_time("cnn-sensor-gn", shape, classes, partial(nn.GroupNorm, GROUPS))


def cnn_window(shape: Shape, classes: int) -> nn.Module:
    """Return cnn-sensor-gn beside mlp-window's statistics of each sensor, joined by a hidden layer of 64.

    72,566 parameters on windows of 52 channels with 22 classes, whatever their length. Group norm leaves the shape of
    a window's curves and little of their levels and of how much they vary, which the statistics have.
    """
    _sensors("cnn-window", shape, 2)
    curves = [*cnn_sensor_gn(shape, classes).children()][:-1]
    statistics = [Statistics(), Soft(), nn.Linear(STATISTICS * shape[0], 64), nn.ReLU()]
    return nn.Sequential(
        Concatenated(nn.Sequential(*curves), nn.Sequential(*statistics)),
        nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def cnn_sensor_bn(shape: Shape, classes: int) -> nn.Module:
    """Return cnn-sensor with batch norm after each convolution, whose statistics FedBN leaves with the devices.

    34,145 parameters, without the statistics, on windows of 18 channels with one output, whatever their length.
    """
    return _convolutions_over_time("cnn-sensor-bn", shape, classes, nn.BatchNorm2d)


def tcn(shape: Shape, classes: int) -> nn.Module:
    """Return a temporal convolutional network for windows of sensors of any length.

    Four residual blocks of two causal convolutions each, with dilations of 1, 2, 4 and 8 rows, so that the newest row,
    from which the output is computed, depends on 61 rows; with group norm. 24,641 parameters on windows of 18 channels
    with one output. Bai, Kolter and Koltun, arXiv 1803.01271.
    """
    _sensors("tcn", shape, 2)
    blocks = [Dilated(shape[0] if far == 1 else 32, 32, 3, far) for far in (1, 2, 4, 8)]
    return nn.Sequential(nn.Unflatten(1, (shape[0], 1)), *blocks, LastRow(), nn.Flatten(), nn.Linear(32, classes))


def lstm(shape: Shape, classes: int) -> nn.Module:
    """Return a long short-term memory for windows of sensors of any length: one layer of 64 cells.

    21,697 parameters on windows of 18 channels with one output, computed from the layer-normalised last state.
    Hochreiter and Schmidhuber, Neural Computation 1997.
    """
    _sensors("lstm", shape, 2)
    return nn.Sequential(Recurrent(nn.LSTM(shape[0], 64, batch_first=True)), nn.Linear(64, classes))


def gru(shape: Shape, classes: int) -> nn.Module:
    """Return gated recurrent units for windows of sensors of any length: one layer of 64, ¾ of lstm's parameters.

    16,321 parameters on windows of 18 channels with one output. Cho et al., EMNLP 2014.
    """
    _sensors("gru", shape, 2)
    return nn.Sequential(Recurrent(nn.GRU(shape[0], 64, batch_first=True)), nn.Linear(64, classes))


def transformer(shape: Shape, classes: int) -> nn.Module:
    """Return a small transformer for windows of sensors: two blocks of four heads, width 32, layer norm first.

    18,753 parameters on windows of 18 channels × 30 with one output, 960 of them for the rows' positions. Train it by
    Adam with a warm-up ([work] optimizer, warmup). Vaswani et al., NeurIPS 2017.
    """
    _sensors("transformer", shape, 2)
    blocks = [Attention(32, 4, 64) for _ in range(2)]
    return nn.Sequential(Embedded(shape[0], shape[1], 32), *blocks, nn.LayerNorm(32), MeanRow(), nn.Linear(32, classes))


def monitor(shape: Shape, classes: int) -> nn.Module:
    """Return the linear monitor of normal operation that method ``pca`` fits, for samples of any shape.

    2,756 parameters on rows of 52 channels, which no optimiser step changes.
    """
    _reproduces("monitor", shape, classes, 1)
    return Monitor(classes)


def ae_dense(shape: Shape, classes: int) -> nn.Module:
    """Return an autoencoder of linear layers for rows or windows of D numbers: D–64–D/8–64–D, with layer norm.

    23,604 parameters on windows of 8 channels × 20, with a code of 20 numbers; larger samples have a code of at most
    32. Sakurada and Yairi, MLSDA 2014.
    """
    many = _reproduces("ae-dense", shape, classes)
    code = _code(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(many, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, code),
        nn.Linear(code, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, many),
    )  # fmt: skip


def ae_conv(shape: Shape, classes: int) -> nn.Module:
    """Return an autoencoder of convolutions over time for windows of sensors of any length, with group norm.

    5,580 parameters on windows of 8 channels. Two convolutions with stride 2 reduce a window to half of the channels
    and a quarter of the rows, an eighth of the numbers; two transposed convolutions restore it. Kernels of 7 rows and
    32 channels, as in the convolutional autoencoder of SKAB's leaderboard (Katser and Kozitsin, 2020).
    """
    _sensors("ae-conv", shape, 2)
    _reproduces("ae-conv", shape, classes)
    channels, length = shape
    code = max(1, channels // 2)
    return nn.Sequential(
        nn.Conv1d(channels, 32, 7, stride=2, padding=3), nn.GroupNorm(GROUPS, 32), nn.ReLU(),
        nn.Conv1d(32, code, 7, stride=2, padding=3),
        Widened(code, 32, (length + 1) // 2), nn.GroupNorm(GROUPS, 32), nn.ReLU(),
        Widened(32, channels, length), nn.Flatten(),
    )  # fmt: skip


def ae_lstm(shape: Shape, classes: int) -> nn.Module:
    """Return an autoencoder of two LSTMs of 64 cells for windows of sensors of any length, with layer norm.

    43,036 parameters on windows of 8 channels × 20: the first reads the window, its last state is reduced to 20 numbers
    (an eighth of the window, at most 32), and the second restores the rows. Malhotra et al., arXiv 1607.00148.
    """
    _sensors("ae-lstm", shape, 2)
    _reproduces("ae-lstm", shape, classes)
    code = _code(shape)
    return nn.Sequential(
        Recurrent(nn.LSTM(shape[0], 64, batch_first=True)), nn.Linear(64, code), Unrolled(code, 64, *shape)
    )


def _code(shape: Shape) -> int:
    """Return the width of an autoencoder's bottleneck."""
    return max(1, min(32, prod(shape) // 8))


def _reproduces(name: str, shape: Shape, classes: int, least: int = 2) -> int:
    """Return D, the number of values of a sample; SettingError: the task is not reconstruction, or D < ``least``."""
    if prod(shape) != classes:
        raise SettingError(
            f"model '{name}' is for [data] task = 'reconstruction', and got samples of shape {shape} and {classes} "
            f"outputs. Choose {_others(shape)}."
        )
    if classes < least:
        raise SettingError(
            f"model '{name}' got samples of one number, which cannot be encoded in fewer. Take "
            "'monitor', or windows ([data] window)."
        )
    return classes


def _image(name: str, shape: Shape) -> tuple[int, int, int]:
    at_least = SMALLEST_SIDE[name]
    if len(shape) != 3 or min(shape[1:]) < at_least:
        raise SettingError(
            f"model '{name}' got samples of shape {shape}: it needs images (channels, height, width) of at least "
            f"{at_least}×{at_least} pixels. Choose {_others(shape)}."
        )
    return shape[0], shape[1], shape[2]


def _sensors(name: str, shape: Shape, *dimensions: int) -> None:
    if len(shape) not in dimensions:
        forms = {1: "rows (channels,)", 2: "windows (channels, length)"}
        wanted = " or ".join(forms[n] for n in dimensions)
        raise SettingError(
            f"model '{name}' got samples of shape {shape}: it needs {wanted} of sensors. Choose {_others(shape)}."
        )


def _others(shape: Shape) -> str:
    """Return the names of networks that accept samples of a shape, in words."""
    special = FOR_SENSORS.get(len(shape), ())
    if len(shape) == 3:
        special = tuple(name for name, side in SMALLEST_SIDE.items() if min(shape[1:]) >= side)
    *names, last = (f"'{name}'" for name in (*special, *FOR_ANY_SHAPE))
    return f"{', '.join(names)} or {last}"


BUILDERS = (
    mlp_2nn, logistic, linear, cnn_tutorial, cnn_fedgs, cnn_hfedms, cnn_small, lenet, cnn_fldg_mnist,
    cnn_fldg_fashion, mlp_sensor, mlp_sensor_soft, mlp_sensor_asinh, mlp_window, cnn_sensor, cnn_sensor_gn, cnn_window,
    cnn_sensor_bn, tcn, lstm, gru, transformer, monitor, ae_dense, ae_conv, ae_lstm,
)  # fmt: skip
NETWORKS: dict[str, Builder] = {builder.__name__.replace("_", "-"): builder for builder in BUILDERS}

# The samples and outputs for which a network is listed: those of its paper; for sensors those of Tennessee Eastman, or
# # of an engine's remaining life.
_LISTED: dict[tuple[Shape, int], str] = {
    ((1, 28, 28), 10): "mlp-2nn logistic cnn-fldg-mnist cnn-fldg-fashion",
    ((3, 32, 32), 10): "cnn-tutorial lenet",
    ((1, 28, 28), 62): "cnn-fedgs cnn-hfedms cnn-small",
    ((52, 20), 22): "mlp-sensor mlp-sensor-soft mlp-sensor-asinh mlp-window linear cnn-sensor cnn-window",
    ((18, 30), 1): "cnn-sensor-gn cnn-sensor-bn tcn lstm gru transformer",
    ((52,), 52): "monitor",
    ((8, 20), 160): "ae-dense ae-conv ae-lstm",
}
LISTED_ON = {name: samples for samples, names in _LISTED.items() for name in names.split()}

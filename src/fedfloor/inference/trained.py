"""A trained model, read back from a run's folder and ready to be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfloor.errors import SettingError
from fedfloor.inference.arrays import Sensors, fitting
from fedfloor.models.network import Network, assembled
from fedfloor.models.saved import content, found
from fedfloor.outside import SPEC, load
from fedfloor.parts.objectives import objective
from fedfloor.threads import one_thread

BLOCK = 500  # as in the run's own evaluation: the same samples meet in the same matrix products


class Raw(nn.Module):
    """A network that takes numbers as they stand in files: value = (scale·x − mean)/std, a hole is the mean.

    Args:
        network: takes values [n, …], gives logits [n, F].
        scale: factor from a stored number to its value.
        mean, std: [C], per channel.
        holes: whether numbers may be missing (NaN).
        dims: number of dimensions of a batch.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, scale: float, mean: Tensor, std: Tensor, *, holes: bool, dims: int) -> None:
        super().__init__()
        form = (1, -1, *(1,) * (dims - 2))
        self.network, self.holes = network, holes
        self.register_buffer("factor", (scale / std).view(form))  # one multiplication, one addition: as in training
        self.register_buffer("shift", (-mean / std).view(form))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities [n, F] and logits [n, F] of stored numbers [n, …]."""
        values = x.to(self.factor.dtype) * self.factor + self.shift
        if self.holes:
            values = torch.where(torch.isnan(values), 0.0, values)  # the mean, by now
        logits = self.network(values)
        return torch.softmax(logits, 1), logits


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model.

    Attributes:
        name: of its network, as in ``[model] name``.
        round: how many rounds it was trained.
        classes: F names, in the order of its outputs.
        shape: of one sample: (C, H, W) of a picture, (C,) of a row of sensors, (C, L) of a window of L rows.
        sensors: what its channels measure; None where samples are pictures.
        raw: the network in evaluation mode, with its normalisation.
        channels_last: whether pictures are laid out channels-last in memory, as they were in training.
        scaled: whether pictures of other sizes are scaled, as they were in training.
    """

    name: str
    round: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    sensors: Sensors | None
    raw: Raw
    channels_last: bool
    scaled: bool = False

    def predict(self, x: NDArray[Any]) -> NDArray[np.floating[Any]]:
        """Return the classes' probabilities [n, F].

        Args:
            x: samples [n, *shape] as they stand in files: uint8 pictures, or sensors' values as numbers.

        Raises:
            SettingError: samples of another shape or type.
        """
        return self.outputs(fitting(x, self.shape, self.sensors, "x"))[0].numpy()

    def outputs(self, x: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return probabilities and logits [n, F] of fitting samples [n, *shape]."""
        parts = []
        with torch.inference_mode(), one_thread():
            for first in range(0, len(x), BLOCK):
                part = torch.from_numpy(np.ascontiguousarray(x[first : first + BLOCK]))
                if self.channels_last and part.dim() == 4:
                    part = part.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
                parts.append(self.raw(part))
        if not parts:
            empty = torch.zeros(0, len(self.classes), dtype=self.raw.factor.dtype)
            return empty, empty
        return torch.cat([one[0] for one in parts]), torch.cat([one[1] for one in parts])


def load_model(folder: Path | str) -> Trained:
    """Read a trained model.

    Args:
        folder: a run's folder, or a ``model.safetensors`` itself.

    Raises:
        SettingError: there is none, it is damaged or of another format, or the network of one's own has changed.
    """
    path = found(Path(folder))
    about, tensors = content(path)
    try:
        name, shape = str(about["model"]), tuple(int(side) for side in about["shape"])
        classes, number = tuple(str(one) for one in about["classes"]), int(about["round"])
        scale, mean, std = (about["normalise"][key] for key in ("scale", "mean", "std"))
        inputs, made = about.get("inputs") or {"kind": "image"}, about.get("made") or {}
        goal_name, goal_settings = made.get("objective", ("plain", {}))
        for what, spec in (("model", name), ("objective", goal_name)):
            if SPEC.fullmatch(spec):
                load(spec, what)
        goal = objective(goal_name, goal_settings)
        sensors, scaled = Sensors.of(inputs), bool(inputs.get("scaled"))
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError(
            f"{path}: what its header says about the model is incomplete ({type(error).__name__}: {error}). "
            "Train it again with this version."
        ) from error
    with torch.random.fork_rng(devices=[]):
        network = Network(*assembled(name, shape, len(classes), made.get("classifier"), goal.adapt))
    _fill(network, tensors, name, path)
    kind = network.flat.dtype
    centre, spread = torch.tensor(mean, dtype=kind), torch.tensor(std, dtype=kind)
    if not len(centre) == len(spread) == shape[0]:
        raise SettingError(f"{path}: {len(centre)} means and {len(spread)} deviations for {shape[0]} channels.")
    holes = sensors is not None and sensors.missing == "mean"
    raw = Raw(network.module, float(scale), centre, spread, holes=holes, dims=len(shape) + 1)
    raw.eval().requires_grad_(False)
    return Trained(name, number, classes, shape, sensors, raw, network.channels_last, scaled)


def _fill(network: Network, tensors: Mapping[str, Tensor], name: str, path: Path) -> None:
    """Copy the file's tensors into the network; refuse a network that is not the one that was trained."""
    wanted = {key: tuple(one.shape) for key, one in network.state(network.flat).items()}
    got = {key: tuple(one.shape) for key, one in tensors.items()}
    wrong = [f"{key} is missing in the file" for key in wanted if key not in got]
    wrong += [f"the network has no {key}" for key in got if key not in wanted]
    wrong += [f"{key} is {got[key]} in the file, {size} in the network" for key, size in wanted.items()
              if key in got and got[key] != size]  # fmt: skip
    if wrong:
        raise SettingError(
            f"{path} does not fit network '{name}': {'; '.join(wrong[:3])}"
            f"{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}. "
            "It has changed since it was trained: start fedfloor where its file is as it was then."
        )
    places = dict(network.module.named_parameters(remove_duplicate=False))
    places |= dict(network.module.named_buffers(remove_duplicate=False))  # type: ignore[arg-type]
    with torch.no_grad():
        for key in wanted:
            if not bool(torch.isfinite(tensors[key]).all()):
                raise SettingError(f"{path}: {key} holds infinite or undefined numbers. Train the model again.")
            places[key].copy_(tensors[key])

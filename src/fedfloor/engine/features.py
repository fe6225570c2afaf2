"""Visits that train the classifier alone: features are extracted once, and the classifier is trained on them.

While the classifier is trained nothing before it changes, so that a sample has the same features in every epoch. Exact
in arithmetic, not in rounding: mini-batches of features that were extracted together are none extracted one by one.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedfloor.chance import generator
from fedfloor.engine import networks
from fedfloor.engine.engine import Engine
from fedfloor.engine.gradient import BLOCK
from fedfloor.engine.memory import extractor_bytes
from fedfloor.engine.samples import Samples
from fedfloor.errors import SettingError
from fedfloor.models.network import Network
from fedfloor.parts.proximal import Reached, evaluating, tapped
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key

ALIKE = ("plain", "prox")  # objectives that ask the network for its outputs alone
# of a work, what training on features implements
FIELDS = ("objective", "settings", "epochs", "steps", "batch_size", "rate", "momentum", "weight_decay", "trains",
          "optimizer", "beta1", "beta2", "eps", "moments", "clip_norm")  # fmt: skip


class Features:
    """Features in the place of a device's samples, as :class:`~fedfloor.engine.samples.Samples` are asked.

    Args:
        x: float [n, D].
        y: int64 [n].
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen features."""
        return self.x[rows] if isinstance(rows, slice) else self.x.index_select(0, rows.to(self.x.device))

    def chunk(self, batch_size: int) -> int:
        """Return how many are taken at a time: whole batches, as many as there may be."""
        return batch_size * max(1, -(-len(self) // batch_size))


class Extractor:
    """What a visit on features may ask: see :class:`fedfloor.parts.objective.Extractor`.

    Args:
        engine: its network holds the model as it arrived.
        samples: what the device holds.
        key: of the visit.
        name: the extractor's digest, where it is known.
    """

    def __init__(self, engine: Engine, samples: Samples, key: Key, name: str = "") -> None:
        self._engine, self._samples, self._key, self._name = engine, samples, key, name
        self._features: dict[str, Tensor] = {}

    @cached_property
    def name(self) -> str:
        """Digest of the extractor's numbers; they are kept, so that devices can refer to them."""
        numbers = outside(self._engine.network)
        digest = self._name or hashlib.sha256(extractor_bytes(numbers)).hexdigest()
        self._engine.memory.keep(numbers, digest)
        return digest

    @property
    def before(self) -> str:
        """Digest of the extractor that the device's memory was made with."""
        return self._engine.memory.extractor(self._key.device)

    @property
    def labels(self) -> Tensor:
        """Classes of what the device holds now, int64 [n]."""
        return self._samples.y

    def stored(self) -> Tensor:
        """Return what the device holds now as it is stored, [n, *shape]."""
        return self._samples.stored()

    def window(self, name: str = "") -> Tensor:
        """Return the features [n, D] of what the device holds now; by an earlier extractor where one is named."""
        if name not in self._features:
            network = self._engine.network
            if not name:
                self._features[name] = extracted(network, self._samples)
            else:
                now = network.flat.clone()
                put_outside(network, self._engine.memory.numbers(name))
                try:
                    self._features[name] = extracted(network, self._samples)
                finally:
                    network.flat.copy_(now)
        return self._features[name]

    def of(self, stored: Tensor) -> Tensor:
        """Return the features [n, D] of samples as they are stored, [n, *shape]."""
        labels = np.zeros(len(stored), np.int64)
        return extracted(self._engine.network, self._engine.wrap(stored.cpu().numpy(), labels))

    def chance(self) -> np.random.Generator:
        """Return a generator keyed by the visit."""
        return generator(self._key.seed, "kept", *self._key.place())


def extracted(network: Network, samples: Samples) -> Tensor:
    """Return what goes into the classifier, [n, …]: no gradient, evaluation mode.

    Args:
        network: holds the extractor.
        samples: n of them.
    """
    layer, found = networks.head(network), []
    with evaluating(network.module), torch.no_grad():
        for first in range(0, len(samples), BLOCK):
            with tapped(layer, stop=True) as seen, suppress(Reached):
                network.module(samples.values(slice(first, first + BLOCK)))
            found += seen
    return torch.cat(found)


def once(engine: Engine, work: Work) -> bool:
    """Return whether a visit may be trained on features that are extracted once.

    Args:
        engine: shortcuts must be on, and its network must treat every sample by itself and end in its classifier.
        work: trains the classifier alone, by an objective that looks at nothing but the network's outputs.
    """
    fits = engine.shortcuts and work.trains == "classifier" and work.objective in ALIKE and work.only(*FIELDS)
    return fits and engine.separable and engine.headed is not None


def require_head(engine: Engine, whose: str) -> None:
    """Refuse a network that does not end in its classifier, or whose features are no rows of numbers.

    Raises:
        SettingError: it does not, they are not, or its classifier is not known.
    """
    network = engine.network
    network.part("classifier")
    if engine.headed is None:
        raise SettingError(
            f"objective {whose}: it is trained on what goes into the classifier '{network.classifier}', and what "
            "comes out of that is not what the network says. Name the network's last layer with model.classifier, and "
            "let forward() return its output."
        )
    if len(engine.headed) != 1:
        raise SettingError(
            f"objective {whose}: what goes into the classifier '{network.classifier}' is {list(engine.headed)} for a "
            "sample, and devices keep rows of features, [length]. Name the network's last layer with model.classifier."
        )


def outside(network: Network) -> Tensor:
    """Return a copy of the numbers of the flat model that are not the classifier's."""
    part = network.part("classifier")
    return torch.cat([network.flat[: part.start], network.flat[part.stop :]])


def put_outside(network: Network, numbers: Tensor) -> None:
    """Put the numbers that are not the classifier's into the flat model."""
    part = network.part("classifier")
    network.flat[: part.start] = numbers[: part.start]
    network.flat[part.stop :] = numbers[part.start :]

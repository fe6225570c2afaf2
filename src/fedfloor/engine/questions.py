"""Questions with settings, asked once before training: features, hashes of them, one local training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfloor.engine import features as extraction
from fedfloor.engine.attend import Still, attended
from fedfloor.engine.tree import Packet
from fedfloor.parts.extractors.extractor import Scaling, mean_features
from fedfloor.parts.extractors.names import extractor
from fedfloor.parts.hashing import told
from fedfloor.plan.nodes import Scalar, Work
from fedfloor.plan.schedule import Key

if TYPE_CHECKING:
    from fedfloor.engine.engine import Engine

Settings = Mapping[str, Scalar]


def features(engine: Engine, device: int, packet: Packet, tick: int, settings: Settings) -> Tensor:
    """Answer the mean (1/n) Σ_i f(x_i) of the features of what the device holds, [D].

    Settings: ``extractor``, by name, and its own.

    Raises:
        SettingError: no such extractor, or one that does not take such samples.
    """
    made = extractor(str(settings["extractor"]), {k: v for k, v in settings.items() if k != "extractor"})
    if not made.needs_model:
        park = engine.park
        x, _ = park.held(device, tick, engine.memory.visits[device])
        mean, std = park.normalisation(engine.normalise)
        found = torch.from_numpy(mean_features(made, x, Scaling(park.dataset.scale, mean, std)))
    else:
        engine.network.part("classifier")
        if packet["w"] is not engine.network.flat:
            engine.network.flat.copy_(packet["w"])
        found = extraction.extracted(engine.network, engine.samples(device, tick)).flatten(1).double().mean(0)
    return found.to(engine.network.flat.dtype)


def hashes(engine: Engine, device: int, packet: Packet, tick: int, settings: Settings) -> list[int]:
    """Answer h integers ⌊(a_i·v + b_i)/r⌋, v the mean features; a and b are the same on all devices, by the seed.

    Settings: those of :func:`features`, ``hashes`` h and ``width`` r.

    Raises:
        SettingError: as :func:`features`, or h or r out of range.
    """
    own = {name: one for name, one in settings.items() if name not in ("hashes", "width")}
    vector = features(engine, device, packet, tick, own).double().cpu().numpy()
    return told(vector, int(settings["hashes"] or 0), float(settings["width"] or 0), engine.seed)


def profile(engine: Engine, device: int, packet: Packet, tick: int, settings: Settings) -> Tensor:
    """Answer the model that one local training makes of the arriving one, [P]; nothing is kept of it.

    Settings: those of :class:`~fedfloor.plan.nodes.Work`.

    Raises:
        RunError: training fails.
    """
    key = Key(engine.seed, 0, tick, device, 0)
    visits = engine.memory.visits[device]
    attended(engine, Work(**settings), packet, key, Still(frozen=False))  # type: ignore[arg-type]
    engine.memory.visits[device] = visits
    return engine.network.flat.clone()

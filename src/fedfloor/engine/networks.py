"""What is found out about a network by trying it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedfloor.chance import generator
from fedfloor.models.network import Network
from fedfloor.parts.proximal import evaluating

PROBES = 8
NEAR = 1e-3  # relative, of outputs: roundings are a thousand times smaller, what samples do to each other is larger
MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def separable(network: Network, shape: tuple[int, ...]) -> bool:
    """Return whether what a network in training says of a sample depends on that sample alone.

    Batch norm and dropout make it depend on others, and on chance. Beside looking for these layers it is tried:
    outputs for eight samples together and one by one. Not with the weights of now, which differ from rank to rank and
    can hide it behind a gate of 0, but with weights of ±0.1. Statistics that a layer keeps of samples it saw are none
    of one sample either.
    """
    if any(isinstance(part, MIXING) for part in network.module.modules()):
        return False
    before, rng = network.flat.clone(), generator(0, "separable")
    x = torch.from_numpy(rng.standard_normal((PROBES, *shape))).to(network.flat)
    network.flat[: network.trained] = torch.from_numpy(0.2 * rng.integers(0, 2, network.trained) - 0.1).to(network.flat)
    tried = network.flat.clone()
    network.module.train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            whole = network.module(x)
            single = torch.cat([network.module(one[None]) for one in x])
        still = network.flat.equal(tried)
    except Exception:  # a layer that wants more than one sample: it looks at others
        return False
    finally:
        network.flat.copy_(before)
    return still and bool(torch.allclose(whole, single, rtol=NEAR, atol=NEAR * float(whole.abs().max())))


def headed(network: Network, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of a sample's features; None where a network does not end in one call of its classifier."""
    if network.classifier is None:
        return None
    said: list[tuple[Tensor, object]] = []
    handle = head(network).register_forward_hook(lambda _layer, inputs, output: said.append((inputs[0], output)))
    try:
        with evaluating(network.module), torch.no_grad():
            answer = network.module(network.flat.new_zeros(1, *shape))
    finally:
        handle.remove()
    return tuple(said[0][0].shape[1:]) if len(said) == 1 and answer is said[0][1] else None


def head(network: Network) -> nn.Module:
    """Return the classifier."""
    return network.module.get_submodule(network.classifier or "")

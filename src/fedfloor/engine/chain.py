"""Loss and gradients of networks that are chains of layers, in closed form instead of automatic differentiation.

PyTorch records every operation of a forward pass for the backward pass, which takes a small network up to a quarter of
its step (``benchmarks/chains.py``). A chain's backward pass is known beforehand. The functions are those that PyTorch
itself calls, in its order and with its arguments, so that losses, logits and gradients are the same to the bit; tests
on x86 confirm it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as everywhere

from fedfloor.models.layers import Asinh, Projected, Soft
from fedfloor.models.network import Network

_relu_back = torch.ops.aten.threshold_backward.default
_pool_back = torch.ops.aten.max_pool2d_with_indices_backward.default
_convolution_back = torch.ops.aten.convolution_backward.default
_softmax_back = torch.ops.aten._log_softmax_backward_data.default
_loss: Callable[..., Tensor] = torch._C._nn.nll_loss_nd
Gradients = tuple[Tensor, Tensor, tuple[Tensor, ...]]  # losses, logits, the gradient of each parameter
# z [batch, d], the input of the last layer → (g [], ∂g/∂z), or None without a term
Term = Callable[[Tensor], tuple[Tensor, Tensor] | None]
# PyTorch's numbers of reductions
MEAN = 1
EACH = 0
IGNORED = -100  # PyTorch's label of ignored samples; the batches have none
KNOWN = (nn.Linear, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Dropout, Asinh, Soft)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
ANYWHERE = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
# instance attributes that replace those of the layer's class
OWN = ("forward", "_conv_forward", "_call_impl", "_compiled_call_impl", "train")
SETTINGS = (
    "p", "inplace", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode", "ceil_mode",
    "return_indices", "start_dim", "end_dim",
)  # fmt: skip


class _Layer(ABC):
    """A layer's forward and backward pass."""

    trained = False  # whether it has parameters

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Return the output for a mini-batch, and the values that the backward pass needs."""

    @abstractmethod
    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        """Return ∂loss/∂x from ∂loss/∂output, undefined unless ``further``; add the parameters' gradients to ``own``.

        The last parameter's gradient is added first.
        """


class _Linear(_Layer):
    """y = x·Wᵀ + b."""

    trained = True

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = weight
        self.bias = bias
        self.turned = weight.t()

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return torch.addmm(self.bias, x, self.turned), x

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        own += grad.sum(0), grad.t().mm(kept)
        return grad.mm(self.weight) if further else grad


class _Convolution(_Layer):
    """A two-dimensional convolution."""

    trained = True

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor) -> None:
        self.weight = weight
        self.bias = bias
        self.groups = layer.groups
        self.stride = list(layer.stride)
        self.dilation = list(layer.dilation)
        self.padding = [int(side) for side in layer.padding]

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return torch.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups), x

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        form = (self.stride, self.padding, self.dilation)
        wanted = [further, True, True]
        before, weight, bias = _convolution_back(
            grad, kept, self.weight, [len(self.bias)], *form, False, [0, 0], self.groups, wanted
        )
        own += bias, weight
        return before  # type: ignore[no-any-return]


class _Relu(_Layer):
    """max(0, x), in place where the layer is: the result's strides decide the order of addition in the next layer."""

    def __init__(self, layer: nn.ReLU) -> None:
        self.work = torch.relu_ if layer.inplace else torch.relu

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        made = self.work(x)
        return made, made

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        return _relu_back(grad, kept, 0)  # type: ignore[no-any-return]


class _Asinh(_Layer):
    """asinh x, whose slope is (x² + 1)^(−1/2)."""

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return torch.asinh(x), x

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        return grad * (kept.pow(2) + 1).rsqrt()  # type: ignore[no-any-return]


class _Soft(_Layer):
    """The identity within ±c and a logarithm beyond, with the slope ((x − clamp x)² + 1)^(−1/2)."""

    def __init__(self, layer: Soft) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return self.layer(x), x

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        beyond = kept - kept.clamp(-self.layer.within, self.layer.within)
        return grad * (beyond.pow(2) + 1).rsqrt()  # type: ignore[no-any-return]


class _Pool(_Layer):
    """The maximum of each window."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self.size, self.stride, self.padding, self.dilation = (
            [size, size] if isinstance(size, int) else list(size)
            for size in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        )
        self.up = layer.ceil_mode

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        made, places = torch._C._nn.max_pool2d_with_indices(
            x, self.size, self.stride, self.padding, self.dilation, self.up
        )
        return made, (x, places)

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        x, places = kept
        form = (self.size, self.stride, self.padding, self.dilation, self.up)
        return _pool_back(grad, x, *form, places)  # type: ignore[no-any-return]


class _Dropout(_Layer):
    """Dropout: a random share of the numbers is set to 0, and the rest is scaled up."""

    def __init__(self, layer: nn.Dropout) -> None:
        self.stays = 1 - layer.p

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        noise = torch.empty_like(x).bernoulli_(self.stays).div_(self.stays)
        return x * noise, noise

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        return grad * kept  # type: ignore[no-any-return]


class _Flatten(_Layer):
    """A sample's numbers as one row."""

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return x.flatten(1), x.shape

    def backward(self, grad: Tensor, kept: Any, own: list[Tensor], *, further: bool) -> Tensor:
        return grad.view(kept)


class Chain:
    """A network that is a chain of layers, the last one linear, in training mode."""

    def __init__(self, layers: Sequence[_Layer], last: nn.Module) -> None:
        self._layers = layers
        self.last = last
        first = next(place for place, layer in enumerate(layers) if layer.trained)  # earlier layers need no gradient
        self._further = [(layer, place > first) for place, layer in enumerate(layers) if place >= first][::-1]

    def mean(self, x: Tensor, y: Tensor, term: Term | None = None) -> Gradients:
        """Return (mean cross-entropy [], logits [batch, classes], the loss's gradients) of samples x with classes y."""
        logits, log_probabilities, kept = self._forward(x)
        seed = torch.zeros_like(log_probabilities).scatter_(1, y[:, None], -1.0 / len(y))
        loss = _loss(log_probabilities, y, None, MEAN, IGNORED)
        more = None if term is None else term(kept[-1].detach())
        if more is None:
            return loss, logits, self._backward(log_probabilities, seed, kept)
        return loss + more[0].detach(), logits, self._backward(log_probabilities, seed, kept, more[1])

    def weighted(self, x: Tensor, y: Tensor, weights: Tensor) -> Gradients:
        """Return (cross-entropies [batch], logits, gradients of Σ weights·cross-entropies)."""
        logits, log_probabilities, kept = self._forward(x)
        seed = torch.zeros_like(log_probabilities).scatter_(1, y[:, None], weights.neg()[:, None])
        return _loss(log_probabilities, y, None, EACH, IGNORED), logits, self._backward(log_probabilities, seed, kept)

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor, list[Any]]:
        kept = []
        for layer in self._layers:
            x, needed = layer.forward(x)
            kept.append(needed)
        return x, x.log_softmax(1), kept

    def _backward(
        self, log_probabilities: Tensor, seed: Tensor, kept: list[Any], more: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        own: list[Tensor] = []
        grad = _softmax_back(seed, log_probabilities, 1, log_probabilities.dtype)
        for place, (layer, further) in enumerate(self._further):
            grad = layer.backward(grad, kept.pop(), own, further=further)
            if place == 0 and more is not None and further:
                grad = grad + more
        return tuple(reversed(own))


_known: WeakKeyDictionary[Network, tuple[list[Any], Chain | None]] = WeakKeyDictionary()


def chain_of(network: Network) -> Chain | None:
    """Return a network as a chain; None if it is no chain in its present state, or is not on the CPU."""
    looks = [_look(layer) for layer in network.module.modules()]
    before = _known.get(network)
    if before is None or before[0] != looks:
        before = _known[network] = (looks, _made(network))
    return before[1]


def _look(layer: nn.Module) -> tuple[object, ...]:
    """Return the mutable attributes of a layer that a chain depends on."""
    own = vars(layer)
    changed = any(own[name] for name in HOOKS) or any(own.get(name) for name in OWN)
    changed = changed or any(vars(everywhere)[name] for name in ANYWHERE)
    parameters = [
        (id(p), p.requires_grad, bool(p._backward_hooks)) for p in layer._parameters.values() if p is not None
    ]
    return id(layer), type(layer), changed, parameters, [own.get(name) for name in SETTINGS]


def _made(network: Network) -> Chain | None:
    module = network.module
    flat = network.flat
    whole = flat.numel() == network.trained and flat.device.type == "cpu" and flat.dtype == torch.float32
    if type(module) is not nn.Sequential or not whole or any(_look(layer)[2] for layer in module.modules()):
        return None
    inside = [part for layer in module for part in (layer if type(layer) is Projected else (layer,))]
    layers = [layer for layer in inside if type(layer) is not nn.Dropout or layer.p]
    names = ("weight", "bias")  # in the order of gradients
    own = [id(p) for layer in layers for p in map(layer._parameters.get, names) if p is not None]
    hooked = any(p._backward_hooks for p in network.parameters)
    if hooked or own != [id(p) for p in network.parameters] or not layers or type(layers[-1]) is not nn.Linear:
        return None  # for instance shared parameters, and parameters outside of layers
    numbers = iter(network.own)
    made = [_layer(layer, [next(numbers) for p in layer._parameters.values() if p is not None]) for layer in layers]
    sound = [layer for layer in made if layer is not None]
    return Chain(sound, layers[-1]) if len(sound) == len(layers) and _fitting(layers) else None


def _fitting(layers: Sequence[nn.Module]) -> bool:
    """Return whether every linear layer receives rows, and no layer changes the chain's input in place."""
    kinds = [type(layer) for layer in layers]
    given = len(list(takewhile(lambda kind: kind is nn.Flatten, kinds)))
    spoilt = isinstance(layers[given], nn.ReLU) and layers[given].inplace
    return not spoilt and nn.Flatten in kinds and kinds.index(nn.Flatten) < kinds.index(nn.Linear)


def _layer(layer: nn.Module, numbers: Sequence[Tensor]) -> _Layer | None:
    """Return a layer's forward and backward pass, given its parameters; None for an unknown kind of layer."""
    if type(layer) not in KNOWN:
        return None
    if isinstance(layer, nn.Linear) and len(numbers) == 2 and min(layer.weight.shape) > 1:  # 1: other order of sums
        return _Linear(*numbers)
    if isinstance(layer, nn.Conv2d) and len(numbers) == 2:
        plain = layer.padding_mode == "zeros" and isinstance(layer.padding, tuple)
        return _Convolution(layer, *numbers) if plain else None
    if isinstance(layer, nn.MaxPool2d) and not layer.return_indices:
        return _Pool(layer)
    if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        return _Flatten()
    if isinstance(layer, nn.Dropout) and layer.p < 1 and not layer.inplace:
        return _Dropout(layer)
    if isinstance(layer, Asinh):
        return _Asinh()
    if isinstance(layer, Soft):
        return _Soft(layer)
    return _Relu(layer) if isinstance(layer, nn.ReLU) else None

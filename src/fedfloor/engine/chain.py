"""Networks that are chains of layers: loss and gradient written out, without automatic differentiation.

PyTorch notes every operation of a pass and then looks for the way back, which takes a small network a quarter of its
step. A chain's way back is known beforehand. The functions called are those that PyTorch itself would call, in its
order and with its arguments, so that losses, logits and gradients are the same to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedfloor.models.network import Network

_relu_back = torch.ops.aten.threshold_backward.default
_pool_back = torch.ops.aten.max_pool2d_with_indices_backward.default
_convolution_back = torch.ops.aten.convolution_backward.default
_softmax_back = torch.ops.aten._log_softmax_backward_data.default
Gradients = tuple[Tensor, Tensor, tuple[Tensor, ...]]  # losses, logits, the gradient for each parameter
MEAN, EACH = 1, 0  # how PyTorch numbers what becomes of a mini-batch's losses
IGNORED = -100  # PyTorch's label for samples that do not count; there are none
KNOWN = (nn.Linear, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Dropout)
_loss: Callable[..., Tensor] = torch._C._nn.nll_loss_nd


class _Layer(ABC):
    """A layer's way there and back; what it needs on the way back it keeps until then."""

    trained = False  # whether it has parameters

    @abstractmethod
    def there(self, x: Tensor) -> Tensor:
        """Return what it makes of a mini-batch."""

    @abstractmethod
    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:
        """Return ∂loss/∂x from ∂loss/∂(what it made), or anything if nobody wants it.

        Those of its own parameters, the last one's first, are added to ``own``.
        """


class _Linear(_Layer):
    trained = True

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias, self.turned = weight, bias, weight.t()

    def there(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.addmm(self.bias, x, self.turned)

    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:
        own += grown.sum(0), grown.t().mm(self.x)
        return grown.mm(self.weight) if further else grown


class _Convolution(_Layer):
    trained = True

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias, self.groups = weight, bias, layer.groups
        self.stride, self.dilation = list(layer.stride), list(layer.dilation)
        self.padding = [int(one) for one in layer.padding]

    def there(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:
        form, wanted = (self.stride, self.padding, self.dilation), [further, True, True]
        before, weight, bias = _convolution_back(
            grown, self.x, self.weight, [len(self.bias)], *form, False, [0, 0], self.groups, wanted
        )
        own += bias, weight
        return before  # type: ignore[no-any-return]


class _Relu(_Layer):
    def __init__(self, *, given: bool) -> None:
        self.work = torch.relu if given else torch.relu_  # what the chain is given stays as it is

    def there(self, x: Tensor) -> Tensor:
        self.made = self.work(x)
        return self.made

    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:  # noqa: ARG002
        return _relu_back(grown, self.made, 0)  # type: ignore[no-any-return]


class _Pool(_Layer):
    def __init__(self, layer: nn.MaxPool2d) -> None:
        self.size, self.stride, self.padding, self.dilation = (
            [one, one] if isinstance(one, int) else list(one)
            for one in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        )
        self.up = layer.ceil_mode

    def there(self, x: Tensor) -> Tensor:
        self.x = x
        made, self.places = torch._C._nn.max_pool2d_with_indices(
            x, self.size, self.stride, self.padding, self.dilation, self.up
        )
        return made

    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:  # noqa: ARG002
        form = (self.size, self.stride, self.padding, self.dilation, self.up)
        return _pool_back(grown, self.x, *form, self.places)  # type: ignore[no-any-return]


class _Dropout(_Layer):
    def __init__(self, layer: nn.Dropout) -> None:
        self.kept = 1 - layer.p

    def there(self, x: Tensor) -> Tensor:
        self.noise = torch.empty_like(x).bernoulli_(self.kept).div_(self.kept)
        return x * self.noise

    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:  # noqa: ARG002
        return grown * self.noise


class _Flatten(_Layer):
    def there(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def back(self, grown: Tensor, own: list[Tensor], *, further: bool) -> Tensor:  # noqa: ARG002
        return grown.view(self.shape)


class Chain:
    """A network that is a chain of layers, ended by a linear one, in training mode."""

    def __init__(self, layers: Sequence[_Layer], classes: int) -> None:
        self._layers = layers
        first = next(place for place, one in enumerate(layers) if one.trained)  # nobody asks what is before it
        self._further = [(one, place > first) for place, one in enumerate(layers) if place >= first][::-1]
        self._wrong = torch.diag(torch.full((classes,), -1.0))
        self._seeds: dict[int, Tensor] = {}

    def mean(self, x: Tensor, y: Tensor) -> Gradients:
        """Return (mean cross-entropy [], logits [batch, classes], its gradient for each parameter)."""
        logits, said = self._said(x)
        seeds = self._seeds.get(len(y))
        if seeds is None:
            seeds = self._seeds[len(y)] = self._wrong / len(y)
        return _loss(said, y, None, MEAN, IGNORED), logits, self._back(said, seeds.index_select(0, y))

    def weighted(self, x: Tensor, y: Tensor, weights: Tensor) -> Gradients:
        """Return (cross-entropies [batch], logits, gradients of Σ weights·cross-entropies)."""
        logits, said = self._said(x)
        seed = self._wrong.index_select(0, y).mul_(weights[:, None])
        return _loss(said, y, None, EACH, IGNORED), logits, self._back(said, seed)

    def _said(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for one in self._layers:
            x = one.there(x)
        return x, x.log_softmax(1)

    def _back(self, said: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
        own: list[Tensor] = []
        grown = _softmax_back(seed, said, 1, said.dtype)
        for one, further in self._further:
            grown = one.back(grown, own, further=further)
        return tuple(reversed(own))


_known: WeakKeyDictionary[Network, Chain | None] = WeakKeyDictionary()


def of(network: Network) -> Chain | None:
    """Return a network as a chain; None where it is none, or not on the CPU."""
    if network not in _known:
        _known[network] = _made(network)
    return _known[network]


def _made(network: Network) -> Chain | None:
    module, flat = network.module, network.flat
    whole = flat.numel() == network.trained and flat.device.type == "cpu" and flat.dtype == torch.float32
    if type(module) is not nn.Sequential or not whole or any(_changed(one) for one in module.modules()):
        return None
    known = [one for one in module if not isinstance(one, nn.Dropout) or one.p]
    shared = sum(each is not None for one in known for each in one._parameters.values()) > len(network.parameters)
    last = known[-1] if known else None
    if shared or any(type(one) not in KNOWN for one in known) or not isinstance(last, nn.Linear):
        return None
    own = iter(network.own)
    made = sum(1 for _ in takewhile(lambda one: isinstance(one, nn.Flatten), known))  # until then it is what was given
    layers = [_layer(one, own, given=place <= made) for place, one in enumerate(known)]
    sound = [one for one in layers if one is not None]
    return Chain(sound, last.out_features) if len(sound) == len(known) else None


def _changed(one: nn.Module) -> bool:
    """Return whether a layer does something else than its class says, or something beside it."""
    hooks = (one._forward_hooks, one._forward_pre_hooks, one._backward_hooks, one._backward_pre_hooks)
    return "forward" in vars(one) or any(hooks)


def _layer(one: nn.Module, own: Iterator[Tensor], *, given: bool) -> _Layer | None:
    """Return a layer with the next of its network's parameters; None if it is not known."""
    tensors = [next(own) for each in one._parameters.values() if each is not None]
    if isinstance(one, nn.Linear) and len(tensors) == 2 and min(one.weight.shape) > 1:  # 1: sums in another order
        return _Linear(*tensors)
    if (
        isinstance(one, nn.Conv2d)
        and len(tensors) == 2
        and one.padding_mode == "zeros"
        and isinstance(one.padding, tuple)
    ):
        return _Convolution(one, *tensors)
    if isinstance(one, nn.MaxPool2d) and not one.return_indices:
        return _Pool(one)
    if isinstance(one, nn.Flatten) and (one.start_dim, one.end_dim) == (1, -1):
        return _Flatten()
    if isinstance(one, nn.Dropout) and one.p < 1:
        return _Dropout(one)
    return _Relu(given=given) if isinstance(one, nn.ReLU) else None

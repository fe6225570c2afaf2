"""A network with all its numbers in one flat buffer, so that a model is one vector that a visit changes in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedfloor.base.chance import drawing, torch_seed
from fedfloor.base.errors import SettingError, nearest, unknown
from fedfloor.base.machine import require_memory
from fedfloor.base.outside import loaded, located
from fedfloor.models import classifier as classifiers
from fedfloor.models.classifier import HALF, as_found, check
from fedfloor.models.parcel import Parcel
from fedfloor.models.settings import with_settings
from fedfloor.models.zoo import NETWORKS, Builder, Shape, pool_first

COPIES = 3  # least number of copies of a model in training: the model, the arrived model, the gradient
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
HEAD = ("head", "classifier")
PARTS = ("all", *HEAD, "body", "norms", "nothing")
BUT = "all but "  # prefix of a part's name for all but this part
Given = Mapping[str, Any] | None  # settings of a network
Adapt = Callable[[nn.Module, str | None, int, Shape], tuple[nn.Module, str | None]]


class Network:
    """A module over one flat vector: trained parameters, then frozen ones, then floating-point buffers.

    Frozen parameters (``requires_grad`` is false) and buffers (batch-norm statistics) travel with the model and are
    averaged like trained parameters, but no optimiser step changes them.

    Convolutional networks store their weights channels-last, in the flat vector too. This is a fixed property of the
    network, because it changes the order of sums and therefore the last bits of results.

    Attributes:
        module: the network; its tensors are views of ``flat``.
        flat: float32 [P], P = trained + frozen parameters + buffers.
        trained: the number of trained values at the front of ``flat``.
        parameters: the trained parameters, views of ``flat[:trained]`` in the module's order.
        channels_last: whether images and convolution weights are laid out channels-last.
        classifier: the path of the classifier layer, such as ``"8"`` or ``"head"``; None if it is unknown.
    """

    def __init__(self, module: nn.Module, classifier: str | None = None) -> None:
        self.module = module
        self.classifier = classifier
        self.channels_last = any(isinstance(part, nn.Conv2d) for part in module.modules())
        slots = _slots(module)
        sizes = [tensor.numel() for _, _, tensor in slots]
        self.flat = torch.empty(sum(sizes), dtype=slots[0][2].dtype, device=slots[0][2].device)
        self.parameters: list[nn.Parameter] = []
        self._named: list[tuple[str, Tensor]] = []
        for (name, owner, tensor), part in zip(slots, self.flat.split(sizes), strict=True):
            view = self.shaped(part, tensor.shape)
            view.copy_(tensor.detach())
            attribute = name.rpartition(".")[2]
            if isinstance(tensor, nn.Parameter):
                tensor.data = view
                if tensor.requires_grad:
                    self.parameters.append(tensor)
            else:
                owner._buffers[attribute] = view
            self._named.append((name, view))
        self.trained = sum(parameter.numel() for parameter in self.parameters)

    def to(self, device: torch.device) -> Network:
        """Return the network on a device: itself if it is there already, otherwise a copy."""
        if self.flat.device == device:
            return self
        return Network(copy.deepcopy(self.module).to(device), self.classifier)

    def shaped(self, part: Tensor, shape: torch.Size) -> Tensor:
        """Return a slice of a flat vector as a tensor of ``shape``, channels-last if the network is."""
        if self.channels_last and len(shape) == 4:
            out, into, height, width = shape
            return part.view(out, height, width, into).permute(0, 3, 1, 2)
        return part.view(shape)

    def within(self, part: slice) -> list[nn.Parameter]:
        """Return the trained parameters in a slice of the flat vector; SettingError: it splits one or contains none."""
        parameters = []
        at = 0
        for parameter in self.parameters:
            if part.start <= at and at + parameter.numel() <= part.stop:
                parameters.append(parameter)
            at += parameter.numel()
        if not parameters or sum(p.numel() for p in parameters) != part.stop - part.start:
            raise SettingError(
                f"the part {part.start} to {part.stop} of the model is no whole number of its {len(self.parameters)} "
                "trained parameters: an objective's 'trains' must name whole layers."
            )
        return parameters

    def shaped_like(self, parameters: list[nn.Parameter]) -> Callable[[Tensor], list[Tensor]]:
        """Return the function that cuts a flat vector, such as momentum, into views shaped like the parameters."""
        sizes = [p.numel() for p in parameters]
        shapes = [p.shape for p in parameters]
        return lambda vector: [self.shaped(*piece) for piece in zip(vector.split(sizes), shapes, strict=True)]

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return views of another flat vector shaped like the trained parameters."""
        return self.shaped_like(self.parameters)(vector[: self.trained])

    @cached_property
    def own(self) -> list[Tensor]:
        """The views of ``flat`` shaped like the trained parameters."""
        return self.views(self.flat)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of another flat vector, such as the arrived model, by name, shaped as in the module."""
        parts = vector.split([view.numel() for _, view in self._named])
        return {name: self.shaped(part, view.shape) for (name, view), part in zip(self._named, parts, strict=True)}

    @cached_property
    def layout(self) -> dict[str, tuple[int, int]]:
        """The place of each tensor in the flat vector: name → (first, last + 1)."""
        places = {}
        at = 0
        for name, view in self._named:
            places[name] = (at, at + view.numel())
            at += view.numel()
        return places

    @cached_property
    def variances(self) -> list[slice]:
        """The slices of the flat vector that hold running variances of normalisation layers."""
        norms = [name for name, m in self.module.named_modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        names = [f"{norm}.running_var".lstrip(".") for norm in norms]
        return [slice(*self.layout[name]) for name in names if name in self.layout]

    def state(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a flat vector as named tensors in PyTorch's usual memory format, for files and other programs."""
        return {name: view.contiguous() for name, view in self.named(vector).items()}

    def span(self, path: str) -> list[slice]:
        """Return the slices of the flat vector with a layer's trained parameters, in order, adjacent slices joined.

        >>> Network(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))).span("1")
        [slice(25, 43, None)]
        """
        part = classifiers.layer(self.module, path)
        if part is None:
            raise classifiers.no_layer(f"'{path}'", type(self.module).__name__, self.module, path)
        inside = {id(parameter) for parameter in part.parameters()}
        ends = list(accumulate((parameter.numel() for parameter in self.parameters), initial=0))
        spans = [slice(*ends) for ends in pairwise(ends)]
        return list(_joined([s for s, p in zip(spans, self.parameters, strict=True) if id(p) in inside]))

    @property
    def reads_missing(self) -> bool:
        """Whether the module takes missing values as NaN, and not as their channel's mean."""
        return bool(getattr(self.module, "reads_missing", False))

    @property
    def size(self) -> int:
        """The size of the model in bytes."""
        return self.parcel("all").size({"w": self.flat})

    def parcel(self, travels: str) -> Parcel:
        """Return the parcel that travels to visits and from them: see :attr:`fedfloor.plan.nodes.Work.travels`.

        >>> network = Network(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), "1")
        >>> network.parcel("all but head").parts
        (slice(0, 25, None),)
        """
        return Parcel(self.numbers(travels), self.flat.numel())

    def numbers(self, name: str) -> tuple[slice, ...]:
        """Return the slices of the flat vector that hold a named part of the model, ascending, adjacent slices joined.

        Args:
            name: ``all``, frozen numbers and statistics included; ``head``, the ``classifier``; ``body``, all but the
                classifier; ``norms``, weights and statistics of normalisation layers, empty without such layers;
                ``nothing``; patterns of tensor names, such as ``features.*`` or ``first.*+last.*``; or ``all but`` and
                one of these names.

        Raises:
            SettingError: the network has no such part, or its classifier is unknown.

        >>> network = Network(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "2")
        >>> network.numbers("norms"), network.numbers("0.*"), network.numbers("0.weight+2.bias")
        ((slice(25, 35, None), slice(53, 63, None)), (slice(0, 25, None),), (slice(0, 20, None), slice(50, 53, None)))
        """
        whole = self.flat.numel()
        if name in ("all", "nothing"):
            return (slice(0, whole),) if name == "all" else ()
        if name == "body" or name.startswith(BUT):  # the gaps between the slices of the other part
            others = self.numbers("head" if name == "body" else name[len(BUT) :])
            ends = [0, *(end for part in others for end in (part.start, part.stop)), whole]
            return tuple(slice(*gap) for gap in zip(ends[::2], ends[1::2], strict=True) if gap[1] > gap[0])
        if name in HEAD:
            return (self.part(name),)
        inside = {  # views of one flat vector begin at different addresses
            tensor.data_ptr()
            for layer in self.module.modules()
            if isinstance(layer, NORMS)
            for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
        }
        pieces = [
            slice(*self.layout[tensor])
            for tensor, view in self._named
            if (view.data_ptr() in inside if name == "norms" else any(fnmatchcase(tensor, p) for p in name.split("+")))
        ]
        if not pieces and name != "norms":
            raise SettingError(
                f"'{name}' is not part of model '{type(self.module).__name__}':{nearest(name, PARTS)} Take all, head, "
                f"body, norms, or a pattern of: {', '.join(self.layout)}.",
                key="part-of-model",
            )
        return _joined(pieces)

    def part(self, name: str) -> slice:
        """Return the slice of a named part's trained numbers (:meth:`numbers`); SettingError: they are several slices.

        >>> network = Network(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), "1")
        >>> network.part("all"), network.part("head"), network.part("body")
        (slice(0, 43, None), slice(25, 43, None), slice(0, 25, None))
        """
        if name == "all":
            if self.trained:
                return slice(0, self.trained)
            by = getattr(self.module, "set_by", None)
            raise SettingError(
                f"this network has nothing to train{f': method {by!r} sets it' if by else ''}. Choose that method, or "
                "another network (model.name).",
                key="nothing-to-train",
            )
        key = f"work.trains = '{name}'"
        model = type(self.module).__name__
        if name in HEAD and self.classifier is None:
            raise classifiers.unknown_classifier(key, model, self.module)
        pieces = self.numbers(name) if name not in HEAD else self.span(self.classifier or "")
        trained = [slice(piece.start, min(piece.stop, self.trained)) for piece in pieces if piece.start < self.trained]
        if len(trained) != 1:
            raise SettingError(
                f"{key}: the trained parameters of '{self.classifier if name in HEAD else name}' of model '{model}' "
                f"are {len(trained)} separate pieces of the model, not one. Name a layer whose parameters are "
                "its own with model.classifier, or train 'all'."
            )
        return trained[0]

    @property
    def classifier_parameters(self) -> int:
        """The number of the classifier's trained parameters; 0 if the classifier is unknown."""
        return 0 if self.classifier is None else sum(part.stop - part.start for part in self.span(self.classifier))


def _joined(parts: Sequence[slice]) -> tuple[slice, ...]:
    """Return slices in ascending order, adjacent slices joined."""
    joined: list[slice] = []
    for part in sorted(parts, key=lambda part: part.start):
        if joined and joined[-1].stop == part.start:
            joined[-1] = slice(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def _slots(module: nn.Module) -> list[tuple[str, nn.Module, Tensor]]:
    """Return (name, owning module, tensor) of trained parameters, then frozen ones, then floating-point buffers."""
    slots: list[tuple[str, nn.Module, Tensor]] = [(name, module, p) for name, p in module.named_parameters()]
    slots.sort(key=lambda slot: not slot[2].requires_grad)  # stable: otherwise in the module's order
    for prefix, owner in module.named_modules():
        for attribute, buffer in owner.named_buffers(recurse=False):
            if buffer.is_floating_point():
                slots.append((f"{prefix}.{attribute}".lstrip("."), owner, buffer))
    return slots


def build(
    name: str, shape: Shape, classes: int, seed: int, classifier: str | None = None, adapt: Adapt | None = None,
    init: str = "default", settings: Given = None,
) -> Network:  # fmt: skip
    """Build a network by name, with initial weights that depend on the seed alone.

    Args:
        name: one of :data:`fedfloor.models.zoo.NETWORKS`, or the user's own ``module:function``, which is called with
            (shape, classes) and returns a ``torch.nn.Module``.
        shape: the shape of a sample: an image (1, 28, 28), a row of sensors (52,) or a window of sensors (52, 20).
        classes: the number of outputs per sample: classes, or numbers that the task predicts; the network's output must
            be [batch, classes].
        seed: the experiment's seed.
        classifier: the path of the classifier layer; by default :func:`fedfloor.models.classifier.find` determines it.
        adapt: the function (network, its classifier's path, classes, shape) → (trained network, its classifier's path),
            which adds an objective's head or gates.
        init: ``glorot`` replaces the initial weights of the network, but not those of parts added by ``adapt``; see
            :func:`glorot`.
        settings: the values of further arguments of the user's own function; see
            :func:`fedfloor.models.settings.with_settings`.

    >>> network = build("mlp-2nn", (1, 28, 28), 10, seed=0)
    >>> network.flat.numel(), network.classifier, network.classifier_parameters
    (199210, '5', 2010)
    """
    with drawing(torch_seed(seed, "weights")):
        return Network(*assembled(name, shape, classes, classifier, adapt, init, settings))


def unseeded(name: str, shape: Shape, classes: int, settings: Given = None) -> str:
    """Return the reason why the initial weights of a user's own network do not follow the seed; "" if they do.

    The network is built twice from one seed, and once from another: equal seeds must give equal trained parameters, and
    other seeds other ones. Arguments as for :func:`build`.
    """
    numbers = []
    kept = True
    for seed in (0, 0, 1):
        with drawing(seed):
            module = plain(name, shape, classes, settings)
            kept = kept and torch.initial_seed() == seed
        numbers.append([parameter.detach() for parameter in module.parameters() if parameter.requires_grad])
    first, again, other = numbers
    if not all(map(torch.equal, first, other)):
        same = all(map(torch.equal, first, again))
        return "" if same else "equal seeds give different weights, so that the run cannot be repeated"
    return "every seed gives the same weights" + ("" if kept else ", because its function seeds PyTorch")


def assembled(
    name: str, shape: Shape, classes: int, classifier: str | None, adapt: Adapt | None, init: str = "default",
    settings: Given = None,
) -> tuple[nn.Module, str | None]:  # fmt: skip
    """Return the module of :func:`build`, with weights from PyTorch's global generator, and its classifier's path."""
    module = plain(name, shape, classes, settings)
    if init == "glorot":
        glorot(name, module)
    if name in NETWORKS and isinstance(module, nn.Sequential):  # others may name layers by place
        pool_first(module)
    with as_found(module):
        kind = check(name, module, shape, classes)
        head = classifiers.find(name, module, shape, classes, classifier)
    if adapt is not None:
        module, head = adapt(module, head, classes, shape)
        with as_found(module):
            kind = check(name, module, shape, classes)
    if kind in HALF:  # of a network that computes with autocast: losses and metrics need single precision
        module.register_forward_hook(_single)
    return module, head


def _single(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return output.float()


def plain(name: str, shape: Shape, classes: int, settings: Given = None) -> nn.Module:
    """Return a network as its builder returns it, with weights from PyTorch's global generator."""
    make = builder(name, settings)
    try:
        if name in NETWORKS:  # first without memory; a user's own function may do more than build a network
            with torch.device("meta"):
                numbers = sum(parameter.numel() for parameter in make(shape, classes).parameters())
            setting = f"model.name = '{name}' on samples of shape {shape}"
            require_memory(setting, 4 * COPIES * numbers, "Use another network, or smaller samples.")
        module = make(shape, classes)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"model '{name}' could not be built: {located(error)}.") from error
    if not isinstance(module, nn.Module):
        raise SettingError(f"model '{name}' returned {type(module).__name__}: it must return a torch.nn.Module.")
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise SettingError(
            f"model '{name}' has lazy layers: give them their sizes, from the 'shape' it is called with."
        )
    return module


def glorot(name: str, module: nn.Module) -> None:
    """Draw the weights of linear and convolutional layers uniformly within ±√(6 / (fan in + fan out)); biases are 0.

    Glorot and Bengio, AISTATS 2010. Frozen parameters and other layers do not change.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))]
    drawn = [layer for layer in layers if layer.weight.requires_grad]
    if not drawn:
        raise SettingError(
            f"model '{name}' has no trained linear or convolutional layer: model.init = 'glorot' has nothing "
            "to draw. Leave it out."
        )
    for layer in drawn:
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None and layer.bias.requires_grad:
            nn.init.zeros_(layer.bias)


def builder(name: str, settings: Given = None) -> Builder:
    """Return the function that builds a network with settings, by the network's name."""
    if ":" in name:
        return with_settings(name, loaded(name, "model"), settings)
    if name not in NETWORKS:
        raise SettingError(f"model.name: {unknown('model', name, NETWORKS)}")
    return with_settings(name, NETWORKS[name], settings)


def count(name: str, shape: Shape, classes: int) -> int:
    """Return a network's number of parameters, frozen ones included; PyTorch's global generator does not change.

    >>> count("logistic", (1, 28, 28), 10)
    7850
    """
    with drawing():
        return sum(p.numel() for p in plain(name, shape, classes).parameters())

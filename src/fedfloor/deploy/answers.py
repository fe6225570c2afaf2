"""Answers to a ``Probe``, as devices send them: what each question may be answered with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedfloor.deploy.message import Arrays, RefusedError
from fedfloor.engine.engine import Engine
from fedfloor.plan.nodes import Probe

MOST = 1 << 53  # of a count: what numbers of any kind can say
VECTORS = ("features", "gradient", "profile")


def counts(said: object, classes: int, least: int = 0) -> list[int]:
    """Return class counts as somebody said them.

    Args:
        said: what came.
        classes: how many there are.
        least: the smallest count; noise makes some of a whole local set's negative.

    Raises:
        RefusedError: it is something else.
    """
    if isinstance(said, list) and len(said) == classes and all(type(n) is int and least <= n < MOST for n in said):
        return said
    raise RefusedError("answer", f"it is no list of {classes} whole numbers, one for each class.")


def read(node: Probe, about: Mapping[str, Any], arrays: Arrays, engine: Engine) -> Any:
    """Return a device's answer, JSON or a tensor.

    Args:
        node: the question.
        about: the header of what came; JSON stands in its ``answer``.
        arrays: a vector is ``answer`` of these.
        engine: knows model and classes.

    Raises:
        RefusedError: the question cannot be answered with that.
    """
    said = about.get("answer")
    if node.what in VECTORS:
        return _vector(node.what, arrays, engine)
    if arrays:
        raise RefusedError("kind", f"arrays came; '{node.what}' is answered in words.")
    if node.what in ("census", "classes"):
        return counts(said, len(engine.park.dataset.classes), 0 if node.what == "census" else 1 - MOST)
    if node.what == "hash":
        return counts(said, int(node.settings["hashes"] or 0), 1 - MOST)
    if node.what == "loss":
        return _number(said)
    if node.what == "resources":
        if not isinstance(said, dict) or not {"pass_s"} <= set(said) <= {"pass_s", "distance_m"}:
            raise RefusedError("answer", "it does not say pass_s, and distance_m where there is one.")
        return {name: _number(one) for name, one in said.items()}
    raise RefusedError("kind", f"'{node.what}' is no question that is known here.")


def alike(said: Mapping[int, Any], *, some: bool = False) -> dict[int, RefusedError]:
    """Return whose vector has another length than most have: how many features there are only devices know.

    Of lengths that are equally frequent that of the first device counts.

    Args:
        said: device → what it answered.
        some: whether these are but some of the devices: then nobody is refused where less than half agree.
    """
    sizes = {k: said[k].numel() for k in sorted(said) if isinstance(said[k], torch.Tensor)}
    if len(set(sizes.values())) < 2:
        return {}
    ((usual, agree),) = Counter(sizes.values()).most_common(1)
    if some and 2 * agree <= len(sizes):
        return {}
    return {
        k: RefusedError("shape", f"{size} numbers came; most devices send {usual}.")
        for k, size in sizes.items()
        if size != usual
    }


def _vector(what: str, arrays: Arrays, engine: Engine) -> torch.Tensor:
    network = engine.network
    kind = network.flat.numpy().dtype
    size = {"gradient": network.trained, "profile": network.flat.numel()}.get(what)
    if set(arrays) != {"answer"}:
        raise RefusedError("names", f"{sorted(arrays)} came; 'answer' is waited for.")
    got = arrays["answer"]
    if got.dtype != kind or got.ndim != 1 or not got.size or size not in (None, got.size):
        wanted = "any" if size is None else size
        raise RefusedError("shape", f"{got.dtype} {list(got.shape)} came; {kind} [{wanted}] is waited for.")
    return torch.from_numpy(np.array(got))


def _number(said: object) -> float:
    if type(said) not in (int, float) or not 0 <= said < math.inf:  # type: ignore[operator]
        raise RefusedError("answer", "it is no finite number of at least 0.")
    return float(said)  # type: ignore[arg-type]

"""Answers to a ``Probe``, as devices send them: what each question may be answered with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedfloor.deploy import ranges
from fedfloor.deploy.message import Arrays, RefusedError
from fedfloor.engine.engine import Engine
from fedfloor.plan.nodes import Probe

VECTORS = ("features", "gradient", "profile")


def read(node: Probe, device: int, answer: object, arrays: Arrays, engine: Engine) -> Any:
    """Return a device's answer, JSON or a tensor.

    Args:
        node: the question.
        device: whose answer it is.
        answer: JSON that came.
        arrays: a vector is ``answer`` of these.
        engine: knows model, classes and what devices hold.

    Raises:
        RefusedError: the question cannot be answered with that.
    """
    if node.what in VECTORS:
        return _vector(node.what, arrays, engine)
    if arrays:
        raise RefusedError("kind", f"arrays came; '{node.what}' is answered in words.")
    with ranges.of("answer"):
        return _plain(node, device, answer, engine)


def _plain(node: Probe, device: int, answer: object, engine: Engine) -> Any:
    """Return an answer in JSON."""
    if node.what in ("census", "classes"):
        park = engine.park
        held = int((park.holdings if node.what == "census" else park.sizes)[device])
        noise = ranges.noise(park.census_epsilon)
        return ranges.counts(answer, len(park.dataset.classes), held, noise, -noise if node.what == "classes" else 0)
    if node.what == "hash":
        hashes = ranges.rows(answer, int(node.settings["hashes"] or 0), "its hashes")
        return [ranges.whole(one, -ranges.COUNT, ranges.COUNT, "a hash") for one in hashes]
    if node.what == "loss":
        return ranges.number(answer, 0, ranges.LOSS, "its loss")
    if node.what == "resources":
        if not isinstance(answer, dict) or not {"pass_s"} <= set(answer) <= {"pass_s", "distance_m"}:
            raise RefusedError("answer", "it does not say pass_s, and distance_m where there is one.")
        most = {"pass_s": ranges.SECONDS, "distance_m": ranges.METRES}
        return {name: ranges.number(one, 0, most[name], name) for name, one in answer.items()}
    raise RefusedError("kind", f"'{node.what}' is no question that is known here.")


def alike(said: Mapping[int, Any], *, some: bool = False) -> dict[int, RefusedError]:
    """Return whose vector has another length than most have: how many features there are only devices know.

    Where no length is the most frequent, all of these vectors are refused.

    Args:
        said: device → what it answered.
        some: whether these are but some of the devices: then nobody is refused where less than half agree.
    """
    sizes = {k: said[k].numel() for k in sorted(said) if isinstance(said[k], torch.Tensor)}
    if len(set(sizes.values())) < 2:
        return {}
    (usual, agree), (_, next_most) = Counter(sizes.values()).most_common(2)
    if some and 2 * agree <= len(sizes):
        return {}
    tie = agree == next_most
    expected = "no length is that of most devices" if tie else f"most devices send {usual}"
    return {
        k: RefusedError("shape", f"{size} numbers came; {expected}.")
        for k, size in sizes.items()
        if tie or size != usual
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
    with ranges.of("answer"):
        ranges.vector(got, "it")
    return torch.from_numpy(np.array(got))

"""Answers to a ``Probe``, as devices send them: what each question may be answered with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedfloor import ranges
from fedfloor.deploy.message import Arrays
from fedfloor.engine.engine import Engine
from fedfloor.engine.question import Question
from fedfloor.engine.questions import question
from fedfloor.errors import SettingError
from fedfloor.plan.nodes import Probe
from fedfloor.ranges import RefusedError


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
    asked = question_of(node, "kind")
    if asked.vector:
        vector = _vector(asked.length(engine), arrays, engine)
        with ranges.of("answer"):
            asked.fits(vector, device, engine)
        return vector
    if arrays:
        raise RefusedError("kind", f"arrays came; '{node.what}' is answered in words.")
    with ranges.of("answer"):
        return asked.checked(answer, device, engine)


def question_of(node: Probe, reason: str) -> Question:
    """Return the question that a message names.

    Raises:
        RefusedError: there is none of that name; it is counted under ``reason``.
    """
    try:
        return question(node)
    except SettingError as error:
        raise RefusedError(reason, str(error)) from error


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


def _vector(size: int | None, arrays: Arrays, engine: Engine) -> torch.Tensor:
    kind = engine.network.flat.numpy().dtype
    if set(arrays) != {"answer"}:
        raise RefusedError("names", f"{sorted(arrays)} came; 'answer' is waited for.")
    got = arrays["answer"]
    if got.dtype != kind or got.ndim != 1 or not got.size or size not in (None, got.size):
        wanted = "any" if size is None else size
        raise RefusedError("shape", f"{got.dtype} {list(got.shape)} came; {kind} [{wanted}] is waited for.")
    with ranges.of("answer"):
        ranges.vector(got, "it")
    return torch.from_numpy(np.array(got))

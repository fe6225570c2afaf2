"""``factors`` of ``evaluation.json``: by which factor each column stretches a life, or raises its risk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Inputs
from fedfloor.engine.engine import Engine
from fedfloor.methods.contract import Method, State
from fedfloor.methods.exact.sums import EFFECTS, GROUPS, ExactSums
from fedfloor.tasks.lives import log_rank

LEVEL = 0.95
LARGEST = 200.0  # logarithm of a factor
UNKNOWN = 1e-9  # of a change that the lives do not determine, as a share of it


def factors(method: Method, engine: Engine, state: State) -> dict[str, Any]:
    r"""Return the factors of a regression of lives as JSON, {} for other methods and before its last step.

    The effect β of a column is the logarithm of its factor per unit, with the standard error σ by the inverse of the
    summed information; the interval of 95 % is e^{(β ± 1.96·σ)·s} for a step s of the column, and p that of Wald's
    test, 2·Φ(−|β|/σ). The values of a category are compared with its first one. Columns that never vary are left out,
    and intervals where several samples are of one machine, which σ would take for independent.

    Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, 2002, chapter 3.

    Returns:
        ``ratio``, what the factors are; ``scaled``, whether units are those of ``data.normalise``; ``ridge``; and
        ``rows`` with ``name``, ``than`` of a category, ``step``, ``effect``, ``ratio``, and where they are known
        ``error``, ``low``, ``high`` and ``p``; for Cox's regression ``groups``, the log-rank test between the values
        of each category, with ``statistic``, ``freedom`` and ``p``.
    """
    if not isinstance(method, ExactSums) or EFFECTS not in state.tensors:
        return {}
    from scipy.stats import norm

    table = state.tensors[EFFECTS].cpu().numpy()
    park = engine.park
    task: Any = engine.task
    unit = method.unit(task)
    apart = park.normalised is not None
    width = np.ones(len(engine.std)) if apart else engine.std.double().cpu().numpy()
    rows = []
    spread, unknown = np.hsplit(table[:, 1:], 2)
    for name, than, step, change in _compared(park.dataset.inputs, width, len(table)):
        effect = float(change @ table[:, 0]) * unit
        error = math.sqrt(max(float(change @ spread @ change), 0.0)) * unit
        if not float(change @ unknown @ change) < UNKNOWN * float(change @ change):
            continue
        row = {"name": name, "than": than, "step": step, "effect": effect, "ratio": _power(effect * step)}
        if task.since == "start" and error > 0:
            half = float(norm.ppf((1 + LEVEL) / 2)) * error
            low, high = (_power((effect + sign * half) * step) for sign in (-1, 1))
            row |= {"error": error, "low": low, "high": high, "p": float(2 * norm.sf(abs(effect) / error))}
        rows.append(row)
    groups = _groups(engine, state) if task.since == "start" and not apart else []
    about = {"ratio": method.ratio, "scaled": apart, "ridge": getattr(method, "ridge", 0.0), "rows": rows}
    return about | ({"groups": groups} if groups else {})


def _groups(engine: Engine, state: State) -> list[dict[str, Any]]:
    """Return the log-rank test between the values of each category, whose columns are 0 or 1, from Cox's first round.

    At weights of 0 the sums that travel are those of Kaplan and Meier for each value.
    """
    inputs = engine.park.dataset.inputs
    if GROUPS not in state.tensors or state.tensors[GROUPS].shape[1] != 1 + len(inputs.columns):
        return []
    sums = state.tensors[GROUPS].cpu().numpy()
    mean, width = (one.double().cpu().numpy()[:, None] for one in (engine.mean, engine.std))
    at_risk, failures = width * sums[:, 1:] + mean * sums[:, :1]
    found = []
    for name in inputs.coding.get("categories", {}):
        own = [place for place, column in enumerate(inputs.columns) if column.startswith(f"{name}=")]
        if len(own) > 1:
            value, freedom, p = log_rank(at_risk[own], failures[own])
            found.append({"name": name, "values": len(own), "statistic": value, "freedom": freedom, "p": p})
    return found


def _compared(
    inputs: Inputs, width: NDArray[np.float64], size: int
) -> Iterator[tuple[str, str, float, NDArray[np.float64]]]:  # fmt: skip
    """Yield what is compared: a name, the category's first value or "", a step of the column, and its change [D].

    The step is a power of ten, at most the column's deviation.
    """
    long = size // len(inputs.columns)
    first = dict[str, int]()
    for place, name in enumerate(inputs.columns):
        text = next((one for one in inputs.coding.get("categories", {}) if name.startswith(f"{one}=")), None)
        for row in range(long):
            change = np.zeros(size)
            at = place * long + row
            change[at] = 1 / width[place]
            shown = name if long == 1 else f"{name}, row {row + 1} of {long}"
            if text is None:
                yield shown, "", 10.0 ** math.floor(math.log10(width[place])), change
            elif text not in first:
                first[text] = place
            elif first[text] != place:
                change[first[text] * long + row] = -1 / width[first[text]]
                yield shown, inputs.columns[first[text]].removeprefix(f"{text}="), 1.0, change


def _power(number: float) -> float:
    return math.exp(min(max(number, -LARGEST), LARGEST))

"""Any method and any part with any task: it trains and is judged, or is refused by name with the reason."""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_methods_matrix import ALL, reason

from fedfloor.base.checking import checked
from fedfloor.base.errors import SettingError
from fedfloor.engine import separate
from fedfloor.engine.evaluate import evaluate
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import METHODS
from fedfloor.park.park import Park
from fedfloor.parts.travel.codecs import CODECS
from fedfloor.runs.parks import build_park
from fedfloor.tasks.figures import named
from fedfloor.tasks.kinds import TASKS
from floor import bits
from rounds import OWN, Job, method

OTHERS = [kind for kind in TASKS if kind != "classification"]
GIVEN = {"forecasting": {"horizon": 3}, "reconstruction": {"abnormal": "used"}}
CLASSES_ALONE = ("distilled", "focal", "replay", "weighted")
TRAVEL = {"travel", "travel_down"}
STREAM = {"kind": "recycle", "window": 6}


@cache
def park(kind: str, stream: str = "static", factories: int = 3) -> Park:
    """Return a plant of six machines in several halls, whose samples are windows of four rows."""
    table = {
        "name": "machines", "window": {"length": 4, "step": 3}, "normalise": "auto",
        "machines": {
            "runs": 2 + (kind == "reconstruction"), "life": 30, "spread": 0.1, "factories": factories, "fault": 0.1,
        },
        "stream": {"kind": "static"} if stream == "static" else STREAM,
        **({} if kind == "classification" else {"task": {"kind": kind, **GIVEN.get(kind, {})}}),
    }  # fmt: skip
    return build_park(checked(Experiment, {"data": table, "park": {"devices": 6}}, ""))


def refused(name: str, kind: str, parts: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """Why a combination is refused; None where it must run."""
    objective = parts.get("objective", {}).get("kind")
    reasons = [
        reason(name, {part: one for part, one in parts.items() if part not in TRAVEL})
    ]  # some are known before the data are, others in the first round
    if kind != "classification" and objective in CLASSES_ALONE:
        reasons.append(f"objective '{objective}' is defined for classes, and data.task is '{kind}'")
    if kind in ("reconstruction", "forecasting") and (objective == "gated" or (name == "cgau" and objective is None)):
        reasons.append("objective 'gated': the network's output must be that of its classifier")
    if kind in ("reconstruction", "forecasting") and name == "boosting":
        reasons.append("it neither forecasts nor reconstructs")
    if kind != "classification" and name == "hfedms" and settings.get("memory") != 0:
        reasons.append(f"method 'hfedms': its devices keep features by class, and data.task is '{kind}'")
    if TRAVEL & parts.keys():
        reasons.append({"local": "no models travel", "ifca": "several models", "flhc": "several models"}.get(name))
    if name == "boosting" and "travel" in parts:  # both that are tried keep an error
        reasons.append("the error that a device keeps from one visit does not belong to the next")
    return "|".join(filter(None, reasons)) or None


def attempt(
    name: str, kind: str, parts: dict[str, Any], folder: Path, stream: str = "static", factories: int = 3,
    **settings: Any,
) -> None:  # fmt: skip
    here = park(kind, stream, factories)
    settings = {**settings, "work": {**OWN.get(name, {}).get("work", {}), "lr": 0.005}}
    why = refused(name, kind, parts, settings)
    if why == "models to mix":  # Krum in a cohort: whether it has models enough depends on which devices choose it
        refusals = []
        try:
            Job(method(name, parts, **settings), here, rounds=2, folder=folder, model="mlp-sensor").run()
        except SettingError as refusal:
            refusals.append(str(refusal))
        assert all(why in text for text in refusals)
        return
    if why is not None:
        with pytest.raises(SettingError, match=why) as caught:
            Job(method(name, parts, **settings), here, rounds=2, folder=folder, model="mlp-sensor").run()
        named_by = [
            name,
            "gated" if name == "cgau" else "work.trains",
            *(one["kind"] for part, one in parts.items() if part not in TRAVEL),
        ]
        assert any(one in str(caught.value) for one in named_by)
        return
    job = Job(method(name, parts, **settings), here, rounds=2, folder=folder, model="mlp-sensor")
    state = job.run()
    assert bool(torch.isfinite(state.packet["w"]).all())
    headline = named(here.dataset.task.headline)
    if job.method.needs.separate:
        assert sorted(job.engine.memory.held) == list(range(here.devices))
        found = separate.evaluate(job.engine, job.start, headline)
    else:
        assert bits(state.packet["w"]) != bits(job.start["w"])
        found = evaluate(job.engine, state.packet["w"], job.method.objective, headline)
    value = found.figures.get(headline.name, found.accuracy)
    assert value is not None
    assert math.isfinite(value)
    assert math.isfinite(found.loss)


@pytest.mark.parametrize(("name", "kind"), list(itertools.product([*METHODS, "local-only"], OTHERS)))
def test_every_method_with_every_task(name: str, kind: str, tmp_path: Path) -> None:
    attempt(name, kind, {}, tmp_path)


PARTS = [{part: one} for part, several in ALL.items() for one in several]


@pytest.mark.parametrize(("parts", "kind"), list(itertools.product(PARTS, OTHERS)), ids=str)
def test_every_part_with_every_task(parts: dict[str, dict[str, Any]], kind: str, tmp_path: Path) -> None:
    attempt("fedavg", kind, parts, tmp_path)


CODED = ({"travel": [{"kind": "top-k", "share": 0.05}, "int8"], "travel_down": "float16"}, {"travel": "low-rank"})


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(METHODS, OTHERS)))
def test_every_method_with_codecs_and_every_task(name: str, kind: str, tmp_path: Path) -> None:
    for place, codecs in enumerate(CODED):
        attempt(name, kind, codecs, tmp_path / str(place))


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_with_every_task(codec: str, kind: str, tmp_path: Path) -> None:
    factories = 2 if codec == "secure-sum" else 3  # of a sum of two devices each knows the other's
    attempt("fedavg", kind, {"travel": codec}, tmp_path, factories=factories)


@pytest.mark.parametrize("kind", OTHERS)
def test_the_private_mixing_rule_with_every_task(kind: str, tmp_path: Path) -> None:
    for place, name in enumerate(("fedavg", "fedprox", "fedadam", "fedsr")):  # rings meet more than once: refused
        parts = {"mix": {"kind": "private", "delta": 0.1}, "selection": {"kind": "poisson", "share": 0.8}}
        attempt(name, kind, parts, tmp_path / str(place))


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedgs", {"solver": "random"}),
        ("fedgs", {}),
        ("hfedms", {"memory": 0}),
        ("hfedms", {"variant": "S", "memory": 0}),
        ("ida", {"factors": "accuracy"}),
        ("fedavg", {"fraction": 0.5}),
    ],
    ids=str,
)
def test_methods_on_streams(name: str, settings: dict[str, Any], kind: str, tmp_path: Path) -> None:
    attempt(name, kind, {}, tmp_path, "stream", **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), list(itertools.product(METHODS, TASKS)))
def test_every_method_and_part_with_every_task(name: str, kind: str, tmp_path: Path) -> None:
    for place, parts in enumerate(PARTS):
        attempt(name, kind, parts, tmp_path / str(place))

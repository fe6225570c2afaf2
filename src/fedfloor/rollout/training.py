"""A training device that also receives releases: its connection, and its judgement of a model before the release.

A judgement is the headline metric on labelled samples held out of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import own
from fedfloor.deploy.mqtt import Connection, MqttConnection, Receive, nothing, topic_parts
from fedfloor.deploy.own import Labelled
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.rollout import promise
from fedfloor.rollout.model import Model
from fedfloor.rollout.serving import Serving
from fedfloor.tasks.figures import Figure, Predictions, named
from fedfloor.tasks.metric import samples_of
from fedfloor.tasks.rankings import ranking
from fedfloor.tasks.tested import TestedSamples

BATCH = 64
LEAST = 1e-12  # lower bound of a probability in the loss
Judge = Callable[[Model, Model | None], dict[str, Any]]


class WithReleases:
    """A connection shared by training and releases, as a broker accepts only one connection per name."""

    def __init__(self, link: Connection, serving: Serving) -> None:
        self._link = link
        self._serving = serving
        self.subscribe = link.subscribe
        self.unsubscribe = link.unsubscribe
        self.publish = link.publish
        self.confirm = link.confirm

    def start(
        self, topics: Sequence[str], receive: Receive, connected: Callable[[], None], lost: Callable[[], None] = nothing
    ) -> None:
        """Connect, and pass messages about releases to ``Serving``, all others to ``receive``."""

        def route(topic: str, payload: bytes) -> None:
            (self._serving.heard if topic_parts(topic)[0] in ("release", "model") else receive)(topic, payload)

        def both() -> None:
            connected()
            self._serving.joined()

        self._link.start([*topics, *self._serving.topics], route, both, lost)
        Thread(target=self._serving.run, name="releases", daemon=True).start()

    def stop(self) -> None:
        """Stop the releases and the connection."""
        self._serving.end()
        self._link.stop()


def with_releases(
    settings: DeviceSettings, labelled: Callable[[], Labelled]
) -> Callable[[tuple[str, bytes]], Connection] | None:
    """Return a function from a device's last will to its connection; None without certificates, thus without releases.

    Args:
        labelled: returns the labelled samples for judgements; raises SettingError if there are none.
    """
    if settings.tls is None:
        return None

    def link(will: tuple[str, bytes]) -> Connection:
        made = MqttConnection(settings.name, settings.broker, settings.tls, will)
        evaluate = config.read(settings.experiment, []).evaluate
        headline = None if evaluate.headline is None else evaluate.figure
        return WithReleases(made, Serving(settings, made, partial(own.written, settings), judge(labelled, headline)))

    return link


def judge(labelled: Callable[[], Labelled], headline: Figure | None) -> Judge:
    """Return a function with which a device compares a model with the one in use.

    Args:
        labelled: returns the samples; raises SettingError if the device has none.
        headline: the metric, ``[evaluate] headline``; None: the task's own.
    """

    def judged(new: Model, used: Model | None) -> dict[str, Any]:
        try:
            seen = labelled()
            figure = headline or named(seen.task.headline)
            seen = _whole(seen, [model for model in (new, used) if model is not None])
            old = None if used is None else value(used, seen, figure)
            first = value(new, seen, figure)
            held = promise.kept(new, used, seen)
        except Exception as error:  # errors of files and of ONNX Runtime have no common base
            return {"why": f"{error}"[:200]}
        if old is None and (first is None or used is not None):
            return {"why": f"{figure.name} is not defined on its {len(seen.x)} samples."} | held
        return {"figure": figure.name, "samples": len(seen.x), "new": first, "old": old} | held

    return judged


def _whole(seen: Labelled, models: list[Model]) -> Labelled:
    """Return the samples without those with missing values, unless all models were trained with missing values."""
    if all(model.about.get("missing") == "mean" for model in models) or seen.x.dtype != np.float32:
        return seen
    kept = ~np.isnan(seen.x.reshape(len(seen.x), -1)).any(axis=1)
    return replace(seen, x=seen.x[kept], y=seen.y[kept], target=None if seen.target is None else seen.target[kept])


def value(model: Model, seen: Labelled, figure: Figure) -> float | None:
    """Return a model's metric on samples; None if it is undefined or not finite.

    Raises:
        RefusedError: the model has another shape of samples, or other classes.
    """
    if seen.x.shape[1:] != model.shape or seen.x.dtype != model.kind:
        raise RefusedError(
            "shape", f"version {model.statement.version} requires another form of samples than this device's."
        )
    if not len(seen.x):
        return None
    batches = [model.outputs(seen.x[first : first + BATCH]) for first in range(0, len(seen.x), BATCH)]
    parts = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    found = figure.value(_predictions(model, parts, seen, figure), seen.classes)
    return found if found is not None and math.isfinite(found) else None


def _predictions(model: Model, parts: dict[str, NDArray[Any]], seen: Labelled, figure: Figure) -> Predictions:
    target = seen.y[:, None] if seen.task.detects else seen.target
    if target is not None:
        answer: Any = SimpleNamespace(parts=lambda: parts)
        made = seen.task.judge(answer, target)
        if made is None:
            raise RefusedError("task", f"no metrics are defined for task '{seen.task.kind}'.")
        one = np.zeros(len(seen.x), np.int64)  # device
        return replace(made, samples=samples_of(made, one, one, one, seen.classes, one)) if figure.kind.each else made
    names = list(model.about["classes"])
    if sorted(names) != sorted(seen.classes):
        raise RefusedError("classes", f"version {model.statement.version} has other classes than this device.")
    own = np.array([seen.classes.index(name) for name in names])
    taken = own[parts["decision"] if "decision" in parts else parts["logits"].argmax(1)]
    table = np.zeros((len(own), len(own)), np.int64)
    np.add.at(table, (seen.y, taken), 1)
    chance = np.empty_like(parts["probabilities"], np.float64)
    chance[:, own] = parts["probabilities"]
    loss = -np.log(np.maximum(chance[np.arange(len(seen.y)), seen.y], LEAST)).mean()
    if figure.kind.each:
        one = np.zeros(len(seen.y), np.int64)  # device
        samples = TestedSamples(seen.y, taken, chance, tuple(seen.classes), one)
        return Predictions(table, float(loss), samples=samples)
    ranks = {label: ranking(chance[:, label], seen.y == label) for label in figure.scored(seen.classes)}
    return Predictions(table, float(loss), ranks)

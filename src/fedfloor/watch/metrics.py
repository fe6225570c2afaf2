"""The state of a run as OpenMetrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from fedfloor.watch.state import Row

__all__ = ["CONTENT_TYPE", "exposition"]
GAUGES = {  # of the section "run"
    "round": ("round", "Rounds that are done."),
    "rounds": ("rounds_planned", "Rounds of the schedule."),
    "loss": ("loss", "Loss of the global model on the test data, of the last round."),
    "train_loss": ("train_loss", "Mean loss of the visits of the last round."),
}


class _State(Collector):
    def __init__(self, document: Row) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        run, rounds = self._document.get("run", {}), self._document.get("rounds", [])
        about = {key: str(run.get(key)) for key in ("name", "method", "seed", "data", "state")}
        yield InfoMetricFamily("fedfloor_run", "The run.", about)
        yield _gauge("running", "Whether a process works on the run.", float(run.get("state") == "running"))
        for key, (name, words) in GAUGES.items():
            yield _gauge(name, words, run.get(key))
        yield _labelled(
            "figure", "The headline of the last round.", {(run.get("headline", ""),): run.get("value")}, "name"
        )
        last = rounds[-1] if rounds else {}
        seconds = {(kind,): last.get(key) for kind, key in (("predicted", "predicted_s"), ("measured", "wall_s"))}
        yield _labelled(
            "round_seconds", "Seconds of the last round: predicted on its network, taken here.", seconds, "kind"
        )
        yield _counter("lost_visits", "Visits whose result was lost.", {(): run.get("lost", 0)})
        links = self._document.get("links", [])
        counted = {(row["link"], kind): row[f"{kind}_all"] for row in links for kind in ("predicted", "measured")}
        yield _counter("bytes", "Bytes on the network by link, of all rounds.", counted, "link", "kind")
        losses = {(row["name"],): row["loss"] for row in self._document.get("factories", [])}
        yield _labelled(
            "factory_train_loss", "Mean loss of a factory's devices at their last visit.", losses, "factory"
        )
        alive = {
            (row["name"], row["kind"]): float(row["state"] in ("alive", "at work"))
            for row in self._document.get("processes", [])
        }
        yield _labelled("process_up", "Whether a process of the park is alive.", alive, "name", "kind")


def _gauge(name: str, words: str, value: float | None) -> Metric:
    return _labelled(name, words, {(): value})


def _labelled(name: str, words: str, values: Mapping[Any, float | None], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"fedfloor_{name}", words, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)
    return family


def _counter(name: str, words: str, values: Mapping[Any, float | None], *labels: str) -> Metric:
    family = CounterMetricFamily(f"fedfloor_{name}", words, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)
    return family


def exposition(document: Row) -> bytes:
    """Return the metrics as text; names of machines are escaped as OpenMetrics has it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_State(document))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]

"""The state of a run in OpenMetrics format, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from fedfloor.watch.files import Row

__all__ = ["CONTENT_TYPE", "exposition"]
Values = Mapping[Any, float | None]  # values of labels → number


def exposition(document: Row) -> bytes:
    """Return the metrics of a run's state as encoded text in OpenMetrics format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Document(document))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


class _Document(Collector):
    def __init__(self, document: Row) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        run, rows = self._document.get("run", {}), self._document.get
        last = (rows("rounds") or [{}])[-1]
        about = {key: str(run.get(key)) for key in ("name", "method", "seed", "data", "state")}
        yield InfoMetricFamily("fedfloor_run", "The run.", about)
        for name, words, value in (
            ("running", "Whether a process is working on the run.", float(run.get("state") == "running")),
            ("round", "Completed rounds.", run.get("round")),
            ("rounds_planned", "Scheduled rounds.", run.get("rounds")),
            ("loss", "Loss on the test data after the last round.", run.get("loss")),
            ("train_loss", "Mean loss of the visits of the last round.", run.get("train_loss")),
        ):
            yield _filled(GaugeMetricFamily(f"fedfloor_{name}", words), {(): value})
        seconds = {("predicted",): last.get("predicted_s"), ("measured",): last.get("wall_s")}
        losses = {(row["name"],): row["loss"] for row in rows("factories", ())}
        up = {(row["name"], row["kind"]): float(row["state"] in ("alive", "at work")) for row in rows("processes", ())}
        serving = rows("serving", {"kept": False})
        brokers, served = (serving["factories"], serving["devices"]) if serving["kept"] else ((), ())
        served = [row for row in served if row["state"] != "unreachable"]
        alarms, versions = ({(row["device"],): row[key] for row in served} for key in ("alarms", "version"))
        reached = {(row["factory"],): float(row["reached"]) for row in brokers}
        gauges: tuple[tuple[str, str, list[str], Values], ...] = (
            ("figure", "The headline after the last round.", ["name"], {(str(run.get("headline")),): run.get("value")}),
            (
                "round_seconds",
                "Seconds of the last round, predicted on its network and measured here.",
                ["kind"],
                seconds,
            ),
            ("factory_train_loss", "Mean loss of a factory's devices at their last visit.", ["factory"], losses),
            ("process_up", "Whether a process of the park is alive.", ["name", "kind"], up),
            ("alarms", "Drifting sensors of a device, and its model's decision on an alarm.", ["device"], alarms),
            ("model_version", "Version of the model that a device uses.", ["device"], versions),
            ("broker_connected", "Whether the process that keeps alarms reaches a factory.", ["factory"], reached),
        )
        for name, words, labels, values in gauges:
            yield _filled(GaugeMetricFamily(f"fedfloor_{name}", words, labels=labels), values)
        lost = CounterMetricFamily("fedfloor_lost_visits", "Lost visits.")
        yield _filled(lost, {(): run.get("lost", 0)})
        sent = {
            (row["link"], kind): row[f"{kind}_all"] for row in rows("links", ()) for kind in ("predicted", "measured")
        }
        yield _filled(CounterMetricFamily("fedfloor_bytes", "Bytes of all rounds.", labels=["link", "kind"]), sent)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values.items():
        if value is not None:
            family.add_metric(labels, value)
    return family

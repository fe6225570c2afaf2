"""What a report says of devices: nine in ten of many, the extremes of few, and the median where models differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.report.devices import device_section
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.sections import factory_section, summary_section
from fedfloor.report.story import devices, story
from fedfloor.report.table import paired, summary
from fedfloor.report.words import confusion_caption
from run_folders import make_run

CLASSES = ["0", "1", "</script>"]


def evaluated(folder: Path, accuracies: list[float], kind: str = "measured", **more: object) -> Path:
    """Give a run folder the accuracies of its devices."""
    places = [{"device": k, "name": f"m{k}", "factory": 0, "accuracy": value} for k, value in enumerate(accuracies)]
    body = {"round": 1, "classes": CLASSES, "confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "device_accuracy": kind}
    (folder / "evaluation.json").write_text(json.dumps(body | {"devices": places} | more))
    return folder


def told(folder: Path) -> str:
    return devices(groups(collect([folder]))[0])


@given(st.lists(st.floats(0, 1), min_size=10, max_size=35))
@settings(max_examples=30, deadline=None)
def test_nine_in_ten_devices_are_at_least_nine_in_ten(accuracies: list[float]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        text = told(evaluated(make_run(Path(place) / "a", [0.5]), accuracies))
    assert text.startswith("On nine in ten of the devices with test samples")
    limit = float(text.split("at least ")[1].split("\xa0")[0]) / 100
    assert sum(value >= limit - 1e-9 for value in accuracies) >= 0.9 * len(accuracies)


def test_of_few_devices_the_worst_and_the_best_are_named(tmp_path: Path) -> None:
    folder = evaluated(make_run(tmp_path / "a", [0.5], devices=4), [0.575, 0.85, 0.91, 0.865])
    assert told(folder) == (
        "Of 4 tested devices, the model of FedSR is worst on m0, with an accuracy of 57.5\xa0%, and best on m2, with "
        "91.0\xa0%."
    )
    assert told(evaluated(make_run(tmp_path / "b", [0.5], devices=2), [0.5])) == ""


@pytest.mark.parametrize(("samples", "explained"), [(20, True), (2000, False)])
def test_chance_in_few_samples_explains_differences_and_in_many_it_does_not(
    tmp_path: Path, samples: int, explained: bool
) -> None:
    """Of 20 samples 18, 19 and 20 right: χ² = 2.11 with two degrees of freedom, p = 0.35; of 2,000 each, χ² = 211."""
    folder = evaluated(make_run(tmp_path / "a", [0.5], devices=4), [0.9, 0.95, 1.0])
    body = json.loads((folder / "evaluation.json").read_text())
    body["devices"] = [place | {"samples": samples, "rarest": place["device"]} for place in body["devices"]]
    body["confusion"] = [[samples * 3 - 5, 0, 0], [0, 5, 0], [0, 0, 0]]
    (folder / "evaluation.json").write_text(json.dumps(body))
    assert ("Chance in these samples explains" in told(folder)) == explained
    assert "m0 has no test sample of '1'." in told(folder)


def test_a_rare_class_is_named_before_the_accuracy(tmp_path: Path) -> None:
    """Of 1,000 samples 31 are failures, of which 19 are found, with 4 false alarms."""
    folder = make_run(tmp_path / "a", [0.984])
    park = json.loads((folder / "park.json").read_text()) | {"test_samples": 1000}
    (folder / "park.json").write_text(json.dumps(park))
    body = {"round": 1, "classes": park["classes"], "confusion": [[965, 4, 0], [12, 19, 0], [0, 0, 0]]}
    (folder / "evaluation.json").write_text(json.dumps(body))
    first, second = story(groups(collect([folder])), None)[:2]
    assert first.endswith("FedSR: 19 of 31 found, with 4 false alarms.")
    assert "(3.1 % of the test samples)" in first
    assert "98.4" in second
    (folder / "evaluation.json").write_text(json.dumps(body | {"confusion": [[499, 1, 0], [15, 485, 0], [0, 0, 0]]}))
    assert "98.4" in story(groups(collect([folder])), None)[0]


def test_a_task_without_classes_has_no_accuracy_of_devices(tmp_path: Path) -> None:
    folder = evaluated(make_run(tmp_path / "a", [0.5], devices=4), [0.952, 1.0, 0.99, 0.98])
    assert told(folder)
    more = '[evaluate]\nheadline = "reconstruction error"\n[data.task]\nkind = "reconstruction"\n'
    (folder / "experiment.toml").write_text((folder / "experiment.toml").read_text() + more)
    assert told(folder) == ""
    compared = groups(collect([folder]))
    assert device_section(compared, {}) == factory_section(compared, {}) == ""


def test_clusters_are_ranked_by_their_median_device_where_test_samples_have_no_owner(tmp_path: Path) -> None:
    # the mean over all models on all classes is low, that of each device on its own classes is high
    for method, mean, median in (("fedavg", 0.711, 0.779), ("ifca", 0.589, 0.887)):
        folder = evaluated(make_run(tmp_path / method, [mean], method=method), [median] * 12, "expected")
        line = json.loads((folder / "ledger.jsonl").read_text())
        line["by_device"] = {"p10": median - 0.3, "p50": median, "p90": median + 0.05}
        (folder / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    compared = groups(collect([tmp_path]))
    assert compared.headline.name == "accuracy"  # no device has a model of its own yet
    evaluated(tmp_path / "ifca", [0.887] * 12, "expected", cohorts=[0, 1] * 6)
    runs = collect([tmp_path])
    compared = groups(runs)
    rows = {row["method"]: row for row in summary(runs)}
    assert compared.headline.name == "median device's accuracy"
    assert (rows["ifca"]["median_accuracy"], rows["ifca"]["accuracy"]) == (0.887, 0.589)
    (pair,) = paired(runs)
    assert pair["difference"] == pytest.approx(0.779 - 0.887)
    first, *_ = story(compared, None)
    assert first == (
        "In round 1, the median device's accuracy, expected by the classes it holds: IFCA 88.7\xa0%, FedAvg 77.9\xa0%."
    )


def test_where_test_samples_have_owners_the_headline_stays(tmp_path: Path) -> None:
    evaluated(make_run(tmp_path / "a", [0.6], method="ifca"), [0.9] * 12, cohorts=[0, 1] * 6)
    assert groups(collect([tmp_path])).headline.name == "accuracy"


def test_references_are_described_beside_their_rows(tmp_path: Path) -> None:
    for method in ("fedavg", "local-only", "pooled", "scikit-learn"):
        folder = make_run(tmp_path / method, [0.6], method=method)
        park = json.loads((folder / "park.json").read_text()) | {"shape": [3, 20]}
        (folder / "park.json").write_text(json.dumps(park))
    text = summary_section(collect([tmp_path]), None, hindsight=True)
    assert "ocal only is local training only (each device by itself)" in text
    assert "on the windows of all devices, five statistics of each sensor" in text
    assert "FedAvg is" not in text.split("<tbody>")[0]


def test_tables_of_several_models_say_how_many_predictions_they_count(tmp_path: Path) -> None:
    folder = evaluated(make_run(tmp_path / "a", [0.6], method="local-only"), [0.9] * 12)
    body = json.loads((folder / "evaluation.json").read_text()) | {"confusion": [[9600, 0, 0], [0, 0, 0], [0, 0, 0]]}
    (folder / "evaluation.json").write_text(json.dumps(body))
    text = confusion_caption(groups(collect([tmp_path]))[0], numbers=True)
    assert "9,600 predictions for 1,200 samples" in text

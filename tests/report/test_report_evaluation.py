"""The report shows what is known of the final model, and does without where it is not."""

from __future__ import annotations

import html
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedfloor.report import charts
from fedfloor.report.charts import heat_map
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.report.remarks import only
from fedfloor.report.table import summary
from fedfloor.report.words import confusions
from refusals import refused
from run_folders import evaluate, make_run


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    for seed in (0, 1):
        for method, accuracy in (("fedsr", 0.9), ("fedavg", 0.6)):
            folder = make_run(tmp_path / f"{method}-seed{seed}", [0.5, 0.7, accuracy], method=method, seed=seed)
            evaluate(folder, accuracy=accuracy + seed / 50)
    return tmp_path


def test_the_page_shows_it(comparison: Path) -> None:
    page = render(collect([comparison]))
    for words in (
        "macro-F1",
        "Confusions of classes",
        "&#39;0&#39; is taken for &#39;1&#39;: 4 of 20 (20\u00a0%)",  # two in ten, twice
        "Accuracy per factory",
        "north &lt;hall&gt;",
        "press-5",
        "final model (round 3, 2 seeds added up), on the test data",
    ):
        assert words in page
    assert page.count('class="ff-confusion few"') == 2


def test_the_page_does_without_it(tmp_path: Path) -> None:
    page = render(collect([make_run(tmp_path / "a", [0.5])]))
    for words in ("macro-F1", "mistaken", "Accuracy per factory", "All 8 devices"):
        assert words not in page


def test_validation_is_said_in_every_caption(tmp_path: Path) -> None:
    folder = evaluate(make_run(tmp_path / "a", [0.5]), on="validation")
    page = render(collect([folder]))
    captions = [part.split("</figcaption>")[0] for part in page.split("<figcaption>")[1:]]
    captions += [part.split("</caption>")[0] for part in page.split("<caption>")[1:]]
    measured = [caption for caption in captions if "accuracy" in caption.lower() or "Share" in caption]
    assert len(measured) >= 5
    assert not [caption for caption in measured if "test" in caption or "validation" not in caption]
    assert "on the validation data" in page


def test_macro_f1_is_the_mean_over_seeds_and_none_where_a_seed_lacks_it(comparison: Path) -> None:
    rows = {row["method"]: row for row in summary(collect([comparison]))}
    assert rows["fedsr"]["macro_f1"] == pytest.approx((0.85 + 0.87) / 2)
    (comparison / "fedsr-seed1" / "evaluation.json").unlink()
    rows = {row["method"]: row for row in summary(collect([comparison]))}
    assert (rows["fedsr"]["macro_f1"], rows["fedavg"]["macro_f1"]) == (None, pytest.approx(0.56))


def test_factories_are_bars_with_their_spread_over_seeds(comparison: Path) -> None:
    figure = charts.factory_figure(groups(collect([comparison])))
    assert [bar.name for bar in figure.data] == ["FedAvg", "FedSR"]
    assert list(figure.data[1].y) == ["north <hall>", "factory 1"]
    assert list(figure.data[1].x) == pytest.approx([0.91, 0.91])
    assert list(figure.data[1].error_x.array) == pytest.approx([0.09, 0.09])  # cut at 1


def test_a_device_without_samples_to_test_on_has_no_dot(comparison: Path) -> None:
    figure = charts.device_figure(groups(collect([comparison])))
    dots = [trace for trace in figure.data if trace.mode == "markers"]
    assert [len(trace.x) for trace in dots] == [7, 7]
    assert "press-3" not in dots[0].text
    assert figure.layout.xaxis.tickformat == ".3~%"  # whole numbers were 99%, 100%, 100%, 100% where devices are alike


def test_names_are_numbers_where_there_are_none(tmp_path: Path) -> None:
    folder = evaluate(make_run(tmp_path / "a", [0.5]), named=False)
    figure = charts.factory_figure(groups(collect([folder])))
    assert list(figure.data[0].y) == ["factory 0", "factory 1"]
    assert '<th scope="row" data-value="5">5</th>' in render(collect([folder]))


def test_devices_have_the_names_of_the_park(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [0.5])
    park = json.loads((folder / "park.json").read_text())
    park["devices"][0]["name"] = "camera-7"
    (folder / "park.json").write_text(json.dumps(park))
    run = collect([folder])[0]
    assert [device.name for device in run.park.devices][:2] == ["camera-7", None]
    assert "camera-7, class 0: 30 samples" in render([run])


@pytest.mark.parametrize(
    "change",
    [
        {"confusion": [[1]]},
        {"classes": 3},
        {"confusion": None},
        {"devices": [{"device": 0}]},
    ],
)
def test_a_damaged_evaluation_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    folder = evaluate(make_run(tmp_path / "a", [0.5]))
    body = json.loads((folder / "evaluation.json").read_text()) | change
    (folder / "evaluation.json").write_text(json.dumps(body))
    with refused("damaged-model"):
        collect([folder])


def test_heat_map_of_many_classes_has_no_numbers_and_leaves_empty_cells_out() -> None:
    names = [f"c{i}" for i in range(62)]
    matrix = tuple(tuple(3 if i == j else 1 if j == 0 else 0 for j in range(62)) for i in range(62))
    drawn = heat_map(matrix, names)
    assert drawn.count('class="cell"') == 62 + 61
    assert 'class="ff-confusion many"' in drawn
    assert drawn.count("<text") == 2 * 62 + 2
    assert len(confusions(matrix, names)) == 5
    assert confusions(((1, 0), (0, 0)), ["a", "b"]) == []


# -- decisions ---------------------------------------------------------------------------------------------------------


def decide(folder: Path, recall: float = 0.9, **more: object) -> Path:
    body = json.loads((folder / "evaluation.json").read_text())
    counts = {"found": 9, "missed": 1, "false_alarms": 4}
    body["decide"] = {
        "temperature": 1.0, "positive": 1, "threshold": 0.8359,
        "validation": {"samples": 784, "by": "the largest F1", "positives": 17, "recall": 1.0, "found": 17},
        "decided": {"recall": recall, "precision": 0.6923, "f1": 0.7826, **counts},
        "likeliest": {"recall": 1.0, "precision": None, "f1": 0.5, "found": 10, "missed": 0, "false_alarms": 20},
    } | more  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(body))
    return folder


def test_the_page_shows_what_was_decided_and_on_which_samples(tmp_path: Path) -> None:
    decide(evaluate(make_run(tmp_path / "a", [0.5])))
    page = html.unescape(render(collect([tmp_path])))
    for words in (
        "FedSR decides for '1' where its probability is at least 0.8359 (the largest F1; chosen on 784 validation "
        "samples, 17 of them '1'). On the test samples: recall 90.0\xa0%, precision 69.2\xa0%, F1 78.3\xa0% and 4 "
        "false alarms; by the likeliest class, as in all other figures here: recall 100.0\xa0%, precision –, F1 "
        "50.0\xa0% and 20 false alarms.",
        "<h2>Decisions by a threshold</h2>",
        "'1' from 0.8359 on",
        "likeliest class",
        "The last round's model on the test samples.",
    ):
        assert words in page


def test_several_seeds_decide_by_means(tmp_path: Path) -> None:
    decide(evaluate(make_run(tmp_path / "a", [0.5])))
    decide(evaluate(make_run(tmp_path / "b", [0.5], seed=1)), 0.7, threshold=0.5)
    page = html.unescape(render(collect([tmp_path])))
    assert "is at least 0.5 to 0.8359" in page
    assert "On the test samples, means of 2 seeds: recall 80.0\xa0%, precision 69.2" in page


def test_a_temperature_alone_and_validation_samples(tmp_path: Path) -> None:
    folder = evaluate(make_run(tmp_path / "a", [0.5]), on="validation")
    page = render(collect([decide(folder)]))
    assert "On the same validation samples: recall 90.0\xa0%" in page
    assert "Decisions by a threshold" not in render(collect([decide(folder, positive=None)]))
    with refused("damaged-model"):
        collect([decide(folder, positive=3)])


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ([[0, 5, 0], [0, 3, 0], [0, 0, 0]], "fault"),  # two true classes, one predicted
        ([[0, 5, 0], [0, 3, 0], [0, 1, 0]], "fault"),
        ([[1, 4, 0], [0, 3, 0], [0, 0, 0]], None),
        ([[0, 5, 0], [0, 0, 0], [0, 0, 0]], None),  # there is only one true class
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], None),
    ],
)
def test_the_only_class_that_a_model_predicts(table: list[list[int]], name: str | None) -> None:
    final = SimpleNamespace(confusion=table, classes=("ok", "fault", "worn"))
    assert only(final) == name  # type: ignore[arg-type]

"""The report reads run folders, says what is wrong with them, and computes what it shows."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest

import fedfloor.report
from fedfloor.base.errors import SettingError
from fedfloor.report import charts
from fedfloor.report.groups import curve, groups, half_width
from fedfloor.report.ledger import collect
from fedfloor.report.page import LIBRARY, render, write
from fedfloor.report.story import verdict
from fedfloor.report.table import natural_target, paired, summary
from fedfloor.tasks.figures import ACCURACY
from refusals import refused
from run_folders import line, make_run


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """Two methods with two seeds each, by hand."""
    folder = tmp_path / "comparison"
    make_run(folder / "fedsr-seed0", [0.5, None, 0.8, 0.9], seed=0)
    make_run(folder / "fedsr-seed1", [0.6, None, 0.9, 0.8], seed=1)
    make_run(folder / "fedavg-seed0", [0.4, None, 0.5, 0.6], method="fedavg", seed=0)
    make_run(folder / "fedavg-seed1", [0.3, None, 0.4, 0.4], method="fedavg", seed=1)
    return folder


def test_collect_reads_runs_and_folders_of_runs_once(comparison: Path) -> None:
    runs = collect([comparison, comparison / "fedsr-seed1"])
    assert [(run.method, run.seed) for run in runs] == [("fedavg", 0), ("fedavg", 1), ("fedsr", 0), ("fedsr", 1)]
    first = runs[2].rounds[0]
    assert (first.accuracy, first.by_class, first.by_device.p90) == (0.5, (0.5, None, 0.25), 0.75)
    assert runs[2].rounds[1].accuracy is None
    assert runs[0].park.devices[5].counts == (30, 5, 0)


def test_collect_refuses_what_is_no_run_folder(tmp_path: Path) -> None:
    with refused("folder-of-run"):
        collect([tmp_path])
    with refused("folder-of-run"):
        collect([tmp_path / "missing"])
    with refused("report"):
        collect([])


def test_a_run_without_a_finished_round_is_refused_alone_and_left_out_among_others(comparison: Path) -> None:
    started = make_run(comparison / "fedgs-seed0", [], method="fedgs")
    with refused("damaged-ledger"):
        collect([started])
    assert {run.method for run in collect([comparison])} == {"fedavg", "fedsr"}


def test_a_line_cut_off_while_it_was_written_is_ignored(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [0.5, 0.6])
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"round": 3, "accu')
    assert len(collect([folder])[0].rounds) == 2


def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [0.5])
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write("{broken\n" + line(3, 0.7))
    with refused("damaged-model"):
        collect([folder])


def test_rounds_that_go_back_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [0.5, 0.6])
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write(line(1, 0.7))
    with refused("damaged-ledger"):
        collect([folder])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("park.json", "{}"),
        ("park.json", "{"),
        ("experiment.toml", "seed = 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: str) -> None:
    folder = make_run(tmp_path / "run", [0.5])
    (folder / file).write_text(text)
    with pytest.raises(SettingError, match=file):
        collect([folder])


@pytest.mark.parametrize("text", ['{"plan": {"node": "dance"}}', "{", "[]", '{"plan": 3}', "\ud800"])
def test_a_damaged_plan_is_left_out(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_run(tmp_path / "run", [0.5])
    (folder / "plan.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    runs = collect([folder])
    assert runs[0].plan is None
    assert "plan.json is damaged and left out" in caplog.text
    assert "no plan.json that can be read" in render(runs)


def test_a_loss_that_diverged_and_an_empty_spread_are_read_as_missing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [0.5])
    body = json.loads(line(1, 0.5)) | {"loss": math.nan, "by_device": {}}
    (folder / "ledger.jsonl").write_text(json.dumps(body) + "\n")
    runs = collect([folder])
    assert (runs[0].rounds[0].loss, runs[0].rounds[0].spread(ACCURACY)) == (None, None)
    assert summary(runs)[0]["loss"] is None
    assert "These runs did not measure it." in render(runs)


def test_seeds_of_one_experiment_are_one_group_and_other_settings_are_another(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5], seed=0, name="short")
    make_run(tmp_path / "b", [0.5], seed=1, name="short")
    make_run(tmp_path / "c", [0.5], seed=0, name="long", laps=9)
    found = groups(collect([tmp_path]))
    assert [(group.label, len(group.runs)) for group in found] == [("fedsr (short)", 2), ("fedsr (long)", 1)]


def test_the_same_seed_twice_is_not_a_second_sample(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5])
    make_run(tmp_path / "b", [0.5])
    assert [group.label for group in groups(collect([tmp_path]))] == ["fedsr (a)", "fedsr (b)"]


def test_half_width_of_two_values() -> None:
    # s/√2 = |a − b|/2 = 0.05, and the 97.5 % point of Student's t with one degree of freedom is tan(0.475π) = 12.7062
    assert half_width([0.8, 0.9]) == pytest.approx(0.05 * math.tan(0.475 * math.pi), rel=1e-9)
    assert half_width([0.8]) is None


def test_curve_is_the_mean_over_the_rounds_that_every_seed_has(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5, 0.7, 0.9, None], seed=0)
    make_run(tmp_path / "b", [0.6, None, 0.7, 0.8], seed=1)
    runs = collect([tmp_path])
    mean = curve(groups(runs)[0], ACCURACY.read)
    assert mean.rounds == (1, 3)
    assert mean.mean == pytest.approx((0.55, 0.8))
    assert len(mean.half_width or ()) == 2


def test_summary_rows(comparison: Path) -> None:
    rows = {row["method"]: row for row in summary(collect([comparison]), target=0.8)}
    fedsr = rows["fedsr"]
    assert fedsr["seeds"] == [0, 1]
    assert fedsr["rounds"] == 4
    assert fedsr["accuracy"] == pytest.approx((0.9 + 0.8) / 2)
    assert fedsr["best_accuracy"] == pytest.approx(0.9)
    assert fedsr["loss"] == pytest.approx(0.15)
    assert fedsr["rounds_to_target"] == 3  # both seeds have 0.8 in round 3
    assert fedsr["wall_s"] == pytest.approx(6.0)
    assert rows["fedavg"]["rounds_to_target"] is None
    assert rows["fedavg"]["reached"] == 0
    json.dumps(list(rows.values()), allow_nan=False)  # rows are JSON


def test_a_target_that_only_some_seeds_reach_has_no_mean(comparison: Path) -> None:
    rows = {row["method"]: row for row in summary(collect([comparison]), target=0.5)}
    assert (rows["fedavg"]["reached"], rows["fedavg"]["rounds_to_target"]) == (1, None)
    assert "FedAvg reached it with 1 of 2 seeds within 4 rounds" in verdict(list(rows.values()))


def test_paired_differences(comparison: Path) -> None:
    (row,) = paired(collect([comparison]))
    # fedavg − fedsr: 0.6 − 0.9 = −0.3 and 0.4 − 0.8 = −0.4; half of their distance times t as above
    assert (row["method"], row["against"], row["seeds"], row["rounds"]) == ("fedavg", "fedsr", [0, 1], [4])
    assert row["difference"] == pytest.approx(-0.35)
    assert row["half_width"] == pytest.approx(0.05 * math.tan(0.475 * math.pi), rel=1e-9)


def test_natural_target_is_what_all_seeds_of_the_best_method_reached(comparison: Path) -> None:
    assert natural_target(collect([comparison])) == 0.9


def test_verdict_in_words(comparison: Path) -> None:
    rows = summary(collect([comparison]), target=0.8)
    assert (
        verdict(rows)
        == "FedSR reached an accuracy of 80\xa0% after 3 rounds (mean of 2 seeds); FedAvg did not within 4."
    )


def test_figures_show_every_run(comparison: Path) -> None:
    found = groups(collect([comparison]))
    drawn = charts.headline_figure(found, 0.8)
    # per method: a band, two seeds and their mean
    assert len(drawn.data) == 2 * 4
    assert len(charts.class_figure(found).data) == 2
    assert len(charts.device_figure(found).data) == 2
    bubbles = charts.holdings_figure(found[0].runs[0].park)
    assert len(bubbles.data[0].x) == 8 + 7  # device k holds 30 of class 0 and k of class 1: device 0 none of the latter


@pytest.mark.parametrize(
    ("values", "title", "most"),
    [([0.81, 0.86, 0.89], "accuracy (axis from 80.6\xa0%)", 0.09), ([0.2, 0.9], "accuracy", 1.02),
     ([0.995, 0.997], "accuracy (axis from 97.6\xa0%)", 0.03), ([0.01, 0.04], "accuracy", 0.05)],
)  # fmt: skip
def test_shares_that_are_near_each_other_are_drawn_apart(
    tmp_path: Path, values: list[float], title: str, most: float
) -> None:
    drawn = charts.headline_figure(groups(collect([make_run(tmp_path / "run", [*values])])))
    low, high = drawn.layout.yaxis.range
    assert drawn.layout.yaxis.title.text == title
    assert 0 <= low <= min(values) < max(values) <= high
    assert high - low <= most
    assert drawn.layout.xaxis.dtick == 1


def test_runs_without_evaluation_still_make_a_page(tmp_path: Path) -> None:
    page = render(collect([make_run(tmp_path / "run", [None, None])]))
    assert "No accuracy to compare has been reached yet." in page


def test_page_is_complete_self_contained_and_escaped(comparison: Path, tmp_path: Path) -> None:
    out = write([comparison], tmp_path / "new" / "report.html")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]  # the temporary file is gone
    page = out.read_text(encoding="utf-8")
    ours = page.replace(_plotly(), "")
    assert len(ours) < len(page) < 1.5e6
    assert '<html lang="en">' in ours
    assert "labels &lt;A&amp;B&gt;" in ours
    assert ours.count("</script>") == 3  # a class called "</script>" ends none
    for tag in ("<script src", '<link rel="stylesheet', "@import", "url(http"):
        assert tag not in ours
    for words in ("Classes on each device", "laps = 5", "<caption>", "95 % Student-t"):
        assert words in ours
    assert ours.count("<svg") == 2  # the plans
    assert str(tmp_path) not in ours


def _plotly() -> str:
    return Path(fedfloor.report.__path__[0], LIBRARY).read_text(encoding="utf-8")


def test_the_same_folders_give_the_same_page(comparison: Path) -> None:
    assert render(collect([comparison])) == render(collect([comparison]))


def test_report_reads_only_and_never_trains() -> None:
    """The room imports nothing but itself, draws, figures, plans, checks and errors: no torch, no engine."""
    allowed = (
        "fedfloor.base.chance",
        "fedfloor.base.checking",
        "fedfloor.base.errors",
        "fedfloor.tasks.figures",
        "fedfloor.tasks.metric",
        "fedfloor.tasks.rankings",
        "fedfloor.base.names",
        "fedfloor.plan",
        "fedfloor.base.names",
        "fedfloor.base.regular",
        "fedfloor.report",
        "fedfloor.base.strict",
        "fedfloor.base.templates",
        "fedfloor.base.version",
    )
    for path in Path(fedfloor.report.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "torch" for name in names)
            assert all(name.startswith(allowed) for name in names if name.startswith("fedfloor"))


@pytest.mark.parametrize(
    ("factories", "names", "written"),
    [
        (2, [], ["factory 0", "factory 1"]),
        (4, [], ["F0", "F1", "F2", "F3"]),  # short, where they are many
        (1, [], []),
        (1, ["south"], ["south"]),
        (13, [], []),  # no room
    ],
)
def test_factories_are_written_above_their_devices(
    factories: int, names: list[str], written: list[str], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", [0.5], devices=2 * factories, factories=factories)
    park = json.loads((run / "park.json").read_text())
    (run / "park.json").write_text(json.dumps(park | {"factory_names": names}))
    (only,) = collect([run])
    assert [one.text for one in charts.holdings_figure(only.park).layout.annotations] == written


def test_factories_are_called_as_in_the_data(tmp_path: Path) -> None:
    """The bubbles and the drawn plan had "factory 0" and "edge 0" where all else had the names."""
    run = make_run(tmp_path / "run", [0.5, 0.7], devices=4, factories=2)
    park = json.loads((run / "park.json").read_text())
    (run / "park.json").write_text(json.dumps(park | {"factory_names": ["valve<1>", "south"]}))
    (only,) = collect([run])
    texts = [one.text for one in charts.holdings_figure(only.park).layout.annotations]
    assert texts == ["valve&lt;1&gt;", "south"]
    page = render([only])
    assert "valve&lt;1&gt;" in page
    assert "edge 0" not in page.split("The same round as text")[0]
    (run / "park.json").write_text(json.dumps(park | {"factory_names": ["south"]}))
    with refused("damaged-model"):
        collect([run])

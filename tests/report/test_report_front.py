"""The first screen: the verdict on sharing, the tiles, the order of methods, the worst device, the next commands."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path

import pytest

from commands import Command
from fedfloor.report.devices import device_section
from fedfloor.report.differs import differs_section
from fedfloor.report.front import about, answer, cost_tile, front, gain_tile, ordered, steps, title, worst
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.report.story import leading
from run_folders import make_run, number, price

CLASSES = ["0", "1", "</script>"]


def run(
    folder: Path, accuracy: float, devices: list[float], method: str = "fedsr", seed: int = 0, samples: int = 40
) -> Path:
    """Make the folder of a run that ends with an accuracy, and with one per device."""
    made = make_run(folder / f"{method}-{seed}", [0.3, accuracy], method=method, seed=seed, devices=len(devices))
    places = [{"device": k, "name": f"mill {k}", "factory": k % 2, "accuracy": a} for k, a in enumerate(devices)]
    places = [place | {"samples": samples + place["device"]} for place in places]
    body = {"round": 2, "classes": CLASSES, "confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "devices": places}
    (made / "evaluation.json").write_text(json.dumps(body | {"device_accuracy": "measured"}))
    return made


def text(folder: Path) -> str:
    return html.unescape(str(front(groups(ordered(collect([folder]))))))


OWN = [0.9, 0.5, 0.8, 0.7]
ALONE = [0.6, 0.6, 0.7, 0.5]


@pytest.mark.parametrize(
    ("own", "alone", "answer", "tone"),
    [
        ((0.80, 0.81), (0.60, 0.62), "Yes, sharing pays.", "yes"),
        ((0.60, 0.62), (0.80, 0.81), "No, sharing does not pay.", "no"),
        ((0.80, 0.60), (0.60, 0.70), "Not certain.", "open"),
    ],
)
def test_the_verdict_is_that_of_the_paired_difference(
    tmp_path: Path, own: tuple[float, ...], alone: tuple[float, ...], answer: str, tone: str
) -> None:
    for seed in (0, 1):
        run(tmp_path, own[seed], OWN, seed=seed)
        run(tmp_path, alone[seed], ALONE, "local-only", seed)
    page = text(tmp_path)
    assert f'class="verdict {tone}" id="verdict"><p><b>{answer}</b>' in page
    better = sum(own) > sum(alone)
    gap = abs(sum(own) - sum(alone)) / 2
    assert f"{100 * gap:.1f} percentage points {'better' if better else 'worse'}." in page
    assert ("no larger than chance explains" in page) == (tone == "open")
    assert f'<p class="big">{"+" if better else "−"}{100 * gap:.1f} percentage points</p>' in page
    assert "better on 3 of 4 devices" in page


@pytest.mark.parametrize(("accuracy", "said"), [(0.6, False), (0.5, True), (0.4, True)])
def test_the_verdict_names_a_model_that_is_no_better_than_the_most_frequent_class(
    accuracy: float, said: bool, tmp_path: Path
) -> None:
    for method, reached in (("fedsr", accuracy), ("local-only", 0.2)):
        path = run(tmp_path, reached, OWN, method) / "evaluation.json"
        body = json.loads(path.read_text()) | {"confusion": [[5, 0, 0], [0, 3, 0], [0, 0, 2]]}
        path.write_text(json.dumps(body))
    told = answer(groups(ordered(collect([tmp_path]))))
    assert ("The shared model is no better than always predicting '0'." in told) == said


@pytest.mark.parametrize(("share", "said"), [(0.1, False), (-0.08, True)])
def test_the_verdict_names_a_model_of_numbers_that_is_no_better_than_their_mean(
    share: float, said: bool, tmp_path: Path
) -> None:
    for method, error in (("fedsr", 10.0), ("local-only", 20.0)):
        made = make_run(tmp_path / method, [0.4, 0.5], method=method, devices=4)
        number(made, {"RMSE": [30.0, error], "R2": [0.0, share]})
    told = answer(groups(ordered(collect([tmp_path]))))
    assert ("The shared model is no better than always predicting the mean of the test values." in told) == said


def test_one_seed_settles_nothing(tmp_path: Path) -> None:
    run(tmp_path, 0.8, OWN)
    run(tmp_path, 0.6, ALONE, "local-only")
    page = text(tmp_path)
    assert "<b>Not certain.</b>" in page
    assert "There is no interval: more seeds or test samples are needed." in page
    assert "· 1 seed" in page
    assert "fedfloor compare fedsr-0/experiment.toml --methods fedsr,local-only --seeds 0,1,2 --out runs/again" in page


def test_the_terminal_states_the_answer_where_devices_alone_were_trained(command: Command) -> None:
    folder = run(command.folder, 0.8, OWN)
    assert answer(groups(ordered(collect([folder])))) == ""
    assert "Does sharing pay?" not in command("report", folder.name).out
    other = run(command.folder, 0.6, ALONE, "local-only")
    said = command("report", folder.name, other.name, "--out", "both.html").out
    assert "Does sharing pay? Not certain. The model of FedSR reaches an accuracy of 80.0 %, each device alone" in said
    assert said.splitlines()[-1] == "report: both.html"


def test_equal_results_are_no_proof_that_models_are_equal(tmp_path: Path) -> None:
    run(tmp_path, 1.0, OWN)
    run(tmp_path, 1.0, ALONE, "local-only")
    assert "<b>No difference was measured.</b>" in text(tmp_path)
    compared = groups(ordered(collect([tmp_path])))
    best = [compared[0]]
    local = [compared[1]]
    pair = {"difference": 0.0, "low": 0.0, "high": 0.0, "over": "72 test recordings"}
    assert gain_tile(compared, best, local, pair).notes[0] == "72 test recordings do not tell them apart"
    assert "0.0 to 2.0, over 72" in gain_tile(compared, best, local, pair | {"high": 0.02}).notes[0]


def test_what_was_not_measured_is_grey_with_the_command_that_measures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path, 0.8, OWN)
    monkeypatch.chdir(tmp_path)
    page = text(tmp_path)
    assert "<b>Not measured.</b> No run trained each device alone; the command for it is below." in page
    assert page.count('class="tile grey"') == 2
    alone = "fedfloor run fedsr-0/experiment.toml --references --resume --out fedsr-0"
    assert page.count(alone) == 2  # tile, next step
    assert "fedfloor price fedsr-0 --network" in page
    monkeypatch.chdir(os.sep)
    assert str(tmp_path)[1:] + "/fedsr-0" in text(tmp_path)  # below the folder of the command
    price(folder, [60.0, 60.0], [{"device_edge_up": 1_000_000}] * 2, [2.0, 2.0])
    assert cost_tile(groups(collect([tmp_path]))).value == "2 min"
    assert cost_tile(groups(collect([tmp_path]))).notes == ("2 MB and 4 J, 2 rounds of FedSR",)
    assert "Price the rounds" not in text(tmp_path)


def test_commands_that_read_a_run_permit_its_own_code_and_quote_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path / "hall 3", 0.8, OWN)
    monkeypatch.chdir(tmp_path)
    page = text(folder)
    assert "fedfloor export 'hall 3/fedsr-0'</pre>" in page
    assert "fedfloor run 'hall 3/fedsr-0'/experiment.toml --references" in page
    file = folder / "experiment.toml"
    file.write_text(file.read_text("utf-8") + '\n[data.columns]\nlabel = "a:b"\n', "utf-8")
    assert "--own-code" not in text(folder)
    file.write_text(file.read_text("utf-8") + '\n[[more]]\nmix = ["mine:Mean"]\n', "utf-8")
    page = text(folder)
    assert "<dt>Put the model on a device (imports mine:Mean)</dt>" in page
    assert "fedfloor export 'hall 3/fedsr-0' --own-code</pre>" in page
    assert page.count("fedfloor price 'hall 3/fedsr-0' --own-code --network") == 2  # tile, next step


def test_the_best_method_is_first_and_references_are_last(tmp_path: Path) -> None:
    run(tmp_path, 0.5, OWN, "fedavg")
    run(tmp_path, 0.7, OWN)
    run(tmp_path, 0.9, OWN, "pooled")
    make_run(tmp_path / "z", [None, None], method="moon")
    runs = ordered(collect([tmp_path]))
    assert [each.method for each in runs] == ["fedsr", "fedavg", "moon", "pooled"]
    page = render(runs)
    rows = page.split("<h2>Summary</h2>")[1].split("<tbody>")[1].split("</tbody>")[0]
    assert rows.index("FedSR") < rows.index("FedAvg") < rows.index("pooled")
    assert title(groups(runs)) == "trial: FedSR, FedAvg and MOON"


def test_the_day_is_that_of_the_last_round(tmp_path: Path) -> None:
    folder = run(tmp_path, 0.5, OWN)
    os.utime(folder / "ledger.jsonl", (1_000_000_000, 1_000_000_000))
    day, park, seeds = about(groups(collect([folder])))
    assert day in ("8 September 2001", "9 September 2001")  # by time zone
    assert (park, seeds) == ("4 devices in 2 factories, data labels <A&B>, 1,200 test samples", "1 seed")


def test_the_worst_device_is_named(tmp_path: Path) -> None:
    run(tmp_path, 0.5, OWN)
    (group,) = leading(groups(collect([tmp_path])))
    assert worst(group) == ("Worst device with FedSR: mill 1 (factory 1), accuracy 50.0\xa0%. Best: mill 0, 90.0\xa0%.")


def test_devices_that_are_alike_have_no_worst(tmp_path: Path) -> None:
    run(tmp_path, 0.5, [0.9] * len(OWN))
    (group,) = leading(groups(collect([tmp_path])))
    assert worst(group) == "All devices are alike with FedSR: accuracy 90.0\xa0%."


def test_devices_sort_and_have_a_verdict(tmp_path: Path) -> None:
    run(tmp_path, 0.5, [0.9, 0.88, 0.1, 0.9, 0.9, 0.91], samples=70)
    run(tmp_path, 0.5, [0.8, 0.89, 0.05, 0.9, 0.8, 0.8], "local-only", samples=70)
    section = html.unescape(device_section(groups(ordered(collect([tmp_path]))), {}))
    body = section.split("<tbody>")[1].split("</tbody>")[0]
    rows = [row for row in body.split("<tr>") if row.strip()]
    verdicts = {row.split('scope="row"')[1].split(">")[1].split("<")[0]: row.split(">")[-3][:-4] for row in rows}
    assert verdicts == {
        "mill 2": "gain may be chance, far behind the others",  # 4 of 72 samples
        "mill 1": "loss may be chance",  # one sample
        "mill 0": "gains by sharing",
        "mill 3": "as alone",
        "mill 4": "gains by sharing",
        "mill 5": "gains by sharing",
    }
    assert next(iter(verdicts)) == "mill 2"  # the worst first
    assert body.count('class="ff-spark"') == 6
    assert body.count("<title>local only") == 6
    assert 'data-value="0.1"' in body


def test_a_device_is_far_behind_the_others_only_beyond_chance(tmp_path: Path) -> None:
    own = [0.74, 0.74, 0.76, 0.67, 0.74, 0.75]  # the fence is at 0.7275
    for samples, far in ((40, 0), (400, 1)):
        run(tmp_path / str(samples), 0.7, own, samples=samples)
        section = str(device_section(groups(ordered(collect([tmp_path / str(samples)]))), {}))
        assert section.count("far behind the others") == far


def test_what_differs_are_the_settings_of_each_method(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5], laps=5)
    make_run(tmp_path / "b", [0.6], laps=2)
    make_run(tmp_path / "c", [0.6], laps=2, method="local-only")
    section = differs_section(groups(collect([tmp_path])))
    assert section.count('<th scope="row">') == 1
    assert '<th scope="row">laps</th><td data-label="FedSR (a)">5</td><td data-label="FedSR (b)">2</td>' in section
    assert differs_section(groups(collect([tmp_path / "a"]))) == ""


def test_nothing_is_left_to_do_where_all_was_measured(tmp_path: Path) -> None:
    for seed in (0, 1):
        price(run(tmp_path, 0.8, OWN, seed=seed), [1.0, 1.0])
        run(tmp_path, 0.6, ALONE, "local-only", seed)
    compared = groups(ordered(collect([tmp_path])))
    local = [group for group in compared if group.runs[0].method == "local-only"]
    assert [step.purpose for step in steps(compared, leading(compared)[:1], local)] == ["Put the model on a device"]

"""The report on devices' own models: beside the shared one, beside FedAvg, beside models of devices alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedfloor.report import page
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.personal import story
from refusals import refused
from run_folders import make_run

OWN = [0.9, 0.5, 0.8]
SHARED = [0.6, 0.7, 0.8]


def run(
    folder: Path, method: str, values: list[float], shared: list[float] | None = None, seed: int = 0, **more: Any
) -> None:
    make_run(folder, [0.5], method=method, devices=3, factories=1, seed=seed)
    places = [{"device": k, "factory": 0, "accuracy": value} for k, value in enumerate(values)]
    body: dict[str, Any] = {"round": 1, "classes": ["a", "b"], "confusion": [[1, 0], [0, 1]], "devices": places}
    if shared is not None:
        devices = [{"device": k, "accuracy": value} for k, value in enumerate(shared)]
        body["shared"] = {"accuracy": 0.7, "figures": {}, "devices": devices, "sends": 0.9} | more
    (folder / "evaluation.json").write_text(json.dumps(body))


def cells(html: str) -> list[str]:
    section = html[html.index('<section id="s-personal">') :]
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", section[: section.index("</table>")])


def test_who_gains_and_who_loses(tmp_path: Path) -> None:
    run(tmp_path / "fedrep", "fedrep", OWN, SHARED)
    html = page.render(collect([tmp_path]))
    row = cells(html)[-8:]
    assert row == ["FedRep", "70.0\xa0%", "73.3\xa0%", "1", "1", "60.0\xa0%", "50.0\xa0%", "90\xa0%"]
    compared = groups(collect([tmp_path]))
    text = story(compared, compared[0])
    assert "better than with the shared model on 1 of 3 devices and worse on 1" in text
    assert "73.3\xa0% instead of 70.0\xa0%" in text
    assert "--references" in html


def test_beside_fedavg_and_devices_alone(tmp_path: Path) -> None:
    run(tmp_path / "fedrep", "fedrep", OWN, SHARED)
    run(tmp_path / "fedavg", "fedavg", [0.8, 0.6, 0.9])
    run(tmp_path / "local", "local-only", [0.7, 0.4, 0.8])
    html = page.render(collect([tmp_path]))
    assert cells(html)[-7:] == ["76.7\xa0%", "1", "2", "63.3\xa0%", "2", "0", "90\xa0%"]
    assert "Against FedAvg, 1 gain and 2 lose." in html
    assert "Against models that devices train by themselves, 2 gain and 0 lose." in html


def test_devices_of_two_seeds_with_other_names_have_no_mean(tmp_path: Path) -> None:
    """Made machines differ by seed: the second seed's values took the place of the first's, beside means of both."""
    for seed, shift in ((0, 0.0), (1, 0.1)):
        for method, values, shared in (("fedrep", OWN, SHARED), ("fedavg", SHARED, None)):
            folder = tmp_path / f"{method}{seed}"
            moved = [None if shared is None else [value + shift for value in shared]][0]
            run(folder, method, [value + shift for value in values], moved, seed=seed)
            body = json.loads((folder / "evaluation.json").read_text())
            for place in body["devices"]:
                place["name"] = f"{'press' if seed else 'mill'} {place['device']}"
            (folder / "evaluation.json").write_text(json.dumps(body))
    compared = groups(collect([tmp_path]))
    text = story(compared, next(group for group in compared if group.runs[0].method == "fedrep"))
    assert "better than with the shared model on 2 of 6 devices and worse on 2" in text  # each seed: 1 of 3
    assert "Against FedAvg, 2 gain and 2 lose." in text  # FedAvg's model is the shared one here
    html = page.render(collect([tmp_path]))
    section = html[html.index('<section id="s-personal">') :]
    listed = {name: re.findall(r">([\d.]+)", row) for name, row in re.findall(r">(\w+ \d)<(.*?)</tr>", section)}
    assert listed["mill 0"] == ["60.0", "90.0", "60.0"]  # shared, own, and FedAvg's
    assert listed["press 0"] == ["70.0", "100.0", "70.0"]


def test_nothing_where_all_devices_have_one_model(tmp_path: Path) -> None:
    run(tmp_path / "fedavg", "fedavg", OWN)
    assert "s-personal" not in page.render(collect([tmp_path]))


@pytest.mark.parametrize("wrong", [{"sends": 2}, {"devices": [{"device": -1, "accuracy": 0.5}]}, {"devices": 3}])
def test_damaged_entries_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    run(tmp_path / "fedrep", "fedrep", OWN, SHARED, **wrong)
    with refused("damaged-model"):
        collect([tmp_path])

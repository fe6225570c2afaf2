"""The headline of each device and factory: against the definition, where it is not defined, and in reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import lines
from fedfloor.data.reading import TimeSplit
from fedfloor.experiment import EvaluateSettings
from fedfloor.inference.trained import load_model
from fedfloor.parts.work import WorkSettings
from fedfloor.report.page import write
from fedfloor.runs.parks import build_park
from plant_tables import experiment

DEVICES = 6  # the last one never shows a fault in its test part
CLASSES = ("good", "worn")


def plant(path: Path) -> Path:
    rng = np.random.default_rng(0)
    text = ["factory,device,time,temp,torque,label"]
    for k in range(DEVICES):
        for time in range(80):
            worn = int(rng.random() < 0.3) if k < DEVICES - 1 or time < 40 else 0
            values = f"{worn + rng.normal(scale=0.3 + 0.3 * k):.3f},{rng.normal():.3f}"
            text.append(f"h{k // 3},m{k},{time},{values},{CLASSES[worn]}")
    path.write_text("\n".join(text) + "\n")
    return path


def ran(folder: Path, headline: str, **more: Any) -> tuple[Path, Any]:
    what = experiment(
        plant(folder / "a.csv"), "standard", TimeSplit(), evaluate=EvaluateSettings(headline=headline), **more
    )
    return fedfloor.run(what, folder / "run", ranks=1).folder, build_park(what)


def by_hand(headline: str, y: Any, scores: Any) -> float | None:
    """The definition, for two classes; ``scores`` are the probabilities of a fault."""
    found = scores > 0.5
    if headline == "AUROC of worn":
        pairs = [(a, b) for a in scores[y == 1] for b in scores[y == 0]]
        return float(np.mean([(a > b) + (a == b) / 2 for a, b in pairs])) if pairs else None
    if headline == "recall of worn":
        return float(found[y == 1].mean()) if (y == 1).any() else None
    f1 = []
    for c in (0, 1):
        right = ((found == c) & (y == c)).sum()
        wrong = ((found == c) != (y == c)).sum()
        if right + wrong:
            f1.append(2 * right / (2 * right + wrong))
    return float(np.mean(f1))


@pytest.mark.parametrize("headline", ["AUROC of worn", "recall of worn", "macro-F1"])
def test_each_device_and_factory_has_the_headline_of_its_own_test_samples(tmp_path: Path, headline: str) -> None:
    folder, park = ran(tmp_path, headline)
    y = park.test()[1]
    scores = load_model(folder).predict(park.dataset.take_test(np.arange(len(y))))[:, 1]
    owner = park.test_devices
    told = json.loads((folder / "evaluation.json").read_text())
    values = [one["figures"][headline] for one in told["devices"]]
    assert values == pytest.approx([by_hand(headline, y[owner == k], scores[owner == k]) for k in range(DEVICES)])
    assert (values[-1] is None) is (headline != "macro-F1")  # no fault there
    halls = [one["figures"][headline] for one in told["factories"]]
    assert halls == pytest.approx([by_hand(headline, y[owner // 3 == m], scores[owner // 3 == m]) for m in (0, 1)])
    last = lines(folder)[-1]
    known = [one for one in values if one is not None]
    assert last["headlines"] == {
        headline: {f"p{q}": pytest.approx(np.percentile(known, q)) for q in (10, 50, 90)} | {"devices": len(known)}
    }
    rates = [float(((scores > 0.5) == y)[owner == k].mean()) for k in range(DEVICES)]
    assert last["by_device"]["p10"] == pytest.approx(np.percentile(rates, 10))  # as in a run without a headline
    page = write([folder], tmp_path / "report.html").read_text()
    title = headline[0].upper() + headline[1:]
    assert f"{title} per device" in page
    assert f"{title} per factory" in page
    assert ("not defined" in page) is (len(known) < DEVICES)
    assert f"It is defined on {len(known)} devices" in page
    assert f"{headline} of {100 * min(known):.1f}\xa0%, and best on" in page  # of fewer than ten devices


def test_expected_figures_follow_from_confusion_and_mix(tmp_path: Path) -> None:
    """Test samples without owners: a device of mix p expects the confusion of each class in that mix."""
    from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings
    from fedfloor.park.partition import Dirichlet

    for headline, expected in (("recall of 3", None), ("macro-F1", None), ("AUROC", "none")):
        what = fedfloor.Experiment(
            data=DataSettings(name="labels", partition=Dirichlet(0.3, at_least=5), samples_per_device=40),
            park=ParkSettings(devices=4, factories=2), model=ModelSettings("logistic"), rounds=2,
            work=WorkSettings(batch_size=8), evaluate=EvaluateSettings(headline=headline),
        )  # fmt: skip
        out = fedfloor.run(what, tmp_path / headline, ranks=1).folder
        told = json.loads((out / "evaluation.json").read_text())
        park = build_park(what)
        assert told["device_accuracy"] == "expected"
        values = [one["figures"][headline] for one in told["devices"]]
        if expected == "none":
            assert values == [None] * 4
            assert "headlines" not in lines(out)[-1]
            page = write([out], tmp_path / "report.html").read_text()
            assert "The AUROC is not recorded per device" in page
            assert "Expected accuracy per device" in page
            continue
        table = np.array(told["confusion"], float)
        rates = table / np.maximum(table.sum(axis=1), 1)[:, None]
        for counts, value in zip(park.counts() * (table.sum(axis=1) > 0), values, strict=True):
            mixed = counts[:, None] * rates
            both = mixed.sum(axis=0) + mixed.sum(axis=1)
            if headline == "macro-F1":
                wanted: float | None = float((2 * np.diag(mixed) / np.where(both > 0, both, 1))[both > 0].mean())
            else:
                at = told["classes"].index("3")
                wanted = rates[at, at] if counts[at] else None
            assert value == (None if wanted is None else pytest.approx(wanted))


def test_a_run_judged_by_accuracy_has_no_more_than_before(tmp_path: Path) -> None:
    folder, _ = ran(tmp_path, "accuracy")
    assert "headlines" not in lines(folder)[-1]
    assert all("figures" not in one for one in json.loads((folder / "evaluation.json").read_text())["devices"])

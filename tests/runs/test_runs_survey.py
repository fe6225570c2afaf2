"""The normalisation's questions in prices and in ``privacy.json``: their bytes by closed forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedfloor
from commands import Command, lines
from fedfloor import config
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.normalise import DeviceNormaliser, Normalise, steps
from fedfloor.park.survey import RegimeNormaliser, RobustNormaliser
from fedfloor.report.page import write
from fedfloor.runs.forecast import reprice
from fedfloor.runs.parks import build_park
from plant_tables import experiment, plant

# temp and torque
DEVICES = 5
C = 2
WIFI = NetworkSettings("wifi")
KINDS = {
    "unit": "unit",
    "standard": "standard",
    "device": DeviceNormaliser(),
    "robust": RobustNormaliser(rounds=3),
    "regime": RegimeNormaliser(("temp",), 3, rounds=2),
}


def expected(kind: str, steps: int) -> tuple[int, int]:
    """Bytes to and from each device: 8 for each count, sum, mean, edge or centre.

    Sums are 2·C numbers and spreads C, about C means. A round of bisection has 15 edges for each of three quartiles. A
    round of k-means tells the scale of d setting columns and k centres of d, and is answered with k·(d + 2) numbers.
    """
    if kind in ("unit", "device"):
        return 0, 0
    if kind == "standard":
        return 8 * 2 * C, 8 * 3 * C
    if kind == "robust":
        return 8 * (C + 3 * 45 * C + 2 * C), 8 * (3 * C + 3 * 45 * C)
    rounds = [1] + [2] * 3 + [3] * 3  # clusters in the first question, and in three rounds after each split
    rounds += [3] * (steps - 2 - len(rounds) - 2 - 1)  # until no centre moves
    down = C + sum(2 + k for k in rounds)  # one setting column: its mean, its deviation, k centres
    down += (2 + 3) + (2 + 3 + 3 * C)  # sums and spreads in each regime
    result = 2 + 3 + 2 * 3 * C
    return 8 * (down + result), 8 * (3 * C + sum(3 * k for k in rounds) + 3 * 3 * C)


@pytest.mark.parametrize("kind", KINDS)
def test_each_question_is_priced_before_round_1_and_counted(tmp_path: Path, kind: str) -> None:
    table = plant(tmp_path / "floor.csv")
    plain = fedfloor.run(experiment(table, "unit", network=WIFI, rounds=2), tmp_path / "unit", ranks=1)
    what = experiment(table, KINDS[kind], network=WIFI, rounds=2)  # type: ignore[arg-type]
    park = build_park(what)
    taken = steps(park, what.data.normalise)
    down, up = expected(kind, len(taken))
    assert (sum(one.down for one in taken), sum(one.up for one in taken)) == (down, up)
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    (first, second), (bare, later) = (lines(one.folder) for one in (run, plain))
    more = {link: size - bare["priced"]["bytes"][link] for link, size in first["priced"]["bytes"].items()}
    assert more == {
        "device_edge_down": DEVICES * down, "device_edge_up": DEVICES * up,
        "edge_cloud_down": DEVICES * down, "edge_cloud_up": DEVICES * up,
    }  # fmt: skip
    assert second["priced"]["bytes"] == later["priced"]["bytes"]  # in round 1 only
    path = run.folder / "privacy.json"
    if not up:
        assert "normalise" not in first["priced"]
        assert json.loads(path.read_text()).keys() == {"answers"}
        return
    apart = first["priced"]["normalise"]
    assert apart["bytes"] == 2 * DEVICES * (down + up)
    assert apart["seconds"] == pytest.approx(first["priced"]["seconds"] - bare["priced"]["seconds"])
    assert apart["seconds"] > 0
    assert first["priced"]["total"]["bytes"] == sum(first["priced"]["bytes"].values())
    told = json.loads(path.read_text())["normalise"]
    assert (told["questions"], told["bytes_up"], told["noise"]) == (len(taken) - 1, up, "none")
    assert sum(one["times"] for one in told["answers"].values()) == len(taken) - 1
    assert all(one["reveals"] for one in told["answers"].values())
    page = write([run.folder], tmp_path / "report.html").read_text()
    assert "questions of the normalisation to all devices before round 1" in page


@pytest.mark.parametrize("normalise", ["standard", "robust"])
def test_price_and_reprice_are_what_the_run_paid(tmp_path: Path, command: Command, normalise: Normalise) -> None:
    what = experiment(plant(tmp_path / "floor.csv"), normalise, network=WIFI, rounds=2)
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    (tmp_path / "what.toml").write_text(config.brief(what))
    (row,) = command("price", str(tmp_path / "what.toml"), "--json").document["rows"]
    paid = lines(run.folder)
    assert row["GB"] * 1e9 == pytest.approx(paid[-1]["priced"]["total"]["bytes"])
    assert row["normalise_MB"] * 1e6 == pytest.approx(paid[0]["priced"]["normalise"]["bytes"])
    assert row["normalise_seconds"] == pytest.approx(paid[0]["priced"]["normalise"]["seconds"])
    assert row["setup_MB"] == 0
    assert "the normalisation before round 1" in command("price", str(tmp_path / "what.toml")).out
    (copy,) = reprice([run.folder], WIFI, tmp_path / "copies", lambda _: None)
    assert [{**one, "wall_s": 0} for one in lines(copy)] == [{**one, "wall_s": 0} for one in paid]

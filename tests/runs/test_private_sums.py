"""Noise that devices add to secure sums: its law, its size where devices drop out, its accounting, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.optimize import minimize_scalar
from scipy.stats import chisquare
from test_private_models import file

import fedfloor
from commands import Command
from fedfloor.config import read
from fedfloor.parts.protection.discrete import discrete_gaussian
from fedfloor.runs import privacy
from floor import park
from live_park import experiment, live
from refusals import refused
from rounds import Job, method

NOISY = "clip = 0.5, noise = 1.0, delta = 1e-2, distributed = true"
SUMMED = 'travel = "secure-sum"'
SIZES = (6, 10, 4, 9, 5, 8, 7, 6)
FACTORIES = (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize("deviation", [0.6, 1.0, 3.3, 17.0])
def test_the_noise_has_the_closed_form_of_its_law_and_variance(deviation: float) -> None:
    drawn = discrete_gaussian(deviation, 200_000, np.random.default_rng(int(10 * deviation)))
    reach = np.arange(-math.ceil(12 * deviation), math.ceil(12 * deviation) + 1)
    law = np.exp(-(reach**2) / (2 * deviation**2))
    law /= law.sum()
    variance = float((law * reach**2).sum())
    fourth = float((law * reach**4).sum())
    error = math.sqrt((fourth - variance**2) / drawn.size)  # of the mean square
    assert abs(np.mean(drawn.astype(float) ** 2) - variance) < 4 * error
    inside = law * drawn.size > 20
    seen = np.array([np.count_nonzero(drawn == x) for x in reach[inside]])
    expected = law[inside] * (seen.sum() / law[inside].sum())
    assert chisquare(seen, expected).pvalue > 1e-3


def test_large_noise_is_whole_and_symmetric() -> None:
    drawn = discrete_gaussian(2.0**24, 100_000, np.random.default_rng(3))
    assert drawn.dtype == np.int64
    assert abs(drawn.mean()) < 4 * 2.0**24 / math.sqrt(drawn.size)
    assert abs(drawn.std() / 2.0**24 - 1) < 4 / math.sqrt(2 * drawn.size)


def job(folder: Path, mix: object, loss: float = 0.0, across: bool = False) -> Job:
    factories = (0, 0, 1, 1, 1, 2, 2, 2) if across else FACTORIES
    travel = {"kind": "secure-sum", "across": across}
    made = method("fedavg", {"mix": mix, "travel": travel})
    return Job(made, park(SIZES, factory_of=factories), folder=folder, rounds=1, loss=loss)


@pytest.mark.parametrize("across", [True, False])
def test_without_noise_and_bound_it_is_the_plain_secure_sum_to_the_bit(across: bool, tmp_path: Path) -> None:
    private = {"kind": "private", "clip": math.inf, "noise": 0.0, "delta": 0.1, "distributed": True}
    ours, plain = (job(tmp_path / str(i), one, 0.1, across).run() for i, one in enumerate((private, "equal")))
    assert ours.packet["w"].tolist() == plain.packet["w"].tolist()


@pytest.mark.parametrize(("across", "loss"), [(True, 0.0), (True, 0.3), (False, 0.0), (False, 0.2)])
def test_the_noise_of_a_sum_is_at_least_the_stated_one_whoever_drops_out(
    across: bool, loss: float, tmp_path: Path
) -> None:
    settings = {"kind": "private", "clip": 0.5, "delta": 0.1, "distributed": True}
    noisy = job(tmp_path / "noisy", settings | {"noise": 2.0}, loss, across)
    quiet = job(tmp_path / "quiet", settings | {"noise": 0.0}, loss, across)
    difference = (noisy.run().packet["w"].double() - quiet.run().packet["w"].double()).numpy()
    receipts = noisy.outcomes[0].receipts
    left = [r.device for r in receipts if not r.lost]
    assert len(left) == 8 or loss
    planned = {0: 8} if across else {0: 4, 1: 4}
    needed = {group: max(3, math.ceil(0.6 * n)) for group, n in planned.items()}
    groups = [0 if across else FACTORIES[k] for k in left]
    variance = sum((2.0 * 0.5) ** 2 / needed[group] for group in groups)  # z²C²/m for each device that is left
    assert variance >= len(set(groups))  # of z²C² for each sum
    deviation = math.sqrt(variance) / len(left)
    assert difference.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * difference.size) + 1e-3)


def test_epsilon_is_the_published_one() -> None:
    # persons of the 2020 census of the USA: ρ = 2.56 of discrete Gaussian noise is ε = 17.14 for δ = 1e-10
    assert privacy.sums_composed(((math.sqrt(0.5 / 2.56), 1),), 1e-10) == pytest.approx(17.14, rel=0.01)
    for noise, sums, delta in ((1.0, 1, 1e-5), (2.0, 30, 1e-5), (0.8, 7, 1e-3)):
        rho = sums / (2 * noise**2)

        def bound(a: float, rho: float = rho, delta: float = delta) -> float:  # Canonne et al. 2020, Proposition 12
            return rho * a + (math.log(1 / delta) + (a - 1) * math.log1p(-1 / a) - math.log(a)) / (a - 1)

        least = minimize_scalar(bound, bounds=(1.001, 500), method="bounded").fun
        assert privacy.sums_composed(((noise, sums),), delta) == pytest.approx(least, rel=0.01)
    assert privacy.sums_composed(((0.0, 1),), 1e-5) == math.inf
    assert privacy.sums_composed(((1.0, 0),), 1e-5) == 0


@pytest.mark.parametrize("selection", ["", 'selection = { kind = "poisson", share = 0.6 }\n'])
def test_a_run_states_the_sums_that_the_busiest_device_took_part_in(selection: str, tmp_path: Path) -> None:
    what = file(tmp_path, mix=NOISY, selection=selection + SUMMED, rounds=5)
    done = fedfloor.run(read(what), tmp_path / "run", ranks=1)
    stated = json.loads((tmp_path / "run/privacy.json").read_text())["models"]
    assert (stated["distributed"], stated["share"], stated["noise"]) == (True, 1.0, "seeded")
    assert stated["rounds"] == 5 if not selection else 1 <= stated["rounds"] <= 5
    assert stated["epsilon"] == privacy.sums_composed(((1.0, stated["rounds"]),), 1e-2)
    assert any("without noise" in text for text in stated["not_covered"])
    assert len(done.lines) == 5
    again = fedfloor.run(read(what), tmp_path / "two", ranks=2)
    assert [one.loss for one in again.lines] == [one.loss for one in done.lines]


def test_a_budget_begins_no_round_that_exceeds_it(tmp_path: Path, command: Command) -> None:
    what = file(tmp_path, mix=NOISY, selection=SUMMED, rounds=9)
    budget = privacy.sums_composed(((1.0, 3),), 1e-2)
    done = fedfloor.run(read(what), tmp_path / "run", ranks=1, limits=fedfloor.Limits(epsilon=budget))
    assert len(done.lines) == 3
    first = command("run", str(what), "--out", str(tmp_path / "first"), "--until", "epsilon=0.1")
    assert first.code == 2
    assert "Raise mix.noise" in first.err


@pytest.mark.parametrize(
    ("mix", "selection", "words"),
    [
        (NOISY, "", "mix.distributed"),
        (NOISY, 'travel = "int8"', "mix.distributed"),
        (NOISY, f'{SUMMED}\nselection = {{ kind = "fraction", share = 0.5 }}', "mix"),
        (f"{NOISY}, quantile = 0.5, count_noise = 1.0", SUMMED, "method.travel"),
        (NOISY.replace("1e-2", "0.2"), SUMMED, "mix.delta"),
        (
            NOISY.replace("noise = 1.0", "noise = 0.001"),
            'travel = { kind = "secure-sum", bits = 16 }',
            "mix.distributed",
        ),
        (NOISY.replace("true", "3"), SUMMED, "method.mix"),
    ],
)
def test_what_gives_no_noise_that_counts_is_refused_by_name(
    mix: str, selection: str, words: str, tmp_path: Path
) -> None:
    with refused(words):
        fedfloor.run(read(file(tmp_path, mix=mix, selection=selection)), tmp_path / "run", ranks=1)
    assert not (tmp_path / "run").exists()  # nothing was trained


@pytest.mark.live
def test_on_real_machines_the_noise_is_the_devices_secret(tmp_path: Path) -> None:
    more = """method.mix = {{ kind = "private", clip = 0.5, noise = {noise}, delta = 1e-2, distributed = true }}
method.travel = {{ kind = "secure-sum", across = true }}
deploy.norm_limit = false"""
    models = []
    for name, noise in (("one", 2.0), ("two", 2.0), ("quiet", 0.0)):
        folder = tmp_path / name
        folder.mkdir()
        settings = more.format(noise=noise)
        with live(folder, experiment(folder, "fedavg", 1, devices=7, factories=3, more=settings)) as there:
            there.run()
        stated = json.loads((folder / "live/privacy.json").read_text())["models"]
        assert (stated["noise"], stated["rounds"]) == ("secret", 1)
        assert privacy.visits_begun(folder / "live", {}) == dict.fromkeys(range(7), 1)
        models.append(
            np.concatenate([v.ravel() for _, v in sorted(load_file(folder / "live/model.safetensors").items())])
        )
    one, two, quiet = (model.astype(np.float64) for model in models)
    deviation = 2.0 * 0.5 * math.sqrt(7 / 5) / 7  # five of seven devices are left at least
    for model in (one, two):
        assert (model - quiet).std() == pytest.approx(deviation, rel=0.02)
    assert (one - two).std() == pytest.approx(deviation * math.sqrt(2), rel=0.02)
    assert not torch.equal(torch.tensor(one), torch.tensor(two))

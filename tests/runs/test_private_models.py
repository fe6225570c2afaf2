"""Differential privacy of devices: the mechanism's laws, its accounting, a run's budget, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from scipy.stats import kstest, norm

import fedfloor
from commands import Command
from fedfloor.config import read
from fedfloor.engine.aggregation import Aggregation
from fedfloor.park.augment import Augmented
from fedfloor.park.stream import Cycle, Fifo, Recycle, most_copies
from fedfloor.parts.mixing.means import gaussian_sum
from fedfloor.parts.mixing.mix import Branch, Meeting
from fedfloor.parts.mixing.private import Private
from fedfloor.parts.selection.selection import Poisson
from fedfloor.parts.travel.path import AddedNoise
from fedfloor.plan.nodes import CLOUD, Parallel, Train, Work, device
from fedfloor.runs import privacy
from live_park import experiment, live
from refusals import refused

PRIVATE = """
name = "private"
rounds = {rounds}
data = {{ name = "labels", samples_per_device = 20 }}
park = {{ devices = 20, factories = 2 }}
model.name = "{model}"
[method]
name = "{method}"
mix = {{ kind = "private", {mix} }}
{selection}
[work]
lr = 0.05
batch_size = 10
"""
DRAWN = 'selection = { kind = "poisson", share = 0.4 }'
SUMMED = f'{DRAWN}\ntravel = "secure-sum"'
ALL = 'selection = { kind = "poisson", share = 1.0 }'
NOISY = "clip = 0.5, noise = 1.0, delta = 1e-2"


def file(
    folder: Path, method: str = "fedavg", mix: str = NOISY, selection: str = DRAWN, model: str = "logistic",
    rounds: int = 3, more: str = "",
) -> Path:  # fmt: skip
    path = folder / "private.toml"
    path.write_text(PRIVATE.format(method=method, mix=mix, selection=selection, model=model, rounds=rounds) + more)
    return path


def run(folder: Path, name: str, what: Path, ranks: int = 1) -> tuple[list[float | None], np.ndarray]:
    done = fedfloor.run(read(what), folder / name, ranks=ranks)
    model = load_file(folder / name / "model.safetensors")
    return [line.loss for line in done.lines], np.concatenate([part.ravel() for _, part in sorted(model.items())])


# -- the mechanism -----------------------------------------------------------------------------------------------------

vectors = st.lists(st.floats(-100, 100), min_size=4, max_size=4).map(lambda one: torch.tensor(one).double())


@given(st.lists(vectors, min_size=1, max_size=6), vectors, st.floats(0.01, 10.0))
@settings(max_examples=60)
def test_one_device_more_changes_the_sum_by_at_most_the_clipping_norm(
    updates: list[torch.Tensor], more: torch.Tensor, clip: float
) -> None:
    rng = np.random.default_rng(0)
    before, after = (gaussian_sum(some, clip, 0.0, rng) for some in (updates, [*updates, more]))
    assert float((after - before).norm()) <= clip * (1 + 1e-9) + 1e-9


def test_the_noise_is_gaussian_with_its_deviation() -> None:
    total = gaussian_sum([torch.zeros(40_000).double()], 1.0, 2.5, np.random.default_rng(1))
    assert kstest(total.numpy() / 2.5, "norm").pvalue > 1e-3


def test_every_device_is_drawn_with_its_chance_and_independently() -> None:
    rng = np.random.default_rng(0)
    drawn = np.zeros((4000, 12))
    for row in drawn:
        row[Poisson(0.3).draw(range(12), np.ones(12), rng)] = 1
    assert np.abs(drawn.mean(0) - 0.3).max() < 0.04
    assert np.abs(np.corrcoef(drawn.T) - np.eye(12)).max() < 0.08


def test_without_noise_and_bound_and_with_every_device_it_is_the_plain_mean(tmp_path: Path) -> None:
    losses, model = run(tmp_path, "private", file(tmp_path, mix="clip = inf, noise = 0.0", selection=ALL))
    plain = file(tmp_path)
    plain.write_text(plain.read_text().replace(f'mix = {{ kind = "private", {NOISY} }}\n{DRAWN}', 'mix = "equal"'))
    wanted, other = run(tmp_path, "plain", plain)
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert np.abs(model - other).max() < 1e-6


def test_the_same_bits_on_one_and_two_ranks(tmp_path: Path) -> None:
    (losses, model), (wanted, other) = (run(tmp_path, f"ranks{n}", file(tmp_path), n) for n in (1, 2))
    assert losses == wanted
    assert np.array_equal(model, other)


# -- accounting --------------------------------------------------------------------------------------------------------


def exact(noise: float, delta: float) -> float:
    """ε of the Gaussian mechanism, δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz): Balle and Wang, ICML 2018, Theorem 8."""
    low, high = 0.0, 200.0
    for _ in range(100):
        e = (low + high) / 2
        here = norm.cdf(0.5 / noise - e * noise) - math.exp(e) * norm.cdf(-0.5 / noise - e * noise)
        low, high = (e, high) if here > delta else (low, e)
    return high


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 16), (2.0, 9)])
def test_without_sampling_epsilon_is_the_closed_form(noise: float, rounds: int) -> None:
    wanted = exact(noise / math.sqrt(rounds), 1e-5)  # rounds without sampling are one with less noise
    assert privacy.epsilon(noise, 1.0, rounds, 1e-5, 50) == pytest.approx(wanted, rel=0.01)


def test_with_sampling_it_is_below_the_published_moments_bound() -> None:
    # Abadi et al., CCS 2016: q = 0.01, σ = 4, 10,000 steps, δ = 1e-5 have ε = 1.26 by the moments accountant
    value = privacy.epsilon(4.0, 0.01, 10_000, 1e-5, 60_000)
    assert 0.9 < value < 1.26


def test_empty_rounds_that_were_drawn_again_cost_delta() -> None:
    few, many = (privacy.epsilon(1.0, 0.1, 10, 1e-3, devices) for devices in (150, 10**6))
    assert many < few < math.inf
    assert privacy.epsilon(1.0, 0.1, 10, 1e-3, 20) == math.inf  # a round is empty with a chance of 0.12


def test_rounds_within_a_budget_are_the_most() -> None:
    about = (1.0, 0.1, 1e-3, 1000)
    last = privacy.rounds_within(3.0, *about, 400)
    values = [privacy.epsilon(*about[:2], rounds, *about[2:]) for rounds in (last, last + 1)]
    assert values[0] <= 3.0 < values[1]
    assert privacy.rounds_within(3.0, *about, 5) == 5


def test_rounds_that_were_repeated_after_a_kill_count_in_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "epsilon", lambda noise, share, rounds, *_: float(rounds))
    method = read(file(tmp_path)).configured
    assert privacy.last_round(method, 8.5, 20, 50) == 8
    assert privacy.last_round(method, 8.5, 20, 50, 3) == 5
    assert privacy.last_round(method, 8.5, 20, 2, 1) == 2
    assert privacy.last_round(method, 8.5, 20, 50, 9) < 0  # more were begun than the budget allows


@pytest.mark.parametrize(("window", "copies"), [(5, 1), (10, 1), (20, 1), (60, 3), (12, 2), (47, 4)])
@pytest.mark.parametrize("kind", [Fifo, Recycle, Augmented])
def test_no_window_has_a_sample_more_often_than_accounted(kind: type, window: int, copies: int) -> None:
    stream = kind(window)
    labels = np.arange(20) % 4
    held = [stream.held(labels, 0, 1, position)[0] for position in range(200)]
    most = most_copies(stream, len(labels))
    assert max(np.bincount(one).max() for one in held) <= most
    assert most == (-(-window // 20) if kind is Augmented else copies)


def test_drift_brings_the_copies_of_several_passes_together() -> None:
    stream = Fifo(8, Cycle(1.0, period=3))
    held = [stream.held(np.arange(20), 0, 1, position)[0] for position in range(60)]
    assert 3 <= max(np.bincount(one).max() for one in held) <= most_copies(stream, 20)


def test_a_sample_that_a_window_repeats_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[float, ...]]()
    monkeypatch.setattr(privacy, "epsilon", lambda *about: asked.append(about) or 1.0)
    noise = AddedNoise("steps", 2.0, 1e-5, "", steps=lambda _: (0.125, 9))
    assert privacy.worst_device(noise, [(80, 1), (80, 4)], {0: 2}) == (1.0, 0.125, 18, 1)
    # one of four copies is in a step with this chance, and all four change its sum by 4C
    assert privacy.worst_device(noise, [(80, 1), (80, 4)], {1: 2}) == (1.0, 1 - 0.875**4, 18, 4)
    assert asked == [(2.0, 0.125, 18, 1e-5), (0.5, 1 - 0.875**4, 18, 1e-5)]


def test_a_run_stops_before_its_budget_is_exceeded_and_states_what_it_revealed(
    tmp_path: Path, command: Command
) -> None:
    what = file(tmp_path, rounds=50, mix="clip = 0.5, noise = 1.0, delta = 1e-2", selection=ALL)
    said = command("run", str(what), "--out", str(tmp_path / "run"), "--until", "epsilon=8")
    assert said.code == 0
    stated = json.loads((tmp_path / "run/privacy.json").read_text())["models"]
    done = len((tmp_path / "run/ledger.jsonl").read_text().splitlines())
    assert stated["rounds"] == done < 50
    assert stated["epsilon"] <= 8 < privacy.epsilon(1.0, 1.0, done + 1, 1e-2, 20)
    assert (stated["noise"], stated["noise_multiplier"], stated["delta"]) == ("seeded", 1.0, 1e-2)
    page = (tmp_path / "run/report.html").read_text()
    assert f"ε = {stated['epsilon']:.4g} with δ = 0.01" in page
    assert "gives no protection" in page


# -- a norm that follows the updates -----------------------------------------------------------------------------------


def test_the_norm_comes_to_the_quantile_of_the_updates_norms() -> None:
    rng = np.random.default_rng(0)
    clip = 0.01
    lengths = np.geomspace(0.5, 8.0, 200)  # of which 70 % are below 3.5
    models = [torch.tensor([length, 0.0]) for length in lengths]
    rule = Private(noise=0.5, expected=200.0, quantile=0.7, count_noise=10.0)
    norms = []
    for _ in range(120):
        met = Meeting(torch.zeros(2), models, [Branch(20, 0.5)] * 200, 0.1, 2, 2, rng)
        replace(rule, clip=clip).mixed(met)
        norms.append(clip := float(met.settings["clip"]))  # type: ignore[arg-type]
    assert np.quantile(lengths, 0.7) == pytest.approx(np.median(norms[-40:]), rel=0.1)
    assert norms[0] == pytest.approx(0.01 * math.exp(0.2 * 0.7), rel=0.05)  # all are longer: by the paper's step


def test_the_count_takes_its_share_of_the_noise() -> None:
    rule = Private(noise=1.0, expected=100.0, quantile=0.5, count_noise=5.0)
    # the count of halves and the updates are two Gaussian mechanisms: 1/z² = 1/z_Δ² + 1/(2σ_b)²
    assert rule.update_noise**-2 + (2 * 5.0) ** -2 == pytest.approx(1.0)
    assert replace(rule, noise=0.0).update_noise == 0
    met = Meeting(torch.zeros(20_000), [torch.zeros(20_000)], [Branch(20, 0.5)], 0.1, 2, None, np.random.default_rng(1))
    noise = replace(rule, clip=0.5).mixed(met) * 100.0
    assert float(noise.std()) == pytest.approx(0.5 * rule.update_noise, rel=0.02)


def test_random_participation_lowers_no_loss_where_a_sum_of_too_few_is_lost(tmp_path: Path) -> None:
    for selection, share in ((DRAWN, 0.4), (SUMMED, 1.0)):
        found = privacy.mechanism(read(file(tmp_path, selection=selection)).configured)
        assert found is not None
        assert found[1] == share


def test_a_round_whose_visits_are_all_lost_gets_the_noise_alone() -> None:
    # an unchanged model would state that none of the present devices was drawn
    rule = {"clip": 0.5, "noise": 2.0, "expected": 4.0}
    start = {"w": torch.zeros(20_000)}
    for about, deviation in ((rule, 0.25), (rule | {"noise": 0.0}, 0.0)):
        lost = Aggregation(Parallel((Train(device(0), Work(epochs=1)),), CLOUD, "private", about), start)
        lost.add(0, start, 0)
        mixed = lost.mixed([None], 2, 20_000, np.random.default_rng(1))["w"]
        assert float(mixed.std()) == pytest.approx(deviation, rel=0.02)


def test_a_run_takes_the_norm_from_round_to_round_and_states_what_it_spent(tmp_path: Path) -> None:
    adaptive = f"{NOISY}, quantile = 0.5, count_noise = 1.0"
    what = read(file(tmp_path, mix=adaptive, rounds=4))
    whole = fedfloor.run(what, tmp_path / "whole", ranks=1)
    clips = [line.info["clip"] for line in whole.lines]
    assert len(set(clips)) == 4
    for ranks in (1, 2):
        out = tmp_path / f"parts{ranks}"
        fedfloor.run(what, out, ranks=ranks, limits=fedfloor.Limits(stop_after=2))
        again = fedfloor.run(what, out, ranks=ranks, resume=True)
        assert [line.info["clip"] for line in again.lines] == clips
        assert again.lines[-1].plan_hash == whole.lines[-1].plan_hash  # which names the norm
    stated = json.loads((tmp_path / "whole/privacy.json").read_text())["models"]
    assert (stated["quantile"], stated["count_noise"]) == (0.5, 1.0)
    assert stated["epsilon"] == pytest.approx(privacy.epsilon(1.0, 0.4, 4, 1e-2, 20))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "fedsr"}, "mix"),
        ({"method": "hierfavg"}, "mix"),
        ({"method": "scaffold"}, "mix"),
        ({"method": "ifca"}, "combination"),
        ({"selection": ""}, "mix"),
        ({"selection": 'selection = { kind = "fraction", share = 0.5 }'}, "mix"),
        ({"selection": 'selection = { kind = "poisson", share = 0.01 }'}, "selection.share"),
        ({"mix": "noise = 1.0, clip = inf"}, "method.mix.mix.noise"),
        ({"mix": "clip = 0.0"}, "method.mix.mix.clip"),
        ({"mix": "noise = -1.0"}, "method.mix.mix.noise"),
        ({"mix": "delta = 0.2"}, "mix.delta"),
        ({"mix": f"{NOISY}, quantile = 1.0"}, "method.mix.mix.quantile"),
        ({"mix": f"{NOISY}, quantile = 0.5, clip_rate = 0.0"}, "method.mix.mix.clip_rate"),
        ({"mix": f"{NOISY}, count_noise = 5.0"}, "method.mix.mix.count_noise"),
        ({"mix": f"{NOISY}, quantile = 0.5, count_noise = 0.4"}, "method.mix.mix.count_noise"),
        ({"mix": f"{NOISY}, quantile = 0.5"}, "mix.quantile"),
        ({"mix": "clip = inf, noise = 0.0, quantile = 0.5"}, "method.mix.mix.clip"),
        ({"mix": f"{NOISY}, quantile = 0.5, count_noise = 1.0", "selection": SUMMED}, "method.travel"),
        ({"more": "[deploy]\nsimulate = true\n"}, "combination"),
    ],
)
def test_what_would_reveal_more_is_refused_by_name(tmp_path: Path, change: dict[str, str], words: str) -> None:
    with refused(words):
        fedfloor.run(read(file(tmp_path, **change)), tmp_path / "run", ranks=1)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()  # nothing was trained


def test_moving_statistics_are_refused() -> None:
    start = torch.zeros(6)
    rng = np.random.default_rng(0)
    models = [torch.tensor([1.0, 0, 0, 0, 0, 1.0])]
    met = Meeting(start, models, [Branch(20, 0.5)], 0.1, 2, 4, rng)
    with refused("mix"):
        Private(expected=1.0).mixed(met)
    frozen = Private(expected=1.0).mixed(replace(met, models=[torch.tensor([1.0, 0, 0, 0, 0, 0])]))
    assert frozen[:4].abs().min() > 0
    assert not frozen[4:].any()


def test_a_budget_without_noise_and_one_that_the_first_round_exceeds(tmp_path: Path, command: Command) -> None:
    plain = command("run", "tiny.toml", "--until", "epsilon=8")
    assert plain.code == 2
    assert "needs models with noise" in plain.err
    first = command("run", str(file(tmp_path)), "--out", str(tmp_path / "first"), "--until", "epsilon=0.1")
    assert first.code == 2
    assert "Raise mix.noise" in first.err


# -- real machines -----------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_on_real_machines_draws_and_noise_are_secret_and_attempts_count(tmp_path: Path) -> None:
    more = f"""method.mix = {{ kind = "private", {NOISY} }}
method.{ALL}
deploy.norm_limit = false"""
    models = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        with live(folder, experiment(folder, "fedavg", rounds=2, devices=6, more=more)) as park:
            park.run()
        stated = json.loads((folder / "live/privacy.json").read_text())["models"]
        assert (stated["noise"], stated["rounds"]) == ("secret", 2)
        assert privacy.rounds_begun(folder / "live", 0) == 2
        models.append(load_file(folder / "live/model.safetensors"))
    assert all(not np.array_equal(models[0][key], models[1][key]) for key in models[0])
    privacy.begin_round(tmp_path / "one/live")
    assert privacy.rounds_begun(tmp_path / "one/live", 2) == 3

"""Secure sums in simulation: the bits of a fixed-point sum, priced; what cannot be summed is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfloor
import refusals
from fedfloor import config
from fedfloor.engine.executor import LocalExecutor
from fedfloor.engine.limit import Limit, Part
from fedfloor.engine.summand import bound, farthest
from fedfloor.engine.travel import VisitPath
from fedfloor.methods.catalog import METHODS
from fedfloor.parts.protection.masking import FixedPoint, threshold
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.parts.travel.limits import NormLimit
from fedfloor.plan.nodes import Work
from floor import bits, park
from rounds import Job, method

SIZES = (6, 10, 4, 9, 5, 8, 7)
FACTORIES = (0, 0, 0, 1, 1, 1, 1)
SECURE = {"travel": "secure-sum"}
ACROSS = {"travel": {"kind": "secure-sum", "across": True}}
TOGETHER = {"travel": {"kind": "secure-sum", "together": True}}
THREE = (0, 0, 0, 1, 1, 2, 2)  # the factory of each device
REFUSED = {
    **dict.fromkeys(("fedsr", "ring", "hfedms", "astraea", "fedrep", "ditto", "apfl"), "method.travel"),
    **dict.fromkeys(("fedasync", "fedbuff"), "combination"),
    **dict.fromkeys(("ifca", "flhc"), "combination"), "local": "no models travel",
    "fedl": "combination", "kcenter": "combination", "fldg": "combination",
    "fldgl": "combination", "scaffold": "method.travel", "qffl": "combination",
    "ida": "method.travel", "fedgs": "method.travel",
}  # fmt: skip


def job(
    folder: Path, parts: dict[str, Any] = SECURE, name: str = "fedavg", factory_of: tuple[int, ...] = FACTORIES,
    **more: Any,
) -> Job:  # fmt: skip
    return Job(method(name, parts), park(SIZES, factory_of=factory_of), folder=folder, **more)


class Watched(LocalExecutor):
    """Notes the changes that leave visits."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[int, np.ndarray] = {}

    def visit(self, engine: Any, work: Any, packet: Any, key: Any, extractor: Any) -> Any:
        sent, receipt = super().visit(engine, work, packet, key, extractor)
        self.changes[key.device] = sent["w"].numpy().copy()
        return sent, receipt


@pytest.mark.parametrize(("mix", "loss"), [("by_samples", 0.0), ("equal", 0.0), ("by_samples", 0.2)])
def test_the_mean_is_that_of_the_fixed_point_sum_to_the_bit(mix: str, loss: float, tmp_path: Path) -> None:
    one = job(tmp_path, {"travel": {"kind": "secure-sum", "bound": 8.0}, "mix": mix}, rounds=1, loss=loss)
    start = one.start["w"].double().numpy()
    one.engine.executor = watched = Watched()
    state = one.run()
    weights = SIZES if mix == "by_samples" else (1,) * len(SIZES)
    room = 2**31 - 1 - len(SIZES) / 2
    fraction = int(np.floor(np.log2(room / (8 * sum(weights)))))
    kept = [r.device for r in one.outcomes[0].receipts if not r.lost]
    total = [
        sum(round(Fraction(float(watched.changes[k][i])) * weights[k] * 2**fraction) for k in kept)
        for i in range(len(start))
    ]
    mean = np.array(total, np.float64) / 2.0**fraction / sum(weights[k] for k in kept)
    assert state.packet["w"].tolist() == (start + mean).astype(np.float32).tolist()
    plain = job(tmp_path / "plain", {"mix": mix}, rounds=1, loss=loss).run()
    if not loss:
        assert torch.allclose(state.packet["w"], plain.packet["w"], atol=1e-6)


def test_receipts_show_the_mean_of_their_factory_alone(tmp_path: Path) -> None:
    secure = job(tmp_path, rounds=1)
    plain = job(tmp_path / "plain", {}, rounds=1)
    secure.run(), plain.run()
    shown = secure.outcomes[0].receipts
    known = plain.outcomes[0].receipts
    for factory in (0, 1):
        of = [k for k, m in enumerate(FACTORIES) if m == factory]
        assert len({(shown[k].loss_first, shown[k].loss_last, shown[k].accuracy) for k in of}) == 1
        mean = sum(SIZES[k] * known[k].loss_last for k in of) / sum(SIZES[k] for k in of)
        assert shown[of[0]].loss_last == pytest.approx(mean, abs=1e-6)


def test_a_factory_with_too_few_devices_left_is_lost_as_a_whole(tmp_path: Path) -> None:
    one = job(tmp_path, rounds=6, loss=0.3)
    one.run()
    seen = set()
    for outcome in one.outcomes:
        for factory in (0, 1):
            mine = [r for r in outcome.receipts if FACTORIES[r.device] == factory]
            refused = [r for r in mine if r.refused]
            kept = [r for r in mine if not r.lost]
            needed = threshold(0.6, len(mine))
            assert not (refused and kept)
            assert not kept or len(kept) >= needed >= 3
            assert all(f"a secure sum needs {needed}" in r.refused for r in refused)
            seen.add(bool(refused))
    assert seen == {True, False}


def test_one_sum_across_factories_has_the_same_bits_and_shows_one_mean(tmp_path: Path) -> None:
    apart = job(tmp_path, rounds=2).run()
    one = job(tmp_path / "across", ACROSS, factory_of=THREE, rounds=2)  # a factory of two devices is no sum of two
    assert bits(one.run().packet["w"]) == bits(apart.packet["w"])
    for outcome in one.outcomes:
        assert len({(r.loss_first, r.loss_last, r.accuracy) for r in outcome.receipts}) == 1


def test_one_sum_across_factories_needs_three_of_them(tmp_path: Path) -> None:
    settings = {"travel": {"kind": "secure-sum", "across": True, "threshold": 0.51}}
    one = job(tmp_path, settings, factory_of=(0, 0, 0, 0, 1, 2, 2), rounds=20, loss=0.25)
    seen = set()
    one.run()
    for outcome in one.outcomes:
        arrived = [r.device for r in outcome.receipts if not r.lost or r.refused]
        few = len(arrived) < 4
        factories = len({(0, 0, 0, 0, 1, 2, 2)[k] for k in arrived})
        reason = "of 7 devices of all factories delivered; a secure sum needs 4" if few else ""
        if not few and factories < 3:
            reason = f"devices of only {factories} factories delivered; a secure sum across factories needs 3"
        assert all(reason in r.refused for r in outcome.receipts if r.device in arrived)
        assert all(r.lost == bool(reason) for r in outcome.receipts if r.device in arrived)
        seen.add(reason.partition(";")[2])
    assert len(seen) == 3


def test_with_noise_0_and_no_clipping_the_private_rule_is_the_mean_of_equal_weights(tmp_path: Path) -> None:
    private = {"kind": "private", "clip": float("inf"), "noise": 0.0, "delta": 0.1}
    drawn = {"kind": "poisson", "share": 1.0}
    noisy = job(tmp_path, SECURE | {"mix": private, "selection": drawn}, rounds=1).run()
    equal = job(tmp_path / "equal", SECURE | {"mix": "equal"}, rounds=1).run()
    assert torch.allclose(noisy.packet["w"], equal.packet["w"], atol=1e-7)
    clipped = job(tmp_path / "clip", {"mix": private | {"clip": 0.01}, "selection": drawn}, rounds=1)
    secure = job(tmp_path / "both", SECURE | {"mix": private | {"clip": 0.01}, "selection": drawn}, rounds=1)
    assert torch.allclose(clipped.run().packet["w"], secure.run().packet["w"], atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_secure_sums_or_refuses_them_with_the_reason(name: str, tmp_path: Path) -> None:
    if name in REFUSED:
        with refusals.refused(REFUSED[name]):
            job(tmp_path, name=name, rounds=1).run()
        return
    parts = TOGETHER if name == "boosting" else SECURE  # its sums over the same rows recur
    assert bool(torch.isfinite(job(tmp_path, parts, name, rounds=1).run().packet["w"]).all())


@pytest.mark.parametrize(
    ("parts", "name", "reason"),
    [
        ({"mix": "median"}, "fedavg", "method.travel"),
        ({"mix": {"kind": "krum", "outliers": 1}}, "fedavg", "method.travel"),
        (ACROSS, "fedavg", "method.travel"),
        (ACROSS, "hierfavg", "method.travel"),
        ({}, "fedsr", "method.travel"),
        ({}, "scaffold", "method.travel"),
        ({}, "kcenter", "combination"),
        ({}, "ifca", "combination"),
        ({"travel": ["top-k", "secure-sum"]}, "fedavg", "method.travel.travel"),
        ({"travel": ["int8", "secure-sum"]}, "fedavg", "method.travel.travel"),
        ({"travel": ["sign", "secure-sum"]}, "fedavg", "method.travel.travel"),
        ({"travel": ["low-rank", "secure-sum"]}, "fedavg", "method.travel.travel"),
        ({"travel_down": "secure-sum"}, "fedavg", "method.travel_down"),
        ({"travel": {"kind": "secure-sum", "bits": 12}}, "fedavg", "method.travel"),
        ({"travel": {"kind": "secure-sum", "threshold": 0.5}}, "fedavg", "method.travel"),
        ({}, "boosting", "combination"),
    ],
)
def test_refusals_name_the_reason(parts: dict[str, Any], name: str, reason: str, tmp_path: Path) -> None:
    with refusals.refused(reason):
        job(tmp_path, SECURE | parts, name).run()


def experiment(**more: Any) -> Any:
    table = {
        "rounds": 2, "data": {"samples_per_device": 20}, "park": {"devices": 8, "factories": 2},
        "work": {"batch_size": 5, "lr": 0.05}, "network": {"profile": "lte-cat-m2"}, "model": {"name": "logistic"},
        "method": {"name": "fedavg", **SECURE},
    }  # fmt: skip
    return config.from_table(table | more)


def test_factories_of_two_are_refused(tmp_path: Path) -> None:
    with refusals.refused("method.travel"):
        fedfloor.run(experiment(park={"devices": 8, "factories": 4}), tmp_path / "a", ranks=1)


def test_noise_that_devices_add_lengthens_the_longest_sum(tmp_path: Path) -> None:
    """Eight devices' noise makes a mean update 60 long, where their steps lead 2 far: every sum was refused."""
    private = {"kind": "private", "clip": 1.0, "noise": 4.0, "delta": 1e-4, "distributed": True}
    what = experiment(method={"name": "fedavg", **ACROSS, "mix": private}, deploy={"simulate": True},
                      park={"devices": 9, "factories": 3})  # fmt: skip
    assert what.deploy.norm_limit == 4
    done = fedfloor.run(what, tmp_path / "run", ranks=1)
    assert [line.lost for line in done.lines] == [0, 0]


def test_a_change_is_bounded_by_rate_and_steps_or_by_the_setting() -> None:
    """Gradients are at most 10 long: five steps of rate 0.01 lead 0.5 far, with momentum 0.75 twice 1."""
    sgd = Work(steps=5, rate=0.01)
    assert bound(SecureSum(), sgd, 24) == pytest.approx(0.5)
    assert bound(SecureSum(), replace(sgd, momentum=0.75), 24) == pytest.approx(2.0)
    assert bound(SecureSum(), Work(epochs=1, batch_size=10, rate=0.01), 24) == pytest.approx(0.3)
    assert bound(SecureSum(), replace(sgd, clip_norm=1.0), 24) == pytest.approx(0.1)
    assert bound(SecureSum(), replace(sgd, optimizer="adam"), 24) == pytest.approx(0.1)
    assert farthest(replace(sgd, optimizer="adam"), 24, 400) == pytest.approx(2.0)  # each of 400 numbers by 0.1
    assert bound(SecureSum(), replace(sgd, steps=500), 24) == 8
    assert bound(SecureSum(bound=0.25), sgd, 24) == 0.25
    assert math.isinf(farthest(replace(sgd, objective="histograms"), 24, 400))


def test_a_model_that_is_sums_refuses_a_bound_by_which_small_numbers_are_rounded_away() -> None:
    """With 32 bits and 10¹⁰, every sum of normalised sensors was rounded to 0, and so was the model, without a word."""
    for objective in ("ridge", "histograms"):
        for codec in (SecureSum(bound=1e6), SecureSum(bits=16, bound=64), SecureSum(bits=64, bound=1e12)):
            assert bound(codec, Work(objective=objective), 24) == codec.bound
        for codec in (SecureSum(bound=1e7), SecureSum(bits=16, bound=65), SecureSum(bits=64, bound=1e17)):
            with refusals.refused("travel.secure-sum.bound"):
                bound(codec, Work(objective=objective), 24)
    assert bound(SecureSum(bound=1e10), Work(), 24) == 1e10  # updates of a network are clipped, as their setting says


@pytest.mark.parametrize("devices", [3, 18, 1000])
def test_sums_have_the_room_that_double_precision_leaves(devices: int) -> None:
    """The widest numbers of all devices fit, and a mean of numbers near 1 is off by at most K·2^−52."""
    most = bound(SecureSum(bits=64, together=True), Work(objective="kmeans"), 24)
    assert most == 2048
    fixed = FixedPoint.sized(2, 64, most, 24.0 * devices, devices)
    for level in (most, -most, 1.0):
        means = np.random.default_rng(0).uniform(0.5, 1, (devices, 2)) if level == 1 else np.full((devices, 2), level)
        total = fixed.ring.zeros()
        for mean in means:
            fixed.ring.add(total, fixed.encoded(mean, 24.0))
        change, weight, _ = fixed.decoded(total)
        assert np.abs(change / weight - means.mean(0)).max() <= max(1.0, abs(level)) * devices * 2.0**-52


@pytest.mark.parametrize("across", [False, True])
def test_a_sum_that_is_too_long_is_refused_with_a_reason_and_does_not_move_the_model(
    across: bool, tmp_path: Path
) -> None:
    """Honest sums set the measure; then one device adds what is ten of their lengths to the mean of its factory."""
    parts = ACROSS if across else SECURE
    honest = job(tmp_path / "honest", parts, factory_of=THREE if across else FACTORIES, rounds=4)
    honest.engine.limit = Limit(NormLimit(4.0))
    honest.run()
    assert not any(receipt.refused for outcome in honest.outcomes for receipt in outcome.receipts)
    one = job(tmp_path / "one", parts, factory_of=THREE if across else FACTORIES, rounds=4)
    one.engine.limit = Limit(NormLimit(4.0))

    class FalseDevice(LocalExecutor):
        def visit(self, engine: Any, work: Any, packet: Any, key: Any, extractor: Any) -> Any:
            sent, receipt = super().visit(engine, work, packet, key, extractor)
            if key.device == 6 and key.round in (1, 3):
                sent = {"w": torch.full_like(sent["w"], 7.0)}
            return sent, receipt

    one.engine.executor = FalseDevice()
    one.run()
    for number, outcome in enumerate(one.outcomes, 1):
        refused = {receipt.device: receipt.refused for receipt in outcome.receipts if receipt.refused}
        due = set(range(7)) if across else {3, 4, 5, 6}
        assert set(refused) == (due if number in (1, 3) else set())
        assert all("mean update of" in why or "as long as the median" in why for why in refused.values())


def test_a_sum_of_other_rates_is_judged_by_length_per_step() -> None:
    limit = Limit(NormLimit(4.0))
    for k in range(3):
        limit._keep("all", k, (1.0, 1.0))
    part = Part(weights=True, start=torch.zeros(4), end=torch.tensor([9.0, 0, 0, 0]))
    assert "9 times as long" in limit.reason("all", (1.0, 9.0), [part])
    assert limit.reason("all", (9.0, 9.0), [part]) == ""


def test_ranks_give_the_same_bits_and_stages_are_priced(tmp_path: Path) -> None:
    what = experiment(faults={"visit": 0.2})
    fedfloor.run(what, tmp_path / "1", ranks=1)
    fedfloor.run(what, tmp_path / "2", ranks=2)
    lines, others = (fedfloor.runs.ledger.read(tmp_path / n / "ledger.jsonl") for n in ("1", "2"))
    assert [{**vars(one), "wall_s": 0} for one in lines] == [{**vars(one), "wall_s": 0} for one in others]
    assert (tmp_path / "1/model.safetensors").read_bytes() == (tmp_path / "2/model.safetensors").read_bytes()
    model = 4 * 48_670  # (784 + 1) · 62
    # of four devices in each factory
    keys = 64
    sealed = 3 * 80
    revealed = 4 * 32
    paid = lines[0].priced["bytes"]  # type: ignore[index]
    assert paid["device_edge_up"] == 8 * (keys + sealed + model + 4 * 8 + revealed)
    assert paid["device_edge_down"] == 8 * (3 * keys + model + sealed + 1)
    fedfloor.run(experiment(method={"name": "fedavg"}), tmp_path / "plain", ranks=1)
    plain = fedfloor.runs.ledger.read(tmp_path / "plain/ledger.jsonl")[0].priced
    assert plain["seconds"] < lines[0].priced["seconds"] < 1.05 * plain["seconds"]  # type: ignore[index]


def test_a_crew_is_in_a_sum_whole_or_not_at_all_with_the_same_bits_on_two_ranks(tmp_path: Path) -> None:
    """Twelve devices in four crews, of which ranks walk some devices each."""
    parts = {"name": "fedavg", "travel": {"kind": "secure-sum", "together": True, "threshold": 0.6}}
    what = experiment(park={"devices": 12, "factories": 1}, method=parts, faults={"visit": 0.06}, rounds=6)
    for ranks in (1, 2):
        fedfloor.run(what, tmp_path / str(ranks), ranks=ranks)
    lines, others = (fedfloor.runs.ledger.read(tmp_path / n / "ledger.jsonl") for n in ("1", "2"))
    assert [{**vars(one), "wall_s": 0} for one in lines] == [{**vars(one), "wall_s": 0} for one in others]
    assert (tmp_path / "1/model.safetensors").read_bytes() == (tmp_path / "2/model.safetensors").read_bytes()
    assert {line.lost % 3 for line in lines} == {0}
    assert {0, 3} <= {line.lost for line in lines}
    for line in lines:
        if 0 < line.lost <= 3:
            assert all("did not deliver; a crew is in a sum whole" in why for why in line.info["refused"].values())


def test_only_methods_that_train_all_devices_have_crews(tmp_path: Path) -> None:
    what = experiment(
        method={"name": "fedgs", "travel": {"kind": "secure-sum", "together": True}},
        methods={"fedgs": {"iterations": 2, "devices": 3, "random": 1, "work": {"steps": 1}}},
    )
    with refusals.refused("travel.secure-sum.together"):
        fedfloor.run(what, tmp_path / "out", ranks=1)


def test_stages_of_a_sum_across_factories_are_priced_to_the_cloud(tmp_path: Path) -> None:
    what = experiment(park={"devices": 8, "factories": 4}, method={"name": "fedavg", **ACROSS})
    fedfloor.run(what, tmp_path / "across", ranks=1)
    line = fedfloor.runs.ledger.read(tmp_path / "across/ledger.jsonl")[0]
    keys = 64
    sealed = 7 * 80
    revealed = 8 * 32
    model = 4 * 48_670
    paid = line.priced["bytes"]  # type: ignore[index]
    up = 8 * (keys + sealed + model + 4 * 8 + revealed)  # type: ignore[index]
    assert paid["device_edge_up"] == paid["edge_cloud_up"] == up
    assert paid["device_edge_down"] == paid["edge_cloud_down"] == 8 * (7 * keys + model + sealed + 1)


def test_attackers_hide_in_a_sum_and_half_the_bits_are_half_the_bytes(tmp_path: Path) -> None:
    attackers = {"share": 0.2, "kind": "sign-flip"}
    fedfloor.run(experiment(faults={"attackers": attackers}), tmp_path / "attacked", ranks=1)
    one = job(tmp_path / "half", {"travel": {"kind": "secure-sum", "bits": 16, "bound": 0.5}}, rounds=2)
    state = one.run()
    plain = job(tmp_path / "plain", {}, rounds=2).run()
    work = one.method.coded(one.method.method.work.at(1, 1))  # type: ignore[attr-defined]
    assert VisitPath(one.engine.network, work).up.size(one.start) == 2 * len(one.start["w"]) + 32
    assert bits(state.packet["w"]) != bits(plain.packet["w"])
    assert torch.allclose(state.packet["w"], plain.packet["w"], atol=1e-3)

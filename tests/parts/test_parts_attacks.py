"""Attacks: their equations by hand, their laws, and tables of attackers that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfloor.experiment import FaultSettings
from fedfloor.parts.attacks import ATTACKS, Attack, AttackedData, AttackedVisit, Attackers, Backdoor, LabelFlip, MinMax
from refusals import refused

SEEDS = st.integers(0, 2**32)


def visit(update: Tensor, every: list[Tensor] | None = None, earlier: Tensor | None = None) -> AttackedVisit:
    return AttackedVisit(update, every or [update], earlier, np.random.default_rng(1), np.random.default_rng(2))


def sent(kind: str, about: AttackedVisit, **given: Any) -> Tensor:
    attack: Attack = ATTACKS[kind](**given)
    return attack.sent(about)


def test_updates_by_hand() -> None:
    one, other = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.0])  # mean (2, −1), deviation (1, 1)
    about = visit(one, [one, other])
    assert sent("sign-flip", about).tolist() == [-1.0, 2.0]
    assert sent("scaling", about, strength=3.0).tolist() == [3.0, -6.0]
    assert sent("alie", about, z=1.5).tolist() == [0.5, -2.5]
    assert sent("inner-product", about, epsilon=0.5).tolist() == [-1.0, 0.5]
    assert sent("free-rider", about).tolist() == [0.0, 0.0]
    assert sent("free-rider", visit(one, earlier=other), stale=True).tolist() == [3.0, 0.0]
    assert sent("backdoor", about) is one
    assert one.tolist() == [1.0, -2.0]


def test_min_max_by_hand() -> None:
    # updates 0 and 2: μ = 1, σ = 1, D = 2. |1 − γ − 0| ≤ 2 for γ ≤ 3, |1 − γ − 2| ≤ 2 for γ ≤ 1: it sends 1 − 1 = 0
    about = visit(torch.zeros(1), [torch.zeros(1), torch.full((1,), 2.0)])
    assert MinMax().sent(about).tolist() == [0.0]


@settings(max_examples=60, deadline=None)
@given(many=st.integers(2, 8), size=st.integers(1, 20), seed=SEEDS)
def test_min_max_is_as_far_as_the_two_farthest_and_no_farther(many: int, size: int, seed: int) -> None:
    every = list(torch.from_numpy(np.random.default_rng(seed).standard_normal((many, size))).float())
    update = MinMax().sent(visit(every[0], every))
    farthest = max(float((a - b).norm()) for a in every for b in every)
    assert max(float((update - one).norm()) for one in every) == pytest.approx(farthest, rel=1e-3)


def test_colluders_send_one_vector_as_long_as_honest_updates() -> None:
    every = [torch.tensor([3.0, 0.0, 4.0]), torch.tensor([3.0, 0.0, 4.0])]
    first, second = (sent("collusion", visit(one, every)) for one in every)
    assert first.equal(second)
    assert float(first.norm()) == pytest.approx(5.0)
    assert sent("gaussian", visit(torch.zeros(9999)), deviation=2.0).std().item() == pytest.approx(2.0, rel=0.05)


def held(x: np.ndarray, y: list[int], classes: int = 4) -> AttackedData:
    return AttackedData(x, np.array(y), classes, np.zeros(3), np.ones(3), np.random.default_rng(0))


def test_classes_are_reversed_or_one_becomes_another() -> None:
    data = held(np.zeros((4, 3), np.float32), [0, 1, 2, 3])
    assert LabelFlip().data(data)[1].tolist() == [3, 2, 1, 0]
    assert LabelFlip(source=1, target=2).data(data)[1].tolist() == [0, 2, 2, 3]
    assert data.y.tolist() == [0, 1, 2, 3]
    with refused("faults.attackers.target"):
        LabelFlip(source=1, target=7).data(data)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3,), (3, 5)], ids=str)
def test_a_backdoor_marks_its_share_of_the_samples(shape: tuple[int, ...]) -> None:
    kind = np.uint8 if len(shape) == 3 else np.float32
    data = held(np.zeros((10, *shape), kind), [1, 2, 3, 1, 2] * 2)
    x, y = Backdoor(target=0, poisoned=0.4, size=2).data(data)
    marked = x.reshape(10, -1).any(1)
    assert marked.sum() == 4
    assert (y[marked] == 0).all()
    assert (y[~marked] == data.y[~marked]).all()
    assert not data.x.any()
    changed = {(1, 6, 6): (4, 255), (3,): (2, 4.0), (3, 5): (4, 4.0)}[shape]  # numbers of a sample, and their value
    assert [np.count_nonzero(one) for one in x[marked]] == [changed[0]] * 4
    assert set(x[x != 0].tolist()) == {changed[1]}


@settings(max_examples=60, deadline=None)
@given(devices=st.integers(1, 500), share=st.floats(0.001, 0.999), seed=SEEDS)
def test_a_share_of_the_devices_attacks(devices: int, share: float, seed: int) -> None:
    attackers = Attackers.of({"share": share, "kind": "sign-flip"})
    many = math.floor(share * devices + 1e-9)
    if many == 0:
        with refused("faults.attackers.share"):
            attackers.among(devices, (), np.random.default_rng(seed))
        return
    chosen = attackers.among(devices, (), np.random.default_rng(seed))
    assert len(set(chosen)) == many
    assert set(chosen) <= set(range(devices))


def test_devices_are_named_by_number_or_name() -> None:
    attackers = Attackers.of({"devices": ["FD003", 0], "kind": "sign-flip"})
    assert attackers.among(4, ("FD001", "FD002", "FD003", "FD004"), np.random.default_rng(0)) == (0, 2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "sign-flip"}, "faults.attackers"),
        ({"kind": "sign-flip", "share": 0.1, "count": 1}, "faults.attackers"),
        ({"share": 0.1}, "faults.attackers"),
        ({"kind": "sing-flip", "share": 0.1}, "unknown attack faults.attackers.kind"),
        ({"kind": "sign-flip", "share": 1.2}, "faults.attackers.share"),
        ({"kind": "sign-flip", "share": 0}, "faults.attackers.share"),
        ({"kind": "sign-flip", "share": True}, "faults.attackers.share"),
        ({"kind": "sign-flip", "count": 0}, "faults.attackers.count"),
        ({"kind": "sign-flip", "devices": []}, "faults.attackers.devices"),
        ({"kind": "sign-flip", "devices": [1, 1]}, "faults.attackers.devices"),
        ({"kind": "sign-flip", "count": 1, "strength": -1}, "faults.attackers.strength"),
        ({"kind": "sign-flip", "count": 1, "z": 1}, "unknown setting of attack 'sign-flip'"),
        ({"kind": "free-rider", "count": 1, "noise": -1}, "faults.attackers.noise"),
        ({"kind": "backdoor", "count": 1, "poisoned": 0}, "faults.attackers.poisoned"),
        ({"kind": "label-flip", "count": 1, "source": 1}, "faults.attackers"),
    ],
)
def test_wrong_tables_are_refused(table: dict[str, Any], message: str) -> None:
    with refused(message):
        FaultSettings(attackers=table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "sign-flip", "count": 6}, "faults.attackers.count"),
        ({"kind": "sign-flip", "devices": [5]}, "faults.attackers.devices"),
        ({"kind": "sign-flip", "devices": ["x"]}, "faults.attackers.devices"),
        ({"kind": "alie", "count": 1}, "faults.attackers"),
    ],
)
def test_attackers_that_a_park_does_not_have_are_refused(table: dict[str, Any], message: str) -> None:
    with refused(message):
        Attackers.of(table).among(5, (), np.random.default_rng(0))

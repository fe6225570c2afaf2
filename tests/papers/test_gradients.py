"""FedGS's propositions for logistic regression: gradients of nodes, and how far they are from everybody's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedfloor import config
from fedfloor.park.park import Park
from fedfloor.runs.parks import build_park
from papers import gradients


@pytest.fixture(scope="module")
def park() -> Park:
    table = {
        "data": {"name": "labels", "samples_per_device": 16, "stream": {"kind": "fifo", "window": 8},
                 "partition": {"kind": "dirichlet", "alpha": 0.7, "at_least": 8}},
        "park": {"devices": 24, "factories": 2},
    }  # fmt: skip
    return build_park(config.from_table(table))


def test_gradients_are_those_of_the_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 4))
    y = rng.integers(0, 3, 7)
    weights = torch.tensor(rng.normal(size=(4, 3)), requires_grad=True)
    torch.nn.functional.cross_entropy(torch.tensor(x) @ weights, torch.tensor(y)).backward()
    assert weights.grad is not None
    np.testing.assert_allclose(gradients.gradient(x, y, weights.detach().numpy()), weights.grad.numpy(), atol=1e-12)


def test_everybody_is_the_mean_of_the_classes(park: Park) -> None:
    known = gradients.everybody(park, 3, seed=0)
    assert known.weights.any()
    assert known.shares.sum() == pytest.approx(1)
    assert np.linalg.norm(known.gradient) <= known.steepest, "a mean is no longer than its longest part"


def test_nodes_of_more_devices_are_nearer(park: Park) -> None:
    known = gradients.everybody(park, 0, seed=0)
    one, all_ = (gradients.node(park, devices, 0, known) for devices in ([0], range(24)))
    assert all_.classes < one.classes
    assert all_.gradient < one.gradient
    assert one.bound == pytest.approx(one.classes * known.steepest)


def test_selections_are_compared_in_pairs(park: Park) -> None:
    found = list(gradients.compared(park, 0, 4, 0))
    assert len(found) == 4
    assert all(tuple(one) == gradients.NODES for one in found)
    chosen, drawn, _ = gradients.rows(found)
    mean = np.mean([one[gradients.NODES[0]].gradient - one[gradients.NODES[1]].gradient for one in found])
    assert chosen[4].startswith(f"{mean:.4f}".replace("-", "−"))
    assert drawn[4] == "–"
    again = list(gradients.compared(park, 0, 4, 0))
    assert again == found

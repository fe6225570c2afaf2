"""Seconds of a step of differentially private SGD, beside Opacus on the same network, data and settings.

    pip install opacus            # in an environment of its own
    python benchmarks/private_steps.py

One device, no federation: rounds of both sides alternate, and the ratio of a round is theirs over ours (above 1: we are
faster). Both draw Poisson mini-batches of 64 on average, clip to 1 and add noise of 1.1. Below stands ε of the steps
by both sides' accountants. Without Opacus there is nothing beside it, and the benchmark ends with the reason.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import nn

from fedfloor import models
from fedfloor.engine.private import train_private
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.parts.work import SAMPLE_DELTA
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from fedfloor.runs import privacy

SAMPLES = 6_000
BATCH = 64
STEPS = 40
ROUNDS = 9
CLIP = 1.0
NOISE = 1.1
NETWORKS = {"mlp-2nn": (1, 28, 28), "cnn-small": (1, 28, 28)}


class Device:
    """Samples of a device, as training asks for them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(SAMPLES, *shape)
        self.y = torch.randint(10, (SAMPLES,))

    def __len__(self) -> int:
        return SAMPLES

    def values(self, rows: torch.Tensor | slice) -> torch.Tensor:
        """Return the chosen ones."""
        return self.x[rows]

    def chunk(self, batch_size: int) -> int:
        """Return how many are asked for at a time."""
        return batch_size


def ours(name: str, device: Device) -> Callable[[], None]:
    """Return a function that takes so many steps."""
    network = models.build(name, NETWORKS[name], 10, 0)
    work = Work(steps=STEPS, batch_size=BATCH, rate=0.1, sample_clip=CLIP, sample_noise=NOISE)
    visit = Visit(None, {}, network, {}, work, STEPS, None)  # type: ignore[arg-type]
    return lambda: void(train_private(network, device, work, Plain(), visit, Key(0, 1, 0, 0, 0), {}))


def void(_: object) -> None:
    """Return nothing."""


def opacus(name: str, device: Device) -> Callable[[], None]:
    """Return a function that takes as many steps of Opacus, its mini-batches drawn by its own sampler."""
    from opacus import PrivacyEngine

    module: nn.Module = models.build(name, NETWORKS[name], 10, 0).module
    copies = {key: value.detach().clone() for key, value in module.state_dict().items()}
    for key, parameter in module.named_parameters():
        parameter.data = copies[key].contiguous()  # apart from the flat vector
    data = torch.utils.data.TensorDataset(device.x, device.y)
    module, optimiser, loader = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=NOISE,
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH), max_grad_norm=CLIP,
    )  # fmt: skip
    loss_of = nn.CrossEntropyLoss()

    def run() -> None:
        for step, (x, y) in enumerate(loader):
            if step == STEPS:
                return
            optimiser.zero_grad()
            loss_of(module(x), y).backward()
            optimiser.step()

    return run


def main() -> None:
    """Print a row per network."""
    if find_spec("opacus") is None:
        raise SystemExit("skipped: Opacus is not installed in this environment (pip install opacus).")
    torch.set_num_threads(1)
    print("| network | ours, ms a step | Opacus, ms a step | ratio (median, least, most) |\n|---|---|---|---|")
    for name, shape in NETWORKS.items():
        device = Device(shape)
        sides = {"ours": ours(name, device), "opacus": opacus(name, device)}
        taken: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(ROUNDS + 1):
            for side, run in sides.items() if number % 2 else reversed(sides.items()):
                began = time.perf_counter()
                run()
                if number:  # the first round warms up
                    taken[side].append((time.perf_counter() - began) / STEPS * 1000)
        ratios = [theirs / own for own, theirs in zip(taken["ours"], taken["opacus"], strict=True)]
        middle = {side: statistics.median(values) for side, values in taken.items()}
        print(
            f"| {name} | {middle['ours']:.2f} | {middle['opacus']:.2f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}–{max(ratios):.2f}) |"
        )
    show_epsilons()


def show_epsilons() -> None:
    """Print ε of as many steps by our accountant (PLD) and by Opacus's (PRV, and its Rényi bound)."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    print("\n| noise | q | steps | ours, PLD | Opacus, PRV | Opacus, RDP |\n|---|---|---|---|---|---|")
    for noise, share, steps in ((1.1, BATCH / SAMPLES, 1_000), (0.8, 0.05, 400), (2.0, 0.1, 2_000)):
        theirs = []
        for accountant in (PRVAccountant(), RDPAccountant()):
            accountant.history = [(noise, share, steps)]
            theirs.append(accountant.get_epsilon(SAMPLE_DELTA))
        own = privacy.epsilon(noise, share, steps, SAMPLE_DELTA)
        print(f"| {noise} | {share:.4g} | {steps} | {own:.4g} | {theirs[0]:.4g} | {theirs[1]:.4g} |", flush=True)


if __name__ == "__main__":
    main()

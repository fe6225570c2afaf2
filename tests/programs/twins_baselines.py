"""Plain twins of FedAvg, FedProx and MOON on MNIST and Fashion-MNIST, side by side with the engine:
``make twins-baselines``.

As in ``twins.py``: only what chance decides is shared. The proximal term and the contrastive term are written as their
authors' code has them, and autograd differentiates them: FedProx as a squared distance over all parameters (Li et al.,
MLSys 2020, arXiv 1812.06127); MOON as the cross-entropy of the cosines with the global and the previous model, of which
the first should win (Li, He and Song, CVPR 2021, arXiv 2103.16257; code QinbinLi/MOON).
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfloor.models import build
from fedfloor.parts.objectives.proximal import Contrastive
from papers import documents
from twins import EXPERIMENT, Floor, Pair, Weights, beside, table

FASHION = EXPERIMENT.with_name("fedsr-fashion.toml")
EXPERIMENTS = {"mnist": EXPERIMENT, "fashion-mnist": FASHION}


class FedProx(Floor):
    """FedAvg with (μ/2)‖w − w_global‖² on every device."""

    def __init__(self, seed: int, root: str | None, dataset: str, mu: float) -> None:
        super().__init__(seed, root, dataset)
        self.mu = mu

    def local(self, weights: Weights, k: int, number: int, visit: int, epochs: int) -> Weights:
        """Train on cross-entropy and the proximal term."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            proximal = torch.zeros(())
            for name, w in self.model.named_parameters():
                proximal = proximal + (w - weights[name]).pow(2).sum()
            return nn.functional.cross_entropy(self.model(x), y) + self.mu / 2 * proximal

        return self.descend(weights, k, number, visit, epochs, loss)


class WithHead(nn.Module):
    """The MLP without its last layer, a projection head of two layers, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
        self.l1 = nn.Linear(200, 200)
        self.l2 = nn.Linear(200, 256)
        self.l3 = nn.Linear(256, 10)

    def project(self, x: Tensor) -> Tensor:
        """Return the representations [n, 256]."""
        z: Tensor = self.l2(nn.functional.relu(self.l1(self.features(x))))
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [n, 10]."""
        logits: Tensor = self.l3(self.project(x))
        return logits


class Moon(Floor):
    """FedAvg with the model-contrastive loss; each device's last model is kept in a dictionary."""

    def __init__(self, seed: int, root: str | None, dataset: str, mu: float, tau: float) -> None:
        super().__init__(seed, root, dataset)
        self.mu = mu
        self.tau = tau
        self.begin(WithHead(), build("mlp-2nn", (1, 28, 28), 10, seed, adapt=Contrastive().adapt))
        self.previous: dict[int, Weights] = {}

    def local(self, weights: Weights, k: int, number: int, visit: int, epochs: int) -> Weights:
        """Train on cross-entropy and the contrastive term, and remember the model."""
        others = [frozen(weights)]
        if k in self.previous:
            others.append(frozen(self.previous[k]))
        cosine = nn.CosineSimilarity(dim=-1)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = self.model.project(x)
            with torch.no_grad():
                targets = [net.project(x) for net in others]
            # as in the authors' code, a first visit has one column, whose cross-entropy is 0 with gradient 0
            logits = torch.stack([cosine(z, target) for target in targets], dim=1) / self.tau
            contrastive = nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
            return nn.functional.cross_entropy(self.model.l3(z), y) + self.mu * contrastive

        self.previous[k] = self.descend(weights, k, number, visit, epochs, loss)
        return self.previous[k]


def frozen(weights: Weights) -> WithHead:
    """Return a network of its own with these weights, in evaluation mode."""
    net = WithHead()
    net.load_state_dict(copy.deepcopy(weights))
    net.eval()
    return net


# -- side by side ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A method with its settings: what the experiment file is told, and the twin."""

    name: str
    method: str
    changes: tuple[str, ...]
    twin: Callable[[int, str | None, str], Floor]


def _fedprox(mu: float) -> Case:
    changes = (f"methods.fedprox.mu={mu}",)
    return Case(f"fedprox, μ = {mu:g}", "fedprox", changes, lambda *floor: FedProx(*floor, mu))


def _moon(mu: float, tau: float) -> Case:
    changes = (f"methods.moon.mu={mu}", f"methods.moon.temperature={tau}")
    return Case(f"moon, μ = {mu:g}, τ = {tau:g}", "moon", changes, lambda *floor: Moon(*floor, mu, tau))


CASES = (Case("fedavg", "fedavg", (), Floor), _fedprox(0.01), _fedprox(1.0), _moon(1.0, 0.5))


def compare(
    case: Case, dataset: str, seed: int, rounds: int, root: str | None = None, epochs: int = 5
) -> tuple[Pair, Floor]:
    """Run the engine and the twin with the MLP, whatever network the experiment file names; return the twin too."""
    floor = case.twin(seed, root, dataset)
    floor.epochs = epochs
    general = ("model.name=mlp-2nn", f"method.name={case.method}", f"methods.{case.method}.work.epochs={epochs}")
    return beside(case.name, general + case.changes, floor, "fedavg", rounds, root, EXPERIMENTS[dataset]), floor


def by_cnn(seed: int, rounds: int) -> Pair:
    """Run FedAvg on Fashion-MNIST with the experiment file's own network."""
    floor = Floor(seed, None, "fashion-mnist", "cnn-tutorial")
    return beside("fedavg", ("method.name=fedavg",), floor, "fedavg", rounds, None, FASHION)


def sections(seed: int, rounds: int, cnn_rounds: int) -> Iterator[tuple[str, Pair]]:
    """Yield each pair with the heading it belongs under."""
    for dataset, heading in (("mnist", "MNIST, MLP"), ("fashion-mnist", "Fashion-MNIST, MLP")):
        for case in CASES:
            yield heading, compare(case, dataset, seed, rounds)[0]
    if cnn_rounds:
        yield "Fashion-MNIST, CNN", by_cnn(seed, cnn_rounds)


def blocks(found: Mapping[str, Sequence[Pair]]) -> Iterator[str | dict[str, Any]]:
    """Yield what the page consists of: the tables, each under its heading."""
    yield "# FedAvg, FedProx and MOON beside their plain twins"
    yield (
        f"Test accuracy in percent on `experiments/{EXPERIMENT.name}` and `experiments/{FASHION.name}` (ξ = 2, K = 20, "
        "E = 5), by `make twins-baselines`. MLP is `mlp-2nn` on both; the CNN of the second file takes --cnn-rounds."
    )
    for heading, pairs in found.items():
        yield f"## {heading}"
        yield table(pairs)


def main() -> None:
    """Print the tables, and write them where wanted."""
    parser = argparse.ArgumentParser(description="The engine and plain PyTorch side by side: accuracy in percent.")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cnn-rounds", type=int, default=0, help="rounds with the CNN; each takes minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[Pair]] = {}
    for heading, pair in sections(given.seed, given.rounds, given.cnn_rounds):
        found.setdefault(heading, []).append(pair)
        print(f"{heading}: {pair.method}: {pair.points:.2f} points, weights {pair.weights:.1e} apart", flush=True)
        if given.out:
            documents.publish(given.out, list(blocks(found)))
    print(documents.page({"blocks": list(blocks(found))}))


if __name__ == "__main__":
    main()

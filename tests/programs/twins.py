"""Plain twins of four methods, side by side with the engine: ``make twins``.

The twins are written the way a researcher writes a script, and share with the engine only what chance decides: the
data of each device, the initial weights, the order of the mini-batches and the order of the rings. They know nothing of
plans, ranks, flat buffers or trees; the settings of ``experiments/fedsr-mnist.toml`` stand here once more, by hand.
The twins of FedProx and MOON, and those on Fashion-MNIST, are in ``twins_baselines.py``.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedfloor.base.chance import generator
from fedfloor.models import Network, build
from fedfloor.park.build import build as build_park
from fedfloor.park.park import Park
from fedfloor.park.partition import Shards
from fedfloor.park.stream import batch_order
from papers import documents

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "fedsr-mnist.toml"
Weights = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class Floor:
    """The devices' data as tensors, and one round of each method."""

    def __init__(self, seed: int, root: str | None = None, dataset: str = "mnist", network: str = "mlp-2nn") -> None:
        torch.set_num_threads(1)
        self.seed = seed
        self.epochs = 5
        self.turns = 5
        self.park = park_of(dataset, seed, root)
        pairs = [self.park.samples(k) for k in range(20)]
        self.x = [torch.from_numpy(x).float() / 255 for x, _ in pairs]
        self.y = [torch.from_numpy(y) for _, y in pairs]
        x, y = self.park.test()
        self.x_test = torch.from_numpy(x).float() / 255
        self.y_test = torch.from_numpy(y)
        self.begin(NETWORKS[network](), build(network, (1, 28, 28), 10, seed))

    def begin(self, model: nn.Module, same: Network) -> None:
        """Take the engine's initial weights into a network of the twin's own, layer by layer in their order."""
        given = same.state(same.flat)
        self.model = model
        self.names = dict(zip(model.state_dict(), given, strict=True))  # the twin's name of a tensor: the engine's
        self.first = {mine: given[theirs].clone() for mine, theirs in self.names.items()}
        self.last = self.first

    def rate(self, number: int) -> float:
        """Half a cosine from 0.01 to 0.00001 over 500 rounds."""
        return 1e-5 + 0.5 * (0.01 - 1e-5) * (1 + math.cos(math.pi * (number - 1) / 499))

    def local(self, weights: Weights, k: int, number: int, visit: int, epochs: int) -> Weights:
        """Train on the data of device k by cross-entropy."""
        return self.descend(
            weights, k, number, visit, epochs, lambda x, y: nn.functional.cross_entropy(self.model(x), y)
        )

    def descend(self, weights: Weights, k: int, number: int, visit: int, epochs: int, loss: Loss) -> Weights:
        """Train on the data of device k with PyTorch's own optimiser."""
        self.model.load_state_dict(weights)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate(number), momentum=0.5)
        rng = generator(self.seed, "batches", number, number - 1, k, visit)
        for order, _ in batch_order(len(self.y[k]), 32, epochs, None, rng):
            for rows in torch.from_numpy(order).split(32):
                optimizer.zero_grad()
                loss(self.x[k][rows], self.y[k][rows]).backward()
                optimizer.step()
        return copy.deepcopy(self.model.state_dict())

    def mean(self, models: Sequence[Weights], devices: Sequence[Sequence[int]]) -> Weights:
        """Average models, weighted by the samples of the devices behind each."""
        samples = [sum(len(self.y[k]) for k in group) for group in devices]
        total = {name: torch.zeros_like(value) for name, value in models[0].items()}
        for model, n in zip(models, samples, strict=True):
            for name, value in model.items():
                total[name] += n / sum(samples) * value
        return total

    def draw(self, number: int) -> tuple[list[list[int]], list[int]]:
        """Return the factories' ring orders and one ring of all, as the methods draw them (everybody takes part)."""
        of = self.park.factory_of
        rng = generator(self.seed, "plan", number)
        rng.choice(20, size=20, replace=False)  # the drawing of participants comes first
        rings = [rng.permutation([k for k in range(20) if of[k] == m]).tolist() for m in range(5)]
        rng = generator(self.seed, "plan", number)
        rng.choice(20, size=20, replace=False)
        return rings, rng.permutation(20).tolist()

    def fedavg(self, w: Weights, number: int) -> Weights:
        """Some epochs on every device, then the mean."""
        return self.mean([self.local(w, k, number, 0, self.epochs) for k in range(20)], [[k] for k in range(20)])

    def fedsr(self, w: Weights, number: int) -> Weights:
        """Some laps around each factory's ring, then the mean of the factories."""
        rings, _ = self.draw(number)
        models = []
        for ring in rings:
            model = w
            for lap in range(self.turns):
                for k in ring:
                    model = self.local(model, k, number, lap, 1)
            models.append(model)
        return self.mean(models, rings)

    def hierfavg(self, w: Weights, number: int) -> Weights:
        """Some means in each factory after one epoch each, then the mean of the factories."""
        rings, _ = self.draw(number)
        models = []
        for ring in rings:
            model = w
            members = sorted(ring)
            for turn in range(self.turns):
                model = self.mean([self.local(model, k, number, turn, 1) for k in members], [[k] for k in members])
            models.append(model)
        return self.mean(models, rings)

    def ring(self, w: Weights, number: int) -> Weights:
        """One lap around everybody."""
        _, order = self.draw(number)
        for k in order:
            w = self.local(w, k, number, 0, 1)
        return w

    def accuracy(self, w: Weights) -> float:
        """Share of the 10,000 test pictures that are named rightly."""
        self.model.load_state_dict(w)
        self.model.eval()
        with torch.no_grad():
            said = torch.cat([self.model(x).argmax(1) for x in self.x_test.split(1000)])
        return int((said == self.y_test).sum()) / len(self.y_test)

    def train(self, method: str, rounds: int) -> Iterator[float]:
        """Yield the accuracy after each round, and keep the last model."""
        step: Callable[[Weights, int], Weights] = getattr(self, method)
        w = self.first
        for number in range(1, rounds + 1):
            self.last = w = step(w, number)
            yield self.accuracy(w)


METHODS = ("fedavg", "fedsr", "hierfavg", "ring")


def park_of(dataset: str, seed: int, root: str | None) -> Park:
    """The park of the experiment: 20 devices with two shards of labels each, in 5 factories."""
    return build_park(
        dataset, root=root, devices=20, factories=5, assignment="equal", partition=Shards(per_device=2), seed=seed
    )


def mlp() -> nn.Module:
    """The MLP with two hidden layers of 200."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def cnn() -> nn.Module:
    """The CNN of TensorFlow's CIFAR tutorial, on 28×28: 28→26→13→11→5→3."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp-2nn": mlp, "cnn-tutorial": cnn}


# -- side by side ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """One method and seed: the accuracy after each round, of the engine and of the twin, and how far apart the weights
    of their last models are at most."""

    method: str
    seed: int
    engine: tuple[float, ...]
    twin: tuple[float, ...]
    weights: float = math.nan

    @property
    def points(self) -> float:
        """The largest difference in any round, in percentage points."""
        return 100 * max(abs(a - b) for a, b in zip(self.engine, self.twin, strict=True))


def by_engine(
    changes: Sequence[str], seed: int, rounds: int, root: str | None, experiment: Path = EXPERIMENT
) -> tuple[tuple[float, ...], Weights]:
    """Run an experiment file itself, with these changes, cut short: (accuracies, the last model)."""
    import fedfloor
    from fedfloor import config

    what = config.read(experiment, changes)
    what = replace(what, seed=seed, data=replace(what.data, root=root))
    with tempfile.TemporaryDirectory() as folder:
        done = fedfloor.run(what, Path(folder) / "run", limits=fedfloor.Limits(stop_after=rounds))
        return tuple(line.accuracy or 0.0 for line in done.lines), load_file(done.model_file)


def beside(
    name: str, changes: Sequence[str], floor: Floor, method: str, rounds: int, root: str | None = None,
    experiment: Path = EXPERIMENT,
) -> Pair:  # fmt: skip
    """Run the engine and a twin."""
    engine, model = by_engine(changes, floor.seed, rounds, root, experiment)
    twin = tuple(floor.train(method, rounds))
    theirs = {mine: model[name] for mine, name in floor.names.items()}
    return Pair(name, floor.seed, engine, twin, apart(theirs, floor.last))


def apart(one: Weights, other: Weights) -> float:
    """The largest difference between two models in any weight."""
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


def compare(method: str, seed: int, rounds: int, root: str | None = None, turns: int = 5) -> Pair:
    """Run both on the experiment file, with this many epochs, laps or means in each factory a round."""
    floor = Floor(seed, root)
    floor.epochs = floor.turns = turns
    names = ("fedavg.work.epochs", "fedsr.laps", "hierfavg.edge_rounds")
    changes = [f"method.name={method}", *(f"methods.{name}={turns}" for name in names)]
    return beside(method, changes, floor, method, rounds, root)


def table(pairs: Sequence[Pair]) -> dict[str, list[Any]]:
    """Return the pairs as a table of a results' page."""
    rounds = len(pairs[0].engine)
    heads = ["method", "seed", "who", *(f"round {n}" for n in range(1, rounds + 1)), "largest difference (points)"]
    rows = []
    for pair in pairs:
        said = [f"{100 * value:.2f}" for value in pair.engine], [f"{100 * value:.2f}" for value in pair.twin]
        rows.append([pair.method, str(pair.seed), "engine", *said[0], f"{pair.points:.2f}"])
        rows.append(["", "", "twin", *said[1], ""])
    return {"columns": heads, "rows": rows}


def main() -> None:
    """Print the table, and write it where wanted."""
    parser = argparse.ArgumentParser(description="The engine and plain PyTorch side by side: accuracy in percent.")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    pairs = []
    for seed in map(int, given.seeds.split(",")):
        for method in given.methods.split(","):
            pairs.append(compare(method, seed, given.rounds))
            print(f"{method}, seed {seed}: {pairs[-1].points:.2f} points", flush=True)
    print(documents.table(**table(pairs)))
    if given.out:
        about = f"Test accuracy in percent on `experiments/{EXPERIMENT.name}`, by `make twins`."
        documents.publish(given.out, ["# The engine and its plain twins", about, table(pairs)])


if __name__ == "__main__":
    main()

"""Plain twins of four methods, side by side with the engine: ``python tests/twins.py --rounds 8 --seeds 0,1,2``.

The twins are written the way a researcher writes a script, and share with the engine only what chance decides: the
data of each device, the initial weights, the order of the mini-batches and the order of the rings. They know nothing of
plans, ranks, flat buffers or trees; the settings of ``experiments/fedsr-mnist.toml`` stand here once more, by hand.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedfloor.chance import generator
from fedfloor.models import build
from fedfloor.park.build import build as build_park
from fedfloor.park.park import Park
from fedfloor.park.partition import Shards
from fedfloor.park.stream import batch_order

EXPERIMENT = Path(__file__).resolve().parents[1] / "experiments" / "fedsr-mnist.toml"
Weights = dict[str, Tensor]


class Floor:
    """The devices' data as tensors, and one round of each method."""

    def __init__(self, seed: int, root: str | None = None) -> None:
        torch.set_num_threads(1)
        self.seed = seed
        self.park = mnist(seed, root)
        pairs = [self.park.samples(k) for k in range(20)]
        self.x = [torch.from_numpy(x).float() / 255 for x, _ in pairs]
        self.y = [torch.from_numpy(y) for _, y in pairs]
        x, y = self.park.test()
        self.x_test, self.y_test = torch.from_numpy(x).float() / 255, torch.from_numpy(y)
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )
        first = build("mlp-2nn", (1, 28, 28), 10, seed)
        self.first = {name: value.clone() for name, value in first.state(first.flat).items()}

    def rate(self, number: int) -> float:
        """Half a cosine from 0.01 to 0.00001 over 500 rounds."""
        return 1e-5 + 0.5 * (0.01 - 1e-5) * (1 + math.cos(math.pi * (number - 1) / 499))

    def local(self, weights: Weights, k: int, number: int, visit: int, epochs: int) -> Weights:
        """Train on the data of device k with PyTorch's own optimiser."""
        self.model.load_state_dict(weights)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate(number), momentum=0.5)
        rng = generator(self.seed, "batches", number, number - 1, k, visit)
        for order, _ in batch_order(len(self.y[k]), 32, epochs, None, rng):
            for rows in torch.from_numpy(order).split(32):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(self.x[k][rows]), self.y[k][rows])
                loss.backward()
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
        """Five epochs on every device, then the mean."""
        return self.mean([self.local(w, k, number, 0, 5) for k in range(20)], [[k] for k in range(20)])

    def fedsr(self, w: Weights, number: int) -> Weights:
        """Five laps around each factory's ring, then the mean of the factories."""
        rings, _ = self.draw(number)
        models = []
        for ring in rings:
            model = w
            for lap in range(5):
                for k in ring:
                    model = self.local(model, k, number, lap, 1)
            models.append(model)
        return self.mean(models, rings)

    def hierfavg(self, w: Weights, number: int) -> Weights:
        """Five means in each factory after one epoch each, then the mean of the factories."""
        rings, _ = self.draw(number)
        models = []
        for ring in rings:
            model, members = w, sorted(ring)
            for turn in range(5):
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
            return int((self.model(self.x_test).argmax(1) == self.y_test).sum()) / len(self.y_test)

    def train(self, method: str, rounds: int) -> Iterator[float]:
        """Yield the accuracy after each round."""
        step: Callable[[Weights, int], Weights] = getattr(self, method)
        w = self.first
        for number in range(1, rounds + 1):
            w = step(w, number)
            yield self.accuracy(w)


METHODS = ("fedavg", "fedsr", "hierfavg", "ring")


def mnist(seed: int, root: str | None) -> Park:
    """The park of the experiment: 20 devices with two shards of labels each, in 5 factories."""
    return build_park(
        "mnist", root=root, devices=20, factories=5, assignment="equal", partition=Shards(per_device=2), seed=seed
    )


# -- side by side ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """One method and seed: the accuracy after each round, of the engine and of the twin."""

    method: str
    seed: int
    engine: tuple[float, ...]
    twin: tuple[float, ...]

    @property
    def points(self) -> float:
        """The largest difference in any round, in percentage points."""
        return 100 * max(abs(a - b) for a, b in zip(self.engine, self.twin, strict=True))


def by_engine(method: str, seed: int, rounds: int, root: str | None, ranks: int | None = None) -> tuple[float, ...]:
    """Run the experiment file itself, cut short."""
    import fedfloor
    from fedfloor import config
    from fedfloor.experiment import MethodSettings

    what = config.read(EXPERIMENT)
    what = replace(what, seed=seed, method=MethodSettings(method), data=replace(what.data, root=root))
    with tempfile.TemporaryDirectory() as folder:
        done = fedfloor.run(what, Path(folder) / "run", ranks=ranks, limits=fedfloor.Limits(stop_after=rounds))
    return tuple(line.accuracy or 0.0 for line in done.lines)


def compare(method: str, seed: int, rounds: int, root: str | None = None) -> Pair:
    """Run both."""
    return Pair(method, seed, by_engine(method, seed, rounds, root), tuple(Floor(seed, root).train(method, rounds)))


def table(pairs: Sequence[Pair]) -> str:
    """Return the pairs as a Markdown table."""
    rounds = len(pairs[0].engine)
    heads = ["method", "seed", "who", *(f"round {n}" for n in range(1, rounds + 1)), "largest difference (points)"]
    rows = [heads, ["---"] * len(heads)]
    for pair in pairs:
        said = [f"{100 * value:.2f}" for value in pair.engine], [f"{100 * value:.2f}" for value in pair.twin]
        rows.append([pair.method, str(pair.seed), "engine", *said[0], f"{pair.points:.2f}"])
        rows.append(["", "", "twin", *said[1], ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


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
    text = table(pairs)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(
            "# The engine and its plain twins\n\n"
            f"Test accuracy in percent on `experiments/{EXPERIMENT.name}`, by `make twins`.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()

"""Accuracy against ε beside pfl-research: one workload, devices, start, rounds, clipping norm and noise for both sides.

    pip install 'pfl[pytorch]==0.6.*'              # in an environment of its own: it wants an older dp-accounting
    python benchmarks/private_beside.py            # results/private_beside.json, goes on where it was stopped

The settings are those of benchmarks/private.py, whose noise multipliers both sides take. One thing differs: fedfloor
draws each device by chance q = 0.1, as its ε counts on, pfl a hundred devices each round. Without pfl nothing is run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfloor import models
from fedfloor.config import checked
from fedfloor.experiment import Experiment
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.runs.parks import build_park

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import private

SHOWN = (math.inf, 10.0, 3.0, 1.0)
MODEL = "logistic"


def of_pfl(partition: str, noise: float, seed: int) -> float:
    """Return the accuracy of pfl's federated averaging after the last round."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    park = build_park(checked(Experiment, private.table(MODEL, partition, noise, seed), ""))
    mean, deviation = mean_and_deviation(park, "auto")

    def normalised(x: Any) -> torch.Tensor:
        return torch.from_numpy((np.array(x, np.float32) * park.dataset.scale - mean) / deviation).float()

    class Trained(torch.nn.Module):
        """The network with the functions that pfl expects."""

        def __init__(self) -> None:
            super().__init__()
            made = models.build(MODEL, (1, 28, 28), 10, seed)
            self.body = made.module
            self.criterion = torch.nn.CrossEntropyLoss()
            for name, parameter in self.body.named_parameters():
                parameter.data = dict(made.module.named_parameters())[name].detach().clone()

        def loss(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> torch.Tensor:
            """Return the mean cross-entropy."""
            return self.criterion(self.body(x), y)

        def metrics(self, *_: object, **__: object) -> dict[str, Any]:
            """Return nothing: the accuracy is worked out after the last round."""
            return {}

    def device(k: int) -> Dataset:
        x, y = park.samples(k)
        return Dataset(raw_data=[normalised(x), torch.from_numpy(np.array(y)).long()])

    np.random.seed(seed)  # pfl draws from the global generator
    torch.manual_seed(seed)
    users = FederatedDataset(device, get_user_sampler("random", list(range(private.DEVICES))))
    network = Trained()
    steps: list[Any] = [WeightByUser()]
    if noise:
        steps.append(CentrallyAppliedPrivacyMechanism(GaussianMechanism(private.CLIP, noise)))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=private.ROUNDS, evaluation_frequency=10**6,
            train_cohort_size=round(private.SHARE * private.DEVICES), val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=steps),
        model=PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=private.RATE, local_num_epochs=1, local_batch_size=private.BATCH
        ),
    )  # fmt: skip
    x, y = park.test()
    with torch.no_grad():
        right = network.body(normalised(x)).argmax(1) == torch.from_numpy(np.array(y))
    return float(right.float().mean())


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table of both sides, in per cent."""
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        "# Privacy of devices beside pfl-research\n",
        f"As in [private.md](private.md): MNIST on {private.DEVICES} devices, `{MODEL}`, {private.ROUNDS} rounds, q = "
        f"{private.SHARE}, clipping norm {private.CLIP}, the same noise multipliers; beside it pfl-research 0.6 with "
        "the same devices, start and settings. fedfloor draws each device by chance (Poisson), pfl a fixed number each "
        f"round; both sides' runs in one go. Accuracy in per cent after the last round; seeds {seeds}, with more than "
        "one the mean ± its 95 % interval.\n",
        "```bash\npython benchmarks/private_beside.py\n```\n",
        "| data | ε | noise multiplier | fedfloor | pfl-research |\n|---|---|---|---|---|",
    ]
    for partition in [name for name in private.PARTITIONS if any(row["partition"] == name for row in rows)]:
        for epsilon in map(private.shown, SHOWN):
            cells = []
            noise = math.nan
            for side in ("fedfloor", "pfl"):
                key = (side, partition, epsilon)
                mine = [row for row in rows if (row["side"], row["partition"], row["epsilon"]) == key]
                values = [100 * row["accuracy"] for row in mine]
                noise = mine[0]["noise"] if mine else noise
                width = f" ± {private.half_width(values):.1f}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.1f}{width}" if values else "–")
            lines.append(f"| {partition} | {epsilon} | {noise:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/private_beside.json"))
    parser.add_argument("--seed", action="append", type=int, help="0, 1 and 2 where it is left out")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    if find_spec("pfl") is None:
        raise SystemExit("skipped: pfl is not installed in this environment (pip install 'pfl[pytorch]==0.6.*').")
    known = {(row["side"], row["partition"], row["epsilon"], row["seed"]) for row in rows}
    for seed in given.seed or private.SEEDS:
        for partition in private.PARTITIONS:
            for epsilon in SHOWN:
                noise = private.known_multiplier(epsilon)
                about = {"partition": partition, "epsilon": private.shown(epsilon), "noise": noise, "seed": seed}
                for side in ("fedfloor", "pfl"):
                    if (side, partition, about["epsilon"], seed) in known:
                        continue
                    ours = side == "fedfloor"
                    accuracy = (
                        private.accuracy(MODEL, partition, noise, seed) if ours else of_pfl(partition, noise, seed)
                    )
                    rows.append({"side": side, **about, "accuracy": accuracy})
                    given.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
                    print(rows[-1], flush=True)


if __name__ == "__main__":
    main()

"""pfl-research: its simulated backend in one process."""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import BATCH_SIZE, DEVICES, RATE, Clock, devices, job, network


class Trained(torch.nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.criterion = torch.nn.CrossEntropyLoss()

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> torch.Tensor:
        """Return the mean cross-entropy."""
        self.train()
        return self.criterion(self.body(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> dict[str, Weighted]:
        """Return the summed cross-entropy."""
        with torch.no_grad():
            return {"loss": Weighted(float(self.criterion(self.body(x), y)) * len(y), len(y))}


class Timed(TrainingProcessCallback):
    """Ticks after every central iteration."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        """Tick, and go on."""
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    """Run federated averaging."""
    torch.set_num_threads(1)
    asked = job()
    clock = Clock()
    held = devices()
    sampler = get_user_sampler("minimize_reuse", list(range(DEVICES)))
    users = FederatedDataset(lambda k: Dataset(raw_data=list(held[k])), sampler)
    net = Trained()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=DEVICES,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=RATE, local_num_epochs=asked.epochs, local_batch_size=BATCH_SIZE
        ),
        callbacks=[Timed(clock)],
    )
    clock.tell()


if __name__ == "__main__":
    main()

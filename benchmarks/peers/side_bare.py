"""The loop that anyone would write: one process, one thread, an optimiser, a loop over devices and mini-batches."""

from __future__ import annotations

import torch
from workload import BATCH_SIZE, RATE, Clock, devices, job, network


def main() -> None:
    """Train and average."""
    torch.set_num_threads(1)
    asked = job()
    clock = Clock()
    model = network()
    criterion = torch.nn.CrossEntropyLoss()
    held = devices()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(asked.rounds):
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for x, y in held:
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(asked.epochs):
                for rows in torch.randperm(len(y)).split(BATCH_SIZE):
                    optimiser.zero_grad()
                    criterion(model(x[rows]), y[rows]).backward()
                    optimiser.step()
            for name, value in model.state_dict().items():
                total[name] += value / len(held)
        start = total
        clock.tick()
    clock.tell()


if __name__ == "__main__":
    main()

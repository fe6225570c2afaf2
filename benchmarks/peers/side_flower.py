"""Flower's simulation: ten nodes, as many Ray actors as asked for, one processor core each."""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}

import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import BATCH_SIZE, DEVICES, RATE, SAMPLES, Clock, devices, job, network

HERE = str(Path(__file__).parent)
client = ClientApp()
_held: list[tuple[torch.Tensor, torch.Tensor]] = []


def samples(message: Message, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the node's samples: kept by the actor, or made anew as Flower's examples do."""
    torch.set_num_threads(1)
    if message.content["config"]["examples"]:
        return devices()[int(context.node_config["partition-id"])]
    if not _held:
        _held.extend(devices())
    return _held[int(context.node_config["partition-id"])]


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate what arrives on the node's samples."""
    x, y = samples(message, context)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(x), y))
    told = MetricRecord({"loss": loss, "num-examples": SAMPLES})
    return Message(RecordDict({"metrics": told}), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train what arrives on the node's samples."""
    x, y = samples(message, context)
    model = network()
    criterion = torch.nn.CrossEntropyLoss()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(int(message.content["config"]["epochs"])):
        for rows in torch.randperm(len(y)).split(BATCH_SIZE):
            optimiser.zero_grad()
            criterion(model(x[rows]), y[rows]).backward()
            optimiser.step()
    told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(RecordDict(told), reply_to=message)


class Timed(FedAvg):
    """FedAvg that ticks when a round's models are averaged."""

    clock = Clock()

    def aggregate_train(self, *args: object, **named: object) -> object:
        """Average, and tick."""
        done = super().aggregate_train(*args, **named)
        self.clock.tick()
        return done


def main() -> None:
    """Run rounds of FedAvg, without evaluation unless everything is as in the examples."""
    asked = job()
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001
        share = 1.0 if asked.examples else 0.0
        strategy = Timed(fraction_train=1.0, fraction_evaluate=share, min_available_nodes=DEVICES)
        arrays = ArrayRecord(network().state_dict())
        told = ConfigRecord({"epochs": asked.epochs, "examples": asked.examples})
        strategy.start(grid, arrays, num_rounds=asked.rounds, train_config=told, evaluate_config=told)

    backend = {"client_resources": {"num_cpus": 1.0}, "init_args": {"num_cpus": asked.ranks}}
    said = sys.stdout
    sys.stdout = sys.stderr
    run_simulation(server, client, num_supernodes=DEVICES, backend_config=backend)
    sys.stdout = said
    Timed.clock.tell()


if __name__ == "__main__":
    main()

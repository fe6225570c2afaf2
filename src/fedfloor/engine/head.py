"""The steps of a linear classifier on features, written out: plain SGD without automatic differentiation.

With logits Wx + b the gradient of the mini-batch's mean cross-entropy is G = (softmax(logits) − onehot(y))/n for the
logits, Gᵀx for W and the column sums of G for b. The same but for rounding, in half the time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from fedfloor.chance import generator
from fedfloor.engine.visit import Batched, Trained, account
from fedfloor.park.stream import batch_order
from fedfloor.parts.objective import Objective, Plain
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key


def fits(layer: nn.Module, work: Work, objective: Objective) -> bool:
    """Return whether a visit comes to these steps: a linear layer, plain SGD, cross-entropy alone."""
    kind = type(objective)
    plain = kind.loss is Plain.loss and kind.penalty is Objective.penalty and kind.per_sample is Objective.per_sample
    trained = type(layer) is nn.Linear and layer.bias is not None and all(p.requires_grad for p in layer.parameters())
    known = work.only("objective", "settings", "epochs", "steps", "batch_size", "rate", "trains")
    return plain and trained and known


def train(layer: nn.Linear, data: Batched, work: Work, key: Key) -> Trained:
    """Train a linear layer in place; mini-batches are those of :func:`fedfloor.engine.visit.train` for the same key.

    Args:
        layer: W [F, D] and b [F].
        data: features [n, D] with their classes.
        work: epochs or steps, batch size, rate.
        key: what chance is keyed by.

    Raises:
        DivergedError: the loss is no longer a finite number; names the device.
    """
    weight, bias, size = layer.weight.detach(), layer.bias.detach(), work.batch_size
    onehot = torch.eye(len(bias), dtype=bias.dtype, device=bias.device)
    losses: list[list[Tensor]] = []
    right = seen = 0
    with torch.no_grad():
        rng = generator(key.seed, "batches", *key.place())
        for order, count in batch_order(len(data), size, work.epochs, work.steps, rng):
            rows = torch.from_numpy(order[: count * size])
            x, y = data.values(rows), data.y[rows]
            losses.append([])
            guessed = []
            for bx, by in zip(x.split(size), y.split(size), strict=True):
                said = torch.addmm(bias, bx, weight.t()).log_softmax(1)
                losses[-1].append(nll_loss(said, by))
                guessed.append(said.argmax(1))
                gradient = said.exp_().sub_(onehot.index_select(0, by))
                weight.addmm_(gradient.t(), bx, alpha=-work.rate / len(by))
                bias.sub_(gradient.sum(0), alpha=work.rate / len(by))
            right, seen = int((torch.cat(guessed) == y).sum()), len(y)
    return account(losses, right, seen, work, key)

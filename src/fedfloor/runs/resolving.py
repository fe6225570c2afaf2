"""The choices of a round, made before anything is trained: every ``Select`` becomes the visits that it selects.

What a device reports of its samples depends on the visits that it has trained, and losses of visits are keyed draws:
a walk without training makes the choices of one with training. ``least_loss`` reads the answers to the round's first
questions, which are therefore put beforehand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from fedfloor.engine.team import Team, deal
from fedfloor.park.park import Park
from fedfloor.parts.selection import selection
from fedfloor.plan import nodes, schedule, visit_order, walk
from fedfloor.plan.drivers import Dry
from fedfloor.plan.nodes import LEAST_LOSS, Node, Probe, Select, Train
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import (
    NOTHING,
    BranchWalk,
    Foreknown,
    NodeResult,
    Packet,
    ParallelRequest,
    RoundContext,
    SelectRequest,
    TrainRequest,
    Walk,
)


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan whose choices are made.

    Attributes:
        plan: as the method planned it.
        whole: the plan with every ``Select`` replaced by its visits; None if choices depend on what is learnt.
        known: the choices, and the answers that they read.
        receipts: those of a walk without training, in plan order; None if it was not needed.
    """

    plan: Node
    whole: Node | None
    known: Foreknown = NOTHING
    receipts: tuple[Receipt, ...] | None = None

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The number of each visit among its device's visits, in plan order; None: as in the walk of ``whole``."""
        return None if self.receipts is None else tuple(receipt.visit for receipt in self.receipts)


def questions_first(plan: Node) -> list[Probe] | None:
    """Return the questions with which a plan begins, if its choices read answers; None if some can come later only.

    >>> losses = Probe((0, 1), "losses")
    >>> choice = Select(LEAST_LOSS, (0, 1), 2, nodes.Work(epochs=1))
    >>> len(questions_first(nodes.Sequence((losses, choice)))), questions_first(choice)
    (1, [])
    >>> questions_first(nodes.Sequence((choice, losses))) is None
    True
    """
    if not any(isinstance(at, Select) and at.policy == LEAST_LOSS for at, _ in walk.every(plan)):
        return []
    first = list[Probe]()
    later = False
    for child in plan.children if isinstance(plan, nodes.Sequence) else (plan,):
        later = later or not isinstance(child, Probe)
        if later and walk.probes(child):
            return None
        first += [child] if isinstance(child, Probe) else []
    return first


def resolved(
    plan: Node, park: Park, context: RoundContext, tick: int, trained: Counter[int], known: Foreknown = NOTHING,
    team: Team | None = None,
) -> NodeResult:  # fmt: skip
    """Return the result of a walk without training that makes the choices of one with training.

    Args:
        context: the seed, the round, and which visits are lost.
        tick: at which the round begins.
        trained: device → number of its local updates so far in the run, to which those of this round are added.
        known: answers to the plan's first questions, and choices that are made.
        team: the ranks that share the work.
    """
    driver = _Choosing(park, context, trained, team)
    return driver.drive(Walk(context, by_team=driver.team is not None, known=known).node(plan, {}, tick))


class _Choosing(Dry):
    """The driver that makes the choices of a walk with training, from the census of the visits that are not lost."""

    def __init__(self, park: Park, context: RoundContext, trained: Counter[int], team: Team | None = None) -> None:
        self.park = park
        self.round = context
        self.trained = trained
        self.team = team if team is not None and team.size > 1 else None  # that shares the choices

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        self.trained[request.key.device] += request.node.work.counts
        return super().train(request)

    def select(self, request: SelectRequest) -> Sequence[int]:
        place = (self.round.seed, self.round.number, request.tick)
        return selection.selected(request.node, self.park, *place, request.visits, self.trained)

    def parallel(self, request: ParallelRequest) -> NodeResult:
        if self.team is not None and request.walk.by_team and not request.walk.choices:
            self._deal(request, self.team)
        done = self._visits(request) or super().parallel(request)
        self.trained.update(schedule.counted(receipt for receipt in done.receipts if not receipt.lost))
        return done

    def _visits(self, request: ParallelRequest) -> NodeResult | None:
        """Return the result of single visits to different devices in a third of the time of their walks, or None."""
        children = [child for child in request.node.children if isinstance(child, Train) and child.work.counts]
        devices = {child.site.index for child in children if child.site.kind == "device"}
        if len(devices) < len(request.node.children) or self.round.interference:
            return None
        keys = zip(children, request.visit_keys(), strict=True)
        lost = [(key, self.round.lost(child, (), key)) for child, key in keys]
        receipts = [Receipt(key.device, key.visit, key.tick, 0, 0, 0.0, 0.0, 0.0, 0, gone) for key, gone in lost]
        return NodeResult(request.packet, request.node, receipts)

    def branch(self, branch: BranchWalk, request: ParallelRequest) -> NodeResult:
        # branches do not count each other's visits
        known = {k: self.trained[k] for k in branch.known}
        done = super().branch(branch, request)
        self.trained.update({k: count - self.trained[k] for k, count in known.items()})
        return done

    def _deal(self, request: ParallelRequest, team: Team) -> None:
        """Let every rank choose for its share of the branches, and all know the choices."""
        counts = [visit_order.count_selects(child) for child in request.node.children]
        if sum(counts) < 2:
            return
        alone = copy(self)
        alone.team = None
        alone.trained = self.trained.copy()
        mine = request.branches(deal(counts, team.size)[team.rank])
        chosen = [choice for one in mine for choice in alone.branch(one, request).chosen]
        for (part,) in team.gather([json.dumps(chosen).encode()]):
            request.walk.choices.extend(map(tuple, json.loads(bytes(part))))

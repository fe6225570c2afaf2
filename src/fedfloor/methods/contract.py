"""The contract of a method: four pure functions over the park's public facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from fedfloor.errors import SettingError
from fedfloor.parts.objective import Objective, Plain
from fedfloor.parts.server import Server, Sgd
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.solvers.allocation.problem import AllocationProblem

if TYPE_CHECKING:
    from torch import Tensor

Answers = Mapping[int, Mapping[str, Any]]  # device → question → answer


@dataclass(frozen=True, eq=False)
class Resources:
    """The resources of the devices by the network's model; arrays are float64 [K].

    Attributes:
        compute_s: seconds of one pass over a device's data.
        download_s, upload_s: seconds that the model takes on an idle network.
        problem: the allocation of channels and powers to the devices, where uploads interfere.
        powers_dbm: the power levels that ``problem`` numbers.
    """

    compute_s: np.ndarray
    download_s: np.ndarray
    upload_s: np.ndarray
    problem: AllocationProblem | None = None
    powers_dbm: tuple[float, ...] = ()


@dataclass(frozen=True)
class View:
    """The park's public facts as a method may see them; never a device's data.

    Attributes:
        round: number of the round to be planned, from 1 (0 during set-up).
        rounds: rounds of the whole schedule.
        sizes: samples of each device's local set, int64 [K].
        factory_of: factory of each device in this round, int32 [K].
        start: the initial global packet; empty where a plan is only looked at.
        receipts: the receipts of the last round's visits; empty at first.
        trained: the number of values at the front of the model that are trained.
        layout: the place of each tensor in the flat vector ``w``: name → (first, last + 1).
        invited: the devices that may take part in this round; all where it is left out.
        resources: the resources of the devices, for methods that need the network; None without one.
        census: class counts that each device reports of its present samples, int64 [K, F], in rounds that read it.
        held: samples that each device holds at a time, int64 [K]: those of a pass; left out, ``sizes``.
    """

    round: int
    rounds: int
    sizes: np.ndarray
    factory_of: np.ndarray
    start: Mapping[str, Tensor]
    receipts: tuple[Receipt, ...] = ()
    trained: int = 0
    layout: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    invited: tuple[int, ...] | None = None
    resources: Resources | None = None
    census: np.ndarray | None = None
    held: np.ndarray | None = None

    @property
    def devices(self) -> Sequence[int]:
        """The numbers of the devices that may take part, ascending."""
        return range(len(self.sizes)) if self.invited is None else self.invited

    @property
    def holdings(self) -> np.ndarray:
        """Samples that each device holds at a time, int64 [K]."""
        return self.sizes if self.held is None else self.held

    @property
    def factories(self) -> list[list[int]]:
        """The numbers of the devices of each factory that may take part."""
        count, devices = int(self.factory_of.max()) + 1, np.asarray(self.devices)
        return [devices[self.factory_of[devices] == m].tolist() for m in range(count)]


@dataclass(frozen=True)
class State:
    """The state of a method from round to round; the run checkpoints it.

    Notes are converted as JSON does from the start, not only after a resume: tuples are lists, whole numbers as keys
    are text.

    Attributes:
        packet: the global packet the next plan is run on: flat tensors, ``w`` the model.
        notes: anything else, as JSON (groups, counters).
        tensors: anything else, as tensors (server moments).

    Raises:
        SettingError: the notes are not JSON.

    >>> State({}, {"group of": {3: (0, 1)}}).notes
    {'group of': {'3': [0, 1]}}
    """

    packet: Mapping[str, Tensor]
    notes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            notes = json.loads(json.dumps(dict(self.notes)))
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError(
                f"the method's state cannot be checkpointed: its notes are not JSON ({error}). Write numbers, text, "
                "lists and dictionaries (int(…), .tolist()) into State.notes, and arrays as tensors into State.tensors."
            ) from error
        object.__setattr__(self, "notes", notes)

    @property
    def cohorts(self) -> dict[int, int]:
        """The number of each device's model, if it has one: ``notes["cohorts"]``.

        >>> State({}, {"cohorts": {3: 1}}).cohorts
        {3: 1}
        """
        return {int(device): number for device, number in self.notes.get("cohorts", {}).items()}


@dataclass(frozen=True)
class Needs:
    """Needs of a method's rounds besides the packet, and their effects besides training it.

    Attributes:
        network: ``plan`` reads the network's facts about the devices; the view then has ``resources``.
        census: ``plan`` reads the census, which it shows by a ``Probe`` in the round.
        census_in: the rounds of these whose number (0: the set-up) it is true for; all where it is left out.
        labels: devices are chosen or grouped by their classes alone: without label skew this has nothing to use.
        crosses: a branch of ``plan`` may visit devices of several factories; left out, a method of your own may and
            a built-in one does not.
        scopes: parts of the model that are trained in any round; the network must have them.
        remembers: devices keep something between visits that another objective has no part in.
        own: the part of the model that visits may let a device keep as its own (``Work.own``), with which it is
            evaluated; "" is none.
        separate: that part is the whole model: models never meet.
        objective: its rounds depend on its own objective, which no setting may exchange.
        cohorts: the packet may have several models, and :attr:`State.cohorts` names that of each device, with which it
            is evaluated.

    >>> Needs(census=True, census_in=lambda number: number % 2 == 1).census_now(2)
    False
    """

    network: bool = False
    census: bool = False
    census_in: Callable[[int], bool] | None = None
    labels: bool = False
    crosses: bool | None = None
    scopes: frozenset[str] = frozenset({"all"})
    remembers: bool = False
    own: str = ""
    separate: bool = False
    objective: bool = False
    cohorts: bool = False

    @property
    def personal(self) -> bool:
        """Whether devices may have different models."""
        return bool(self.own) or self.cohorts

    def census_now(self, round_number: int) -> bool:
        """Return whether the plan of a round (0: the set-up) reads the census: the view has it in these only."""
        return self.census and (self.census_in is None or self.census_in(round_number))


class Method(Protocol):
    """A federated method: a frozen dataclass of its hyper-parameters. Most methods define only ``plan``.

    ``title`` is its name as papers write it, where that is not the class's name.
    """

    title: ClassVar[str] = ""

    @property
    def objective(self) -> Objective:
        """The objective of devices; the network is built for it, and ``plan`` passes it to ``work.at``."""
        return Plain()

    @property
    def server(self) -> Server:
        """The cloud's step with the mean of the round's models, before ``absorb`` sees it."""
        return Sgd()

    @property
    def needs(self) -> Needs:
        """The needs of the method, and its effects on devices besides training."""
        return Needs()

    def setup(self, view: View) -> Node | None:
        """Return the questions before the first round (``Probe`` nodes only), or nothing."""
        return None

    def init(self, view: View, answers: Mapping[int, Mapping[str, Any]], rng: np.random.Generator) -> State:
        """Return the first state, from the park's facts and the answers of :meth:`setup`."""
        return State(view.start)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        """Write down one round. Pure: equal arguments give equal plans."""
        ...

    def noted(self, state: State, plan: Node) -> State:
        """Return the state after a round's resolved plan alone: a forecast has nothing else. Pure."""
        return state

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Return the next state; the new global packet, after the server's step, enters here. Pure."""
        return State(outcome.packet, state.notes, state.tensors)

"""The contract of a method: pure functions of the park's public facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.server import Server, Sgd
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import Node, Probe
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.solvers.allocation.problem import AllocationProblem

if TYPE_CHECKING:
    from torch import Tensor

Answers = Mapping[int, Mapping[str, Any]]  # device → question → answer


@dataclass(frozen=True, eq=False)
class Resources:
    """The devices' resources by the network model; arrays are float64 [K].

    Attributes:
        compute_s: seconds of a pass over a device's data.
        download_s, upload_s: seconds for the model on an idle network.
        problem: the allocation problem of channels and powers, where uploads interfere; else None.
        powers_dbm: the power levels in dBm to which the level numbers of ``problem`` refer.
    """

    compute_s: np.ndarray
    download_s: np.ndarray
    upload_s: np.ndarray
    problem: AllocationProblem | None = None
    powers_dbm: tuple[float, ...] = ()


@dataclass(frozen=True)
class View:
    """The park's public facts that a method may read; never a device's data.

    Attributes:
        round: the number of the round to plan, from 1 (0 during set-up).
        rounds: the number of rounds in the whole schedule.
        sizes: the number of samples in each device's local set, int64 [K].
        factory_of: the factory of each device in this round, int32 [K].
        start: the initial global packet; empty in a preview.
        receipts: the receipts of the previous round's visits; empty at first.
        trained: the number of values at the front of the model that are trained.
        layout: the place of each tensor in the flat vector ``w``: name → (first, last + 1).
        invited: the devices that may take part in this round; all by default.
        resources: the resources of the devices, for methods that need the network; None without a network.
        census: the class counts reported by the devices for their present samples, int64 [K, F], in rounds that need
            it.
        held: the number of samples that each device holds at a time, int64 [K]: those of a pass; ``sizes`` by default.
        sensors: the names of the channels of a sample; () for pictures.
        arrivals: flow of visits → the results that arrive in this round, in order, for methods that need the clock.
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
    sensors: tuple[str, ...] = ()
    arrivals: Callable[[VisitFlow], tuple[Arrival, ...]] | None = None

    @property
    def devices(self) -> Sequence[int]:
        """The numbers of the devices that may take part, ascending."""
        return range(len(self.sizes)) if self.invited is None else self.invited

    @property
    def holdings(self) -> np.ndarray:
        """The number of samples that each device holds at a time, int64 [K]."""
        return self.sizes if self.held is None else self.held

    @property
    def factories(self) -> list[list[int]]:
        """The numbers of the devices that may take part, by factory."""
        count = int(self.factory_of.max()) + 1
        devices = np.asarray(self.devices)
        return [devices[self.factory_of[devices] == m].tolist() for m in range(count)]


@dataclass(frozen=True)
class State:
    """The state of a method between rounds, which the run checkpoints.

    Notes are converted to JSON's types at once, not only after a resume: tuples become lists, and whole numbers as keys
    become text.

    Attributes:
        packet: the global packet at the start of the next plan: flat tensors, ``w`` the model.
        notes: further values as JSON (groups, counters).
        tensors: further tensors (server moments).

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
            notes = json.loads(json.dumps(dict(self.notes), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError(
                f"the method's state cannot be checkpointed: its notes are not JSON ({error}). Write finite numbers, "
                "text, lists and dictionaries (int(…), .tolist()) into State.notes, and tensors into State.tensors.",
                key="state-of-method",
            ) from error
        object.__setattr__(self, "notes", notes)

    @property
    def cohorts(self) -> dict[int, int]:
        """The number of each device's model, for devices that have one: ``notes["cohorts"]``.

        >>> State({}, {"cohorts": {3: 1}}).cohorts
        {3: 1}
        """
        return {int(device): number for device, number in self.notes.get("cohorts", {}).items()}


@dataclass(frozen=True)
class Needs:
    """The needs of a method's rounds beside the packet, and their effects beside training it.

    Attributes:
        network: ``plan`` reads the network's facts about the devices; the view then has ``resources``.
        clock: ``plan`` reads which results arrive when, and starts visits from earlier models (``Since``).
        census: ``plan`` reads the census, and contains a ``Probe`` for it in the round.
        census_in: a function of the round number (0: the set-up) that is true in rounds that need the census; all
            rounds by default.
        labels: devices are chosen or grouped by their classes alone, which has no use without label skew.
        crosses: a branch of ``plan`` may visit devices of several factories; by default the user's own methods may,
            and built-in methods do not.
        scopes: the parts of the model that are trained in any round; the network must have them.
        remembers: devices keep tensors between visits that do not belong to the objective.
        own: the part of the model that visits may let a device keep as its own (``Work.own``), with which it is
            evaluated; "": none.
        separate: that part is the whole model, so that models are never aggregated.
        objective: the method's rounds depend on its own objective, which no setting may exchange.
        cohorts: the packet may have several models, and :attr:`State.cohorts` gives each device's model, with which
            the device is evaluated.
        pooled: the model is that of pooled training up to rounding, however samples are divided among devices.
        sums: the updates are sums over samples, which no codec may round and only the rule ``by_samples`` adds up.
        draws: the model depends on random draws, and so on the seed: of first weights, mini-batches, devices, ….
        questions: the questions that ``setup`` and ``plan`` may put to devices, as ``Probe`` nodes without devices; a
            device answers no others. ``census`` includes the question for the census.
        travel_down: the codecs of models on their way to devices in works of the method's own.
        epochs: the most epochs of visits whose epochs the method sets itself, not by ``work``; real devices refuse
            visits with many times more mini-batches than these and ``work`` need.

    >>> Needs(census=True, census_in=lambda number: number % 2 == 1).census_now(2)
    False
    """

    network: bool = False
    clock: bool = False
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
    pooled: bool = False
    sums: bool = False
    draws: bool = True
    questions: tuple[Probe, ...] = ()
    travel_down: str = ""
    epochs: int = 1

    @property
    def personal(self) -> bool:
        """Whether devices may have different models."""
        return bool(self.own) or self.cohorts

    def census_now(self, round_number: int) -> bool:
        """Return whether the plan of a round (0: the set-up) reads the census; the view has it only in these rounds."""
        return self.census and (self.census_in is None or self.census_in(round_number))


class Method(Protocol):
    """A federated method: a frozen dataclass of its hyper-parameters. Most methods define only ``plan``.

    ``title`` is its name in the spelling of papers, where it differs from the class's name.
    """

    title: ClassVar[str] = ""

    @property
    def objective(self) -> Objective:
        """The objective of devices; the network is built for it, and ``plan`` passes it to ``work.at``."""
        return Plain()

    @property
    def server(self) -> Server:
        """The optimiser of the cloud, which steps by the mean of the round's models before ``absorb``."""
        return Sgd()

    @property
    def needs(self) -> Needs:
        """The needs of the method, and its effects on devices besides training."""
        return Needs()

    @property
    def reveals(self) -> Mapping[str, str]:
        """What others learn from a visit that does not send a trained model, as a part of an update's path says it."""
        return {}

    def setup(self, view: View) -> Node | None:
        """Return the questions to put before the first round (``Probe`` nodes only), or None."""
        return None

    def init(self, view: View, answers: Mapping[int, Mapping[str, Any]], rng: np.random.Generator) -> State:
        """Return the first state, from the park's facts and the answers of :meth:`setup`."""
        return State(view.start)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        """Return the plan of one round. A pure function: equal arguments give equal plans."""
        ...

    def noted(self, state: State, plan: Node) -> State:
        """Return the state after a round's resolved plan, without its outcome, as in a forecast. A pure function."""
        return state

    def over(self, state: State) -> bool:
        """Return whether no further round changes the model, with which a run ends. A pure function."""
        return False

    def expected(self, rounds: int) -> int:
        """Return the number of rounds that a forecast counts, of at most ``rounds``."""
        return rounds

    def left(self, state: State) -> float | None:
        """Return the norm of the gradient at which a model that rounds make final stands; None: it is, or has none."""
        return None

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Return the next state, with the outcome's global packet after the server's step. A pure function."""
        return State(outcome.packet, state.notes, state.tensors)

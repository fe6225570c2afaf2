"""The contract of a method, tested on small parks; simulation, prices, drawings and deployment rely on it.

Each check consists of a few rounds on pictures of labels, about a second. User-defined and built-in methods are tested
alike.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfloor import config
from fedfloor.api.run import Run, carried_out
from fedfloor.api.wording import in_python
from fedfloor.base import regular
from fedfloor.base.chance import generator
from fedfloor.base.errors import FedfloorError, RunError, SettingError
from fedfloor.base.machine import kept_settings
from fedfloor.base.names import count
from fedfloor.base.outside import located
from fedfloor.engine import ranks as ranked
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.parts import objects
from fedfloor.plan import text, walk
from fedfloor.report import plan_svg, plan_text
from fedfloor.runs import forecast, launch, prepare
from fedfloor.runs.orders import Limits
from fedfloor.runs.parks import build_park
from fedfloor.runs.round import planned, training

log = logging.getLogger(__name__)

ROUNDS = 3
TABLE: dict[str, Any] = {
    "name": "contract",
    "rounds": ROUNDS,
    "data": {"name": "labels", "samples_per_device": 24, "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "park": {"devices": 12, "factories": 3},
    "model": {"name": "mlp-2nn"},
    "work": {"batch_size": 6, "lr": 0.05},
    "network": {"profile": "wifi"},
}


class BrokenError(Exception):
    """An error: a method violates the contract."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: the name of the check.
        why: the violation; "" where the check passes.
    """

    name: str
    why: str = ""


class Contract:
    """The checks of one method.

    Args:
        method: the method's name, or ``module:Name``.
        changes: additional keys, such as ``methods.NAME.share=0.5``, as for ``--set``, or pairs of key and value.
        folder: the folder for the runs.
    """

    def __init__(self, method: str, changes: Sequence[config.Change], folder: Path) -> None:
        self.method = method
        self.changes = list(changes)
        self.folder = folder
        self._runs = 0

    def experiment(self, **more: Mapping[str, Any]) -> Experiment:
        """Return the experiment of the checks, with changed tables."""
        table = copy.deepcopy(TABLE) | {"method": {"name": self.method}}
        for name, part in more.items():
            table[name] = {**table.get(name, {}), **part}
        for change in self.changes:
            config.apply(table, change)
        return config.from_table(table)

    def run(self, experiment: Experiment, place: str = "", ranks: int = 1, **more: Any) -> Run:
        """Train an experiment in a subfolder and return the run."""
        self._runs += not place
        return carried_out(experiment, self.folder / (place or f"run-{self._runs}"), ranks=ranks, **more)

    # -- checks -----------------------------------------------------------------------------------------------------

    def plans_are_pure(self) -> None:
        """Check that equal arguments give equal plans and leave the state unchanged."""
        experiment = self.experiment()
        park = build_park(experiment)
        setup = forecast.dry(experiment, park)
        point = forecast.opened(setup)
        first, second = (planned(setup, point)[1] for _ in range(2))
        _demand(
            first == second, "two plans of the same round differ: draw random numbers only from rng, and keep no state."
        )

    def arguments_are_kept(self) -> None:
        """Check that init(), plan() and absorb() leave their arguments as they were, in a round with training."""
        experiment = self.experiment()
        park = build_park(experiment)
        method = experiment.configured
        memory = DeviceMemory(self.folder / "memory")
        with kept_settings():
            engine, price_model = prepare.engine(experiment, method, park, Alone(), memory)
            setup = training(method, engine, experiment.rounds, price_model)
            view = setup.view(0)
            start = setup.start
            questions = method.setup(view)
            answers = {} if questions is None else ranked.run(engine, questions, start, round_number=0, tick=0).answers
            with _kept("init()", (view, answers)):
                state = method.init(view, answers, generator(experiment.seed, "init"))
            now = setup.view(1)
            with _kept("plan()", (state, now)):
                plan = method.plan(state, now, generator(experiment.seed, "plan", 1))
            outcome = ranked.run(engine, plan, state.packet, round_number=1, tick=0, versions={0: state.packet["w"]})
            with _kept("absorb()", (state, replace(outcome, rng=None))):
                method.absorb(state, outcome)

    def plans_are_data(self) -> None:
        """Check that a plan can be written as JSON, drawn and resolved, and refers to existing devices."""
        experiment = self.experiment()
        park = build_park(experiment)
        plan = forecast.first_round(experiment, park)
        walk.check(plan, park.devices)
        again = text.from_json(json.loads(json.dumps(text.to_json(plan))))
        _demand(again == plan, "the plan differs after writing to JSON and reading.")
        _demand(plan_svg.svg(plan).startswith("<svg") and bool(plan_text.tree(plan)), "the plan cannot be drawn.")

    def training_moves_the_model(self) -> None:
        """Check that three rounds train the model, and all numbers are finite."""
        done = self.run(self.experiment())
        _healthy(done)
        moved = any(line.participants or line.train_loss is not None for line in done.lines)  # devices, or the cloud
        _demand(moved, "the model did not change in any round.")

    def rounds_have_a_price(self) -> None:
        """Check that seconds, bytes and joules of each round on the network are finite."""
        lines = self._ledger(self.run(self.experiment()))
        for line in lines:
            total = line["priced"]["total"]
            fair = all(0 <= total[kind] < math.inf for kind in ("seconds", "bytes", "joules"))
            _demand(fair, f"round {line['round']} costs {total}.")

    def ranks_change_nothing(self) -> None:
        """Check that ledger and model are identical to the bit with one and two ranks, also with lost visits."""
        experiment = self.experiment(faults={"visit": 0.3})
        self._same(self.run(experiment, ranks=1), self.run(experiment, ranks=2))

    def a_resumed_run_is_the_same(self) -> None:
        """Check that ledger and model of a stopped and resumed run are those of an uninterrupted run."""
        experiment = self.experiment(faults={"visit": 0.3})
        whole = self.run(experiment)
        self.run(experiment, "cut", limits=Limits(stop_after=1))
        self._same(whole, self.run(experiment, "cut", resume=True))

    def lost_visits_are_borne(self) -> None:
        """Check that a run with 40 % of visits lost continues with finite numbers."""
        _healthy(self.run(self.experiment(faults={"visit": 0.4})))

    def one_device_is_a_park(self) -> None:
        """Check that the method runs in a park of one device, or refuses it with its requirement."""
        experiment = self.experiment(park={"devices": 1, "factories": 1}, data={"partition": {"kind": "iid"}})
        try:
            forecast.first_round(experiment, build_park(experiment))
        except SettingError:
            return
        self.run(experiment)

    def one_class_per_device_is_a_park(self) -> None:
        """Check that the method runs with a single class on each device."""
        self.run(self.experiment(data={"partition": {"kind": "shards", "per_device": 1}}))

    # ---------------------------------------------------------------------------------------------------------------

    def _ledger(self, done: Run) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in regular.read_text(done.folder / "ledger.jsonl").splitlines()]
        return [{**line, "wall_s": 0} for line in lines]

    def _same(self, ours: Run, theirs: Run) -> None:
        for first, second in zip(self._ledger(ours), self._ledger(theirs), strict=True):
            keys = [key for key in first if first[key] != second.get(key)]
            _demand(not keys, f"round {first['round']} differs in {', '.join(keys)}.")
        models = [regular.read_bytes(done.model_file) for done in (ours, theirs)]
        _demand(models[0] == models[1], "the ledgers are equal, but the models differ.")


CHECKS: dict[str, Callable[[Contract], None]] = {
    "plans are pure": Contract.plans_are_pure,
    "arguments are left unchanged": Contract.arguments_are_kept,
    "plans are JSON, drawn and resolved": Contract.plans_are_data,
    "training moves the model": Contract.training_moves_the_model,
    "rounds have a price": Contract.rounds_have_a_price,
    "one rank or two is the same": Contract.ranks_change_nothing,
    "stopped and resumed is the same": Contract.a_resumed_run_is_the_same,
    "lost visits are tolerated": Contract.lost_visits_are_borne,
    "runs with one device": Contract.one_device_is_a_park,
    "runs with one class per device": Contract.one_class_per_device_is_a_park,
}


@in_python
def check_method(method: Any, changes: Sequence[str] | Mapping[str, Any] = ()) -> list[Check]:
    """Test the contract of a method on small parks, about a minute, and return the checks if it keeps all of them.

    Args:
        method: the method's name, ``module:Name``, its class, or an object with settings.
        changes: additional keys of the experiment: texts as for ``--set``, or key → value.

    Raises:
        SettingError: the method does not exist, or cannot be read.
        RunError: it violates the contract; the message has each violation.
    """
    done = [*checked(method, changes)]
    if broken := [check for check in done if check.why]:
        violations = "".join(f"\n- {check.name}: {check.why}" for check in broken)
        raise RunError(
            f"{objects.method(method)[0]}: {len(broken)} of {count(len(done), 'check')} failed:{violations}",
            key="method-checks",
        )
    return done


def checked(method: Any, changes: Sequence[str] | Mapping[str, Any] = ()) -> Iterator[Check]:
    """Test the contract of a method; yield the result of each check.

    Two ranks are left out, with a warning, for a class that other processes cannot import, as of a notebook's cell.
    """
    name, own = objects.method(method)
    given: list[config.Change] = [(f'methods."{name}".{key}', value) for key, value in own.items()]
    given += list(changes.items()) if isinstance(changes, Mapping) else list(changes)
    with tempfile.TemporaryDirectory() as place:
        contract = Contract(name, given, Path(place))
        _ = contract.experiment().configured  # refuses wrong settings
        for number, (title, check) in enumerate(CHECKS.items()):
            if check is Contract.ranks_change_nothing and not launch.sendable(contract.experiment()):
                log.warning("not checked with two ranks: other processes cannot import %s, which has no file", name)
                continue
            contract.folder = Path(place) / str(number)
            try:
                check(contract)
            except (BrokenError, FedfloorError) as error:
                yield Check(title, str(error))
            except Exception as error:  # raised by the method's code
                yield Check(title, located(error))
            else:
                yield Check(title)


def _healthy(done: Run) -> None:
    """Require that all rounds are complete, with finite losses."""
    _demand(len(done.lines) == ROUNDS, f"{len(done.lines)} of {ROUNDS} rounds are complete.")
    finite = all(line.loss is None or math.isfinite(line.loss) for line in done.lines)
    _demand(finite, "the loss is not finite.")


@contextmanager
def _kept(name: str, arguments: tuple[Any, ...]) -> Iterator[None]:
    """Require that a function of a method, called in the body, leaves its arguments as they were."""
    before = _content(arguments)
    yield
    same = _content(arguments) == before
    _demand(same, f"{name} changed an argument in place: work on copies, and return a new state from absorb().")


def _content(value: Any) -> Any:
    """Return the content of a value, in which no reference to the value remains."""
    if isinstance(value, torch.Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: _content(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_content(part) for part in value]
    if is_dataclass(value):
        return {part.name: _content(getattr(value, part.name)) for part in fields(value)}
    return repr(value)


def _demand(kept: bool, why: str) -> None:
    if not kept:
        raise BrokenError(why)

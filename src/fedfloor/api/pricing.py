"""Prices of rounds without training: :func:`price`, and :func:`reprice` for finished runs on another network."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Unpack

from fedfloor import config
from fedfloor.api import tables
from fedfloor.api.comparison import Comparison, Runs, folders_of, load_comparison
from fedfloor.api.methods import Methods, with_methods
from fedfloor.api.source import Changes, Settings, Source, load
from fedfloor.api.wording import in_python
from fedfloor.base.errors import SettingError
from fedfloor.base.names import NUMBERED, Names, count
from fedfloor.experiment import Experiment
from fedfloor.network.price import Critical, Price
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.described import raw_bytes
from fedfloor.park.park import Park
from fedfloor.report import ledger
from fedfloor.runs import forecast
from fedfloor.runs.compare import each_once
from fedfloor.runs.parks import build_park

Row = dict[str, Any]
Step = Callable[[int], object]
BEFORE = {"setup": "the method's set-up", "normalise": "the normalisation"}  # costs before round 1
SHOWN = {  # columns of the table that a notebook shows → their headings
    "method": "method", "rounds": "rounds", "seconds_per_round": "s per round", "hours": "hours",
    "MB_per_round": "MB per round", "GB": "GB", "joules_per_round": "J per round", "waits_for": "waits for",
}  # fmt: skip
LEARNS = (
    "{}: its plan reads what earlier rounds reported (receipts, or what absorb keeps of them), which no forecast has: "
    "every round is priced as if nothing had been reported, and a run may visit other devices. The run's ledger has "
    "its prices; what follows from plans alone belongs in the method's noted."
)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prices:
    """The prices of an experiment's rounds on its network; in a notebook they show their table.

    Attributes:
        network: the name of the network's profile; None for a network without one.
        rows: a dictionary per method: ``rounds``, ``seconds_per_round``, ``hours``, ``MB_per_round``, ``GB``,
            ``joules_per_round``, ``joules``, ``raw_MB`` (of the samples, which stay where they are), ``waits_for``, and
            of these the parts before round 1, ``setup_…`` and ``normalise_…``, with their shares (0 to 1).
        links: a dictionary per method, link and direction, such as ``device_edge_up``: ``MB_per_round`` and ``GB``.
        free: the methods in which nothing travels, which have no price and no row.
        notes: sentences on what was assumed.
        names: the names of sites, where they are not numbers: kind → number → name.
    """

    network: str | None
    rows: list[Row]
    links: list[Row]
    free: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)

    def to_pandas(self) -> Any:
        """Return :attr:`rows` as a pandas DataFrame, with the network in its first column."""
        return tables.pandas("to_pandas").DataFrame([{"network": self.network, **row} for row in self.rows])

    def _cells(self) -> list[tuple[str, ...]]:
        rows = [tuple(tables.written(row[name]) for name in SHOWN) for row in self.rows]
        return [tuple(SHOWN.values()), *rows]

    def __repr__(self) -> str:
        return "\n".join([f"on {self.network or 'its network'}:", *tables.lines(self._cells()), *self.notes])

    def _repr_html_(self) -> str:
        return tables.html(self._cells(), [f"on {self.network or 'its network'}:"], self.notes)


@in_python
def price(
    source: Source, methods: Methods = None, *, first: int | None = None,
    changes: Changes | None = None, **settings: Unpack[Settings],
) -> Prices:  # fmt: skip
    """Price an experiment's rounds in seconds, bytes and joules, without training, as ``fedfloor price`` does.

    Args:
        source: an experiment, the path of its file, or a name, as for :func:`load`.
        methods: the methods, by names and as objects, as for :func:`~fedfloor.compare`; by default the experiment's.
        first: the number of rounds to price; by default all.
        changes: key of the experiment file → value, as for :func:`~fedfloor.load`.
        settings: such as ``network="lte-cat-m2"`` and ``devices=100``; see :func:`~fedfloor.load`.

    Raises:
        SettingError: a wrong setting, no network, or a method whose rounds depend on training.

    >>> prices = price("labels", ["fedavg", "fedsr"], network="lte-cat-m2", model="logistic", devices=4, rounds=2)
    >>> [row["method"] for row in prices.rows], prices.rows[0]["MB_per_round"] > 0
    (['fedavg', 'fedsr'], True)
    """
    fraction = settings.pop("fraction", None)
    experiment, names = with_methods(load(source, changes=changes, **settings), methods, fraction)
    return priced(experiment, names, first)


def priced(
    experiment: Experiment, methods: Sequence[str], first: int | None = None,
    show: Callable[[str, int], AbstractContextManager[Step]] | None = None,
) -> Prices:  # fmt: skip
    """Return the prices of methods whose settings are in an experiment; see :func:`price`.

    Args:
        show: (method, number of rounds) → the context of a function that is called with the number of each round.
    """
    last = experiment.rounds if first is None else first
    if not 1 <= last <= experiment.rounds:
        raise SettingError(f"--rounds {last}: the experiment has rounds 1 to {experiment.rounds}.")
    each_once("methods", methods)
    park = build_park(experiment)
    setups = {name: replace(experiment, method=replace(experiment.method, name=name)) for name in methods}
    free = tuple(name for name, setup in setups.items() if forecast.sends_nothing(setup))
    rows: list[Row] = []
    links: list[Row] = []
    notes: list[str] = note_free(free)
    for name, setup in setups.items():
        if name in free:
            continue
        taken = setup.configured.method.expected(last)
        if taken < last:
            _note(notes, f"{name} ends by itself: {count(taken, 'round')} counted, of {last} at most")
        with (show or _quietly)(name, taken) as step:
            bill = _Bill(name, taken).of(setup, park, step)
        if bill.learns:
            _note(notes, LEARNS.format(name))
        rows.append(bill.row(park))
        links += bill.links()
    names = park.display_names.table()
    return Prices(experiment.network.profile, rows, links, free, tuple(notes), names)


def _quietly(_name: str, _rounds: int) -> AbstractContextManager[Step]:
    return nullcontext(lambda _number: None)


def note_free(methods: Iterable[str]) -> list[str]:
    """Log and return a note that names the methods whose rounds have no price; [] without any."""
    names = ", ".join(dict.fromkeys(methods))
    notes: list[str] = []
    if names:
        _note(notes, f"no price: {names}. Nothing travels, so that the network costs nothing.")
    return notes


def _note(notes: list[str], text: str) -> None:
    log.info("%s", text)
    notes.append(text)


@dataclass
class _Bill:
    """The sums over a method's rounds, its set-up and the normalisation.

    Args:
        method: the name of the method.
        rounds: the number of rounds, of which ``row`` and ``links`` have means.
    """

    method: str
    rounds: int
    seconds: float = 0.0
    joules: float = 0.0
    bytes: Counter[str] = field(default_factory=Counter)  # link and direction → bytes
    before: dict[str, Price | None] = field(default_factory=lambda: dict.fromkeys(BEFORE))
    longest: Price | None = None  # of a round
    learns: bool = False  # whether its plan reads what only training gives

    def of(self, experiment: Experiment, park: Park, step: Step) -> _Bill:
        """Return the bill with the costs of all rounds; ``step`` is called with the number of each."""

        def unforeseen() -> None:
            self.learns = True

        for planned in forecast.rounds(experiment, park, self.rounds, unforeseen=unforeseen):
            for cost in (planned.price, planned.normalised):
                if cost is not None:
                    self.seconds = self.seconds + cost.seconds
                    self.joules = self.joules + cost.joules
                    self.bytes.update(cost.bytes)
            self.before["normalise"] = self.before["normalise"] or planned.normalised
            if planned.number == 0:
                self.before["setup"] = planned.price
            elif self.longest is None or planned.price.seconds > self.longest.seconds:
                self.longest = planned.price
            step(planned.number)
        return self

    def row(self, park: Park) -> Row:
        """Return the row of :attr:`Prices.rows`."""
        total = sum(self.bytes.values())
        row = {
            "method": self.method, "rounds": self.rounds, "seconds_per_round": self.seconds / self.rounds,
            "hours": self.seconds / 3600, "MB_per_round": total / self.rounds / 1e6, "GB": total / 1e9,
            "raw_MB": raw_bytes(park) / 1e6, "joules_per_round": self.joules / self.rounds, "joules": self.joules,
            "waits_for": None if self.longest is None else waits_for(self.longest.critical, park.display_names),
        }  # fmt: skip
        for part, paid in self.before.items():
            seconds, size = (paid.seconds, sum(paid.bytes.values())) if paid else (0.0, 0)
            row |= {f"{part}_seconds": seconds, f"{part}_MB": size / 1e6}
            row |= {
                f"{part}_share_of_seconds": seconds / self.seconds if seconds else 0.0,
                f"{part}_share_of_bytes": size / total if size else 0.0,
            }
        return row

    def links(self) -> list[Row]:
        """Return the rows of :attr:`Prices.links`."""
        return [
            {"method": self.method, "link": link, "MB_per_round": sent / self.rounds / 1e6, "GB": sent / 1e9}
            for link, sent in sorted(self.bytes.items())
        ]


def waits_for(critical: Critical, names: Names = NUMBERED) -> str:
    """Return the names of the sites in the branch that ends last, and the shares of computing, sending and waiting.

    >>> waits_for(Critical((3, 7), compute_s=1.0, transfer_s=3.0, wait_s=4.0))
    'devices 3, 7: 12 % computing, 38 % sending, 50 % waiting'
    >>> waits_for(Critical((-1,), compute_s=2.0))
    'the cloud: 100 % computing'
    """
    total = critical.compute_s + critical.transfer_s + critical.wait_s
    if not total:
        return "no step takes time"
    visited = [k for k in dict.fromkeys(critical.visits) if k >= 0]
    shown = [names.short("device", k) for k in visited]
    listed = ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
    shares = (("computing", critical.compute_s), ("sending", critical.transfer_s), ("waiting", critical.wait_s))
    uses = ", ".join(f"{100 * part / total:.0f} % {word}" for word, part in shares if part)
    kind = "" if all(names.own("device", k) for k in visited) else "device " if len(shown) == 1 else "devices "
    sites = [f"{kind}{listed}"] if shown else []
    sites += ["the cloud"] if -1 in critical.visits else []
    return f"{' and '.join(sites)}: {uses}" if sites else uses


@in_python
def reprice(
    runs: Runs, network: Annotated[Path | str, "the name of a network, or its TOML file"], out: Path | str
) -> Comparison:  # fmt: skip
    """Write copies of finished runs whose ledgers have the prices of another network, and return them.

    Training is not repeated; the plan of each round is made again, and must be that of the run.

    Args:
        runs: a run, a comparison, the folder of a run or of runs, or a sequence of these; with their references. Code
            that their experiments name (``module:Name``) is imported: give folders that you trust.
        network: the name of a network's profile, or a TOML file.
        out: the folder for the copies, which must be empty or not exist.

    Raises:
        SettingError: no runs, an unknown network, a file in ``out``, or a plan that depends on training. Nothing is
            written then.
    """
    copied(folders_of(runs), str(network), Path(out))
    return load_comparison(out)


def copied(
    folders: Sequence[Path], network: str, out: Path, follow: Callable[[Path], None] = lambda _copy: None
) -> list[Path]:
    """Write the copies of :func:`reprice` and return their folders; ``follow`` is called with each."""
    recorded = ledger.collect(ledger.with_references(folders))
    free = [run.method for run in recorded if forecast.sends_nothing(config.read(run.folder / "experiment.toml"))]
    note_free(free)
    return forecast.reprice([run.folder for run in recorded], NetworkSettings(network), out, follow)

"""An experiment: one description of park, data, model, method and work. Plain dataclasses; :mod:`fedfloor.config`
reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedfloor.data.made.machines import Machines
from fedfloor.data.made.procedural import Procedural
from fedfloor.data.published.cmapss import SETTINGS, Cmapss
from fedfloor.data.published.skab import Skab
from fedfloor.data.reading import Reading
from fedfloor.data.sources import SOURCES
from fedfloor.errors import SettingError, require
from fedfloor.figures import Figure, named
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.augment import Augmented
from fedfloor.park.normalise import Normalise
from fedfloor.park.partition import Blocks, Dirichlet, Dominant, Iid, Mobility, Natural, Shards
from fedfloor.park.privacy import check_epsilon
from fedfloor.park.stream import Fifo, Recycle, Static
from fedfloor.park.survey import RegimeNormaliser
from fedfloor.parts.attacks import Attackers
from fedfloor.parts.decision import DecideSettings
from fedfloor.parts.work import WorkSettings
from fedfloor.tasks.forecasting import Forecasting

LIKE = ("procedural", "machines", "cmapss", "skab")  # data sets with settings of their own, in a table of their name


@dataclass(frozen=True)
class DataSettings(Reading):
    """The ``[data]`` table; the reading of the user's data is described by :class:`~fedfloor.data.reading.Reading`.

    Args:
        name: a data set by name; ``labels`` is generated on demand and needs no download.
        root: folder the data sets lie in; ``$FEDFLOOR_DATA`` or the user's data folder where it is left out.
        path: the user's own data, instead of ``name``: a table, a folder or an ``.npz`` file.
        partition: the assignment of samples to devices; left out, ``natural`` for the user's own data, procedural data,
            machines, engines and test benches, and ``iid`` for others.
        stream: the samples that a device holds at a tick.
        normalise: ``unit`` scales bytes to [0, 1]; ``standard`` centres each channel by per-device sums and divides by
            its standard deviation; ``auto``: ``unit`` for pictures, ``standard`` for sensors; ``device``: each device
            by its own training rows, or ``{ kind = "device", rows = 400 }`` by its first ones.
        samples_per_device: samples made for each device, for generated data.
        procedural: settings of the data set ``procedural``.
        machines: settings of the data set ``machines``.
        cmapss: the engines and sensors that are read of the data set ``cmapss``, and the engines of each device.
        skab: the recordings that are read of the data set ``skab``, and the number of their training rows.
    """

    name: str = "labels"
    root: str | None = None
    path: str | None = None
    partition: Natural | Iid | Dirichlet | Shards | Dominant | Blocks | None = None
    stream: Static | Fifo | Recycle | Augmented = field(default_factory=Static)
    normalise: Normalise = "auto"
    samples_per_device: int = 300
    procedural: Procedural | None = None
    machines: Machines | None = None
    cmapss: Cmapss | None = None
    skab: Skab | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        source = None if self.path else SOURCES.get(self.name)
        if self.partition is None:
            natural = self.path or (source is not None and source.natural)
            object.__setattr__(self, "partition", Natural() if natural else Iid())
        if self.task is None and self.bins is None and source is not None:
            object.__setattr__(self, "task", source.task)
        for key in LIKE:
            if getattr(self, key) is not None and (self.path or self.name != key):
                raise SettingError(f'[data] {key} has the settings of name = "{key}". Leave it out, or set that name.')
        if self.test is not None and not self.path:
            raise SettingError("[data] test: test samples of its own belong to a [data] path. Leave test out.")
        if isinstance(self.task, Forecasting) and self.task.from_last and self.normalise not in ("auto", "standard"):
            raise SettingError(
                f"[data] normalise = {self.normalise!r}: forecasts are changes from the newest row, which is then on "
                "another scale than they are. Leave normalise out: changes do not depend on a machine's level; or set "
                "data.task.from_last = false."
            )
        made = self.samples_per_device
        require(made >= 1, "data.samples_per_device", made, "a whole number of at least 1")

    @property
    def like(self) -> object | None:
        """The data set's own settings; None for their defaults."""
        return getattr(self, self.name) if self.name in LIKE else None


@dataclass(frozen=True)
class ParkSettings:
    """The ``[park]`` table.

    Args:
        devices: number of devices; left out, the data's natural owners.
        factories: number of factories; left out, those that the data name for their natural owners, or else one.
        assignment: ``equal`` shares drawn at random, ``random``: each device by itself, or the factory of each device.
        census_epsilon: ε of the discrete Laplace noise on the counts that a device reports; left out, no noise is
            added.
        mobility: the visits of devices to other factories; none where it is left out.
    """

    devices: int | None = None
    factories: int | None = None
    assignment: Literal["equal", "random"] | tuple[int, ...] = "equal"
    census_epsilon: float | None = None
    mobility: Mobility | None = None

    def __post_init__(self) -> None:
        k = self.devices
        require(k is None or k >= 1, "park.devices", k, "a whole number of at least 1")
        m = self.factories
        require(m is None or m >= 1, "park.factories", m, "a whole number of at least 1")
        check_epsilon(self.census_epsilon)


@dataclass(frozen=True)
class ModelSettings:
    """The ``[model]`` table.

    Args:
        name: a network by name, or ``module:function`` of your own.
        classifier: path of the layer that is the classifier; left out, the last linear layer.
        init: the distribution of initial weights: ``default``, as the layers of PyTorch (or the network's own code) do,
            or ``glorot``, uniform within ±√(6 / (fan in + fan out)) with biases of 0.
        init_from: a run's folder or its ``model.safetensors``, with whose model training begins.
    """

    name: str = "mlp-2nn"
    classifier: str | None = None
    init: Literal["default", "glorot"] = "default"
    init_from: str | None = None

    def __post_init__(self) -> None:
        if self.init != "default" and self.init_from is not None:
            raise SettingError(
                f"model.init = '{self.init}' draws initial weights, model.init_from = '{self.init_from}' reads them. "
                "Leave one of the two out."
            )


@dataclass(frozen=True)
class MethodSettings:
    """The ``[method]`` table: a method, and parts that replace its own. A part is a name, or a table with
    its ``kind`` and settings; ``module:Name`` is one of the user's.

    Args:
        name: a method by name, or ``module:Name``.
        objective: minimised by devices.
        mix: the aggregation of models at the cloud.
        server: the cloud's step with the mean of the round's models.
        selection: the devices that may take part in a round.
        edge_mix: the aggregation of models at edges, in methods with a choice, such as HierFAVG and FedGS.
        travel: codecs of the devices' uploads, in order.
        travel_down: codecs of the model on its way to devices, by order.
        edge_travel: codecs of the models that edges send to the cloud, in methods whose models meet at edges first.
        edge_travel_down: codecs of the model on its way from the cloud to edges.
    """

    name: str = "fedavg"
    objective: str | Mapping[str, Any] | None = None
    mix: str | Mapping[str, Any] | None = None
    server: str | Mapping[str, Any] | None = None
    selection: str | Mapping[str, Any] | None = None
    edge_mix: str | Mapping[str, Any] | None = None
    travel: str | Mapping[str, Any] | tuple[str | Mapping[str, Any], ...] | None = None
    travel_down: str | Mapping[str, Any] | tuple[str | Mapping[str, Any], ...] | None = None
    edge_travel: str | Mapping[str, Any] | tuple[str | Mapping[str, Any], ...] | None = None
    edge_travel_down: str | Mapping[str, Any] | tuple[str | Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class FaultSettings:
    """The ``[faults]`` table.

    Args:
        visit: the chance that a visit is lost, in [0, 1).
        attackers: the devices that attack in a simulation, and their attack: one of ``share``, ``count`` and
            ``devices``, and the ``kind`` of attack with its settings. None do where it is left out.
    """

    visit: float = 0.0
    attackers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require(0 <= self.visit < 1, "faults.visit", self.visit, "at least 0 and below 1")
        _ = self.acting  # a wrong table is refused

    @property
    def acting(self) -> Attackers | None:
        """The attackers; None without any."""
        return None if self.attackers is None else Attackers.of(self.attackers)


@dataclass(frozen=True)
class DeploySettings:
    """The ``[deploy]`` table: limits of edges and cloud on devices.

    Args:
        norm_limit: how many times as long as the median of the devices an update, or an answer to a question, may be;
            ``false``: as long as it likes. Above 1.
        samples_limit: the most samples that a device may report, in multiples of the median, where devices report them;
            ``false``: any number. Above 1.
        simulate: whether a simulation goes by ``norm_limit``, too. It then trains one device after the other.
    """

    norm_limit: float | Literal[False] = 10.0
    samples_limit: float | Literal[False] = 100.0
    simulate: bool = False

    def __post_init__(self) -> None:
        for name in ("norm_limit", "samples_limit"):
            given = getattr(self, name)
            right = given is False or (given is not True and 1 < given < math.inf)
            require(right, f"deploy.{name}", given, "a number above 1, or false")


@dataclass(frozen=True)
class EngineSettings:
    """The ``[engine]`` table: the execution of plans.

    Args:
        shortcuts: ``auto`` takes faster ways that are equal but for rounding; ``off`` does every visit by itself.
        kind: ``ranks`` train one device after the other, a ``cohort`` many at once; ``auto`` is a cohort on CUDA, else
            ranks.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where a device is present, except with named ranks.
        precision: the precision of products on CUDA; ``bf16`` by autocast, of cohorts alone.
    """

    shortcuts: Literal["auto", "off"] = "auto"
    kind: Literal["auto", "ranks", "cohort"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"


@dataclass(frozen=True)
class EvaluateSettings:
    """The ``[evaluate]`` table: the rounds with an evaluation, and its data.

    Args:
        every: rounds from one evaluation to the next; the last round has one, too.
        on: the ``test`` data, or ``validation`` data: training samples held out, to choose settings by; or ``both``:
            figures are those of the test data, and the held-out samples choose the best round, and threshold and
            temperature of ``[decide]``.
        validation: share of every device's training samples held out where ``on`` is ``validation`` or ``both``; of the
            devices, held out whole, where the data are split by device.
        coverage: whether the ledger records the number of samples of each class were trained on in a round, and on how
            many devices.
        headline: the figure that a run is judged by, such as ``"recall of fault"``; the accuracy where it is left out.
        finetune: the work by which every device trains its model before each evaluation, on its own samples, such as
            ``{ epochs = 1 }``; other settings are those of the method's visits. Nothing of it is kept, sent or priced.
        recent: share of every device's training samples, its newest, that train no model: by them devices of a real
            park judge a model before it is released. None: none are held out.
    """

    every: int = 1
    on: Literal["test", "validation", "both"] = "test"
    validation: float = 0.1
    coverage: bool = False
    headline: str | None = None
    finetune: WorkSettings | None = None
    recent: float | None = None

    def __post_init__(self) -> None:
        _ = self.figure  # an unknown one is refused
        least = self.recent
        require(least is None or 0 < least < 1, "evaluate.recent", least, "a share, above 0 and below 1, such as 0.1")
        require(self.every >= 1, "evaluate.every", self.every, "a whole number of at least 1")
        share = self.validation
        require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")

    @property
    def figure(self) -> Figure:
        """The metric by which a run is judged."""
        return named("accuracy" if self.headline is None else self.headline)


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run's ledger and model, except versions and the kind of CPU.

    Args:
        name: names the run's folder.
        seed: every draw is keyed by it.
        rounds: global rounds of the schedule.
        data, park, model, method, network, faults, deploy, engine, evaluate, decide: the tables of these names.
        work: the work of visits, for all methods.
        methods: each method's own settings; only the chosen method's are used.
        provenance: versions and hardware of a run, recorded in its folder; ignored when read.
    """

    name: str = "run"
    seed: int = 0
    rounds: int = 10
    data: DataSettings = field(default_factory=DataSettings)
    park: ParkSettings = field(default_factory=ParkSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    work: WorkSettings = field(default_factory=WorkSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    deploy: DeploySettings = field(default_factory=DeploySettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    decide: DecideSettings = field(default_factory=DecideSettings)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        six = self.data.name == "cmapss" and (self.data.cmapss or Cmapss()).six_regimes
        if six and self.data.normalise == "auto":
            by_regime = RegimeNormaliser(SETTINGS, 6)
            object.__setattr__(self, "data", replace(self.data, normalise=by_regime))
        task = self.data.asked
        if self.evaluate.headline is None and task.kind != "classification":
            object.__setattr__(self, "evaluate", replace(self.evaluate, headline=task.headline))
        require(self.rounds >= 1, "rounds", self.rounds, "a whole number of at least 1")
        require(self.seed >= 0, "seed", self.seed, "a whole number of at least 0")
        usable = bool(self.name) and self.name not in (".", "..") and not set(self.name) & set('/\\\0:*?"<>|')
        require(usable, "name", self.name, "a folder name (no slashes or colons)")

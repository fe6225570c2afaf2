"""The settings of an experiment as dataclasses (park, data, model, method, work); :mod:`fedfloor.config` reads them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from fedfloor.base import outside
from fedfloor.base.checking import recorded, settle
from fedfloor.base.errors import SettingError, require
from fedfloor.data.made.machines import Machines
from fedfloor.data.made.procedural import Procedural
from fedfloor.data.published.cmapss import SETTINGS, Cmapss
from fedfloor.data.published.skab import Skab
from fedfloor.data.published.tless import Tless
from fedfloor.data.reading import Reading
from fedfloor.data.sources import SOURCES
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.augment import Augmented
from fedfloor.park.normalise import Normalise
from fedfloor.park.partition import Blocks, Dirichlet, Dominant, Iid, Mobility, Natural, Shards
from fedfloor.park.privacy import check_epsilon
from fedfloor.park.stream import Fifo, Recycle, Static
from fedfloor.park.survey import RegimeNormaliser
from fedfloor.parts import metrics, objects
from fedfloor.parts.attacks import Attackers
from fedfloor.parts.decision import DecideSettings
from fedfloor.parts.travel import limits
from fedfloor.parts.travel.limits import NormLimit
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.closing import Close
from fedfloor.tasks.figures import Figure
from fedfloor.tasks.forecasting import Forecasting

if TYPE_CHECKING:
    from fedfloor.methods.configured import ConfiguredMethod
    from fedfloor.parts.mixing.mix import Mix
    from fedfloor.parts.objectives.objective import Objective
    from fedfloor.parts.selection.selection import Selection
    from fedfloor.parts.server import Server
    from fedfloor.parts.travel.codec import Codec

Table = Mapping[str, Any]
PartSetting = str | Table
Codecs = PartSetting | tuple[PartSetting, ...]
if TYPE_CHECKING:
    Coded = Codec | Sequence[PartSetting | Codec]

LONGEST_NAME = 200  # bytes; file systems allow 255, and folders of comparisons add a method and a seed
LIKE = ("procedural", "machines", "cmapss", "skab", "tless")  # data sets with a table of settings under their name


@dataclass(frozen=True)
class DataSettings(Reading):
    """The ``[data]`` table; :class:`~fedfloor.data.reading.Reading` has its settings for the user's data.

    Args:
        name: the name of a data set; ``labels`` is generated on demand and needs no download.
        root: the folder of data sets; by default ``$FEDFLOOR_DATA``, or the user's data folder.
        path: the user's data, instead of ``name``: a table, a folder or an ``.npz`` file.
        partition: the assignment of samples to devices; by default ``natural`` for the user's data, procedural data,
            machines, engines, test benches and scenes, and ``iid`` for others.
        stream: the choice of the samples that a device holds at a tick; by default all.
        normalise: ``unit`` scales bytes to [0, 1]; ``standard`` centres each channel by per-device sums and divides by
            its standard deviation; ``auto``: ``unit`` for pictures, ``standard`` for sensors; ``device``: each device
            by its own training rows, or by its first 400 with ``{ kind = "device", rows = 400 }``.
        samples_per_device: the number of samples of each device, for generated data.
        procedural: the settings of the data set ``procedural``.
        machines: the settings of the data set ``machines``.
        cmapss: the engines and sensors to read from the data set ``cmapss``, and the engines of each device.
        skab: the recordings to read from the data set ``skab``, and the number of their training rows.
        tless: the parts to read from the data set ``tless``, and the size of its crops.
        agree: whether devices are asked before training if they measure the same, as by ``fedfloor ask``: ``refuse`` or
            ``warn`` of what does not fit together; ``off``, the default: only the sums that training needs are
            compared, with warnings.
    """

    name: str = "labels"
    _: KW_ONLY
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
    tless: Tless | None = None
    agree: Literal["refuse", "warn", "off"] | None = None

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
                raise SettingError(f'[data] {key} has the settings of name = "{key}". Leave it out, or set this name.')
        if self.test is not None and not self.path:
            raise SettingError("[data] test: only data with a [data] path have separate test samples. Leave test out.")
        if isinstance(self.task, Forecasting) and self.task.from_last and self.normalise not in ("auto", "standard"):
            raise SettingError(
                f"[data] normalise = {self.normalise!r}: forecasts are changes from the newest row, whose scale would "
                "differ. Leave normalise out, because changes do not depend on a machine's level; or set "
                "data.task.from_last = false."
            )
        made = self.samples_per_device
        require(made >= 1, "data.samples_per_device", made, "a whole number of at least 1")

    @property
    def like(self) -> object | None:
        """The settings specific to the data set; None for their defaults."""
        return getattr(self, self.name) if self.name in LIKE else None


@dataclass(frozen=True, kw_only=True)
class ParkSettings:
    """The ``[park]`` table.

    Args:
        devices: the number of devices; by default that of the data's natural owners.
        factories: the number of factories; by default the factories of the natural owners, otherwise one.
        assignment: the assignment of devices to factories: ``equal`` random shares, ``random`` for each device, or a
            list with the factory of each device.
        census_epsilon: ε of the discrete Laplace noise on the counts that a device reports; by default without noise.
        mobility: the visits of devices to other factories; by default none.
    """

    devices: int | None = None
    factories: int | None = None
    assignment: Literal["equal", "random"] | tuple[int, ...] = "equal"
    census_epsilon: float | None = None
    mobility: Mobility | None = None

    def __post_init__(self) -> None:
        settle(self, "park")
        k = self.devices
        require(k is None or k >= 1, "park.devices", k, "a whole number of at least 1")
        m = self.factories
        require(m is None or m >= 1, "park.factories", m, "a whole number of at least 1")
        check_epsilon(self.census_epsilon)


@dataclass(frozen=True)
class ModelSettings:
    """The ``[model]`` table.

    Args:
        name: the name of a network, or ``module:function`` of the user's code; in Python also the function or class,
            or a ``functools.partial`` of it with settings.
        classifier: the path of the classifier layer; by default the last linear layer.
        init: the distribution of initial weights: ``default`` for that of PyTorch's layers or the network's code, or
            ``glorot``, uniform within ±√(6 / (fan in + fan out)) with biases of 0.
        init_from: a run's folder or its ``model.safetensors`` with the initial model.
        keep: whether that model stays as it is, with its normalisation: a run of one round finds its thresholds, or the
            margins of its intervals, again. See :mod:`fedfloor.runs.keeping`.
        settings: the settings of the user's own network, such as ``{ hidden = 64 }``: values of the arguments of its
            function or class that follow the samples' shape and the number of classes.
    """

    name: str = "mlp-2nn"
    _: KW_ONLY
    classifier: str | None = None
    init: Literal["default", "glorot"] = "default"
    init_from: str | None = None
    keep: bool = False
    settings: Mapping[str, Any] | None = None

    if TYPE_CHECKING:  # a function or class is replaced by its name

        def __init__(
            self, name: str | Callable[..., Any] = ..., *, classifier: str | None = ...,
            init: Literal["default", "glorot"] = ..., init_from: str | None = ...,
            keep: bool = ..., settings: Mapping[str, Any] | None = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        name, own = objects.network(self.name, "model.name")
        object.__setattr__(self, "name", name)
        if own:
            object.__setattr__(self, "settings", {**own, **(self.settings or {})})
        settle(self, "model")
        given = {key: recorded(setting, f"model.settings.{key}") for key, setting in (self.settings or {}).items()}
        object.__setattr__(self, "settings", given or None)
        if self.init != "default" and self.init_from is not None:
            raise SettingError(
                f"model.init = '{self.init}' draws initial weights, model.init_from = '{self.init_from}' reads them. "
                "Leave one of them out."
            )
        if self.keep and self.init_from is None:
            raise SettingError(
                "model.keep = true keeps a trained model, and none is given. Set model.init_from to the folder of its "
                "run, as fedfloor run EXPERIMENT --recalibrate RUN does.",
                key="model.keep",
            )


@dataclass(frozen=True)
class MethodSettings:
    """The ``[method]`` table: a method, and parts that replace its own.

    A part is a name, or a table with its ``kind`` and settings; ``module:Name`` is a part in the user's code. In Python
    it is also an object, such as ``mix=Capped(500)``, which is recorded by its name and settings.

    Args:
        name: the name of a method, or ``module:Name``.
        objective: the objective minimised by devices.
        mix: the aggregation of models at the cloud.
        server: the cloud's optimiser step with the mean of a round's models.
        selection: the selection of devices that may take part in a round.
        edge_mix: the aggregation of models at edges, for methods with this choice, such as HierFAVG and FedGS.
        travel: codecs of the devices' uploads, in order.
        travel_down: codecs of the model on its way to devices, in order.
        edge_travel: codecs of the models that edges send to the cloud, for methods that aggregate at edges first.
        edge_travel_down: codecs of the model on its way from the cloud to edges.
    """

    name: str = "fedavg"
    _: KW_ONLY
    objective: PartSetting | None = None
    mix: PartSetting | None = None
    server: PartSetting | None = None
    selection: PartSetting | None = None
    edge_mix: PartSetting | None = None
    travel: Codecs | None = None
    travel_down: Codecs | None = None
    edge_travel: Codecs | None = None
    edge_travel_down: Codecs | None = None

    if TYPE_CHECKING:  # objects are replaced by their names and settings

        def __init__(
            self, name: str | type[Any] = ..., *, objective: PartSetting | Objective | None = ...,
            mix: PartSetting | Mix | None = ..., server: PartSetting | Server | None = ...,
            selection: PartSetting | Selection | None = ..., edge_mix: PartSetting | Mix | None = ...,
            travel: Codecs | Coded | None = ..., travel_down: Codecs | Coded | None = ...,
            edge_travel: Codecs | Coded | None = ..., edge_travel_down: Codecs | Coded | None = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        for key in (f.name for f in fields(self) if f.name != "name"):
            object.__setattr__(self, key, objects.part(getattr(self, key), f"method.{key}"))
        name, own = objects.method(self.name)
        if own:
            raise SettingError(
                f"method.name = '{name}': its settings {', '.join(own)} belong to methods.{name}. Give the object to "
                "Experiment(method=…), or to compare(methods=[…])."
            )
        object.__setattr__(self, "name", name)
        settle(self, "method")


@dataclass(frozen=True, kw_only=True)
class FaultSettings:
    """The ``[faults]`` table.

    Args:
        visit: the probability that a visit is lost, in [0, 1).
        attackers: the devices that attack in a simulation (one of ``share``, ``count`` and ``devices``), and the
            ``kind`` of attack with its settings; by default none.
    """

    visit: float = 0.0
    attackers: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attackers, Mapping) and not isinstance(self.attackers.get("kind"), str):
            attack = objects.part(self.attackers.get("kind"), "faults.attackers.kind")
            if isinstance(attack, Mapping):
                object.__setattr__(self, "attackers", {**self.attackers, **attack})
        settle(self, "faults")
        require(0 <= self.visit < 1, "faults.visit", self.visit, "at least 0 and below 1")
        if not outside.own_name(self.attackers):
            _ = self.acting  # refuses a wrong table

    @property
    def acting(self) -> Attackers | None:
        """The checked attackers; None without any."""
        return None if self.attackers is None else Attackers.of(self.attackers)


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The ``[round]`` table.

    Args:
        close: the end of a round before its last visit, ``{ first = 8 }`` or ``{ deadline_s = 60 }``; by default a
            round ends with its last visit.
    """

    close: Close | None = None

    def __post_init__(self) -> None:
        settle(self, "round")


@dataclass(frozen=True, kw_only=True)
class DeploySettings:
    """The ``[deploy]`` table: limits for messages of devices, enforced by edges and the cloud.

    Args:
        norm_limit: the largest norm of an update, or of an answer to a question, in multiples of the devices' median,
            above 1; ``false`` for no limit; or a rule of your own, ``{ kind = "my_limits:PerLayer", factor = 4.0 }``.
        samples_limit: the largest number of samples that a device may report, in multiples of the median, above 1;
            ``false`` for no limit.
        visits_limit: the most visits with noise of the device that a device answers over all runs, by its own file;
            ``false`` for no limit.
        simulate: whether simulations apply ``norm_limit``, too; they then train one device after the other.
        quorum: the devices that must be connected for a round to begin: a number of the park's devices, or a share
            below 1 of each factory's devices, rounded up. A round waits for them, and is not counted meanwhile.
    """

    norm_limit: float | Literal[False] | PartSetting = 4.0
    samples_limit: float | Literal[False] = 100.0
    visits_limit: int | Literal[False] = False
    simulate: bool = False
    quorum: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm_limit", objects.part(self.norm_limit, "deploy.norm_limit"))
        settle(self, "deploy")
        if not outside.own_name(self.norm_limit):
            _ = self.limit  # refuses a wrong setting
        given = self.samples_limit
        right = given is False or (given is not True and 1 < given < math.inf)
        require(right, "deploy.samples_limit", given, "a number above 1, or false")
        most = self.visits_limit
        allowed = "a whole number of at least 1, or false"
        require(most is False or (most is not True and most >= 1), "deploy.visits_limit", most, allowed)
        counts = 0 < self.quorum < 1 or (self.quorum >= 1 and float(self.quorum).is_integer())
        allowed = "a share below 1 of each factory's devices, such as 0.5, or a whole number of the park's devices"
        require(counts, "deploy.quorum", self.quorum, allowed)

    @property
    def limit(self) -> NormLimit | None:
        """The rule of ``norm_limit``; None without a limit."""
        return limits.limit(self.norm_limit)

    def needed(self, factory_of: Sequence[int]) -> dict[int | None, int]:
        """Return the number of devices that must be connected: factory, or None for the whole park → number.

        Args:
            factory_of: the factory of each device.

        Raises:
            SettingError: the park has fewer devices.

        >>> DeploySettings(quorum=2).needed([0, 0, 0, 1]), DeploySettings(quorum=0.5).needed([0, 0, 0, 1])
        ({None: 2}, {0: 2, 1: 1})
        """
        if self.quorum < 1:
            sizes = sorted(Counter(map(int, factory_of)).items())
            return {m: math.ceil(round(self.quorum * size, 9)) for m, size in sizes}
        allowed = f"at most the park's number of devices, {len(factory_of)}, or a share below 1 of each factory's"
        require(self.quorum <= len(factory_of), "deploy.quorum", int(self.quorum), allowed)
        return {None: int(self.quorum)}


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The ``[engine]`` table: the execution of plans.

    Args:
        shortcuts: ``auto`` for faster computations that are equal except for rounding; ``off``: each visit is computed
            separately.
        kind: ``ranks`` train one device after the other, a ``cohort`` many at once; ``auto``: a cohort on CUDA,
            otherwise ranks.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where a device is present, except with named ranks.
        precision: the precision of products on CUDA; ``bf16`` by autocast, only for cohorts.
    """

    shortcuts: Literal["auto", "off"] = "auto"
    kind: Literal["auto", "ranks", "cohort"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"

    def __post_init__(self) -> None:
        settle(self, "engine")


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The ``[evaluate]`` table: the rounds with an evaluation, and its data.

    Args:
        every: the number of rounds between evaluations; the last round is always evaluated.
        on: the ``test`` data; or ``validation`` data, held out of training for the choice of settings; or ``both``:
            metrics are those of the test data, and held-out samples determine the best round, and threshold and
            temperature of ``[decide]``.
        validation: the share of each device's training samples held out for ``validation`` or ``both``; for a split by
            device the share of devices.
        patience: the number of evaluations in a row without a better headline or a smaller loss on held-out samples
            after which a run ends; the model of its last round is then that of the best round. None: all rounds.
        coverage: whether the ledger records for each class the number of samples trained on in a round, and of devices.
        headline: the metric by which a run is judged, such as ``"recall of fault"``, or one of your own, such as
            ``{ kind = "costs:AlarmCost", alarm = 40.0 }``; by default that of the task.
        finetune: the work with which each device fine-tunes the model on its own samples before an evaluation, such as
            ``{ epochs = 1 }``; other settings are those of the method's visits. The result is not kept, sent or priced.
        recent: the share of each device's training samples, the newest, held out so that devices of a real park can
            evaluate a model before its release; None: no samples are held out.
    """

    every: int = 1
    on: Literal["test", "validation", "both"] = "test"
    validation: float = 0.1
    patience: int | None = None
    coverage: bool = False
    headline: PartSetting | None = None
    finetune: WorkSettings | None = None
    recent: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "headline", objects.part(self.headline, "evaluate.headline"))
        settle(self, "evaluate")
        if not outside.own_name(self.headline):
            _ = self.figure  # refuses an unknown metric
        least = self.recent
        require(least is None or 0 < least < 1, "evaluate.recent", least, "a share, above 0 and below 1, such as 0.1")
        require(self.every >= 1, "evaluate.every", self.every, "a whole number of at least 1")
        share = self.validation
        require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")
        waits = self.patience
        require(waits is None or waits >= 1, "evaluate.patience", waits, "a number of evaluations of at least 1")
        if waits is not None and self.on == "test":
            raise SettingError(
                f'evaluate.patience = {waits} needs held-out samples, but evaluate.on = "test". Set evaluate.on = '
                '"both".'
            )

    @property
    def figure(self) -> Figure:
        """The metric by which a run is judged."""
        return metrics.headline("accuracy" if self.headline is None else self.headline)


@dataclass(frozen=True)
class Experiment:
    """An experiment: all that determines a run's ledger and model, except versions and the kind of CPU.

    In Python, ``data``, ``model`` and ``method`` may also be given by their names alone, a network as a function or
    class, and a method as an object, which is recorded by its name and settings.

    >>> Experiment("tiny", method="fedsr", model="lenet").method.name
    'fedsr'

    Args:
        name: the name of the experiment and of the run's folder.
        seed: the seed of all random draws.
        rounds: the number of global rounds.
        data, park, model, method, network, round, faults, deploy, engine, evaluate, decide: the tables of these names.
        work: the local work of visits, for all methods.
        methods: the settings of each method; only those of the chosen method are used.
        provenance: versions and hardware of a run, recorded in its folder; ignored when read.
    """

    name: str = "run"
    _: KW_ONLY
    seed: int = 0
    rounds: int = 10
    data: DataSettings = field(default_factory=DataSettings)
    park: ParkSettings = field(default_factory=ParkSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    work: WorkSettings = field(default_factory=WorkSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    round: RoundSettings = field(default_factory=RoundSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    deploy: DeploySettings = field(default_factory=DeploySettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    decide: DecideSettings = field(default_factory=DecideSettings)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    if TYPE_CHECKING:  # names, tables and objects are converted

        def __init__(
            self, name: str = ..., *, seed: int = ..., rounds: int = ..., data: DataSettings | str | Table = ...,
            park: ParkSettings | Table = ..., model: ModelSettings | str | Table | Callable[..., Any] = ...,
            method: MethodSettings | str | Table | object = ...,  # an object or class derived from Method
            methods: Mapping[str, Mapping[str, Any]] = ..., work: WorkSettings | Table = ...,
            network: NetworkSettings | Table = ..., round: RoundSettings | Table = ...,  # noqa: A002
            faults: FaultSettings | Table = ..., deploy: DeploySettings | Table = ...,
            engine: EngineSettings | Table = ...,
            evaluate: EvaluateSettings | Table = ..., decide: DecideSettings | Table = ...,
            provenance: Mapping[str, Any] = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        self._name_objects()
        settle(self, "")
        six = self.data.name == "cmapss" and (self.data.cmapss or Cmapss()).six_regimes
        if six and self.data.normalise == "auto":
            by_regime = RegimeNormaliser(SETTINGS, 6)
            object.__setattr__(self, "data", replace(self.data, normalise=by_regime))
        task = self.data.asked
        if self.evaluate.headline is None and task.kind != "classification":
            object.__setattr__(self, "evaluate", replace(self.evaluate, headline=task.headline))
        require(self.rounds >= 1, "rounds", self.rounds, "a whole number of at least 1")
        require(self.seed >= 0, "seed", self.seed, "a whole number of at least 0")
        usable = self.name not in (".", "..") and not set(self.name) & set('/\\:*?"<>|') and self.name.isprintable()
        usable = usable and 0 < len(self.name.encode()) <= LONGEST_NAME
        require(usable, "name", self.name, f"a folder name of at most {LONGEST_NAME} bytes (no slashes or colons)")

    @cached_property
    def configured(self) -> ConfiguredMethod:
        """The method with its exchanged parts, which is made once.

        Raises:
            SettingError: unknown method, part or setting, or incompatible parts.
        """
        from fedfloor.methods.chosen import combined

        return combined(self)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # another process makes the method itself

    def __repr__(self) -> str:
        return objects.brief(self)

    def _name_objects(self) -> None:
        """Replace a name, class or object in place of ``data``, ``model`` and ``method`` by their tables."""
        if isinstance(self.data, str):
            object.__setattr__(self, "data", DataSettings(self.data))
        if isinstance(self.model, str) or callable(self.model):
            object.__setattr__(self, "model", ModelSettings(self.model))
        if not isinstance(self.method, MethodSettings | Mapping):
            name, own = objects.method(self.method)
            object.__setattr__(self, "method", MethodSettings(name))
            if own:
                object.__setattr__(self, "methods", {**self.methods, name: {**self.methods.get(name, {}), **own}})

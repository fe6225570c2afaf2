"""fedfloor: federated learning on the factory floor.

The names below are the public interface: experiments and their results, and the parts, questions and tasks of your own
methods. All other modules are private and may change between versions.

>>> import fedfloor
>>> experiment = fedfloor.Experiment(name="tiny", rounds=2)
>>> experiment.method.name
'fedavg'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedfloor.base.public import MODULE_OF
from fedfloor.base.version import __version__

if TYPE_CHECKING:
    from fedfloor.api.asking import ask
    from fedfloor.api.comparison import Comparison, compare, load_comparison, write_report
    from fedfloor.api.conformance import Check, check_method
    from fedfloor.api.model import TrainedModel
    from fedfloor.api.pricing import Prices, price, reprice
    from fedfloor.api.run import Run, load_run, run
    from fedfloor.api.source import load
    from fedfloor.api.sweeping import Swept, sweep
    from fedfloor.api.train import train
    from fedfloor.base.errors import FedfloorError, RunError, SettingError
    from fedfloor.data.reading import (
        Columns,
        DeviceSplit,
        LastSplit,
        RandomSplit,
        RunSplit,
        StratifiedSplit,
        TimeSplit,
        Window,
    )
    from fedfloor.engine.questions import Question
    from fedfloor.experiment import (
        DataSettings,
        DeploySettings,
        EngineSettings,
        EvaluateSettings,
        Experiment,
        FaultSettings,
        MethodSettings,
        ModelSettings,
        ParkSettings,
    )
    from fedfloor.inference.trained import Trained, load_model
    from fedfloor.methods.asynchronous import FedAsync, FedBuff
    from fedfloor.methods.contract import Method, Needs, Resources, State, View
    from fedfloor.methods.fedavg import FedAvg
    from fedfloor.methods.fedgs import FedGS
    from fedfloor.methods.fedsr import FedSR
    from fedfloor.methods.fldg import FLDG
    from fedfloor.methods.hfedms import HFedMS
    from fedfloor.methods.hierfavg import HierFAVG
    from fedfloor.methods.personal import APFL, Ditto, FedBN, FedPer, FedRep
    from fedfloor.methods.presets import QFFL, FedAdagrad, FedAdam, FedAvgM, FedProx, FedYogi, Moon
    from fedfloor.methods.scaffold import Scaffold
    from fedfloor.network.profile import NetworkSettings
    from fedfloor.park.agreement import Disagreement
    from fedfloor.park.augment import Augmented
    from fedfloor.park.partition import Blocks, Dirichlet, Dominant, Iid, Mobility, Natural, Shards
    from fedfloor.park.stream import Fifo, Recycle, Static
    from fedfloor.parts.attacks import Attack, AttackedVisit
    from fedfloor.parts.decision import DecideSettings
    from fedfloor.parts.mixing.mix import Branch, Meeting, Mix
    from fedfloor.parts.objectives.objective import Objective, Plain, Visit
    from fedfloor.parts.objectives.proximal import Represented
    from fedfloor.parts.selection.selection import Selection
    from fedfloor.parts.server import Server, Sgd
    from fedfloor.parts.travel.codec import Codec
    from fedfloor.parts.travel.codecs import TopK
    from fedfloor.parts.travel.limits import NormLimit
    from fedfloor.parts.travel.path import AddedNoise, PathPart
    from fedfloor.parts.work import Cosine, Exponential, WorkSettings
    from fedfloor.plan.flow import Arrival, VisitFlow
    from fedfloor.plan.nodes import (
        CLOUD,
        Broadcast,
        Node,
        Parallel,
        Probe,
        Repeat,
        Select,
        Sequence,
        Since,
        Site,
        Train,
        Work,
        device,
        edge,
    )
    from fedfloor.plan.outcome import Outcome, Receipt
    from fedfloor.runs.asking import Asked
    from fedfloor.runs.orders import Limits
    from fedfloor.tasks.answer import Answer
    from fedfloor.tasks.classification import Classification
    from fedfloor.tasks.forecasting import Forecasting
    from fedfloor.tasks.metric import Metric
    from fedfloor.tasks.reconstruction import Reconstruction
    from fedfloor.tasks.regression import Regression
    from fedfloor.tasks.survival import Survival
    from fedfloor.tasks.task import Task
    from fedfloor.tasks.tested import TestedSamples
    from fedfloor.tracking.tracker import follow

__all__ = [
    "__version__", "load", "ask", "Asked", "Disagreement",
    "run", "Run", "load_run", "Limits", "train", "TrainedModel", "compare", "Comparison",
    "load_comparison", "write_report", "sweep", "Swept", "price", "Prices", "reprice", "follow", "load_model",
    "Trained", "Experiment", "DataSettings", "ParkSettings",
    "ModelSettings", "MethodSettings", "WorkSettings", "NetworkSettings", "FaultSettings", "DeploySettings",
    "EngineSettings", "EvaluateSettings", "DecideSettings", "Cosine", "Exponential", "Columns", "Window", "TimeSplit",
    "RandomSplit", "StratifiedSplit", "DeviceSplit", "RunSplit", "LastSplit", "Natural", "Iid", "Dirichlet", "Shards",
    "Dominant", "Blocks", "Mobility", "Static", "Fifo", "Recycle", "Augmented", "Classification", "Regression",
    "Reconstruction", "Forecasting", "Survival", "FedAvg", "FedProx", "Moon", "QFFL", "FedAvgM", "FedAdagrad",
    "FedAdam", "FedYogi", "Scaffold", "FedAsync", "FedBuff", "FedSR", "FedGS", "HFedMS", "FLDG", "HierFAVG", "APFL",
    "Ditto", "FedBN", "FedPer", "FedRep", "Method", "State", "View", "Needs", "Resources", "Node", "Train", "Sequence",
    "Parallel", "Repeat", "Select", "Broadcast", "Probe", "Since", "Work", "Site", "CLOUD", "edge", "device", "Arrival",
    "VisitFlow", "Outcome", "Receipt", "Objective", "Plain", "Visit", "Represented", "Mix", "Meeting", "Branch",
    "Server", "Sgd", "Selection", "PathPart", "AddedNoise", "Codec", "TopK", "NormLimit", "Attack", "AttackedVisit",
    "Question", "Task", "Answer", "Metric", "TestedSamples", "check_method", "Check", "FedfloorError", "SettingError",
    "RunError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in MODULE_OF:
        import importlib

        return getattr(importlib.import_module(f"fedfloor.{MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'fedfloor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

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

from fedfloor._version import __version__

if TYPE_CHECKING:
    from fedfloor.comparison import Comparison, compare, write_report
    from fedfloor.conformance import Check, check_method
    from fedfloor.engine.questions import Question
    from fedfloor.errors import FedfloorError, RunError, SettingError
    from fedfloor.experiment import (
        DataSettings,
        EngineSettings,
        EvaluateSettings,
        Experiment,
        MethodSettings,
        ModelSettings,
        ParkSettings,
    )
    from fedfloor.inference.trained import Trained, load_model
    from fedfloor.methods.contract import Method, Needs, Resources, State, View
    from fedfloor.methods.fedavg import FedAvg
    from fedfloor.parts.mix import Branch, Meeting, Mix
    from fedfloor.parts.objective import Objective, Plain, Visit
    from fedfloor.parts.proximal import Represented
    from fedfloor.parts.selection import Selection
    from fedfloor.parts.server import Server, Sgd
    from fedfloor.parts.work import WorkSettings
    from fedfloor.plan.nodes import (
        CLOUD,
        Broadcast,
        Node,
        Parallel,
        Probe,
        Repeat,
        Select,
        Sequence,
        Site,
        Train,
        Work,
        device,
        edge,
    )
    from fedfloor.plan.outcome import Outcome, Receipt
    from fedfloor.runs.api import Run, run
    from fedfloor.runs.orders import Limits
    from fedfloor.tasks.answer import Answer
    from fedfloor.tasks.task import Task

# module → its public names, imported on first use: PyTorch takes seconds, and only training needs it
_PUBLIC = {
    "runs.api": ("run", "Run"),
    "runs.orders": ("Limits",),
    "comparison": ("compare", "Comparison", "write_report"),
    "inference.trained": ("load_model", "Trained"),
    "experiment": (
        "Experiment", "DataSettings", "ParkSettings", "ModelSettings", "MethodSettings", "EvaluateSettings",
        "EngineSettings",
    ),
    "methods.contract": ("Method", "State", "View", "Needs", "Resources"),
    "methods.fedavg": ("FedAvg",),
    "plan.nodes": (
        "Node", "Train", "Sequence", "Parallel", "Repeat", "Select", "Broadcast", "Probe", "Work", "Site", "CLOUD",
        "edge", "device",
    ),
    "plan.outcome": ("Outcome", "Receipt"),
    "parts.work": ("WorkSettings",),
    "parts.objective": ("Objective", "Plain", "Visit"),
    "parts.proximal": ("Represented",),
    "parts.mix": ("Mix", "Meeting", "Branch"),
    "parts.server": ("Server", "Sgd"),
    "parts.selection": ("Selection",),
    "engine.questions": ("Question",),
    "tasks.task": ("Task",),
    "tasks.answer": ("Answer",),
    "conformance": ("check_method", "Check"),
    "errors": ("FedfloorError", "SettingError", "RunError"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "__version__", "run", "Run", "Limits", "compare", "Comparison", "write_report", "load_model", "Trained",
    "Experiment", "DataSettings", "ParkSettings", "ModelSettings", "MethodSettings", "EvaluateSettings",
    "EngineSettings", "Method", "State", "View", "Needs", "Resources", "FedAvg", "Node", "Train", "Sequence",
    "Parallel", "Repeat", "Select", "Broadcast", "Probe", "Work", "Site", "CLOUD", "edge", "device", "Outcome",
    "Receipt", "WorkSettings", "Objective", "Plain", "Visit", "Represented", "Mix", "Meeting", "Branch", "Server",
    "Sgd", "Selection", "Question", "Task", "Answer", "check_method", "Check", "FedfloorError", "SettingError",
    "RunError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        import importlib

        return getattr(importlib.import_module(f"fedfloor.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'fedfloor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""fedfloor: federated learning on the factory floor.

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
    from fedfloor.experiment import Experiment
    from fedfloor.inference.trained import Trained, load_model
    from fedfloor.runs.api import Run, run
    from fedfloor.runs.orders import Limits

_HOMES = {
    "Comparison": "fedfloor.comparison",
    "Experiment": "fedfloor.experiment",
    "Limits": "fedfloor.runs.orders",
    "Run": "fedfloor.runs.api",
    "compare": "fedfloor.comparison",
    "Trained": "fedfloor.inference.trained",
    "load_model": "fedfloor.inference.trained",
    "run": "fedfloor.runs.api",
    "write_report": "fedfloor.comparison",
}


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: only what trains should wait for it.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedfloor' has no attribute {name!r}")


__all__ = [
    "Comparison",
    "Experiment",
    "Limits",
    "Run",
    "Trained",
    "__version__",
    "compare",
    "load_model",
    "run",
    "write_report",
]

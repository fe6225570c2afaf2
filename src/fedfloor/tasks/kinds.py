"""The tasks by name, as ``[data] task`` has them."""

from __future__ import annotations

from collections.abc import Mapping

from fedfloor.tasks.classification import Classification
from fedfloor.tasks.task import Task

TASKS: Mapping[str, type[Task]] = {one.kind: one for one in (Classification,)}

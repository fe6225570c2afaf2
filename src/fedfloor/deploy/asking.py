"""The question before training on real machines: devices state counts and sums of their rows, and the cloud judges."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfloor.base import ranges
from fedfloor.base.ranges import RefusedError
from fedfloor.data.files import apart, own
from fedfloor.deploy.channel import DeviceChannel, side_by_side
from fedfloor.deploy.checks import short_line
from fedfloor.deploy.message import Message
from fedfloor.deploy.settings import CloudEdge, DeviceSettings, Named
from fedfloor.experiment import Experiment
from fedfloor.park import sites
from fedfloor.park.park import Park
from fedfloor.park.sites import SiteFacts
from fedfloor.runs import asking

if TYPE_CHECKING:
    from fedfloor.methods.configured import ConfiguredMethod

NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")  # of a device, as a key
LOOK_S = 0.5  # interval between two questions to devices that are missing
Body = dict[str, Any]


def stated(
    settings: DeviceSettings, experiment: Experiment, method: ConfiguredMethod, park: Park | None
) -> Body:  # fmt: skip
    """Return what a device states of its rows, as JSON.

    Args:
        method: the experiment's method.
        park: the park that holds its share of the experiment's data; None if it has a source of its own.

    Raises:
        RefusedError: its experiment does not ask, or masks or noise protect what it sends.
        SettingError: its data cannot be read, or are no rows of sensors.
    """
    if not asking.asks(experiment):
        raise RefusedError("question", "its experiment does not set data.agree, so that it states nothing of its rows.")
    if asking.hides(experiment, method):
        raise RefusedError("question", asking.HIDDEN)
    path = Path(str(settings.data.path))
    if settings.data.path is not None and own.format_of(path) in ("table", "folder", "buffer"):
        tables = apart.read(path, experiment.data, settings.name)
        return _short(sites.of_tables(tables)[0])
    if park is None:
        raise RefusedError("question", "its samples come from no table, of which it could state counts and sums.")
    return _short(asking.of_park(park, settings.device, settings.name))


def _short(facts: SiteFacts) -> Body:
    """Return facts as JSON; RefusedError: of more sensors than a message holds."""
    if len(facts.sensors) > sites.SENSORS:
        raise RefusedError(
            "question",
            f"it has {len(facts.sensors):,} sensors, and states facts of at most {sites.SENSORS:,}. Unset data.agree.",
        )
    return facts.to_dict()


def of_devices(channel: DeviceChannel, own_devices: Sequence[Named], run: str, deadline_s: float) -> Body:
    """Ask an edge's own devices; return their unchecked answers, the reasons of those that refuse, and the silent."""

    def request(device: int) -> Message | None:
        return channel.request(device, "sites", deadline_s, run=run, number=0, about={})

    own_numbers = [device.device for device in own_devices]
    answers = dict(zip(own_numbers, side_by_side(request, own_numbers), strict=True))
    given = {str(k): answer for k, answer in answers.items() if answer is not None}
    return {
        "sites": {k: answer.about.get("answer") for k, answer in given.items() if answer.kind == "answer"},
        "wrong": {k: short_line(one.about.get("text")) for k, one in given.items() if one.kind != "answer"},
        "silent": [str(k) for k, answer in answers.items() if answer is None],
    }


def gathered(
    query: Callable[[], Mapping[int, Message]], edges: Sequence[CloudEdge], deadline_s: float,
    refuse: Callable[[str, RefusedError], None],
) -> list[SiteFacts]:  # fmt: skip
    """Return what all devices state, checked; those that are missing after ``deadline_s`` have it as their problem.

    Args:
        query: asks all edges.
        refuse: is called with the edge and the reason of an answer that is refused.
    """
    until = time.monotonic() + deadline_s
    while True:
        began = time.time()
        answers = query()
        ended = time.time()
        found = []
        lacking = 0
        for edge in edges:
            body = answers[edge.factory].about if edge.factory in answers else {}
            lacking += edge.factory not in answers
            devices = edge.devices or _listed(body)
            if not devices:  # none is listed, so that only the edge can be named
                found.append(SiteFacts(edge.name, edge.name, problems=("it has named no device.",)))
            for device in devices:
                site = _site(body, device, edge, (began, ended), refuse)
                lacking += site is None
                found.append(site or SiteFacts(device.name, edge.name, problems=("it has not answered.",)))
        if not lacking or time.monotonic() > until:
            return found
        time.sleep(LOOK_S)


def _listed(body: Mapping[str, Any]) -> list[Named]:
    """Return the devices that an edge names, of which the cloud's settings list none."""
    parts = [body.get(key) for key in ("sites", "wrong", "silent")]
    keys = {key for part in parts if isinstance(part, dict | list) for key in part if isinstance(key, str)}
    numbers = sorted(int(key) for key in keys if NUMBER.fullmatch(key))
    return [Named(f"device-{number}", number) for number in numbers]


def _site(
    body: Mapping[str, Any], device: Named, edge: CloudEdge, between: tuple[float, float],
    refuse: Callable[[str, RefusedError], None],
) -> SiteFacts | None:  # fmt: skip
    """Return what a device states, with its clock's offset; None if it has not answered."""
    number = str(device.device)
    wrong = body.get("wrong")
    if isinstance(wrong, dict) and number in wrong:
        return SiteFacts(device.name, edge.name, problems=(short_line(wrong[number]),))
    answers = body.get("sites")
    if not isinstance(answers, dict) or number not in answers:
        return None
    try:
        answer = ranges.table(answers[number], 2, "its answer")
        now = ranges.number(answer.get("now"), 0, ranges.COUNT, "its clock")
        low, high = between
        return sites.read(answer.get("rows"), device.name, edge.name, offset=now - min(max(now, low), high))
    except RefusedError as error:
        refuse(edge.name, error)
        return SiteFacts(device.name, edge.name, problems=(f"its answer is refused: {error.text}",))

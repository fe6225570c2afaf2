"""Holdings of devices whose samples stay with them: an edge queries each once, the cloud waits for all or a quorum."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedfloor.base import ranges
from fedfloor.base.errors import MALFORMED, RunError, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks
from fedfloor.deploy.channel import DeviceChannel, side_by_side
from fedfloor.deploy.facts import Facts, Holding, read_holding
from fedfloor.deploy.message import Message
from fedfloor.deploy.settings import NAME, CloudEdge, Named
from fedfloor.experiment import DeploySettings
from fedfloor.parts.protection.masking import LEAST
from fedfloor.parts.travel import chains

log = logging.getLogger(__name__)

LOOK_S = 0.5  # interval between two queries for missing devices
MISFITS_S = 10.0  # wait for the other devices' holdings after the first that does not fit, to name all at once
LEFT_CHARS = 2000  # of the reasons why devices take no part in a run
SHOWN = 32  # the most devices named in one error
Gathered = tuple[list[int], list[Holding]]  # factory and holding of each device
Doubts = Callable[[Mapping[int, Holding]], Mapping[int, str]]  # holdings → implausible devices, with reasons


class Joining:
    """The holdings of an edge's devices; each device is queried after its start and once in each run.

    Args:
        channel: to the devices.
        deadline_s: the longest wait for an answer.
    """

    def __init__(self, channel: DeviceChannel, deadline_s: float) -> None:
        self.channel = channel
        self.deadline_s = deadline_s
        self.facts: Facts | None = None
        self.expected: Mapping[int, Holding] = {}  # holdings at the start of the run, by device
        self._known: dict[int, tuple[int | None, str, Facts, Holding]] = {}

    def holding(self, device: int, facts: Facts, run: str, number: int) -> Holding | None:
        """Return the holding of a device; None if it does not answer.

        Args:
            number: of the round, 0 before the first.

        Raises:
            SettingError: its samples do not fit the facts, or its answer is refused.
        """
        session = self.channel.session(device)
        name = self.channel.devices[device].name
        if session is None:
            return None
        known = self._known.get(device)
        if known is not None and known[:3] == (session, run, facts):
            return known[3]
        about = {"facts": facts.to_dict(), "device": device}
        answer = self.channel.request(device, "facts", self.deadline_s, run=run, number=number, about=about)
        if answer is None:
            return None
        try:
            if answer.kind != "answer":
                raise RefusedError("data", checks.short_line(answer.about.get("text")))
            held = read_holding(answer.about.get("answer"), facts)
        except RefusedError as error:
            self.channel.filter.refuse(name, error)
            raise SettingError(f"device '{name}': {error}") from error
        self._known[device] = (session, run, facts, held)
        return held

    def fits(self, device: int, run: str, number: int) -> bool:
        """Return whether a device is connected and has the same samples as at the run's start; log a difference."""
        if self.facts is None:
            return True
        try:
            held = self.holding(device, self.facts, run, number)
            expected = self.expected.get(device)
        except SettingError as error:
            log.error("%s", error)
            return False
        if held is None or expected is None:
            return False
        if held != expected:
            other = f"{expected.samples} samples" if held.samples != expected.samples else "others"
            text = f"it holds {held.samples} samples; {other} when the run began. Restore them, or start a new run."
            self.channel.filter.refuse(self.channel.devices[device].name, RefusedError("data", text))
            return False
        return True


def gather(joining: Joining, own: Mapping[int, Named], facts: Facts, run: str) -> dict[str, Any]:
    """Return the holdings of an edge's own devices, the absent devices, and the errors, as JSON."""

    def request_holding(device: int) -> Holding | SettingError | None:
        try:
            return joining.holding(device, facts, run, 0)
        except SettingError as error:
            return error

    found = dict(zip(own, side_by_side(request_holding, list(own)), strict=True))
    return {
        "held": {str(k): asdict(holding) for k, holding in found.items() if isinstance(holding, Holding)},
        "devices": sorted(own),
        "lacking": [own[k].name for k, holding in found.items() if holding is None],
        "wrong": {own[k].name: str(error) for k, error in found.items() if isinstance(error, SettingError)},
    }


def wait_for_holdings(
    query: Callable[[], Mapping[int, Message]], edges: Sequence[CloudEdge], facts: Facts, deadline_s: float,
    deploy: DeploySettings | None = None, left: dict[int, str] | None = None, doubts: Doubts = lambda _: {},
) -> Gathered:  # fmt: skip
    """Query edges until the holdings of all their devices are known, and return them.

    With a quorum the run begins after the wait without the devices that are missing or do not fit. They take no part
    in it: each has the place of the device with the median number of samples, whose samples it does not have.

    Args:
        deploy: the settings with the quorum; with the default, one device, all are waited for.
        left: devices that take no part, each with the reason; those of this wait are added.
        doubts: returns the devices whose claims are implausible, each with the reason.

    Raises:
        SettingError: samples do not fit, or devices are not numbered 0, 1, 2, … All devices whose samples do not fit
            are named, after a wait of :data:`MISFITS_S` for devices that are missing.
        RunError: holdings are missing after ``deadline_s``.
    """
    until = time.monotonic() + deadline_s
    seen = -1
    refused_until = math.inf
    left = {} if left is None else left
    while True:
        answers = query()
        factory_of, held, lacking, wrong = stated(answers, edges, facts, deploy)
        if len(held) != seen:
            seen = len(held)
            level = logging.INFO if facts.question is None else logging.DEBUG
            log.log(level, "%d of %d devices have reported their holdings.", seen, len(factory_of))
        held = {k: holding for k, holding in held.items() if k not in left}
        missing = factory_of.keys() - held.keys() - left.keys()
        listed = all(edge.devices or edge.factory in answers for edge in edges)
        if not missing and listed and held:
            if doubted := doubts(held):
                others = {k: holding for k, holding in held.items() if k not in doubted}
                if suffices(deploy, factory_of, others):
                    left.update(doubted)
                    continue
            return in_order(factory_of, held | dict.fromkeys(left, stand_in(held)))
        if wrong:
            refused_until = min(refused_until, time.monotonic() + MISFITS_S, until)
        judged = bool(wrong) and (not lacking or time.monotonic() >= refused_until)
        late = time.monotonic() > until
        if (judged or late) and listed and suffices(deploy, factory_of, held):
            why = "; ".join([*wrong, *(f"{name} has not reported" for name in lacking)])
            left |= dict.fromkeys(sorted(missing), why[:LEFT_CHARS])
            continue
        if judged:
            rest = f" {len(wrong) - SHOWN} more do not fit either." if len(wrong) > SHOWN else ""
            raise SettingError(" ".join(wrong[:SHOWN]) + rest, key="holdings")
        if late:
            raise RunError(
                f"after {deadline_s:g} s holdings are missing from {', '.join(lacking)}. Start them, take them out of "
                "the park file, begin without them (deploy.quorum), or wait longer: deadlines.join_s in cloud.toml.",
                key="holdings-missing",
            )
        time.sleep(LOOK_S)


def stated(
    answers: Mapping[int, Message], edges: Sequence[CloudEdge], facts: Facts, deploy: DeploySettings | None
) -> tuple[dict[int, int], dict[int, Holding], list[str], list[str]]:
    """Return what edges state: device → its factory, device → its holding, who is missing, and what does not fit.

    Raises:
        RunError: an answer does not fit, and all devices are waited for.
    """
    lacking = [f"edge {edge.name}" for edge in edges if edge.factory not in answers]
    factory_of = dict[int, int]()
    held = dict[int, Holding]()
    wrong = list[str]()
    for edge in edges:
        try:
            if edge.factory in answers:
                take_answer(answers[edge.factory], edge, facts, factory_of, held, lacking, wrong)
                continue
        except RunError as error:
            if strict(deploy) or not edge.devices:
                raise
            wrong.append(str(error))
        factory_of |= {device.device: edge.factory for device in edge.devices}
        held = {k: holding for k, holding in held.items() if factory_of[k] != edge.factory}
    return factory_of, held, lacking, wrong


def strict(deploy: DeploySettings | None) -> bool:
    """Return whether a run begins with all devices or not at all, as there is no quorum."""
    return deploy is None or deploy.quorum == 1


def suffices(deploy: DeploySettings | None, factory_of: Mapping[int, int], held: Mapping[int, Holding]) -> bool:
    """Return whether a run may begin with the devices of these holdings."""
    if deploy is None or strict(deploy) or not held:
        return False
    counts = Counter(factory_of[k] for k in held)
    needed = deploy.needed([factory_of[k] for k in sorted(factory_of)])
    return all((len(held) if m is None else counts[m]) >= n for m, n in needed.items())


def stand_in(held: Mapping[int, Holding]) -> Holding:
    """Return the holding in place of that of a device that takes no part: no device has its digest."""
    middle = sorted(held.values(), key=lambda holding: holding.samples)[len(held) // 2]
    sums = tuple((0.0,) * len(row) for row in middle.sums)
    return replace(middle, sums=sums, digest="0" * 64, answer=(0.0,) * len(middle.answer), waits=False)


def renewing(gathered: Gathered, travel: str) -> tuple[int, ...]:
    """Return the factories whose devices may use new samples in secure sums, as enough in a sum have new ones.

    With crews no crew has new ones of too few of its devices, as sums would show its change by itself.

    Args:
        travel: the codecs of the experiment's method.

    >>> held = [Holding(9, (), (), "", waits=number != 3) for number in range(6)]
    >>> [renewing(([0, 0, 0, 1, 1, 1], held), travel) for travel in ("secure-sum", "secure-sum across=true", "")]
    [(0,), (0, 1), ()]
    >>> crewed = [replace(one, waits=True, crew="a" if k < 2 else "b") for k, one in enumerate(held)]
    >>> renewing(([0] * 6, crewed), "secure-sum together=true")  # those of crew "a" are two
    ()
    """
    if not chains.secure(travel):
        return ()
    together = chains.together(travel)
    waiting: dict[int, Counter[str]] = {}
    for m, holding in zip(*gathered, strict=True):
        if holding.waits:
            of = waiting.setdefault(0 if chains.across(travel) else m, Counter())
            of[holding.crew if together else ""] += 1
    enough = {m for m, counts in waiting.items() if min(counts.values()) >= LEAST}
    if chains.across(travel):
        return tuple(sorted(set(gathered[0]))) if enough else ()
    return tuple(sorted(enough))


def take_answer(
    answer: Message, edge: CloudEdge, facts: Facts, factory_of: dict[int, int], held: dict[int, Holding],
    lacking: list[str], wrong: list[str],
) -> None:  # fmt: skip
    """Check an edge's answer, and add its devices to ``factory_of``, ``held``, ``lacking``, and errors to ``wrong``."""
    about = answer.about
    expected = [device.device for device in edge.devices]
    try:
        if answer.kind != "gathered":
            raise RefusedError("kind", checks.short_line(about.get("text", answer.kind)))
        errors = ranges.table(about.get("wrong"), ranges.DEVICES, "what is wrong")
        devices = ranges.rows(about.get("devices"), None, "its devices")
        known = {str(ranges.whole(k, 0, ranges.DEVICES, "a device")): k for k in devices}
        if expected and (other := set(devices) ^ set(expected)):
            raise RefusedError(
                "device",
                f"it and cloud.toml assign device {min(other)} to different factories. Copy cloud.toml and the edge's "
                "file of the same fedfloor park provision to their machines.",
            )
        for k in devices:
            if factory_of.setdefault(k, edge.factory) != edge.factory:
                raise SettingError(f"device {k} is listed by two edges. Give every device a number of its own.")
        for k, holding in ranges.table(about.get("held"), len(devices), "what its devices hold").items():
            if k not in known:
                raise RefusedError("device", "it states the holding of a device that it does not list.")
            held[known[k]] = read_holding(holding, facts)
        names = ranges.rows(about.get("lacking"), None, "the devices that are missing")
        if len(names) + len(about["held"]) + len(errors) != len(known):
            raise RefusedError("device", "it does not list each device as either holding, missing or wrong.")
        wrong += map(checks.short_line, errors.values())
        lacking += [ranges.matching(name, NAME, "a device is not a name.") for name in names]
    except RefusedError as error:
        raise RunError(f"edge {edge.name}: {error}", key=error.reason) from error


def in_order(factory_of: Mapping[int, int], held: Mapping[int, Holding]) -> Gathered:
    """Return factories and holdings in the order of devices, which must be numbered 0, 1, 2, …"""
    order = sorted(factory_of)
    if order != list(range(len(order))):
        lost = next(k for k in range(len(order)) if k not in factory_of)
        raise SettingError(f"no edge has device {lost}, but there is a device {order[-1]}. Number them 0, 1, 2, …")
    return [factory_of[k] for k in order], [held[k] for k in order]


def holdings_for(facts: Facts, gathered: Gathered, factory: int, *, crosses: bool) -> dict[str, Any]:
    """Return the holdings of all devices as JSON for the edge of a factory.

    Args:
        gathered: the holdings; for other factories' devices the edge receives only the number of samples.
        factory: number of the edge's factory.
        crosses: whether rounds cross factories; the edge then also receives the digests of others' samples, by which
            it recognises a device that reconnects with other samples.
    """
    factory_of, held = gathered
    places = zip(factory_of, held, strict=True)
    visible = [asdict(holding if m == factory else holding.bare(digest=crosses)) for m, holding in places]
    return {"facts": facts.to_dict(), "factory_of": list(factory_of), "held": visible}


def read_holdings(about: Mapping[str, Any], facts: Facts) -> Gathered:
    """Return the inverse of :func:`holdings_for`, checked.

    Raises:
        RefusedError: the message has another form.
    """
    try:
        return [int(m) for m in about["factory_of"]], [read_holding(holding, facts) for holding in about["held"]]
    except MALFORMED as error:
        raise RefusedError("header", f"it does not state the holdings of devices: {error}") from error

"""The quorum of a park of real machines: whether a round may begin, and whether a request reached anybody."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from fedfloor.base.errors import RunError
from fedfloor.experiment import DeploySettings
from fedfloor.runs.results import Wait

log = logging.getLogger(__name__)

LOOK_S = 0.5  # interval between two looks for devices
SHOWN = 8  # the most devices named in a message
ATTEMPTS = 8  # times that a request is sent if its devices disconnect each time
Absence = tuple[int, int]  # a factory, and a device of another one that its edge does not see
Present = Mapping[int, Collection[int]]  # factory → its connected devices; a factory whose edge is gone is left out


class Attendance:
    """The devices that are connected, by their edges' last answers.

    A round begins if the quorum is met. Otherwise it waits, as at the start of a run, until all devices are back that
    were connected when the last round began; after ``wait_s`` the quorum decides. A request that reached no device is
    sent again after such a wait: nothing has been trained, so that the round is not counted.

    Where rounds cross factories, a round also waits until the connected devices are connected to the edges of the other
    factories. Their brokers pass a device's arrival on, which takes seconds on a poor line. What has not arrived after
    ``wait_s`` is not waited for again before it arrives.

    Args:
        deploy: the settings with the quorum.
        wait_s: the longest wait, s.
        edges: factory → name of its edge.
        look: requests the connected devices from all edges.
        show: called with each state of a wait, and with None at its end.
        crosses: whether edges also visit devices of other factories.

    Attributes:
        present: factory → its devices that were connected at its edge's last answer.
        visiting: factory → devices of other factories that were connected then.
    """

    def __init__(
        self, deploy: DeploySettings, wait_s: float, edges: Mapping[int, str], look: Callable[[], Present],
        show: Callable[[Wait | None], None] = lambda _: None, *, crosses: bool = False,
    ) -> None:  # fmt: skip
        self._deploy = deploy
        self._wait_s = wait_s
        self._edges = edges
        self._look = look
        self._show = show
        self._factory_of: list[int] = []
        self._needed: dict[int | None, int] = {}
        # the last round, and the devices connected when it began
        self._begun = -1
        self._before = frozenset[int]()
        self.present: dict[int, set[int]] = {}
        self.visiting: dict[int, set[int]] = {}
        self._crosses = crosses
        self._given_up = frozenset[Absence]()

    def assign(self, factory_of: Sequence[int]) -> None:
        """Set the factory of each device; until then every request may begin.

        Raises:
            SettingError: the quorum can never be met.
        """
        self._factory_of = [int(m) for m in factory_of]
        self._needed = self._deploy.needed(factory_of)
        # stated before it was known which device belongs to which factory
        self.present = {}
        self.visiting = {}

    def begin(self, number: int) -> None:
        """Wait until a round may begin; do nothing if it has begun.

        The answers of the last round decide, unless the quorum is more than one device: then edges are asked again.

        Args:
            number: of the round; 0 for the questions before round 1.

        Raises:
            RunError: the quorum is not met in time.
        """
        if number == self._begun or not self._needed:
            return
        if self._deploy.quorum != 1 or not self._met() or self._unseen():
            self._refresh()
            if not self._met() or self._unseen():
                self._wait(number)
        self._begun, self._before = number, self._here()

    def returned(self, number: int, devices: Collection[int]) -> bool:
        """Return whether some of the devices are connected, after a request that reached none of them.

        If others of the park's devices meet the quorum, there is no wait: the visits are lost, as of single devices.

        Raises:
            RunError: the quorum is not met in time.
        """
        self._refresh()
        if not self._met():
            self._wait(number)
        return not self._here().isdisjoint(devices)

    def connected(self) -> int:
        """Return the number of devices that were connected at their edges' last answers."""
        return len(self._here())

    def others(self, devices: Collection[int]) -> bool:
        """Return whether devices other than these were connected at their edges' last answers."""
        return not self._here() <= set(devices)

    def end(self, number: int) -> RunError:
        """Return the error of a round whose devices disconnect whenever they are sent a request."""
        return RunError(
            f"round {number} was begun {ATTEMPTS} times, and each time all its devices disconnected before they "
            "answered. Read their logs and their edges', then continue with --resume.",
            key="few-devices",
        )

    def _here(self) -> frozenset[int]:
        return frozenset(k for present in self.present.values() for k in present)

    def _refresh(self) -> None:
        self.present = {factory: set(devices) for factory, devices in self._look().items()}

    def _met(self) -> bool:
        together = len(self._here())
        return all((together if m is None else len(self.present.get(m, ()))) >= n for m, n in self._needed.items())

    def _unseen(self) -> frozenset[Absence]:
        """Return the devices that are connected to their own edge, but not to another one that may visit them."""
        if not self._crosses:
            return frozenset()
        unseen = {
            (m, k)
            for m in self.present
            for k in self._here()
            if self._factory_of[k] != m and k not in self.visiting.get(m, ())
        }
        self._given_up &= unseen
        return frozenset(unseen - self._given_up)

    def _wait(self, number: int) -> None:
        try:
            self._wait_for(number)
        finally:
            self._show(None)

    def _wait_for(self, number: int) -> None:
        began = time.monotonic()
        shown = ""
        now = time.time()
        since, until = (f"{datetime.fromtimestamp(at):%H:%M:%S}" for at in (now, now + self._wait_s))
        before = frozenset[int]() if self._met() else self._before  # otherwise it waits for other edges alone
        while not (self._met() and self._here() >= before and not self._unseen()):
            state = self._state()
            left = began + self._wait_s - time.monotonic()
            if left <= 0 and self._met():
                break
            if left <= 0:
                raise RunError(
                    f"round {number} did not begin: for {self._wait_s:g} s {state}. Start what is missing, set "
                    "deploy.quorum lower, or wait longer (deadlines.join_s in cloud.toml), then continue with "
                    "--resume.",
                    key="few-devices",
                )
            if state != shown:
                log.warning("round %d waits, since %s until %s: %s.", number, since, until, state)
                self._show(Wait(number, f"{state}.", now, now + self._wait_s))
            shown = state
            time.sleep(min(LOOK_S, left))
            self._refresh()
        log.warning("round %d goes on after %.1f s: %s.", number, time.monotonic() - began, self._state())
        self._given_up |= self._unseen()

    def _state(self) -> str:
        """Return the numbers of connected and of needed devices, and what is missing, as text."""
        here = self._here()
        known = self._factory_of
        gone = [f"edge {name}" for m, name in sorted(self._edges.items()) if m not in self.present]
        silent = [str(k) for k, m in enumerate(known) if k not in here and m in self.present]
        missing = "; ".join(gone + [f"device {shortened(silent)}"] * bool(silent))
        away = [
            f"edge {self._edges.get(m, m)} does not see device {shortened([str(k) for _, k in some])}"
            for m, some in groupby(sorted(self._unseen()), itemgetter(0))
        ]
        each = ", ".join(f"{n} of {self._edges.get(m, m)}" for m, n in self._needed.items() if m is not None)
        quorum = (
            f"{each} must be (deploy.quorum = {self._deploy.quorum:g})" if each else f"{self._needed[None]} must be"
        )
        state = f"{len(here)} of {len(known)} devices are connected, {quorum}" + f"; missing: {missing}" * bool(missing)
        return "; ".join([state, *away])


def shortened(names: Sequence[str]) -> str:
    """Return the first names as text."""
    return f"{', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"

"""A device's record of the sums for which it has revealed shares, by which it refuses others."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set

from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.sum_messages import OWNER, crew_id
from fedfloor.parts.protection.masking import LEAST

WOULD_REVEAL = "the two would reveal single updates, or less noise. Give a new run another folder and seed."


class RevealedSums:
    """The sums in which a device takes part, kept in its record: an update is revealed in one sum alone.

    Two sums with the same update of this device and different devices, samples of others, rules or units differ by
    other devices' updates, and training is the same to the bit whenever a visit is repeated. Unmasking takes shares of
    more than half of a sum's devices, so two sums would need a device that reveals shares for both; it does so only if
    they are the same, or the samples of :data:`~fedfloor.parts.protection.masking.LEAST` devices have changed between
    them. Two sums of any rounds, before and after one device's samples change, differ by the change of its update where
    their models are alike. Samples of no device, or of that many, have therefore changed since the last sum. With noise
    of devices a sum is recorded before its masked update leaves, and only one for each round of a run. Of each run the
    last round alone is kept: earlier ones are refused.

    Args:
        record: of what the device has revealed; by default nothing is kept beyond the process.
    """

    def __init__(self, record: RevealRecord | None = None) -> None:
        self._record = record or RevealRecord()

    def admit(
        self, updates: Sequence[bytes], scale: object, held: Mapping[int, str] | None = None,
        crews: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        """Record an update and the sum that holds it on disk, before this device reveals anything of it.

        Args:
            updates: each of the bytes by which the update is known, of which digests are kept.
            scale: the rule and the unit of the sum, as JSON.
            held: device of the sum → keyed digest of its samples; "": unknown.
            crews: device → the crew that it states, "" for none; None: there are no crews.

        Raises:
            RefusedError: the update is in another sum, or the samples of too few devices have changed.
        """
        now = dict(held or {})
        text = json.dumps([scale, sorted(now.items())])
        total = digest(text.encode())
        parts = [digest(update) for update in updates]
        with self._record.changing() as base:
            self.check_samples(now, crews)
            for part in parts:
                query = "SELECT text FROM sums LEFT JOIN totals ON total = digest WHERE part = ? AND total != ?"
                for (known,) in base.execute(query, (part, total)):
                    if known is None or not suffice(renewed(dict(json.loads(known)[1]), now), crews):
                        raise RefusedError(
                            "sum", f"this update is in an earlier sum of other devices or samples; {WOULD_REVEAL}"
                        )
            base.executemany("INSERT OR REPLACE INTO sums VALUES (?, ?)", [(part, total) for part in parts])
            base.execute("INSERT OR IGNORE INTO totals VALUES (?, ?)", (total, text))
            if (new := self.renewed(now)) and crews is None:
                gone = self._hidden(new)
                base.executemany("DELETE FROM members WHERE device = ?", [(v,) for v in gone])
            base.executemany("INSERT OR REPLACE INTO members VALUES (?, ?)", [one for one in now.items() if one[1]])

    def check_place(
        self, part: bytes, place: Sequence[object], held: Mapping[int, str], crews: Mapping[int, str] | None = None
    ) -> None:
        """Check that all that an edge chooses for this device alone is as in an earlier sum of the same round.

        The other devices do not notice, as their updates are the same: the two sums would differ by the change of this
        device's update.

        Args:
            part: the bytes by which the round is known.
            place: what an edge chooses, as JSON.
            held: device → keyed digest of its samples.
            crews: as of :meth:`admit`.

        Raises:
            RefusedError: it differs, and the samples of too few devices have changed since.
        """
        for (text,) in self._record.rows("SELECT text FROM places WHERE part = ?", digest(part)):
            known, before = json.loads(text)
            if known != json.loads(json.dumps(place)) and not suffice(renewed(dict(before), held), crews):
                raise RefusedError(
                    "sum", f"this device had another place, or model, in an earlier sum of this round; {WOULD_REVEAL}"
                )

    def admit_place(
        self, part: bytes, place: Sequence[object], held: Mapping[int, str], crews: Mapping[int, str] | None = None
    ) -> None:
        """Record on disk what :meth:`check_place` compares, before a masked update leaves.

        Raises:
            RefusedError: it differs from that of an earlier sum.
        """
        with self._record.changing() as base:
            self.check_place(part, place, held, crews)
            row = digest(part), json.dumps([place, sorted(held.items())])
            base.execute("INSERT OR REPLACE INTO places VALUES (?, ?)", row)

    def renewed(self, held: Mapping[int, str]) -> set[int]:
        """Return the devices whose samples have changed since their last sum with this one.

        Args:
            held: device → keyed digest of its samples.
        """
        return renewed(dict(self._record.rows("SELECT device, held FROM members")), held)

    def _hidden(self, new: Set[int]) -> set[int]:
        """Return the devices whose new samples no later sum would show, once others have new ones.

        Each earlier sum with their former samples also had two or more of the others: beside it a later one differs by
        the updates of these, too.

        Args:
            new: the devices that have new samples.
        """
        sums = [dict(json.loads(text)[1]) for (text,) in self._record.rows("SELECT text FROM totals")]
        shown = {v for held in sums if len(new & held.keys()) < LEAST - 1 for v in held}
        return {v for (v,) in self._record.rows("SELECT device FROM members")} - shown

    def check_samples(self, held: Mapping[int, str], crews: Mapping[int, str] | None = None) -> None:
        """Check that the samples of no device, or of enough, have changed since the last sum.

        Args:
            held, crews: as of :meth:`admit`.

        Raises:
            RefusedError: those of one or two have, of all devices or of a crew.
        """
        if new := few(self.renewed(held), crews):
            names = " and ".join(map(str, sorted(new)))
            whose, many = ("its devices", "devices") if crews is None else ("a crew", "devices of a crew")
            raise RefusedError(
                "sum",
                f"of {whose} only {names} has other samples than in the last sum, and the two "
                f"would reveal the change of an update. {LEAST} {many} or more need new samples.",
            )

    @property
    def crew(self) -> str:
        """The :func:`crew_id` of the devices with which this one is in sums; "" before its first sum with them."""
        return next((one for (one,) in self._record.rows("SELECT id FROM crew")), "")

    def check_crew(self, identities: Collection[str]) -> None:
        """Check that a crew is that of this device's earlier sums: sums of several crews would differ by one device.

        Raises:
            RefusedError: it is another one.
        """
        for known, text in self._record.rows("SELECT id, text FROM crew"):
            if known != crew_id(identities):
                names, now = (", ".join(one.split(" ")[0] for one in some) for some in (json.loads(text), identities))
                raise RefusedError("sum", f"its crew would be {now}; in earlier sums it was {names}, for ever.")

    def admit_crew(self, identities: Collection[str]) -> None:
        """Record this device's crew on disk, before its first masked update in it leaves.

        Raises:
            RefusedError: its crew is another one.
        """
        if self.crew != crew_id(identities):
            with self._record.changing() as base:
                self.check_crew(identities)
                base.execute("INSERT INTO crew VALUES (?, ?)", (crew_id(identities), json.dumps(sorted(identities))))

    def leave_crew(self) -> str:
        """Forget this device's crew; return the names of its devices, "" without one."""
        known = [json.loads(text) for (text,) in self._record.rows("SELECT text FROM crew")]
        with self._record.changing() as base:
            base.execute("DELETE FROM crew")
        return ", ".join(one.split(" ")[0] for some in known for one in some)

    def check_round(self, run: str, number: int, total: object) -> None:
        """Check that no update with noise has left in a round of a run, or in a later one, for another sum.

        Raises:
            RefusedError: one has.
        """
        for last, known in self._record.rows("SELECT round, total FROM noisy WHERE run = ?", digest(run.encode())):
            if number < last or (number == last and known != digest_of(total)):
                raise RefusedError(
                    "sum", f"its update with noise is in an earlier sum of the run's round {last}; {WOULD_REVEAL}"
                )

    def admit_round(self, run: str, number: int, total: object) -> None:
        """Record on disk a round in which an update with noise leaves, before it does.

        Raises:
            RefusedError: one has left in this round for another sum, or in a later round.
        """
        with self._record.changing() as base:
            self.check_round(run, number, total)
            row = digest(run.encode()), number, digest_of(total)
            base.execute("INSERT OR REPLACE INTO noisy VALUES (?, ?, ?)", row)


def renewed(before: Mapping[int, str], now: Mapping[int, str]) -> set[int]:
    """Return the devices of both whose samples differ; one in the place of another device is not among them.

    >>> a, b = "a" * OWNER, "b" * OWNER
    >>> renewed({0: a + "1", 1: a + "1", 2: a + "1"}, {0: a + "1", 1: a + "2", 2: b + "3", 3: a + "4"})
    {1}
    """
    both = before.keys() & now.keys()
    return {v for v in both if before[v] != now[v] and before[v][:OWNER] == now[v][:OWNER]}


def few(new: Set[int], crews: Mapping[int, str] | None = None) -> set[int]:
    """Return those devices with new samples that are too few for a sum to hide the change of one: of all, or of a crew.

    Crews are in a sum whole or not at all, so that sums before and after give the change of each crew by itself.

    Args:
        crews: device → the crew that it states, "" for none; None: there are no crews.

    >>> few({0, 1}), few({0, 3, 6}), few({0, 1, 2, 3}, dict(enumerate("aaabbb")))
    ({0, 1}, set(), {3})
    """
    of = {v: "" if crews is None else crews.get(v, "") for v in new}
    many = Counter(of.values())
    return {v for v in new if many[of[v]] < LEAST}


def suffice(new: Set[int], crews: Mapping[int, str] | None) -> bool:
    """Return whether devices have new samples, and in no crew too few."""
    return bool(new) and not few(new, crews)


def digest(text: bytes) -> bytes:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(text).digest()


def digest_of(total: object) -> bytes:
    """Return the SHA-256 of a JSON value."""
    return digest(json.dumps(total, sort_keys=True).encode())

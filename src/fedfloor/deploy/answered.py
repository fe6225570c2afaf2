"""What a device has answered exactly of its samples: no two answers differ by a few samples.

Sums for the normalisation, class counts and scores are exact. An edge can ask for them at any time, also in runs that
it makes up, and the difference of two sums, before and after a row, is that row. Where masks or noise protect updates,
a device therefore answers for sets of samples of which each has at least :data:`GROWN` that no earlier one had. Until
then it uses those of the last set alone, so that the same question has the same answer.

A sample is known by a hash of its values. Labels and columns made from texts do not count, as the edge states how they
are read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.categories import sources
from fedfloor.deploy.record import RevealRecord

log = logging.getLogger(__name__)

Marks = NDArray[np.int64]
Positions = NDArray[np.intp]
GROWN = 20  # least samples by which a set with exact answers differs from every earlier one, and from none
RUNS = 3  # runs' worth of exact answers for one set, for runs that start again
CHUNK = 1 << 12  # samples hashed at a time
KEPT = 1 << 22  # samples that are remembered beside those of the last set


def marks(data: Dataset, device: int, texts: tuple[str, ...] = ()) -> Marks:
    """Return a hash of each training sample's values, int64 [n].

    Args:
        data: the samples, not normalised.
        texts: names of the columns of texts, whose values do not count.
    """
    counted = [name not in texts for name in sources(data.inputs.columns, texts)]
    chunks = (np.arange(first, min(first + CHUNK, len(data.y))) for first in range(0, len(data.y), CHUNK))
    taken = (data.take(rows, device) for rows in chunks)
    return np.concatenate([hashes(x[:, counted] if texts else x) for x in taken])


def hashes(x: NDArray[Any]) -> Marks:
    """Return a hash of each sample, int64 [n]."""
    each = (hashlib.blake2b(np.ascontiguousarray(sample).data, digest_size=8).digest() for sample in x)
    return np.frombuffer(b"".join(each), np.int64)


class Answers:
    """The exact answers that a device has given, in its record.

    Args:
        record: of what the device has revealed.

    Attributes:
        held: keyed digest of the samples in use, by which the others in a sum notice that these have changed; the first
            half states whose they are.
        keeps: whether the samples of the last set stay in use, as long as all are there, though enough are new.
        kept: whether they do so.
    """

    def __init__(self, record: RevealRecord) -> None:
        self._record = record
        self.held = ""
        self.keeps = self.kept = False

    @property
    def waits(self) -> bool:
        """Whether new samples are in no sum yet, but others were."""
        summed = self._summed()
        return self.kept or (bool(summed) and self.held not in summed)

    @property
    def crew(self) -> str:
        """The crew with which the device is in secure sums; "" for none."""
        return next((crew for (crew,) in self._record.rows("SELECT id FROM crew")), "")

    def _summed(self) -> set[str]:
        """Return the keyed digests of the samples of all devices in the last secure sums with this one."""
        return {row for (row,) in self._record.rows("SELECT held FROM members")}

    def settle(self, given: Marks, trains: Positions, *, forgets: bool = False) -> Positions:
        """Return the positions of the samples that a device uses, in ascending order.

        They are all samples if at least :data:`GROWN` of those that are not held out, and for which it answers, have
        been in no set before, and else, or where :attr:`keeps` says so, those of the last set. A sample that occurs
        more often than in any earlier set is new as often.

        Args:
            given: the marks of all samples, [n].
            trains: the positions of those that would not be held out of training.
            forgets: whether every visit draws from all samples, so that no update of the last set can be trained again
                with a new one, and its sums are forgotten.

        Raises:
            RefusedError: too few samples are new, and some of the last set are gone.
        """
        values, inverse, counts = np.unique(given, return_inverse=True, return_counts=True)
        most, last = self._known(values)
        fresh = int(np.maximum(np.bincount(inverse[trains], minlength=len(values)) - most, 0).sum())
        order = np.argsort(inverse, kind="stable")
        place = np.empty(len(given), np.intp)  # of a sample among those equal to it
        place[order] = np.arange(len(given)) - np.repeat(np.cumsum(counts) - counts, counts)
        used = np.flatnonzero(place < last[inverse])
        ((size,),) = self._record.rows("SELECT total(last) FROM samples")
        self.kept = self.keeps and fresh >= GROWN and len(used) == size > 0 and bool(self._summed())
        if fresh >= GROWN and not self.kept:
            self._begin(values, np.maximum(counts, most), counts, ("answers", *("sums", "places") * forgets))
            return self._using(given, np.arange(len(given)))
        if len(used) < size or not size:
            raise RefusedError(
                "data",
                f"{fresh} of its {len(trains)} samples are new since its last exact answers"
                + f", and {size - len(used):.0f} of those it answered for are gone" * bool(size)
                + f". With masks or noise on updates it answers for {GROWN} new ones or more. Wait for more samples"
                + ", or put the others back." * bool(size)
                + "." * (not size),
            )
        if len(used) < len(given) and not self.kept:
            waiting = len(given) - len(used)
            log.info("%d new samples are used once %d are new since the last exact answers.", waiting, GROWN)
        return self._using(given, used)

    def _using(self, given: Marks, used: Positions) -> Positions:
        """Note the samples in use; return their positions."""
        marks = np.sort(given[used]).tobytes()
        key = self._record.secret("samples", 32)
        owner = hashlib.blake2b(b"", digest_size=8, key=key).hexdigest()
        self.held = owner + hashlib.blake2b(marks, digest_size=16, key=key).hexdigest()
        return used

    def admit(self, what: str, asked: object, most: int) -> None:
        """Count a question about the last set; a repeated one has the same answer and does not count.

        Args:
            what: its kind.
            asked: all on which its answer depends beside the samples, as JSON.
            most: the number of different questions of this kind.

        Raises:
            RefusedError: so many have been answered.
        """
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
        with self._record.changing() as base:
            known = {row for (row,) in base.execute("SELECT digest FROM answers WHERE what = ?", (what,))}
            if digest not in known and len(known) >= most:
                raise RefusedError(
                    "question",
                    f"{most} questions of the kind '{what}' about the same samples were answered. Restart this device; "
                    f"with masks or noise on updates wait for {GROWN} new samples.",
                )
            base.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (what, digest))

    def _known(self, values: Marks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each mark was in a set at most, and in the last one, int64 [values]."""
        rows = self._record.rows("SELECT mark, most, last FROM samples ORDER BY mark")
        table = np.array(rows, np.int64).reshape(-1, 3)
        if not len(table):
            return np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
        at = np.minimum(np.searchsorted(table[:, 0], values), len(table) - 1)
        found = table[at, 0] == values
        return np.where(found, table[at, 1], 0), np.where(found, table[at, 2], 0)

    def _begin(
        self, values: Marks, most: NDArray[np.int64], last: NDArray[np.int64], cleared: Sequence[str]
    ) -> None:  # fmt: skip
        """Record a new set, and clear the tables about the last one."""
        with self._record.changing() as base:
            base.execute("UPDATE samples SET last = 0")
            rows = zip(values.tolist(), most.tolist(), last.tolist(), strict=True)
            base.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", rows)
            ((before,),) = base.execute("SELECT count(*) FROM samples WHERE last = 0")
            if before > KEPT:
                base.execute("DELETE FROM samples WHERE last = 0")
            for table in cleared:
                base.execute(f"DELETE FROM {table}")

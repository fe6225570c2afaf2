"""The five stages of a secure sum between devices and a server: :mod:`fedfloor.parts.protection.masking` in messages.

The server is the edge of a factory, or the cloud for a sum across factories, whose stages the edges relay.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedfloor.base import ranges, regular
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.sum_messages import (
    Advertisement,
    common,
    crew_id,
    from_hex,
    identity,
    listed,
    read_crews,
    read_keys,
)
from fedfloor.engine.summing import GroupSum, SecureAggregation
from fedfloor.engine.team import Blob
from fedfloor.parts.protection import masking
from fedfloor.parts.protection.masking import LEAST, SEALED_BYTES, PublicKeys
from fedfloor.parts.protection.shares import KEY_BYTES, LostSumError, TrueShares, corrected
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from fedfloor.runs.folder import write

log = logging.getLogger(__name__)

T = TypeVar("T")
PAIRS = ("partners", "met")
CONDUCT = "conduct.json"  # a file with the conduct of devices
MOST_COLLUDING = 2  # devices that together have no honest one named, in sums of any size
MOST_STATED = 12  # most devices that state one crew, of which it is looked for
MOST_FALSE = 3  # sums in which a device was found false, after which it takes part in no more
StageRequest = Callable[[str, Mapping[int, Mapping[str, Any]]], Mapping[int, Any]]  # (stage, device → about) → answers
Refuse = Callable[[int, str, RefusedError], None]


@dataclass
class Conduct:
    """The disputes of devices in a run's sums, and the devices that false shares were traced to.

    A device is left out of later sums once it has had disputes with more than half of the others, which devices that
    collude can bring about only where they are more than half, or has been found false in :data:`MOST_FALSE` sums.

    Args:
        path: a file with the conduct, so that a restart of the server forgets nothing; None: it is not kept.
        run: name of the run; the conduct in another one is forgotten.

    Attributes:
        partners: device → those with whom it had disputes.
        met: device with disputes → the others of its sums since the first of them.
        false: device → number of sums in which it was found false.

    Raises:
        SettingError: the file has other content.
    """

    path: Path | None = None
    run: str = ""
    partners: dict[int, set[int]] = field(default_factory=dict)
    met: dict[int, set[int]] = field(default_factory=dict)
    false: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        try:
            kept = json.loads(regular.read_text(self.path))
            if kept["run"] == self.run:
                self.partners, self.met = ({int(k): set(some) for k, some in kept[n].items()} for n in PAIRS)
                self.false = Counter({int(k): int(times) for k, times in kept["false"].items()})
        except MALFORMED as error:
            raise SettingError(
                f"{self.path} is damaged: delete it; devices left out of sums then return.", key="damaged-record"
            ) from error

    def dispute(self, pairs: Collection[frozenset[int]]) -> None:
        """Record pairs of devices of which one is false; a pair counts once in a run."""
        for pair in pairs:
            for k in pair:
                self.partners.setdefault(k, set()).update(pair - {k})
        self._keep()

    def guilty(self, device: int) -> None:
        """Record a sum in which a device was found false."""
        self.false[device] += 1
        self._keep()

    def flaw(self, device: int, others: Collection[int]) -> str:
        """Return why a device takes part in no further sum; "" if it may.

        Args:
            others: those with whom it would exchange shares.
        """
        partners = self.partners.get(device, set())
        if partners:
            self.met.setdefault(device, set()).update(partners, others)
            self._keep()
            if 2 * len(partners) > len(self.met[device]):
                return f"in earlier rounds it had disputes over shares with {len(partners)} others, more than half."
        if self.false[device] >= MOST_FALSE:
            return f"its shares were false in {self.false[device]} earlier rounds."
        return ""

    def _keep(self) -> None:
        if self.path is None:
            return
        kept = {name: {k: sorted(some) for k, some in getattr(self, name).items()} for name in PAIRS}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(self.path, json_text({"run": self.run, **kept, "false": self.false}))


@dataclass
class ServerSum:
    """The server's part in the sum of a group of devices.

    Args:
        aggregation: the aggregation of the devices' vectors.
        group: the group and its sum.
        request: sends a stage's request to each device, and returns the answers received in time.
        refuse: records a device whose answer is refused.
        facts: digest of the facts by which devices read and normalise their samples.
        signer: checks the devices' signatures; None in a park without certificates.
        names: device → its name, as far as the server knows it.
        conduct: the conduct of devices in earlier sums.

    Attributes:
    ring: the devices of the group in the order from which their neighbours follow.
    sizes: the sizes of the crews that follow each other in the ring; none without crews.
    identity: id of this sum, on which all its keys depend.
    public: public keys of the devices that sent shares and received those of others.
    lacking: device → the senders whose shares it could not decrypt.
    common: the digest of :func:`common`; empty before the first visit.
    """

    aggregation: SecureAggregation
    group: GroupSum
    request: StageRequest
    refuse: Refuse
    facts: str = ""
    signer: Signer | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    conduct: Conduct = field(default_factory=Conduct)
    identity: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    public: dict[int, PublicKeys] = field(default_factory=dict)
    lacking: dict[int, set[int]] = field(default_factory=dict)
    common: bytes = b""
    _signatories: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._order([tuple(self.aggregation.devices[i] for i in sorted(crew)) for crew in self.group.crews])

    def _order(self, crews: Sequence[tuple[int, ...]]) -> None:
        """Set the ring, and the crews whose devices are in the sum together or not at all."""
        together = self.aggregation.codec.together
        self.ring, self.sizes = masking.crewed_ring(crews) if together else (masking.ring(self.devices), ())
        self._around = {k: masking.neighbours(self.ring, k) for k in self.ring}
        self.crews = list(crews)
        self.group.crews = [frozenset(map(self.aggregation.devices.index, crew)) for crew in crews]

    @property
    def devices(self) -> list[int]:
        """The devices of the group that are to take part."""
        return [self.aggregation.devices[index] for index in self.group.planned]

    def begin(self) -> None:
        """Exchange keys and shares, the first three stages; a sum of too few devices is lost before they train."""
        flaws = {k: self.conduct.flaw(k, self._around.get(k, ())) for k in self.devices}
        for k, why in flaws.items():
            if why:
                self.refuse(k, "sum-keys", RefusedError("sum", f"{why} It takes part again in the next run."))
        devices = [k for k, why in flaws.items() if not why]
        known = self.distinct(self.stage("sum-keys", devices, lambda _: {}, self.checked_keys))
        if self.aggregation.codec.together:
            self._order(self.recognised(known))
        advertised = {k: entry for k, entry in known.items() if k in self.ring}

        def near(k: int) -> list[int]:
            return [v for v in self._around[k] if v in advertised]

        self._least = {k: masking.threshold(self.aggregation.codec.threshold, 1 + len(near(k))) for k in advertised}
        enough = [k for k in advertised if 1 + len(near(k)) >= self._least[k]]

        def keys(k: int) -> dict[str, Any]:
            return {"keys": {str(v): advertised[v].to_json() for v in near(k)}}

        def shares(answer: Any, k: int) -> dict[int, str]:
            given = ranges.table(answer, len(near(k)), "its shares")
            if set(given) != {str(v) for v in near(k)}:
                raise RefusedError("sum", "its shares are not for the devices whose keys it received.")
            return {int(v): from_hex(text, SEALED_BYTES).hex() for v, text in given.items()}

        shared = self.stage("sum-shares", enough, keys, shares)

        def sealed(k: int) -> dict[str, Any]:
            return {"shares": {str(v): shared[v][k] for v in near(k) if v in shared}}

        def rejected(answer: Any, k: int) -> set[int]:
            senders = {v for v in near(k) if v in shared}
            given = ranges.rows(answer, None, "the senders that it rejects")
            return {listed(v, senders) for v in given}

        checked = self.stage("sum-check", list(shared), sealed, rejected)
        agreed = self.agreed(checked)
        lone = {k for crew in self.crews if not set(crew) <= set(agreed) for k in crew}
        self.public = {k: advertised[k].public for k in agreed if k not in lone}
        apart = (known.keys() - advertised.keys()) | (lone & set(agreed))
        self.group.apart = set(map(self.aggregation.devices.index, apart))
        self.group.lost = self.aggregation.shortfall(self.group, self.public)
        if self.group.lost:
            log.warning("no keys for a secure sum: %s", self.group.lost)

    def recognised(self, known: Mapping[int, Advertisement]) -> list[tuple[int, ...]]:
        """Return the crews of the devices whose keys are known: those of earlier sums, and new ones of other devices.

        Devices that state a crew of which others are missing, or that are fewer than a crew, are in none.
        """
        who = {k: identity(k, self._signatories.get(k, ""), entry.held) for k, entry in known.items()}
        stated: dict[str, list[int]] = {}
        for k, entry in known.items():
            stated.setdefault(entry.crew, []).append(k)
        kept = list[tuple[int, ...]]()
        taken = set[int]()

        def keep(crew: Sequence[int]) -> None:
            if not taken & {*crew}:
                kept.append(tuple(crew))
                taken.update(crew)

        for crew in self.crews:
            if known.keys() >= {*crew} and {known[k].crew for k in crew} <= {"", crew_id(who[k] for k in crew)}:
                keep(crew)
        for crew_of, some in stated.items():
            if not crew_of:
                continue
            sizes = range(min(len(some), masking.MOST_CREW), LEAST - 1, -1) if len(some) <= MOST_STATED else ()
            every = (crew for size in sizes for crew in combinations(some, size))
            found = next((crew for crew in every if crew_of == crew_id(who[k] for k in crew)), ())
            if found:
                keep(found)
                for k in {*some} - {*found}:
                    self.refuse(k, "sum-keys", RefusedError("sum", "it states the crew of other devices."))
        for crew in self.crews:
            if not known.keys() >= {*crew}:  # it has no sum now
                keep(crew)
        free = [k for k in stated.get("", []) if k not in taken]
        return kept + masking.crews(free, [self.aggregation.factory_of[k] for k in free])

    def checked_keys(self, answer: Any, k: int) -> Advertisement:
        """Return a device's keys, with all checks of the devices that receive them.

        Raises:
            RefusedError: the keys are malformed, not signed by the device, or for another factory.
        """
        advertised = read_keys(answer)
        if advertised.factory != self.aggregation.factory_of[k]:
            raise RefusedError("sum", f"its keys are for a device of factory {advertised.factory}.")
        if self.signer is not None:
            name = advertised.signatory(k, bytes.fromhex(self.identity), self.signer)
            if name != self.names.get(k, name):
                raise RefusedError("signature", f"'{name}' signed its keys.")
            self._signatories[k] = name
        return advertised

    def distinct(self, advertised: Mapping[int, Advertisement]) -> dict[int, Advertisement]:
        """Return the devices whose keys and signatures differ from all others'; refuse the rest.

        No device shares with devices of equal keys or signatures.
        """
        public = {k: entry.public for k, entry in advertised.items()}
        owners = Counter(key for keys in public.values() for key in (keys.channel, keys.mask))
        signers = Counter(self._signatories.get(k, str(k)) for k in advertised)
        equal = {k for k, keys in public.items() if owners[keys.channel] > 1 or owners[keys.mask] > 1}
        equal |= {k for k in advertised if signers[self._signatories.get(k, str(k))] > 1}
        for k in equal:
            once = public[k].channel != public[k].mask
            why = "its keys or its signature are those of another device, too." if once else "its two keys are equal."
            self.refuse(k, "sum-keys", RefusedError("sum", why))
        return {k: entry for k, entry in advertised.items() if k not in equal}

    def agreed(self, checked: Mapping[int, set[int]]) -> list[int]:
        """Return the devices whose shares others accept, and which accept those of others.

        A rejection is a dispute: its sender or its receiver is false, and nothing shows which. Two devices that reject
        each other's shares have a single dispute. The devices in most disputes are left out, as long as these are
        several; so a false device leaves no other one out. A single dispute leaves both in, with a share less of their
        secrets.

        Args:
            checked: receiver → the senders whose shares it rejects.
        """
        rejected = {(k, v) for k, senders in checked.items() for v in senders if v in checked}
        disputes = {frozenset(pair) for pair in rejected}
        left = set(checked)
        self.conduct.dispute(disputes)
        while disputes:
            counts = Counter(k for pair in disputes for k in pair)
            most = max(counts.values())
            if most == 1:
                break
            worst = {k for k in counts if counts[k] == most}
            for k in sorted(worst):
                why = f"it and {most} others cannot open each other's shares, or it alone has new samples: left out."
                self.refuse(k, "sum-check", RefusedError("sum", why))
            left -= worst
            disputes = {pair for pair in disputes if not pair & worst}
        for pair in sorted(map(sorted, disputes)):
            log.warning("devices %d and %d cannot open a share of each other: one of them is false.", *pair)
        self.lacking = {k: {v for v in checked[k] if frozenset((k, v)) in disputes} for k in left}
        return sorted(left)

    def hang(self, work: Work, arrived: Tensor, place: Key) -> None:
        """Set the digest of the devices' common inputs, on which pairwise masks depend; see :func:`common`."""
        sums = self.aggregation
        model = arrived.cpu().numpy()
        self.common = common(work, model, place, self.facts, sums.rule, sums.fixed.fraction, self.ring, self.sizes)

    def about(self, device: int) -> dict[str, Any] | None:
        """Return the fields of a visit's message about the sum; None for a device that takes no part."""
        if self.group.lost or device not in self.public:
            return None
        around = [v for v in self._around[device] if v in self.public]
        (name, settings) = self.aggregation.rule
        fraction = self.aggregation.fixed.fraction
        about = {"identity": self.identity, "ring": list(self.ring), "fraction": fraction, "around": around}
        return {**about, "mix": name, "settings": settings, **({"crews": list(self.sizes)} if self.sizes else {})}

    def end(self) -> None:
        """Unmask the sum of the remaining devices, the last stage; with too few devices the sum is lost."""
        group = self.group
        aggregation = self.aggregation
        group.waiting.clear()
        survivors = sorted(aggregation.devices[index] for index in group.members)
        group.lost = group.lost or aggregation.shortfall(group, survivors)
        if not set(survivors) <= self.public.keys():  # an edge states its members of a sum across factories
            group.lost = "it holds vectors of devices that did not share their secrets."
        if group.lost or group.total is None:
            return
        beside = {k: [v for v in self._around[k] if v in self.public] for k in self.public}

        def shares(answer: Any, k: int) -> dict[int, bytes]:
            given = ranges.table(answer, 1 + len(beside[k]), "its shares")
            due = {k, *beside[k]}
            if not {str(v) for v in due - self.lacking[k]} <= set(given) <= {str(v) for v in due}:
                raise RefusedError("sum", "it does not reveal the shares of its neighbours.")
            return {int(v): from_hex(text, KEY_BYTES) for v, text in given.items()}

        revealed = self.stage("sum-unmask", survivors, lambda _: {"survivors": survivors}, shares)
        context = bytes.fromhex(self.identity)
        ring = aggregation.fixed.ring
        total = group.total

        def flaw(revealed: Mapping[int, Mapping[int, bytes]]) -> str:
            """Unmask the sum with these shares; return the reason why it cannot be unmasked, or ""."""
            least = self._least.__getitem__
            try:
                group.total = masking.unmasked(
                    total, ring, self.public, beside, survivors, revealed, least, context, self.common
                )
            except (LostSumError, RefusedError) as error:
                return str(error)
            return aggregation.flaw(group)

        if not (why := flaw(revealed)):
            return
        found = corrected(revealed, self._least.__getitem__)
        if found.false and not found.broken:
            why = flaw(found.revealed)
        if why:
            group.lost = f"the sum of {len(survivors)} devices cannot be unmasked: {why}."
            log.warning("%s", group.lost)
        self.attribute(found)

    def attribute(self, shares: TrueShares) -> None:
        """Refuse the devices that false shares can be traced to, as long as no more devices are false than assumed.

        Of an owner and a holder of a false share one is false, and nothing shows which. All who share false ones with
        an honest device are therefore false themselves: one that shares them with more others than are assumed to be
        false, two or as many as the decoder always finds, is false. So is, where the decoder always finds two, one
        whose shares are on no polynomial, and who reveals a false share of its own secret. Other pairs are disputes,
        and both are named.
        """
        most = max(MOST_COLLUDING, shares.radius)
        partners: dict[int, set[int]] = {}
        for pair in shares.false:
            for k in pair:
                partners.setdefault(k, set()).update({*pair} - {k})
        guilty = {owner: "it revealed a false share of its own." for owner, holder in shares.false if owner == holder}
        guilty |= {
            k: f"false shares are between it and {len(others)} others."
            for k, others in partners.items()
            if len(others) > most
        }
        if shares.radius >= MOST_COLLUDING:
            guilty |= dict.fromkeys(shares.broken, "the shares of its secrets do not fit each other.")
        elif shares.broken:
            log.warning("too many shares are false to tell them from others: no device is named.")
        for k, why in sorted(guilty.items()):
            self.conduct.guilty(k)
            self.refuse(k, "sum-unmask", RefusedError("sum", why))
        disputes = {frozenset(pair) for pair in shares.false if not guilty.keys() & {*pair}}
        self.conduct.dispute(disputes)
        for one, other in sorted(map(sorted, disputes)):
            why = f"of devices {one} and {other} one revealed a false share of the other's secret, or got it so."
            for k in (one, other):
                self.refuse(k, "sum-unmask", RefusedError("sum", why))

    def stage(
        self, kind: str, devices: Sequence[int], about: Callable[[int], dict[str, Any]], read: Callable[[Any, int], T]
    ) -> dict[int, T]:
        """Send each device its request in parallel; return the valid answers as parsed by ``read``, refuse others."""
        answers: dict[int, T] = {}

        for k, answer in self.request(kind, {k: {"identity": self.identity, **about(k)} for k in devices}).items():
            try:
                answers[k] = read(answer, k)
            except RefusedError as error:
                self.refuse(k, kind, error)
        return {k: answers[k] for k in devices if k in answers}


def relayed_crews(abouts: Mapping[str, Mapping[str, Any]], devices: Sequence[int]) -> list[frozenset[int]]:
    """Return the crews of a sum across factories as branches, from the cloud's fields about it for an edge's devices.

    Args:
        devices: the device of each branch.

    Raises:
        RefusedError: the crews are not those of the devices of the sum.
    """
    about: Mapping[str, Any] = next(iter(abouts.values()), {"ring": [], "crews": []})
    place = {k: index for index, k in enumerate(devices)}
    ring = [listed(k, place) for k in ranges.rows(about.get("ring"), None, "its devices")]
    return [frozenset(place[k] for k in crew) for crew in read_crews(about.get("crews"), ring)]


def check_sums(aggregation: SecureAggregation, blobs: Sequence[Blob], kept: Collection[int]) -> None:
    """Check the groups and lengths of an edge's sums.

    Args:
        kept: indices of the branches whose visits were not lost.

    Raises:
        RefusedError: the sums are of other branches, or out of range.
    """
    for group in aggregation.sums.values():
        group.crews.clear()  # the edge knows them
    views = [memoryview(blob) for blob in blobs[1:]]
    parts = aggregation.parts(views)
    astray = any(not members <= set(group.planned) for group, members, _ in parts)
    if astray or sorted(index for _, members, _ in parts for index in members) != sorted(kept):
        raise RefusedError("header", "its sums are not those of the branches whose visits were not lost.")
    aggregation.take(views)
    known = [group for group in aggregation.sums.values() if group.total is not None]
    for group in [] if aggregation.codec.across else known:  # a sum over all factories is still masked
        if flaw := aggregation.flaw(group):
            raise RefusedError("range", f"{flaw}.")

"""A park's journal: signed and chained entries of what was provisioned, revoked and released.

Entry n is the file ``registry/journal/n.json`` beside the folders of a park's machines. It holds the digest of the
previous entry and the signature of the authority, so that an edited, removed or inserted entry is detected.
``journal.head``, beside the authority's key, names the last entry under its signature, so that its removal is detected,
too. It may lag behind the entries, because a process may end between the two.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import hashlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, RunError, SettingError
from fedfloor.base.strict import json_text
from fedfloor.deploy import authority
from fedfloor.deploy.authority import Authority

FOLDER = Path("registry/journal")
HEAD = Path("authority/journal.head")
# of signatures
PURPOSE = "journal"
HEADS = "head of a journal"
NONE = "0 "  # the head of a journal without entries
KEYS = {"number", "before", "at", "by", "action", "about"}
ADVICE = "Restore the registry from a copy; nothing is provisioned or released until then."


@dataclass(frozen=True)
class Entry:
    """An entry of a journal.

    Args:
        number: number of the entry, from 1.
        before: digest of the previous entry; "" for the first.
        at: the time of the machine's clock.
        by: names of the account and the machine.
        action: ``provision``, ``revoke``, ``register``, ``release``, ``promote`` or ``rollback``.
        about: the action's objects, such as serials of certificates.
        digest: SHA-256 of this entry's text.
    """

    number: int
    before: str
    at: str
    by: str
    action: str
    about: Mapping[str, Any]
    digest: str


def read(place: Path, root: x509.Certificate) -> tuple[Entry, ...]:
    """Return all entries of the journal in a park's folder, checked.

    Raises:
        SettingError: an entry was edited, is missing, or was signed by another authority; names its file.
    """
    folder = place / FOLDER
    head = _head(place, root)  # before the entries: another process may append one meanwhile
    names = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
    entries: list[Entry] = []
    for number in range(1, len(names) + 1):
        path = folder / f"{number}.json"
        if not path.exists():
            raise SettingError(f"{path} is missing: the journal has entries up to {names[-1]}. {ADVICE}", key="journal")
        entries.append(read_entry(path, number, entries[-1].digest if entries else "", root))
    if head is None and entries and (place / HEAD).parent.is_dir():
        raise SettingError(
            f"{place / HEAD} is missing: it names the last entry of the journal. {ADVICE}", key="journal"
        )
    if head not in (None, NONE, *map(_named, entries)):
        raise SettingError(f"{folder}: the entry that {place / HEAD} names is missing. {ADVICE}", key="journal")
    return tuple(entries)


def _named(entry: Entry) -> str:
    return f"{entry.number} {entry.digest}"


def _head(place: Path, root: x509.Certificate) -> str | None:
    """Return the name of the last entry by the head, or None: a copy of the registry has no head."""
    try:
        body = json.loads(regular.read_bytes(place / HEAD))
        text = str(body["head"])
        genuine = authority.signed(root, HEADS, body["head"], body["signature"])
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{place / HEAD} is not the head of a journal ({type(error).__name__}). {ADVICE}", key="journal"
        ) from error
    if not genuine:
        raise SettingError(f"{place / HEAD} does not match its signature: it was edited. {ADVICE}", key="journal")
    return text


def read_entry(path: Path, number: int, before: str, root: x509.Certificate) -> Entry:
    """Return an entry, after checking its signature and that it follows the previous entry."""
    try:
        body = json.loads(regular.read_bytes(path))
        text = body["entry"]
        signature = body["signature"]
        genuine = authority.signed(root, PURPOSE, text, signature)
        fields = json.loads(text) if genuine else {}
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{path} is not an entry of a journal ({type(error).__name__}). {ADVICE}", key="journal"
        ) from error
    if not genuine or set(fields) != KEYS:
        raise SettingError(
            f"{path} does not match its signature: it was edited, or belongs to another park. {ADVICE}", key="journal"
        )
    if (fields["number"], fields["before"]) != (number, before):
        raise SettingError(
            f"{path} does not follow the previous entry: entries were exchanged. {ADVICE}", key="journal"
        )
    return Entry(**fields, digest=hashlib.sha256(text.encode()).hexdigest())


@regular.unwritable_by_others()
def append(
    place: Path, ca: Authority, known: Sequence[Entry], action: str, about: Mapping[str, Any],
    at: dt.datetime | None = None,
) -> tuple[Entry, ...]:  # fmt: skip
    """Append a signed entry to a journal, and return all entries.

    Args:
        place: the park's folder.
        ca: the authority that signs.
        known: the entries as they were read; the journal must not have grown since.
        action: see :class:`Entry`.
        about: the action's objects, as JSON.
        at: the time; default: this machine's clock.

    Raises:
        SettingError: another process has appended an entry since; the message names its action, account and time.
        RunError: the entry cannot be written.
    """
    number = len(known) + 1
    before = known[-1].digest if known else ""
    when = (at or authority.now()).isoformat(timespec="seconds")
    fields = {"number": number, "before": before, "at": when, "by": _account(), "action": action, "about": about}
    text = json_text(fields, ensure_ascii=False)
    body = json_text({"entry": text, "signature": authority.sign(ca, PURPOSE, text)}, indent=1, ensure_ascii=False)
    path = place / FOLDER / f"{number}.json"
    part = path.with_name(f".{number}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not known:
            _write_head(place, ca, NONE, part)  # from now on, a missing head is a fault
        _write_synced(part, body)
        os.link(part, path)  # unlike renaming, this fails if the entry exists
        part.unlink()
        _write_head(place, ca, f"{number} {hashlib.sha256(text.encode()).hexdigest()}", part)
    except FileExistsError:
        other = read_entry(path, number, before, ca.cert)
        raise SettingError(
            f"the park was changed meanwhile: {other.action} by {other.by} at {other.at} (entry {number} of "
            "its journal). Nothing was done: check fedfloor model list, and repeat the command if it is still needed.",
            key="changed-meanwhile",
        ) from None
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return (*known, read_entry(path, number, before, ca.cert))


def _write_head(place: Path, ca: Authority, text: str, part: Path) -> None:
    _write_synced(part, json_text({"head": text, "signature": authority.sign(ca, HEADS, text)}))
    os.replace(part, place / HEAD)


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


def _account() -> str:
    with contextlib.suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"user {os.getuid()}@{socket.gethostname()}"


Serials = Mapping[str, Sequence[int]]


def unrecorded(
    entries: Sequence[Entry], issued: Serials, revoked: Sequence[tuple[str, int, str]]
) -> dict[str, dict[str, Any]]:
    """Return the certificates missing in a journal: action (``provision`` or ``revoke``) → name → serials.

    Args:
        issued: name → serials of all its certificates.
        revoked: (name, serial, time).
    """
    known = {
        (one.action, serial)
        for one in entries
        if one.action in ("provision", "revoke")
        for serials in one.about["certificates"].values()
        for serial in serials
    }
    wanted = {"provision": issued, "revoke": {}}
    for name, serial, _ in revoked:
        wanted["revoke"] = {**wanted["revoke"], name: (*wanted["revoke"].get(name, ()), serial)}
    lacking: dict[str, dict[str, Any]] = {}
    for action, names in wanted.items():
        for name, serials in names.items():
            if new := [f"{serial:x}" for serial in serials if (action, f"{serial:x}") not in known]:
                lacking.setdefault(action, {})[name] = new
    return lacking


def record(
    place: Path, ca: Authority, issued: Serials, revoked: Sequence[tuple[str, int, str]], at: dt.datetime
) -> None:
    """Append entries for the certificates issued and revoked since the last entry about certificates."""
    entries = read(place, ca.cert)
    for action, names in unrecorded(entries, issued, revoked).items():
        entries = append(place, ca, entries, action, {"certificates": names}, at)

"""What a park's authority remembers: numbers, every certificate it issued, and those that are good no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cryptography import x509

from fedfloor.deploy import authority
from fedfloor.deploy.places import Certified
from fedfloor.errors import SettingError


@dataclass(frozen=True)
class Index:
    """What an authority remembers.

    Args:
        park: name of the park.
        numbers: device → its number in the experiment.
        revoked: (name, serial, time) of each certificate that is good no more.
        out: names that get no new certificate until somebody says ``--renew``.
        issued: name → the serials of all its certificates, also of those before a renewal, which are good until they
            run out: who is revoked is so with all of them.
    """

    park: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    revoked: tuple[tuple[str, int, str], ...] = ()
    out: tuple[str, ...] = ()
    issued: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def read(path: Path) -> Index:
    """Read what :func:`told` wrote.

    Raises:
        SettingError: it is something else.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return Index(body["park"], body["numbers"], tuple((n, int(s, 16), t) for n, s, t in body["revoked"]),
                      tuple(body["out"]),
                      {n: tuple(int(s, 16) for s in some) for n, some in body.get("issued", {}).items()})  # fmt: skip
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}): put it back from a copy, or start in a new folder."
        ) from error


def told(index: Index) -> bytes:
    """Return an index as JSON."""
    body = {
        "park": index.park, "numbers": dict(index.numbers), "out": list(index.out),
        "revoked": [[name, f"{serial:x}", when] for name, serial, when in index.revoked],
        "issued": {name: [f"{serial:x}" for serial in some] for name, some in index.issued.items()},
    }  # fmt: skip
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def issued(
    index: Index, holders: Mapping[str, Certified], out: Path, files: Mapping[PurePosixPath, bytes]
) -> dict[str, tuple[int, ...]]:
    """Return the serials of all certificates so far: those known, those that lie there, and those just made."""
    found = dict(index.issued)
    for name, one in holders.items():
        there = [authority.certificate(out / one.cert)] if (out / one.cert).exists() else []
        there += [x509.load_pem_x509_certificate(files[one.cert])] if one.cert in files else []
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *(cert.serial_number for cert in there))))
    return found

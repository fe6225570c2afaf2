"""The audit of a park: its journal, the models of its registry, and the certificates that its authority issued."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedfloor.deploy import authority, journal
from fedfloor.deploy.journal import Entry
from fedfloor.deploy.provision import INDEX, read_index
from fedfloor.errors import SettingError
from fedfloor.rollout.registry import MODELS


def check(place: Path) -> tuple[tuple[Entry, ...], list[str]]:
    """Return the entries of a park's journal, and a message for each fault.

    Args:
        place: the provisioned folder, or one with a copy of its ``registry`` and ``ca.crt``.
    """
    certificates = [path for path in (place / "authority/ca.crt", place / "ca.crt") if path.is_file()]
    if not certificates:
        raise SettingError(f"{place}: has no ca.crt: name a folder that fedfloor provision wrote.")
    try:
        entries = journal.read(place, authority.certificate(certificates[0]))
    except SettingError as error:
        return (), [str(error)]
    faults = []
    for sha256 in dict.fromkeys(
        s for one in entries if one.action == "register" for s, _ in one.about["files"].values()
    ):
        path = place / MODELS / f"{sha256}.onnx"
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            faults.append(f"{path} is missing, or was changed after its registration.")
    if (place / INDEX).is_file():
        index = read_index(place / INDEX)
        for action, names in journal.unrecorded(entries, index.issued, index.revoked).items():
            faults += [f"{action} of '{name}' is in authority/index.json, but not in the journal." for name in names]
    return entries, faults


def words(entry: Entry) -> str:
    """Return a description of the objects of an entry."""
    about = entry.about
    if entry.action in ("provision", "revoke"):
        return f"certificates of {', '.join(about['certificates'])}"
    if entry.action == "register":
        return f"version {about['version']}: network '{about['network']}' of {about['run']['folder']}"
    if entry.action == "rollback":
        return ", ".join(f"{device} to version {version}" for device, version in about["devices"].items())
    return f"version {about['version']} to {', '.join(about['devices'])}"

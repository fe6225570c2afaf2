"""The registry at the cloud: versions of models and their assignment to devices, from the park's journal; its audit."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfloor.base import regular
from fedfloor.base.checking import toml
from fedfloor.base.errors import SettingError, unknown
from fedfloor.deploy import authority, journal, released, settings
from fedfloor.deploy.authority import Authority
from fedfloor.deploy.journal import Entry
from fedfloor.deploy.settings import EdgeSettings
from fedfloor.rollout import promise
from fedfloor.rollout.statement import CHANNELS, MOST_BYTES, Statement
from fedfloor.tasks.figures import Figure
from fedfloor.tasks.figures import named as named_metric
from fedfloor.tasks.metric import recorded

if TYPE_CHECKING:
    from fedfloor.inference.trained import Trained

MODELS = Path("registry/models")
FACTS = ("experiment.toml", "ledger.jsonl", "evaluation.json", "model.safetensors")  # files with recorded digests


@dataclass(frozen=True)
class Version:
    """A registered version of a model, from an entry of the journal.

    Args:
        version: number of the version, from 1.
        network: name of the network, as in ``[model] name``.
        run: folder, round, headline, its metric as the experiment has it, plan and data of the run, and the digests of
            its files.
        files: device → digest and size in bytes of its ONNX file; the key "" is for all devices.
        scale: device → its means and deviations, if the model has them as inputs.
    """

    version: int
    network: str
    run: Mapping[str, Any]
    files: Mapping[str, Sequence[Any]]
    scale: Mapping[str, Any] | None = None

    def lacks(self, device: str) -> bool:
        """Return whether the version lacks a model or statistics for a device."""
        known = self.scale is None or device in self.scale
        return not known or not {"", device} & set(self.files)

    def file(self, device: str) -> tuple[str, int]:
        """Return SHA-256 digest and size in bytes of a device's model."""
        sha256, size = self.files.get(device) or self.files[""]
        return sha256, size


@dataclass(frozen=True)
class Use:
    """The version assigned to a device, and the number of the journal's entry of that assignment."""

    version: int
    number: int


@dataclass(frozen=True)
class Registry:
    """A park's registry in its provisioned folder ``place``: its edges, and the entries of its journal."""

    place: Path
    ca: Authority
    floor: tuple[EdgeSettings, ...]
    entries: tuple[Entry, ...]

    @property
    def park(self) -> str:
        """The name of the park."""
        return self.floor[0].park

    @cached_property
    def devices(self) -> dict[str, EdgeSettings]:
        """Device → settings of its edge."""
        return {one.name: edge for edge in self.floor for one in edge.devices}

    @cached_property
    def versions(self) -> dict[int, Version]:
        """Number → version."""
        return {one.about["version"]: Version(**one.about) for one in self.entries if one.action == "register"}

    @cached_property
    def history(self) -> dict[str, list[Use]]:
        """Device → its assignments in order; a rollback removes the last one."""
        found: dict[str, list[Use]] = {}
        for one in self.entries:
            if one.action in ("release", "promote"):
                for device in one.about["devices"]:
                    some = found.setdefault(device, [])
                    use = Use(one.about["version"], one.number)
                    some[-1:] = [use] if some and some[-1].version == use.version else [*some[-1:], use]
            elif one.action == "rollback":
                for device, version in one.about["devices"].items():
                    found[device][-2:] = [Use(version, one.number)]
        return found

    @cached_property
    def used(self) -> dict[str, Use]:
        """Device of the park → its assigned version; devices without a version are left out."""
        return {device: some[-1] for device, some in self.history.items() if device in self.devices}

    @property
    def waiting(self) -> tuple[int, list[str]] | None:
        """The last released version, and the devices that a promotion would add; None without a release."""
        last = next((one for one in reversed(self.entries) if one.action in ("release", "rollback")), None)
        if last is None or last.action == "rollback":
            return None
        version = last.about["version"]
        have = {device for device, use in self.used.items() if use.version == version}
        return version, [device for device in last.about["target"] if device in self.devices and device not in have]

    def statement(self, device: str) -> Statement:
        """Return the release statement of a device's assigned version."""
        use = self.used[device]
        return self._statement(device, use.version, use.number)

    def trial(self, device: str, version: int) -> Statement:
        """Return the statement with which a device judges a version before its release."""
        return self._statement(device, version, self.entries[-1].number)

    def _statement(self, device: str, number: int, entry: int) -> Statement:
        version = self.versions[number]
        scale = None if version.scale is None else version.scale[device]
        pair = None if scale is None else (tuple(scale[0]), tuple(scale[1]))
        return Statement(self.park, device, entry, number, version.network, *version.file(device), pair)

    def data(self, sha256: str) -> bytes:
        """Return a model's bytes; raise SettingError if the file is missing or was changed."""
        path = self.place / MODELS / f"{sha256}.onnx"
        data = regular.read_bytes(path) if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise SettingError(
                f"{path} is missing, or was changed after its registration. Restore it from a copy.", key="registry"
            )
        return data

    def appended(self, action: str, **about: Any) -> Registry:
        """Return the registry after appending an entry to its journal; see :func:`~fedfloor.deploy.journal.append`.

        Devices that are installed from the park's folder from now on accept no release before the entry.
        """
        from fedfloor.runs.folder import write

        made = replace(self, entries=journal.append(self.place, self.ca, self.entries, action, about))
        for device, number in released.numbers(made.entries[-1:]).items():
            folder = self.place / "devices" / device
            if folder.is_dir():
                with regular.unwritable_by_others():
                    write(folder / released.NAME, released.text(number))
        return made


def read(place: Path) -> Registry:
    """Return the registry in a provisioned folder; raise SettingError if its journal was edited."""
    if not (place / "authority").is_dir():
        raise SettingError(f"--park {place}: has no authority. Name the folder that fedfloor park provision wrote.")
    ca = authority.load(place / "authority")
    paths = sorted((place / "factories").glob("*/edge-*.toml"))
    floor = tuple(settings.read(EdgeSettings, path) for path in paths)
    if not floor:
        raise SettingError(
            f"--park {place}: has no factories: run fedfloor park provision PARK.toml --out {place} again."
        )
    return Registry(place, ca, floor, journal.read(place, ca.cert))


@regular.unwritable_by_others()
def register(registry: Registry, run: Path, *, own: bool = False) -> tuple[Registry, int]:
    """Register the model of a run, or those of its devices, as a version; return the registry and its number.

    A version that exists keeps its number. A personal part, which never leaves the devices, becomes an input.

    Args:
        own: whether code named in the run's file may be imported.
    """
    from fedfloor.inference import onnx
    from fedfloor.inference.trained import load_model
    from fedfloor.models.saved import DEVICES, staying
    from fedfloor.runs.folder import write

    differ = (run / DEVICES).is_file() and staying(run) is None
    personal = _called(registry, run) if differ else {"": ""}
    files: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        for device, name in personal.items():
            trained = load_model(run, own, device=name, stays=True)
            data = regular.read_bytes(onnx.export(trained, Path(place) / "model.onnx").file)
            if len(data) > MOST_BYTES:
                raise SettingError(f"{run}: {len(data)} bytes as ONNX; devices accept at most {MOST_BYTES}.")
            files[device] = [hashlib.sha256(data).hexdigest(), len(data)]
            path = registry.place / MODELS / f"{files[device][0]}.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, data)
    scale = _scales(registry, trained)
    for known in registry.versions.values():
        if dict(known.files) == files and known.scale == scale:
            return registry, known.version
    made = Version(len(registry.versions) + 1, trained.name, _facts(run), files, scale)
    return registry.appended("register", **vars(made)), made.version


def _called(registry: Registry, run: Path) -> dict[str, str]:
    """Return the park's devices with a model in a run → their names in the run, which may be numbers."""
    from fedfloor.models.saved import devices

    known = devices(run)
    pairs = [(one.name, name) for edge in registry.floor for one in edge.devices
             for name in (one.name, str(one.device)) if name in known]  # fmt: skip
    if not pairs:
        raise SettingError(f"{run} has models of devices {', '.join(known)[:200]}: none of them is in the park.")
    return dict(reversed(pairs))  # a name takes precedence over a number


def _scales(registry: Registry, trained: Trained) -> dict[str, Any] | None:
    """Return device → the statistics that a model needs as inputs."""
    if trained.own is None:
        return None
    if trained.shape[0] > CHANNELS:
        raise SettingError(f"the model needs statistics of {trained.shape[0]} channels; at most {CHANNELS}.")
    known = trained.own.known
    return {name: [part.tolist() for part in known[name]] for name in registry.devices if name in known}


def _facts(run: Path) -> dict[str, Any]:
    """Return the facts of a run: round and headline from the last line of the ledger, plan, data, digests."""
    from fedfloor.runs import ledger

    folder = run if run.is_dir() else run.parent
    facts: dict[str, Any] = {"folder": str(run)}
    for name in FACTS:
        if (folder / name).is_file():
            facts[f"{name.partition('.')[0]}_sha256"] = hashlib.sha256(regular.read_bytes(folder / name)).hexdigest()
    if (folder / "experiment.toml").is_file():
        experiment = toml(folder / "experiment.toml", "experiment")
        headline = experiment.get("evaluate", {}).get("headline")
        facts |= {"metric": headline} if isinstance(headline, Mapping) else {}  # one's own, not known by its name
        facts["experiment"] = experiment.get("name")
        facts["data_sha256"] = experiment.get("provenance", {}).get("data_sha256")
    facts |= promise.recorded(folder)
    if (folder / "ledger.jsonl").is_file() and (lines := ledger.read(folder / "ledger.jsonl")):
        facts |= {"round": lines[-1].round, "plan_hash": lines[-1].plan_hash, "headline": lines[-1].headline}
    return facts


def release(registry: Registry, version: int, to: Sequence[str] = (), canary: Sequence[str] = ()) -> Registry:
    """Release a version to the canaries if any are named, otherwise to its whole target; return the registry.

    Args:
        to: the target: factories or devices; empty: every device.
        canary: devices of the target that receive the version first.
    """
    if version not in registry.versions:
        raise unknown("version", str(version), map(str, registry.versions))
    target = named(registry, "--to", to)
    first = named(registry, "--canary", canary) if canary else []
    for device in first:
        if device not in target:
            raise SettingError(f"--canary {device} is not among --to {', '.join(to)}: name one of {', '.join(target)}.")
    if lacking := [device for device in target if registry.versions[version].lacks(device)]:
        lacks = f"version {version} has no model or no statistics for {', '.join(lacking)}"
        raise SettingError(f"{lacks}: they did not take part in its run. Name other devices with --to.")
    return registry.appended("release", version=version, target=target, devices=first or target)


def no_better(registry: Registry, version: int, to: Sequence[str] = ()) -> str:
    """Compare a version with those in use at its target, by the headline metrics of their runs.

    Returns:
        A sentence on the first used version that is as good or better, or whose metric is defined when the new one's
        is not; "" if there is none, or if the runs differ in headline or data.
    """
    new = registry.versions[version].run
    used = {registry.used[name].version for name in named(registry, "--to", to) if name in registry.used}
    if promise.promised(new) is not None:
        nearer, why = promise.measured(new, version)
        return why if nearer is False else ""
    for number in sorted(used - {version}):
        old = registry.versions[number].run
        (name, value), (other, before) = (run.get("headline") or ("", None) for run in (new, old))
        if before is None or new.get("data_sha256") != old.get("data_sha256"):
            continue
        if value is None or not math.isfinite(value):
            return f"version {version} has no metric, version {number}, which is in use, {other} {before:.4f}"
        if name == other and metric_of(new) == metric_of(old) and metric_of(new).gain(value, before) <= 0:
            return f"version {version} has {name} {value:.4f}, version {number}, which is in use, {before:.4f}"
    return ""


def metric_of(run: Mapping[str, Any]) -> Figure:
    """Return the headline metric of a version's run; the accuracy if it has none."""
    made = run.get("metric")
    return recorded(made) if isinstance(made, Mapping) else named_metric((run.get("headline") or ("accuracy", None))[0])


def promote(registry: Registry, version: int | None = None) -> Registry:
    """Release the version of the canaries to the rest of its target; ``version`` must be that version, if given."""
    waiting = registry.waiting
    if waiting is None or not waiting[1]:
        state = "no version is waiting" if waiting is None else f"its whole target has version {waiting[0]}"
        raise SettingError(f"nothing to promote: {state}. fedfloor model list shows the versions of all devices.")
    if version not in (None, waiting[0]):
        raise SettingError(f"version {version} is not the last released version, {waiting[0]}: release it instead.")
    return registry.appended("promote", version=waiting[0], devices=waiting[1])


def rollback(registry: Registry, to: Sequence[str] = ()) -> Registry:
    """Return devices to their previous version: those of ``to``, or all that have the last released version."""
    last = max((use for use in registry.used.values()), key=lambda use: use.number, default=None)
    if last is None:
        raise SettingError("nothing to roll back: no version was released.")
    have = [device for device, use in registry.used.items() if use.version == last.version]
    before = {device: registry.history[device][-2].version for device in (named(registry, "--to", to) if to else have)
              if len(registry.history.get(device, ())) > 1}  # fmt: skip
    if not before:
        raise SettingError(f"nothing to roll back to: {', '.join(to) or ', '.join(have)} have no earlier version.")
    return registry.appended("rollback", devices=before)


def named(registry: Registry, option: str, names: Iterable[str]) -> list[str]:
    """Return the devices with these names or in factories with these names; all devices without names."""
    found: dict[str, None] = {}
    for name in names:
        inside = [device for device, edge in registry.devices.items() if name in (edge.name, device)]
        if not inside:
            known = [*(one.name for one in registry.floor), *registry.devices]
            raise unknown(f"factory or device of {option}", name, known)
        found |= dict.fromkeys(inside)
    return list(found or registry.devices)


def audit(place: Path) -> tuple[tuple[Entry, ...], list[str]]:
    """Return the entries of a park's journal, and a message for each fault.

    Args:
        place: the provisioned folder, or one with a copy of its ``registry`` and ``ca.crt``.
    """
    from fedfloor.deploy.provision import INDEX, read_index  # takes a second, which other commands save

    certificates = [path for path in (place / "authority/ca.crt", place / "ca.crt") if path.is_file()]
    if not certificates:
        raise SettingError(f"{place}: has no ca.crt: name a folder that fedfloor park provision wrote.")
    try:
        entries = journal.read(place, authority.certificate(certificates[0]))
    except SettingError as error:
        return (), [str(error)]
    faults = []
    for sha256 in dict.fromkeys(
        s for one in entries if one.action == "register" for s, _ in one.about["files"].values()
    ):
        path = place / MODELS / f"{sha256}.onnx"
        if not path.is_file() or hashlib.sha256(regular.read_bytes(path)).hexdigest() != sha256:
            faults.append(f"{path} is missing, or was changed after its registration.")
    if (place / INDEX).is_file():
        index = read_index(place / INDEX)
        for action, names in journal.unrecorded(entries, index.issued, index.revoked).items():
            faults += [f"{action} of '{name}' is in authority/index.json, but not in the journal." for name in names]
    return entries, faults


def described(entry: Entry) -> str:
    """Return a description of the objects of an entry."""
    about = entry.about
    if entry.action in ("provision", "revoke"):
        return f"certificates of {', '.join(about['certificates'])}"
    if entry.action == "register":
        return f"version {about['version']}: network '{about['network']}' of {about['run']['folder']}"
    if entry.action == "rollback":
        return ", ".join(f"{device} to version {version}" for device, version in about["devices"].items())
    return f"version {about['version']} to {', '.join(about['devices'])}"

"""The memory of devices between visits: one content-addressed safetensors file per device in the run's folder.

A memory may belong to the extractor of an earlier global model. It then refers to the extractor's file, which all
devices share.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from fedfloor.base import regular
from fedfloor.base.errors import RunError, disk_error

LOADED = 2**28  # bytes of cached extractors: the devices of a round may refer to extractors of many rounds
TO = "+"  # between the digest of a memory and that of its extractor


class DeviceMemory:
    """The tensors that devices keep between visits. Any rank may load any device's; only changed ones are written.

    Args:
        folder: the folder of the files; None: no memory, and an error for objectives that need one.
        held: device → digest, as in a checkpoint; "digest+digest of the extractor" for a memory that belongs to one.
        visits: device → number of its trainings so far in the run, which advances a recycled stream; −1 is the cloud.
        salted: whether digests depend on a random number, so that they do not confirm a guess of the tensors.
    """

    def __init__(
        self, folder: Path | None, held: Mapping[int, str] | None = None, visits: Mapping[int, int] | None = None, *,
        salted: bool = False,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._salted = salted
        self.held: dict[int, str] = dict(held or {})
        self.visits: Counter[int] = Counter(visits or {})
        self._settled: set[str] = set(self.held.values())
        self._loaded: OrderedDict[str, Tensor] = OrderedDict()
        self._sure: set[str] = set()  # extractors whose files match their digests

    def _path(self, whose: int | str, digest: str) -> Path:
        if self._folder is None:
            raise RunError(
                "this run has no folder, but the method's devices keep tensors between visits: give --out.",
                key="no-folder",
            )
        return self._folder / f"{whose}-{digest[:32]}.safetensors"

    def load(self, device: int) -> dict[str, Tensor]:
        """Return the tensors that the device keeps, by name; {} if it has kept none yet."""
        if device not in self.held:
            return {}
        digest = self.held[device].partition(TO)[0]
        return load(_checked(self._path(device, digest), digest, f"device {device}'s memory"))

    def file_name(self, device: int) -> str:
        """Return the file name of a device's memory, without its folder."""
        return f"{device}-{self.held[device].partition(TO)[0][:32]}.safetensors"

    def path(self, device: int) -> Path | None:
        return self._path(device, self.held[device]) if device in self.held else None

    def size(self, device: int) -> int:
        """Return the size of a device's memory in bytes; 0 if it keeps nothing, or its file is missing."""
        path = self.path(device)
        return path.stat().st_size if path is not None and path.is_file() else 0

    def verify(self) -> None:
        """Check that every held file exists and matches its digest; RunError names the first that does not."""
        for device, held in sorted(self.held.items()):
            digest = held.partition(TO)[0]
            _checked(self._path(device, digest), digest, f"device {device}'s memory")
        for digest in sorted({name for device in self.held if (name := self.extractor(device))}):
            _checked(self._path("extractor", digest), digest, "an earlier model's extractor")

    def extractor(self, device: int) -> str:
        """Return the digest of the extractor to which a device's memory belongs; "" where it has none."""
        return self.held.get(device, "").partition(TO)[2]

    def numbers(self, extractor: str) -> Tensor:
        """Return the parameters of an extractor from its digest."""
        if extractor not in self._loaded:
            path = self._path("extractor", extractor)
            data = _checked(path, extractor, "an earlier model's extractor", sure=extractor in self._sure)
            self._loaded[extractor] = load(data)["numbers"]
            self._sure.add(extractor)
            while len(self._loaded) > 1 and sum(numbers.nbytes for numbers in self._loaded.values()) > LOADED:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(extractor)
        return self._loaded[extractor]

    def commit(self, device: int, entries: Mapping[str, Tensor], extractor: str = "") -> str:
        """Replace the device's memory by ``entries``; return their digest. :meth:`settle` flushes it to the disk."""
        salt = {"salt": secrets.token_hex(16)} if self._salted else None
        data = save({name: tensor.cpu().contiguous() for name, tensor in entries.items()}, salt)
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(device, digest)
        if not path.exists():
            _write(path, data)
        self.held[device] = f"{digest}{TO}{extractor}" if extractor else digest
        return self.held[device]

    def keep(self, numbers: Tensor, digest: str) -> None:
        """Write an extractor's parameters, unless a file of this digest of :func:`extractor_bytes` exists."""
        path = self._path("extractor", digest)
        if not path.exists():
            _write(path, extractor_bytes(numbers))

    def seen_by(self, devices: Iterable[int]) -> DeviceMemory:
        """Return a copy of the memory for a branch that visits these devices; it changes independently."""
        known = set(devices)
        held = {k: self.held[k] for k in known if k in self.held}
        other = DeviceMemory(self._folder, held, {k: self.visits[k] for k in known}, salted=self._salted)
        other._loaded = self._loaded
        other._sure = self._sure
        return other

    def now(self, devices: Iterable[int]) -> dict[int, tuple[str | None, int]]:
        """Return each device's digest (None: no memory) and number of visits, for :meth:`put_back`."""
        return {device: (self.held.get(device), self.visits[device]) for device in devices}

    def put_back(self, before: Mapping[int, tuple[str | None, int]]) -> None:
        """Restore the state that :meth:`now` returned."""
        for device, (digest, visits) in before.items():
            self.visits[device] = visits
            if digest is None:
                self.held.pop(device, None)
            else:
                self.held[device] = digest

    def settle(self, held: Mapping[int, str]) -> None:
        """Flush the memories that the next checkpoint names to the disk, whichever rank wrote them.

        Other memories are not flushed: most are replaced before a checkpoint names them, and waiting for the disk at
        every visit can take as long as the training.
        """
        for device, digest in held.items() if self._folder is not None else ():  # otherwise on the devices' own disks
            if digest in self._settled:
                continue
            own, _, extractor = digest.partition(TO)
            for path in [self._path(device, own), *([self._path("extractor", extractor)] if extractor else [])]:
                try:
                    with regular.opened(path) as file:
                        os.fsync(file.fileno())
                except OSError as error:
                    raise disk_error(path, error) from error
        self._settled = set(held.values())

    def sizes(self) -> tuple[list[int], list[int]]:
        """Return the sizes in bytes of the devices' memories, and of the earlier extractors to which they refer."""
        names = sorted({name for k in self.held if (name := self.extractor(k))})
        if self._folder is None:
            return [], []
        own = [self._path(k, held).stat().st_size for k, held in sorted(self.held.items())]
        return own, [self._path("extractor", name).stat().st_size for name in names]

    def sweep(self, keep: set[str], newest: int = 0) -> None:
        """Delete files of memories that are neither held, nor in ``keep`` (checkpoints' digests), nor the newest."""
        if self._folder is None or not self._folder.is_dir():
            return
        wanted = {digest[:32] for held in keep | set(self.held.values()) for digest in held.split(TO)}
        paths = sorted(self._folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[: max(0, len(paths) - newest)]:
            if path.stem.rpartition("-")[2] not in wanted:
                path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Delete a killed process's half-written files; call it once, before any rank of the run writes."""
        if self._folder is not None:
            for half in self._folder.glob("*.part"):
                half.unlink(missing_ok=True)


def extractor_bytes(numbers: Tensor) -> bytes:
    """Return the content of an extractor's file."""
    return save({"numbers": numbers.cpu()})


def _checked(path: Path, digest: str, name: str, *, sure: bool = False) -> bytes:
    try:
        data = regular.read_bytes(path)
    except OSError as error:
        raise RunError(
            f"{name} cannot be read: {error}. Restore the file, or begin the run again.", key="device-memory"
        ) from error
    if not sure and hashlib.sha256(data).hexdigest() != digest:
        raise RunError(f"{name} {path.name} does not match its digest: the file was changed.", key="device-memory")
    return data


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, unless the machine fails: it is renamed once it is complete."""
    temporary = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
        temporary.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error

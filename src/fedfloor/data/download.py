"""Downloads of published data sets: complete files with the published checksum, or none."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fedfloor.base import regular
from fedfloor.base.errors import FedfloorError, RunError, SettingError, unknown
from fedfloor.data import sources
from fedfloor.data.files import expanded
from fedfloor.data.sources import PUBLISHED, File, Published

CHUNK = 1 << 16  # bytes
PATIENCE_S = (10, 30)  # seconds to connect to a server, and between two pieces of its answer
MIRROR = "FEDFLOOR_MIRROR"
log = logging.getLogger(__name__)

Follow = Callable[[str, int, int], None]  # called with a file's name, the bytes received and the bytes expected


class _NoFileError(Exception):
    """An address that does not deliver the file; the next address is tried."""


def get(
    name: str,
    root: Path | str | None = None,
    *,
    mirror: str | None = None,
    force: bool = False,
    follow: Follow = lambda *_: None,
    catalog: Mapping[str, Published] = PUBLISHED,
    load: Callable[[str, Path], object] = lambda name, root: sources.load(name, root=root),
) -> list[dict[str, str | int | None]]:
    """Download the missing files of a data set into ``root/name``; existing files are only replaced with ``force``.

    Args:
        name: the name of the data set.
        root: the folder that holds the data sets' folders; :func:`fedfloor.data.sources.data_root` if None.
        mirror: an address with ``NAME/FILE``, used instead of the published addresses; ``$FEDFLOOR_MIRROR`` if None.
        force: replace files that differ from the published ones.
        follow: called with the progress.
        catalog: the data sets that can be downloaded, by name.
        load: reads a data set by its name and root, or raises a FedfloorError; tests whether files that differ from the
            published ones are usable.

    Returns:
        A row per file with file, bytes (as published), state (``"downloaded"``, ``"kept"``, or ``"left alone"``: not as
        published, but loadable), source (the address of the download, or None) and where (its path).

    Raises:
        SettingError: an unknown name, a data set without files, a wrong mirror, a folder that cannot be written.
        RunError: no address has a file, the disk is full, or existing files are neither as published nor loadable.
    """
    if name not in catalog:
        raise unknown("data set", name, catalog)
    root = expanded(root) if root is not None else sources.data_root()
    published = catalog[name]
    folder = root / name
    if not published.files:
        raise SettingError(f"data set '{name}' cannot be downloaded. {published.by_hand.format(folder=folder)}")
    places = _mirror(name, mirror) or published.places
    present = {file: _present(folder, file) for file in published.files}
    others = [file for file, path in present.items() if path is not None and not _same(path, file)]
    if force:
        for file in others:
            path = present[file]
            if path is not None and path.name != file.name:
                raise SettingError(
                    f"{path} differs from the published {file.name} and is read before it. Move it away.",
                    key="download-in-the-way",
                )
    elif folder.is_dir() and not any(present.values()) and _problem(load, name, root) is None:
        log.info("%s holds %s in another form (unpacked?); it is left unchanged.", folder, name)
        return [_row(file, "left alone", folder / file.name) for file in published.files]
    rows = []
    for file, path in present.items():
        if path is None or (force and file in others):
            source = _fetch(file, folder, places, published.page, follow)
            rows.append(_row(file, "downloaded", folder / file.name, source))
        else:
            rows.append(_row(file, "left alone" if file in others else "kept", path))
    if others and not force:
        which = f"{', '.join(str(present[file] or folder) for file in others)}: not as published (another checksum)"
        again = f"`fedfloor datasets get {name} --force` replaces it with the published version."
        problem = _problem(load, name, root)
        if problem is not None:
            raise RunError(f"{which}, and the data set cannot be loaded: {problem} {again}", key="download")
        log.info("%s, but the data set can be loaded: left alone. %s", which, again)
    return rows


def _row(file: File, state: str, where: Path, source: str | None = None) -> dict[str, str | int | None]:
    return {"file": file.name, "bytes": file.size, "state": state, "source": source, "where": str(where)}


# -- existing files ----------------------------------------------------------------------------------------------------


def _present(folder: Path, file: File) -> Path | None:
    """Return the path of a file, as published or packed by the user; the first in the readers' search order."""
    for path in (folder / f"{file.name}.gz", folder / file.name):
        if path.is_file():
            return path
        if path.exists():
            raise SettingError(
                f"{path} is not a file, but {file.name} is to be saved under this path. Move it away.",
                key="download-in-the-way",
            )
    return None


def _same(path: Path, file: File) -> bool:
    """Return whether a file has the published content; a file packed by the user is unpacked first."""
    algorithm, _, expected = file.checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with regular.opened(path) if path.name == file.name else gzip.open(regular.check(path)) as stream:
            while piece := stream.read(CHUNK):
                digest.update(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False
    except OSError as error:
        raise SettingError(f"{path}: cannot be read ({_reason(error)}). Check its permissions.") from error
    return digest.hexdigest() == expected


def _problem(load: Callable[[str, Path], object], name: str, root: Path) -> str | None:
    """Return the error of loading a data set, or None."""
    try:
        load(name, root)
    except FedfloorError as error:
        return str(error)
    return None


# -- fetching one file ------------------------------------------------------------------------------------------------


def _mirror(name: str, given: str | None) -> tuple[str, ...]:
    """Return the address of the data set on the user's mirror, if a mirror is set."""
    word, url = ("--from", given) if given is not None else (MIRROR, os.environ.get(MIRROR, ""))
    if not url and given is None:
        return ()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SettingError(
            f"{word} {_shown(url)}: must be a web address such as http://mirror.plant/data, which holds {name}/FILE. "
            "Files in a folder need no download: set FEDFLOOR_DATA to the folder."
        )
    return (f"{url.rstrip('/')}/{name}/",)


def _fetch(file: File, folder: Path, places: tuple[str, ...], page: str, follow: Follow) -> str:
    """Download a file from the first address that delivers it; return this address."""
    refused = []
    for place in places:
        url = place + file.name
        try:
            _retrieve(url, file, folder, follow)
            return _shown(url)
        except _NoFileError as error:
            refused.append(f"{_shown(url)}: {error}.")
            if place != places[-1]:
                log.info("%s Trying the next address.", refused[-1])
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RunError(
                    f"the disk is full: {file.name} ({file.size:,} bytes) could not be written in {folder}, and no "
                    "part was kept. Free disk space, or choose another folder with --root.",
                    key="disk-full",
                ) from error
            raise SettingError(
                f"cannot write {file.name} in {folder}: {_reason(error)}. Choose another folder with --root, or set "
                "FEDFLOOR_DATA.",
                key="unwritable",
            ) from error
    raise RunError(
        f"{file.name} could not be downloaded, and no part was kept. {' '.join(refused)} By hand: get it from {page} "
        f"and put it into {folder}. Without internet: use your mirror with --from URL.",
        key="download",
    )


def _retrieve(url: str, file: File, folder: Path, follow: Follow) -> None:
    """Download under a temporary name, compare the checksum, rename."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # the progress display and the rows state the same
    with _made(folder):
        try:
            pooch.retrieve(url, file.checksum, file.name, folder, downloader=partial(_stream, file=file, follow=follow))
        except ValueError as error:  # pooch's error for a wrong checksum; it names the expected and the actual checksum
            raise _NoFileError(str(error).split(" Deleted ")[0].rstrip(".")) from error


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; remove it again where the body fails and leaves it empty."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the folder is not empty
            for place in new:
                place.rmdir()
        raise


def _stream(url: str, target: str, _: object, *, file: File, follow: Follow) -> None:
    """Copy the response of an address to the file ``target``, byte for byte (pooch's protocol of a downloader)."""
    import requests
    from urllib3.exceptions import HTTPError

    # raw bytes: many servers declare .gz files as an encoding, which clients would then unpack
    request = partial(requests.get, headers={"Accept-Encoding": "identity"}, stream=True, timeout=PATIENCE_S)
    try:
        with request(url) as answer:
            if not answer.ok:
                raise _NoFileError(f"answered {answer.status_code} {answer.reason}")
            _write(answer.raw.stream(CHUNK, decode_content=False), Path(target), file, follow)
    except requests.RequestException as error:
        raise _NoFileError(_reason(error)) from error
    except HTTPError as error:
        raise _NoFileError("the connection broke during the transfer") from error


def _write(pieces: Iterable[bytes], target: Path, file: File, follow: Follow) -> None:
    done = 0
    with target.open("wb") as stream:
        follow(file.name, 0, file.size)
        for piece in pieces:
            done += len(piece)
            if done > file.size:
                raise _NoFileError(f"sent more than the {file.size:,} bytes published")
            stream.write(piece)
            follow(file.name, done, file.size)
    if done < file.size:
        raise _NoFileError(f"sent {done:,} bytes where {file.size:,} are published (a login page of the network?)")
    mask = os.umask(0)
    os.umask(mask)
    target.chmod(0o666 & ~mask)  # temporary files are private, but other users may share the folder


def _reason(error: BaseException) -> str:
    """Return a short description of an error, that of the operating system where it has one."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.strerror:
            return at.strerror
        at = at.__cause__ or at.__context__
    return _shown(str(error)) or type(error).__name__


def _shown(text: str) -> str:
    """Return an address without the password in it.

    >>> _shown("http://me:secret@mirror.plant/data")
    'http://mirror.plant/data'
    """
    return re.sub(r"://[^/@\s]*@", "://", text)

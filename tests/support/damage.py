"""Run folders damaged at random, the same by every seed: for commands that must refuse them with a message."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 1.5, -0.5, 10**9, 2**31, 2**63 - 1, 2**63, 10**30, 10**400, 1e-300, 1e30, 1e200,
    1e308, -1e308, float("nan"), float("inf"), -float("inf"), "", "x", "0", "test", "../..", "</script>", "\x00",
    "é" * 9, "a" * 5000, "999999999999", "device:7", "device:99999999999", "cloud", [], {}, [[]], [None],
    [1, 2], ["x"], [{}],
    {"kind": "x"}, {"kind": []}, {"p10": 2}, {"node": "repeat"}, {"x": {"y": 1}},
)  # fmt: skip
BYTES = (b"", b"\x00", b"\xff\xfe", b"{", b"}\n", b"[", b'"', b"\n\n", b"null", b"NaN", b"9" * 5000, b"[" * 4000)

Place = tuple[Any, Any]  # a container and a key or a position in it


def places(value: Any) -> list[Place]:
    """Return every place in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def twisted(rng: random.Random, value: Any) -> Any:
    """Change a JSON value in one place: another value, type or key, or one that is gone or there twice."""
    all_places = places(value)
    if not all_places or rng.random() < 0.03:
        return rng.choice(STRANGE)
    container, key = rng.choice(all_places)
    how = rng.randrange(6)
    if how == 0:
        del container[key]
    elif how == 1 and isinstance(container, list):
        container.insert(key, container[key])
    elif how == 1:
        container[f"{key}_"] = container.pop(key)
    elif how == 2:
        other, there = rng.choice(all_places)
        container[key] = json.loads(json.dumps(other[there])) if there in other or isinstance(other, list) else None
    else:
        container[key] = rng.choice(STRANGE)
    return value


def broken(rng: random.Random, data: bytes) -> bytes:
    """Change a file's bytes: cut off, overwritten, with something in between."""
    at = rng.randrange(len(data) + 1)
    how = rng.randrange(5)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + rng.choice(BYTES) + data[at:]
    if how == 2:
        return data[:at] + rng.choice(BYTES) + data[at + rng.randrange(1, 40) :]
    if how == 3:
        return rng.randbytes(rng.randrange(200))
    flipped = bytearray(data or b"\x00")
    for _ in range(rng.randrange(1, 5)):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _json(rng: random.Random, data: bytes) -> bytes:
    return json.dumps(twisted(rng, json.loads(data))).encode()


def _lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    i = rng.randrange(len(lines))
    how = rng.randrange(6)
    if how == 0:
        lines[i : i + 1] = lines[i : i + 1] * 2
    elif how == 1:
        rng.shuffle(lines)
    elif how == 2:
        lines[i] = broken(rng, lines[i])
    else:
        lines[i] = _json(rng, lines[i]) + b"\n"
    return b"".join(lines)


def _toml(rng: random.Random, data: bytes) -> bytes:
    try:
        value = twisted(rng, tomllib.loads(data.decode()))
        return tomlkit.dumps(value).encode()
    except (ValueError, TypeError, AttributeError, tomlkit.exceptions.TOMLKitError):  # what TOML cannot write
        key = rng.choice((b"seed", b"name", b"rounds", b"method", b"[data]", b"x.y"))
        return key + b" = " + rng.choice(BYTES) + b"\n" + data


def _tensors(rng: random.Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    if rng.random() < 0.75:  # what the file says about the model
        about = twisted(rng, json.loads(header["__metadata__"]["fedfloor"]))
        header["__metadata__"]["fedfloor"] = json.dumps(about)
    else:
        header = twisted(rng, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


KINDS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    ".json": _json, ".jsonl": _lines, ".toml": _toml, ".safetensors": _tensors,
}  # fmt: skip


def damaged(seed: int, whole: Path, out: Path, names: tuple[str, ...]) -> str:
    """Copy a run folder and damage one of its files; return the file's name.

    Args:
        seed: of the damage.
        whole: the folder.
        out: the copy; replaced.
        names: of the files to choose from.
    """
    rng = random.Random(seed)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(whole, out)
    name = rng.choice([name for name in names if (out / name).exists()])
    path = out / name
    how = rng.random()
    if how < 0.03:
        path.unlink()
    elif how < 0.06:
        path.unlink()
        path.mkdir()
    elif how < 0.3:
        path.write_bytes(broken(rng, path.read_bytes()))
    else:
        path.write_bytes(KINDS[path.suffix](rng, path.read_bytes()))
    return name

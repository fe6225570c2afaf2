"""Mutated experiment files, each read, built into a park and planned as far as round 1, in a process of limited memory.

``python tests/programs/fuzz_experiments.py --count 5000`` checks files 0 to 4,999; every file is a pure function of
its number. An error message is a good answer, and so is a plan. A traceback, exhausted memory and a process that dies
are not.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime
import gc
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import tomllib
import traceback
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomlkit

from fedfloor import config, models
from fedfloor.base.errors import FedfloorError
from fedfloor.cli import main
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import METHODS
from fedfloor.network.profile import NetworkProfile, build
from fedfloor.parts.objectives.registry import OBJECTIVES
from fedfloor.runs import forecast
from fedfloor.runs.forecast import plan_of
from fedfloor.runs.parks import build_park

BUNDLED = Path(__file__).parents[2] / "experiments"
MEMORY = 3 << 30  # bytes that a file's process may take beyond what it starts with
SECONDS = 20  # after which a file counts as slow: it asks for much work, which is not a mistake
GOOD = ("planned", "refused", "slow")

Path_ = tuple[Any, ...]  # keys and positions that lead to a value

TIME = datetime.time(6, 30)
SCALARS: tuple[Any, ...] = (
    0, 1, 2, 3, 7, -1, -3, 10**6, 10**9, 10**12, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**59, -(10**30),
    0.0, -0.0, 0.5, 1.0, -1.0, 2.5, 1e-320, 1e9, 1e59, 1e308, math.nan, math.inf, -math.inf,
    True, False, "", " ", "a", "0", "1e3", "iid", "auto", "équerre", "工場", "a\0b", "a/b", "..", "~x", ":", "a:b",
    "no_such:X",
    "math:sqrt", "json:JSONDecoder", "x" * 5000, "\U0001f3ed", "‮abc", "inf", "nan", "none",
    TIME, datetime.date(2026, 3, 1), datetime.datetime(2026, 3, 1, 6, 30),
    datetime.datetime(2026, 3, 1, 6, 30, tzinfo=datetime.UTC),
)  # fmt: skip


def document(number: int) -> str:
    """Return the text of an experiment file: a bundled one, made small and mutated."""
    rng = random.Random(number)
    whole = tomllib.loads(rng.choice(sorted(BUNDLED.glob("*.toml"))).read_text(encoding="utf-8"))
    if rng.random() < 0.6:
        _shrink(whole, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _mutate(whole, rng)
    text = tomlkit.dumps(whole)
    return _garbled(text, rng) if rng.random() < 0.08 else text


def _shrink(whole: dict[str, Any], rng: random.Random) -> None:
    """Put small data that need no download in the place of the file's own."""
    data = whole.setdefault("data", {})
    partition = rng.choice(({"kind": "iid"}, {"kind": "shards", "per_device": 2}, {"kind": "dirichlet", "alpha": 0.5}))
    data.update(name="labels", samples_per_device=12, partition=partition)
    data.pop("window", None)
    if rng.random() < 0.4:
        data.update(name="procedural", procedural={"classes": 4, "shape": [1, 20, 20], "test_samples": 8})
        data.pop("partition", None)
    whole["park"] = {"devices": 6, "factories": 2}
    whole["model"] = {"name": rng.choice(("logistic", "mlp-2nn", "lenet"))}
    work = whole.setdefault("work", {})
    work["batch_size"] = 4
    if rng.random() < 0.5:
        whole["method"] = {"name": rng.choice(sorted(METHODS))}
    if rng.random() < 0.3:
        whole["network"] = {"profile": rng.choice(("rafed", "lte-cat-m2", "5g-edge", "wifi"))}


def _mutate(whole: dict[str, Any], rng: random.Random) -> None:
    """Change one thing in place: a value, or one that is new, is dropped, doubled, moved or takes another's place."""
    places = list(_places(whole))
    how = rng.random()
    if how < 0.35:
        _put(whole, rng.choice(KEYS), _value(rng))
        return
    path = rng.choice(places)
    if how < 0.6:
        _put(whole, path, _like(_at(whole, path), rng))
    elif how < 0.75:
        _put(whole, path, _value(rng))
    elif how < 0.82:
        _put(whole, (*path[:-1], rng.choice(("", "kind", "wrok", "工場", "a.b", "0", "__class__"))), _value(rng))
    elif how < 0.88:
        _put(whole, path, copy.deepcopy(_at(whole, rng.choice(places))))
    elif how < 0.94:
        _put(whole, path, [copy.deepcopy(_at(whole, path))] * rng.choice((1, 2)))
    else:
        table = _at(whole, path[:-1])
        del table[path[-1]]


def _value(rng: random.Random, depth: int = 0) -> Any:
    """Return a value of any type, mostly a scalar."""
    kind = rng.random()
    if kind < 0.7 or depth > 2:
        return rng.choice(SCALARS)
    if kind < 0.8:
        return [_value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 3)))]
    if kind < 0.82:
        nested: Any = rng.choice(SCALARS)
        for _ in range(rng.choice((5, 50, 400))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return nested
    name = rng.choice(("kind", "kind", "name", "start", "window", "share", "a", "method", "work"))
    table = {name: _value(rng, depth + 1), rng.choice(FIELDS): _value(rng, depth + 1)}
    return [table] * rng.choice((1, 2)) if rng.random() < 0.2 else table


def _like(old: Any, rng: random.Random) -> Any:
    """Return another value of an old one's type, which is more often let through than any."""
    alike = [one for one in SCALARS if type(one) is type(old)] or SCALARS
    return rng.choice(alike)


def _garbled(text: str, rng: random.Random) -> str:
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    choice = rng.randrange(5)
    if choice == 0:
        lines.insert(at, lines[rng.randrange(len(lines))])  # a line twice
    elif choice == 1:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    elif choice == 2:
        lines.insert(
            at, rng.choice(("[[work]]", "[data.stream.x.y]", "[park]", "= 3", '"""', "a.b.c = 1", "\ufeff", "["))
        )
    elif choice == 3:
        lines[at] = lines[at].replace("=", rng.choice(("= =", ":", "= [", "= {", "=")), 1)
    else:
        lines.insert(at, f"deep = {'[' * 3000}{']' * 3000}")
    return "\n".join(lines) + "\n"


def _places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all values but the whole."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*path, key))


def _at(value: Any, path: Path_) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(whole: dict[str, Any], path: Path_, new: Any) -> None:
    """Put a value at a path; what is not a table on the way becomes one."""
    table: Any = whole
    for key in path[:-1]:
        if isinstance(table, list) and not isinstance(key, int):
            table.append({})
            table = table[-1]
        if isinstance(table, dict) and not isinstance(table.get(key), dict | list):
            table[key] = {}
        table = table[key]
    if isinstance(table, list) and not isinstance(path[-1], int):
        table.append(new)
    else:
        table[path[-1]] = new


def _keys(kind: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every setting of a dataclass, of those in it, and of the methods."""
    for name, hint in typing.get_type_hints(kind).items():
        if name in {field.name for field in dataclasses.fields(kind)}:
            yield (*path, name)
            for inner in (hint, *typing.get_args(hint)):
                if dataclasses.is_dataclass(inner):
                    yield from _keys(inner, (*path, name))


def _every_key() -> list[Path_]:
    keys = [*_keys(Experiment), *_keys(NetworkProfile, ("network",))]
    for name, method in METHODS.items():
        keys += _keys(method, ("methods", name))
    for name, part in OBJECTIVES.items():
        keys += [("method", "objective", field.name) for field in dataclasses.fields(part) if name]  # type: ignore[arg-type]
    return sorted(set(keys), key=str)


KEYS = _every_key()
FIELDS = sorted({str(path[-1]) for path in KEYS})


def plan(path: Path) -> None:
    """Do what commands do with an experiment file before they train."""
    experiment = config.read(path)
    config.from_table(tomllib.loads(config.resolved(experiment)))
    config.brief(experiment)
    park = build_park(experiment)
    park.held(0, 0, 0)
    park.census(range(min(3, park.devices)), 0, (0,) * min(3, park.devices))
    data = park.dataset
    model = experiment.model
    adapt = experiment.configured.objective.adapt
    models.build(model.name, data.shape, len(data.classes), experiment.seed, model.classifier, adapt)
    plan_of(experiment, park, 1)
    if build(experiment.network) is not None:
        next(forecast.rounds(experiment, park, 1))


def outcome(path: Path, work: Callable[[Path], None] = plan) -> tuple[str, str]:
    """Return what came of a file, and the message or traceback."""
    try:
        work(path)
    except FedfloorError as error:
        return ("refused" if error.exit_code == 2 and str(error).strip() else "failed"), str(error)
    except MemoryError:
        return "memory", traceback.format_exc()
    except TimeoutError:
        return "slow", traceback.format_exc()
    except BaseException:  # a SystemExit or a KeyboardInterrupt would be as wrong
        return "traceback", traceback.format_exc()
    return "planned", ""


def _stop(*_: object) -> None:
    raise TimeoutError


def _child(number: int, pipe: int) -> None:
    """Check a file in this process, which ends with it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        path = Path(folder, "mutated.toml")
        path.write_text(document(number), encoding="utf-8")
        found = outcome(path)
        signal.alarm(0)
        os.chdir("/")
    os.write(pipe, json.dumps((found[0], found[1][-6000:])).encode())
    os._exit(0)


def check(number: int) -> tuple[str, str]:
    """Check a file in a process of its own and return what came of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _child(number, writing)
        finally:
            os._exit(3)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    _, status = os.waitpid(child, 0)
    try:
        kind, text = json.loads(raw)
    except ValueError:
        return "died", f"status {status}, {raw[:200]!r}"
    return kind, text


def warm() -> None:
    """Do once, before processes fork, what is done at first use: imports, adapters, compiled solvers."""
    for path in BUNDLED.glob("*.toml"):
        config.read(path)
    for number, name in enumerate(METHODS):
        small: dict[str, Any] = {"method": {"name": name}, "network": {"profile": "rafed"}}
        _shrink(small, random.Random(number))
        small |= {"method": {"name": name}, "network": {"profile": "rafed"}, "rounds": 1}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "small.toml")
            path.write_text(tomlkit.dumps(small), encoding="utf-8")
            outcome(path)
    gc.freeze()


def fuzz(first: int, count: int, show: Callable[[str], None] = lambda text: print(text, flush=True)) -> Counter[str]:
    """Check files and return how many came to what; those that came to no good are shown."""
    warm()
    total: Counter[str] = Counter()
    for number in range(first, first + count):
        kind, text = check(number)
        total[kind] += 1
        if kind not in GOOD:
            show(f"--- file {number}: {kind}\n{text}")
        if total.total() % 500 == 0:
            show(f"--- {total.total():,} files: {dict(total)}")
    return total


if __name__ == "__main__":
    assert main is not None  # everything that a command imports is in this process before it forks
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--show", action="store_true", help="print the files instead of checking them")
    parser.add_argument("--answers", action="store_true", help="show what came of every file")
    given = parser.parse_args()
    if given.answers:
        GOOD = ()
    if given.show:
        print("\n".join(document(number) for number in range(given.first, given.first + given.count)))
        sys.exit()
    came = fuzz(given.first, given.count)
    print(json.dumps(came, sort_keys=True))
    sys.exit(any(kind not in GOOD for kind in came))

"""Random small faults in the package: how many do the quick tests notice?

    python tests/programs/mutate.py --number 150 --seed 7 --out mutants.json  # draw faults and try them
    python tests/programs/mutate.py --again --out mutants.json  # try those that survived against today's tests
    python tests/programs/mutate.py --out mutants.json --page results/mutants.md  # write what was found, with its JSON

A fault, a *mutant*, swaps an operator or a comparison, drops a ``not`` or adds one to a small constant. Rooms are drawn
alike, and within a room each place. A mutant is tried against quick tests and doctests that run its line (or, if none
does, its function, its file or its room's tests), fastest first, those of its room before those of others, each of the
two for at most ``--limit`` seconds: a failure, a crash or a hang catches it.

Everything happens in a clone (``--clone``) of the last commit: what is not committed is not seen. The clone keeps which
tests run which lines (``tests/programs/reached.py``). The JSON is written after each mutant; the same command goes on
where it stopped. Whoever reads what survived writes into it ``judged``, the reason why a mutant changes no result, or
``since``, the test that was written for it. Tests run in copies of this process, which has imported PyTorch: use one
thread and ``nice``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import affected

ROOT = Path(__file__).parents[2]
PRELOADED = ("torch", "numpy", "hypothesis", "typer", "pytest", "_pytest.doctest")
# From what is quick to what is slow: the first mutants are tried while the tests of the others are not followed yet
ROOMS = (
    "tasks", "plan", "solvers", "network", "park", "parts", "data", "models", "config", "experiment", "base", "engine",
    "report", "sensors", "tracking", "methods", "api", "inference", "watch", "rollout", "runs", "deploy", "drafting",
    "cli",
)  # fmt: skip
SMALL = 16  # constants up to this are changed
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """A fault: in a line of a file, some text that becomes another."""

    room: str
    file: str
    line: int  # from 1
    column: int  # in characters
    was: str
    now: str
    code: str  # the whole line, by which the place is found when the file has changed

    def applied(self, text: str) -> str | None:
        """Return a file's text with the fault, none where its place is no more."""
        lines = text.splitlines(keepends=True)
        same = [i for i, line in enumerate(lines) if line.strip() == self.code]
        if not same:
            return None
        nearest = min(same, key=lambda i: abs(i + 1 - self.line))
        start = sum(map(len, lines[:nearest])) + self.column
        if text[start : start + len(self.was)] != self.was:
            return None
        return f"{text[:start]}({self.now}){text[start + len(self.was) :]}"


def files(room: str, root: Path = ROOT) -> list[Path]:
    """Return the files of a room: its folder's, or the module of that name."""
    folder = root / "src/fedfloor" / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def places(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a file that a mutant can change; types and texts with values in them are none."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if name in ("annotation", "returns") or isinstance(node, ast.JoinedStr) or not isinstance(node, ast.AST):
                continue
            if isinstance(node, ast.expr) and changed(node):
                yield node
            yield from places(node)


def changed(node: ast.expr) -> str:
    """Return an expression with its fault, nothing where there is none to make.

    >>> texts = ("a < b", "2", "not a", "a - b * c", "a or b", "'a' + b")
    >>> [changed(ast.parse(text, mode="eval").body) for text in texts]
    ['a <= b', '3', 'a', 'a + b * c', 'a and b', '']
    """
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return ast.unparse(ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators))
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not is_text(node):
        return ast.unparse(ast.BinOp(node.left, SWAPS[type(node.op)](), node.right))
    if isinstance(node, ast.BoolOp):
        return ast.unparse(ast.BoolOp(SWAPS[type(node.op)](), node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ast.unparse(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= SMALL:
        return str(node.value + 1)
    return ""


def is_text(node: ast.expr) -> bool:
    """Return whether an expression joins texts."""
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutants(room: str, root: Path = ROOT) -> list[Mutant]:
    """Return all mutants of a room."""
    found = []
    for path in files(room, root):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in places(ast.parse(text)):
            line = lines[node.lineno - 1]
            column = len(line.encode()[: node.col_offset].decode())
            file = path.relative_to(root).as_posix()
            found.append(Mutant(room, file, node.lineno, column, segment(lines, node), changed(node), line.strip()))
    return found


def segment(lines: Sequence[str], node: ast.expr) -> str:
    """Return the text of an expression."""
    last = (node.end_lineno or node.lineno) - 1
    first, *more = [line.encode() for line in lines[node.lineno - 1 : last + 1]]
    if not more:
        return first[node.col_offset : node.end_col_offset].decode()
    return b"\n".join([first[node.col_offset :], *more[:-1], more[-1][: node.end_col_offset]]).decode()


def drawn(number: int, seed: int, rooms: Sequence[str] = ROOMS, root: Path = ROOT) -> list[Mutant]:
    """Return a sample without repetitions: for each mutant a room, all alike, then one of its places, all alike."""
    chance = random.Random(seed)
    left = {room: mutants(room, root) for room in rooms}
    found = []
    while len(found) < number and any(left.values()):
        room = chance.choice([name for name in rooms if left[name]])
        found.append(left[room].pop(chance.randrange(len(left[room]))))
    return sorted(found, key=lambda one: rooms.index(one.room))


class Clone:
    """A clone of the repository whose files are changed and in which tests run."""

    def __init__(self, folder: Path, limit: float, within: float):
        self.folder = folder
        self.limit = limit
        self.within = within
        self.records: dict[str, dict[str, Any]] = {}
        if not folder.exists():
            subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
        self.commit = git(ROOT, "rev-parse", "HEAD").strip()
        git(folder, "checkout", "--quiet", "--force", "--detach", self.commit)

    def pytest(self, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
        """Run tests in a copy of this process; return its status, negative for a crash or a hang, and its output."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                self._become_pytest(out.fileno(), arguments)
            status = waited(child, seconds)
            out.seek(0)
            return status, out.read()

    def _become_pytest(self, out: int, arguments: Sequence[str]) -> None:
        """End as a process of tests, which nothing of this one catches."""
        status = 70
        try:
            os.setsid()
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(self.folder)
            paths = [str(self.folder / "src"), str(self.folder / "tests/programs")]
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
            sys.path[:] = paths + [path for path in sys.path if path != str(Path(__file__).parent)]
            for name in ("affected", "docs", "docs.rooms"):
                sys.modules.pop(name, None)
            import pytest

            fixed = [
                "-c",
                "pyproject.toml",
                "-p",
                "reached",
                "-p",
                "no:cacheprovider",
                "--doctest-modules",
                "--tb=line",
            ]
            status = int(pytest.main([*fixed, "-m", "not slow and not live", *arguments]))
        finally:
            os._exit(status)

    def record(self, name: str, paths: Sequence[str]) -> None:
        """Follow tests, if that was not done before."""
        file = self.folder.with_name(f"{self.folder.name}-reached") / f"{name}.json"
        if not file.exists():
            asked = ["--reached", str(file), "--reached-within", str(self.within), *paths]
            status, output = self.pytest(asked, 5 * self.within + 300)
            if not file.exists():
                raise SystemExit(f"the tests of {name} ended with {status}:\n{output[-3000:]}")
        self.records[name] = json.loads(file.read_text(encoding="utf-8"))
        tests = self.records[name]["tests"]
        print(f"{name}: {len(tests)} tests, {sum(seconds for _, seconds in tests):.0f} s", flush=True)

    def record_room(self, room: str) -> None:
        """Follow the tests and doctests of a room."""
        code = [str(path.relative_to(self.folder)) for path in files(room, self.folder)]
        self.record(room, [*code, f"tests/{affected.ELSEWHERE.get(room, room)}"])

    def chosen(self, mutant: Mutant) -> list[str]:
        """Return the tests to try a mutant against."""
        own = self.reaching(mutant, [mutant.room])
        others = self.reaching(mutant, [name for name in self.records if name != mutant.room])
        if not own + others:
            own = within(self.records[mutant.room]["tests"], self.limit)
        return list(dict.fromkeys(own + others))

    def reaching(self, mutant: Mutant, names: Sequence[str]) -> list[str]:
        """Return tests that run a mutant's line, else its function, else its file, as long as the limit allows."""
        file = mutant.file.removeprefix("src/")
        found = [(self.records[name]["tests"], self.records[name]["files"].get(file, {})) for name in names]
        for span in spans(ast.parse((self.folder / mutant.file).read_text(encoding="utf-8")), mutant):
            timed = [tests[i] for tests, lines in found for line in span for i in lines.get(str(line), ())]
            if timed:
                return within(timed, self.limit)
        return []

    def importing(self, mutant: Mutant) -> list[str]:
        """Return the files of tests that import a mutant's module, those of its room first; else all of its room."""
        room = affected.ELSEWHERE.get(mutant.room, mutant.room)
        package, _, name = mutant.file.removeprefix("src/").removesuffix(".py").replace("/", ".").rpartition(".")
        names = re.compile(
            rf"from {package}\.{name} import|from {package} import [^\n]*\b{name}\b|import {package}\.{name}\b"
        )
        every = sorted(self.folder.glob("tests/*/test_*.py"), key=lambda path: (path.parent.name != room, path))
        found = [path for path in every if names.search(path.read_text(encoding="utf-8"))]
        return [
            mutant.file,
            *(path.relative_to(self.folder).as_posix() for path in found or [self.folder / "tests" / room]),
        ]

    def tried(self, mutant: Mutant, again: bool = False) -> dict[str, Any]:
        """Try a mutant; return its verdict: caught, survived or gone, and what caught it.

        Args:
            again: against all tests of the files that import its module.
        """
        path = self.folder / mutant.file
        was = path.read_text(encoding="utf-8")
        text = mutant.applied(was)
        if text is None:
            return {"verdict": "gone", "by": "", "tests": 0}
        tests = self.importing(mutant) if again else self.chosen(mutant)
        stat = path.stat()
        started = time.monotonic()
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as names:
            json.dump(tests, names)
            names.flush()
            path.write_text(text, encoding="utf-8")
            try:
                which = f"--no-test-after={self.limit}" if again else f"--chosen={names.name}"
                asked = ["-x", which, *dict.fromkeys(name.partition("::")[0] for name in tests)]
                status, output = self.pytest(asked, 6 * self.limit + 120)
            finally:
                path.write_text(was, encoding="utf-8")
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # else Python takes the mutant's compiled file
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return {
            "verdict": {0: "survived", 5: "survived", 3: "error", 4: "error", 70: "error"}.get(status, "caught"),
            "by": failed[0] if failed else f"status {status}: {output[-200:]}" * bool(status),
            "tests": len(tests),
            "seconds": round(time.monotonic() - started, 1),
        }


def git(folder: Path, *arguments: str) -> str:
    """Run Git in a folder; return what it prints."""
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout


def waited(child: int, seconds: float) -> int:
    """Wait for a process and end it with all that it started when the time is over; return its status."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests left behind
    return code


def within(timed: Sequence[tuple[str, float]], limit: float) -> list[str]:
    """Return the names of tests, as many of the first as take the limit together, and at least one.

    >>> within([("a", 1.0), ("b", 2.0), ("a", 1.0), ("c", 3.0)], 4.0)
    ['a', 'b']
    """
    found: dict[str, float] = {}
    for name, seconds in timed:
        if found and sum(found.values()) + (0 if name in found else seconds) > limit:
            break
        found[name] = seconds
    return list(found)


def spans(tree: ast.AST, mutant: Mutant) -> list[range]:
    """Return the lines of a mutant's expression, of the functions around it from the inside, and of the file."""
    lines = range(mutant.line, mutant.line + mutant.was.count("\n") + 1)
    around = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    return [lines, *sorted(around, key=len), range(1, 10_000)]


def main() -> None:
    """Try mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--limit", type=float, default=30.0, help="seconds of tests for a mutant, as they once took")
    parser.add_argument("--within", type=float, default=120.0, help="seconds in which a room's tests are followed")
    parser.add_argument("--clone", type=Path, default=Path(tempfile.gettempdir()) / "fedfloor-mutants")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="try what survived once more")
    parser.add_argument("--page", type=Path, help="write the page of what was found, and try nothing")
    given = parser.parse_args()
    if given.page is not None:
        publish(given.page, json.loads(given.out.read_text()))
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    clone = Clone(given.clone.resolve(), given.limit, given.within)
    rooms = given.rooms.split(",")
    if given.again:
        again(clone, given.out, rooms)
    else:
        first(
            clone,
            given.out,
            drawn(given.number, given.seed, rooms, clone.folder),
            {"seed": given.seed, "limit_s": given.limit},
        )


def first(clone: Clone, out: Path, sample: Sequence[Mutant], about: dict[str, Any]) -> None:
    """Try a sample of mutants, room after room."""
    document = json.loads(out.read_text()) if out.exists() else {"commit": clone.commit, **about, "mutants": []}
    document["mutants"] = [one for one in document["mutants"] if one["verdict"] != "error"]
    done = {(one["file"], one["line"], one["column"], one["now"]) for one in document["mutants"]}
    for mutant in sample:
        if mutant.room not in clone.records:
            clone.record_room(mutant.room)
        if (mutant.file, mutant.line, mutant.column, mutant.now) not in done:
            found = clone.tried(mutant)
            document["mutants"].append({**asdict(mutant), **found})
            out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            show(mutant, found)


def again(clone: Clone, out: Path, rooms: Sequence[str]) -> None:
    """Try the mutants that survived against the tests of today that import their modules."""
    document = json.loads(out.read_text())
    for one in document["mutants"]:
        if one["verdict"] == "survived" and one["room"] in rooms and one.get("again") != "caught":
            mutant = Mutant(**{name: one[name] for name in Mutant.__dataclass_fields__})
            found = clone.tried(mutant, again=True)
            one["again"] = found["verdict"]
            one["again by"] = found["by"]
            out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            show(mutant, found)


def kind_of(one: dict[str, Any]) -> str:
    """Return what is known of a mutant, as a column of the page."""
    if one.get("judged"):
        return "no result changes"
    if one.get("since"):
        return "caught by a new test"
    return "caught" if "caught" in (one["verdict"], one.get("again")) else "not caught"


def publish(page: Path, document: dict[str, Any]) -> None:
    """Write the page of what was found: a table of rooms, and the mutants that are not simply caught."""
    from papers import documents

    kinds = ("caught", "caught by a new test", "no result changes", "not caught")
    found = [(one, kind_of(one)) for one in document["mutants"]]
    rows = []
    for room in dict.fromkeys(one["room"] for one, _ in found):
        counts = [sum(one["room"] == room and kind == name for one, kind in found) for name in kinds]
        rows.append([room, str(sum(counts)), *map(str, counts)])
    totals = [sum(kind == name for _, kind in found) for name in kinds]
    rows.append(["all", str(len(found)), *map(str, totals)])
    changing = len(found) - totals[2]
    before = totals[0] / changing
    after = (totals[0] + totals[1]) / changing
    head = (
        f"Random small faults in the package, drawn by `tests/programs/mutate.py --seed {document['seed']}` at commit "
        f"{document['commit'][:8]}, against the quick tests. Of {changing} that change a result {before:.0%} were "
        f"caught by the tests of that commit, and {after:.0%} are with those written since."
    )
    listed = [
        [
            f"{one['file'].removeprefix('src/fedfloor/')}:{one['line']}",
            f"`{one['was']}` → `{one['now']}`",
            kind,
            reason(one),
        ]
        for one, kind in found
        if kind != "caught"
    ]
    columns = ["place", "fault", "outcome", "test, or reason"]
    blocks = [
        "# Mutants",
        head,
        {"columns": ["room", "faults", *kinds], "rows": rows},
        {"columns": columns, "rows": listed},
    ]
    documents.publish(page, blocks, **document)


def reason(one: dict[str, Any]) -> str:
    """Return why a mutant changes nothing, or by what it is caught now."""
    return str(one.get("judged") or one.get("since") or "")


def show(mutant: Mutant, found: dict[str, Any]) -> None:
    """Print what became of a mutant."""
    change = f"{mutant.was!r} -> {mutant.now!r}"
    how = f"{found['tests']} tests, {found.get('seconds', 0)} s, {found['by'][:90]}"
    print(f"{found['verdict']:8} {mutant.file}:{mutant.line}: {change} ({how})", flush=True)


if __name__ == "__main__":
    main()

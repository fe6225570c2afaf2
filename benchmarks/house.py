"""How the code is laid out: a table of what a change has to touch, of this tree or another one.

    python benchmarks/house.py [SRC] [--json]

SRC is the folder of a package ``fedfloor`` (default: this tree's). Two trees side by side are two runs of it.

- *files that test for kinds of node*: with ``isinstance``, ``type(…) is`` or ``case`` of a class of plan/nodes.py
- *files that repeat turns*: that walk the turns of a ``Repeat`` themselves, as whoever walks a plan has to
- *files that count bytes of numbers*: with ``element_size()`` or a tensor's ``nbytes``
- *hooks*: public members of the protocols ``Objective`` and ``Method``
- *import circles*: files that import each other, directly or through others, within a room; those for type annotations
  count, too
- *files a packet passes*: in which a packet of tensors is a local variable while FedSR trains a round
- *places that carry a round out*: files of src, benchmarks and papers that call a method's ``plan`` and carry it out
- *walkers of plans*: classes with methods of their own for visits, meetings and questions
- *calls*: how often the source reads a method from an experiment (``combined``) and builds the network's profile;
  *builds in a run*: how often a run of FedAvg on a network builds it
- *a draft of a CSV file*: how often `fedfloor new` opens the file, loads its data and builds the park, for a table with
  gaps, an empty sensor, a column of texts and a measured label
- *changes of the document*: items set, removed or merged into a table by the files of drafting
- *errors caught by drafting*: kinds of errors whose text or values become a part of the draft
- *longest body in runs*: the lines of the longest function there
- *modules at the top*: files directly in the package
- *assignments of several values*, *comments of their own line*: per 1,000 lines
- *bodies above 50 lines*: functions, without their heads and docstrings
- *what the plant imports of the rest*: names of modules outside deploy, rollout, sensors and watch, and names that the
  rest, apart from the commands, imports of these four
- *words pinned by tests*: expected errors whose message a test compares with words of its own (``match=``, or a text in
  ``str(error.value)``); *errors expected by key*: those by ``refused(key)``, whose words stand in tests/messages.txt
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PLANT = {"deploy", "rollout", "sensors", "watch"}
PASSED = """
import json, sys, tempfile
from pathlib import Path
import torch
from fedfloor import config
from fedfloor.engine import ranks
from fedfloor.api.run import carried_out as run

seen = set()
whole = ranks.run


def packet(value):
    value = getattr(value, "packet", value)
    return isinstance(value, dict) and isinstance(value.get("w"), torch.Tensor)


def watch(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and "/fedfloor/" in name and name not in seen and any(map(packet, frame.f_locals.values())):
        seen.add(name)


def watched(*arguments, **more):
    sys.setprofile(watch)
    try:
        return whole(*arguments, **more)
    finally:
        sys.setprofile(None)


ranks.run = watched
with tempfile.TemporaryDirectory() as place:
    data = {"name": "labels", "samples_per_device": 20, "partition": {"kind": "iid"}}
    work, method = {"epochs": 1, "batch_size": 10}, {"name": "fedsr"}
    about = {"name": "ring", "rounds": 2, "park": {"devices": 4, "factories": 2}, "model": {"name": "mlp-2nn"}}
    run(config.from_table({**about, "data": data, "work": work, "method": method}), Path(place) / "run", ranks=1)
print(json.dumps(sorted(name.split("/fedfloor/")[-1] for name in seen)))
"""


def names(node: ast.expr) -> set[str]:
    """Return the last parts of the names in an expression."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def node_kinds(tree: ast.Module) -> set[str]:
    """Return the kinds of node: the classes that ``Node`` is the union of."""
    (union,) = (one.value for one in tree.body if isinstance(one, ast.Assign) and names(one.targets[0]) == {"Node"})
    return names(union)


def tests_of_kind(tree: ast.AST, kinds: set[str]) -> int:
    """Return how often a file asks what kind of node something is."""
    found = 0
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "isinstance":
            found += bool(names(one.args[1]) & kinds)
        elif isinstance(one, ast.MatchClass):
            found += bool(names(one.cls) & kinds)
        elif isinstance(one, ast.Compare) and isinstance(one.ops[0], (ast.Is, ast.IsNot)):
            found += "type" in names(one.left) and bool(names(one.comparators[0]) & kinds)
    return found


def repeats(text: str) -> bool:
    """Return whether a file walks the turns of a Repeat."""
    return "* node.times" in text or "* at.times" in text or ".turns(" in text or "def turns(" in text


def imports(path: Path, known: dict[str, Path]) -> set[Path]:
    """Return the files of the package that a file imports."""
    found: set[Path] = set()
    for one in ast.walk(ast.parse(path.read_text())):
        if isinstance(one, ast.ImportFrom) and one.module and one.level == 0:
            for alias in one.names:  # a module of that name, else what the module itself has
                wanted = known.get(f"{one.module}.{alias.name}", known.get(one.module))
                found |= {wanted} if wanted else set()
        elif isinstance(one, ast.Import):
            found |= {known[alias.name] for alias in one.names if alias.name in known}
    return found - {path}


def circles(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """Return the strongly connected components of more than one file (Tarjan)."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found: list[list[Path]] = []

    def visit(one: Path) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in sorted(graph[one]):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            part = []
            while True:
                last = stack.pop()
                part.append(last)
                if last == one:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    sys.setrecursionlimit(10_000)
    for one in sorted(graph):
        if one not in index:
            visit(one)
    return found


def hooks(texts: Iterable[str], name: str) -> dict[str, int]:
    """Return how many public members a protocol has, by the interface that it has them from."""
    text = next(text for text in texts if re.search(rf"^class {name}\b", text, re.MULTILINE))
    classes = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.ClassDef)}
    found: dict[str, int] = {}
    wanted = [name]
    while wanted:
        one = wanted.pop(0)
        wanted += [base.id for base in classes[one].bases if isinstance(base, ast.Name) and base.id in classes]
        members = [m.name for m in classes[one].body if isinstance(m, ast.FunctionDef)]
        members += [m.target.id for m in classes[one].body if isinstance(m, ast.AnnAssign)]  # type: ignore[union-attr]
        found[one] = sum(not member.startswith("_") for member in members)
    return {one: many for one, many in found.items() if many}


ROUNDS = """
import json, tempfile
from pathlib import Path
from fedfloor import config
from fedfloor.network import profile

counts, whole = [], profile.build


def counted(*given, **named):
    counts.append(1)
    return whole(*given, **named)


profile.build = counted
from fedfloor.api.run import carried_out as run

with tempfile.TemporaryDirectory() as place:
    data = {"name": "labels", "samples_per_device": 20, "partition": {"kind": "iid"}}
    about = {"name": "calls", "rounds": 2, "park": {"devices": 4, "factories": 2}, "model": {"name": "mlp-2nn"}}
    work = {"epochs": 1, "batch_size": 10}
    experiment = config.from_table({**about, "data": data, "work": work, "network": {"profile": "wifi"}})
    counts.clear()
    run(experiment, Path(place) / "run", ranks=1)
print(len(counts))
"""


DRAFTED = """
import json, os, random, sys, tempfile
from pathlib import Path

place = tempfile.TemporaryDirectory()
os.environ["FEDFLOOR_CACHE"] = place.name + "/cache"
path = Path(place.name) / "plant.csv"
rng = random.Random(0)
lines = ["machine,time,heat,load,spare,mode,wear"]
modes = ["idle", "run", "rinse"]
for n in range(600):
    heat = "" if n % 97 == 5 else f"{rng.gauss(50, 5):.2f}"
    mode = modes[n // 10 % 3]
    lines.append(f"m{n // 100},{n % 100},{heat},{rng.random():.3f},,{mode},{rng.gauss(2, 1):.3f}")
path.write_text("\\n".join(lines) + "\\n")
found = {"opens": 0, "loads": 0, "parks": 0}


def watch(event, given):
    found["opens"] += event == "open" and str(given[0]) == str(path) and given[1] is not None  # not by os.open


from fedfloor.data.files import table
from fedfloor.runs import parks


def counted(key, whole):
    def function(*given, **named):
        found[key] += 1
        return whole(*given, **named)
    return function


table.load = counted("loads", table.load)
parks.build = counted("parks", parks.build)
from fedfloor.drafting.draft import draft

sys.addaudithook(watch)
draft(path, path.with_name("plant.toml"), ["data.columns.label=wear"])
print(json.dumps(found))
"""


def changes(text: str) -> int:
    """Return how often a file sets an item of a table, removes one, or merges a table into it."""
    found = 0
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.Subscript):
            found += isinstance(one.ctx, ast.Store | ast.Del)
        elif isinstance(one, ast.AugAssign):
            found += isinstance(one.op, ast.BitOr)
        elif isinstance(one, ast.Call):
            found += getattr(one.func, "attr", "") in ("setdefault", "update", "pop")
    return found


def caught(text: str) -> set[str]:
    """Return the kinds of errors that a file catches and gives a name to."""
    handlers = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ExceptHandler))
    return {ast.unparse(one.type) for one in handlers if one.type is not None and ast.unparse(one.type) != "OSError"}


def calls(text: str, name: str) -> int:
    """Return how often a file calls a function of this name."""
    found = (one.func for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call))
    return sum(name == getattr(function, "attr", getattr(function, "id", "")) for function in found)


def travels(text: str) -> int:
    """Return how often a module calls a function of engine/travel.py, or makes one of its paths."""
    return len(re.findall(r"\btravel\.\w+\(|\b(?:Visit|Edge)Path\(", text))


def by_hand(text: str) -> bool:
    """Return whether a file lets a method plan, and carries the plan out."""
    carried = ("ranks.run" + "(", "carrier.run" + "(", "forecast.resolved" + "(")  # this file is none of them
    return "method.plan(" in text and any(word in text for word in carried)


def walkers(text: str) -> list[str]:
    """Return the classes of a file that walk plans."""
    classes = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ClassDef))
    own = {one.name: {part.name for part in one.body if isinstance(part, ast.FunctionDef)} for one in classes}
    return [name for name, methods in own.items() if {"_train", "_parallel", "_probe"} <= methods]


def bodies(root: Path) -> list[tuple[int, str]]:
    """Return the lines of each function in a folder, without its head and docstring, and its name."""
    found = []
    for path in sorted(root.rglob("*.py")):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.FunctionDef):
                first = one.body[1] if ast.get_docstring(one) and len(one.body) > 1 else one.body[0]
                found.append(((one.end_lineno or 0) - first.lineno + 1, f"{one.name} in {path.name}"))
    return found


def several(text: str) -> int:
    """Return how often a file assigns a tuple that it writes out to a tuple of targets."""
    assigned = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Assign))
    return sum(isinstance(one.targets[0], ast.Tuple) and isinstance(one.value, ast.Tuple) for one in assigned)


def words_pinned(text: str) -> int:
    """Return how often a test compares an error's message with words of its own."""
    found = 0
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "raises":
            found += any(keyword.arg == "match" for keyword in one.keywords)
        elif isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.In | ast.Eq):
            sides = [ast.unparse(side) for side in (one.left, *one.comparators)]
            found += any(re.fullmatch(r"str\(\w+\.value\)", side) for side in sides)
    return found


def rooms(files: list[Path], root: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each room with its files and lines."""
    many = Counter[str]()
    lines = Counter[str]()
    for path in files:
        parts = path.relative_to(root).parts
        room = parts[0] if len(parts) > 1 else "(top)"
        many[room] += 1
        lines[room] += len(path.read_text().splitlines())
    for room in sorted(many):
        yield room, many[room], lines[room]


def waist(files: Iterable[Path], root: Path) -> dict[str, int]:
    """Return how many names of how many modules the rooms of the plant import of the rest, and the rest of them."""
    beyond = {True: set[tuple[str, str]](), False: set[tuple[str, str]]()}
    for path in files:
        here = path.relative_to(root).parts[0]
        if here == "cli":  # the commands import every room
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("fedfloor"):
                continue
            for alias in node.names:
                there = [*(node.module or "").split("."), alias.name][1]
                if (here in PLANT) != (there in PLANT):
                    beyond[here in PLANT].add((node.module or "", alias.name))
    modules = {module for module, _ in beyond[True]}
    return {"names": len(beyond[True]), "modules": len(modules), "names back": len(beyond[False])}


def _printed(program: str, root: Path) -> str:
    """Return the last line that a program prints with a tree's package."""
    place = {**os.environ, "PYTHONPATH": str(root.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=place)
    return done.stdout.splitlines()[-1]


def measured(root: Path) -> dict[str, object]:
    """Return all figures of a tree."""
    files = sorted(path for path in root.rglob("*.py"))
    texts = {path: path.read_text() for path in files}
    nodes = node_kinds(ast.parse(texts[root / "plan" / "nodes.py"]))
    kinds = {path: tests_of_kind(ast.parse(text), nodes) for path, text in texts.items()}
    known = {".".join(("fedfloor", *path.relative_to(root).with_suffix("").parts)): path for path in files}
    known |= {name.removesuffix(".__init__"): path for name, path in known.items() if name.endswith(".__init__")}
    graph = {path: imports(path, known) for path in files}
    tied = [[str(path.relative_to(root)) for path in one] for one in circles(graph)]
    counting = [path for path, text in texts.items() if "element_size()" in text or "flat.nbytes" in text]
    through = json.loads(_printed(PASSED, root))
    beside = [folder for name in ("benchmarks", "papers") for folder in (root.parents[1] / name).rglob("*.py")]
    every = texts | {path: path.read_text() for path in beside}
    by_room = list(rooms(files, root))
    tests = [path.read_text() for path in (root.parents[1] / "tests").rglob("*.py")]
    lines = sum(many for _, _, many in by_room)
    commented = sum(line.lstrip().startswith("#") for text in texts.values() for line in text.splitlines())

    def named(paths: list[Path]) -> list[str]:
        return [str(path.relative_to(root)) for path in paths]

    return {
        "files that test for kinds of node": named([path for path, many in kinds.items() if many]),
        "tests for kinds of node": sum(kinds.values()),
        "files that repeat turns": named([path for path, text in texts.items() if repeats(text)]),
        "files that count bytes of numbers": named(counting),
        "files a packet passes in a round of FedSR": through,
        "hooks of Objective": hooks(texts.values(), "Objective"),
        "hooks of Method": hooks(texts.values(), "Method"),
        "places that carry a round out": [
            str(path.relative_to(root.parents[1])) for path, text in every.items() if by_hand(text)
        ],
        "walkers of plans": [f"{path.name}: {one}" for path, text in texts.items() for one in walkers(text)],
        "calls of combined": sum(calls(text, "combined") for text in texts.values()),
        "calls that build the profile": sum(
            text.count("profile.build(") + text.count(" build(self)") for text in texts.values()
        ),
        "builds of the profile in a run": int(_printed(ROUNDS, root)),
        "calls of what travels": sum(travels(text) for path, text in texts.items() if path.name != "travel.py"),
        "refusals of methods, parts and settings": {
            name: texts[root / name].count("SettingError(")
            for name in ("methods/configured.py", "runs/checks.py", "runs/loop.py")
        },
        "a draft of a CSV file": json.loads(_printed(DRAFTED, root)),
        "changes of the document": sum(changes(text) for path, text in texts.items() if path.parent.name == "drafting"),
        "errors caught by drafting": sorted(
            set[str]().union(*(caught(text) for path, text in texts.items() if path.parent.name == "drafting"))
        ),
        "longest body in runs": "{}, {}".format(*max(bodies(root / "runs"))),
        "bodies above 50 lines": [f"{many}, {name}" for many, name in bodies(root) if many > 50],
        "import circles": tied,
        "files in import circles": sum(map(len, tied)),
        "rooms": {room: {"files": many, "lines": lines} for room, many, lines in by_room},
        "what the plant imports of the rest": waist(files, root),
        "the plant's rooms": {
            "files": sum(many for room, many, _ in by_room if room in PLANT),
            "lines": sum(many for room, _, many in by_room if room in PLANT),
        },
        "files": len(files),
        "lines": lines,
        "modules at the top": len(list(root.glob("*.py"))),
        "words pinned by tests": sum(map(words_pinned, tests)),
        "errors expected by key": sum(
            len(re.findall(r"\b(?:with|,) (?:refusals\.)?refused\(", text)) for text in tests
        ),
        "assignments of several values": round(1000 * sum(map(several, texts.values())) / lines, 1),
        "comments of their own line": round(1000 * commented / lines, 1),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", nargs="?", type=Path, default=Path(__file__).parents[1] / "src" / "fedfloor")
    parser.add_argument("--json", action="store_true", help="all figures with their lists")
    args = parser.parse_args()
    found = measured(args.src.resolve())
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            parts = (f"{k} {v['files']}/{v['lines']}" if isinstance(v, dict) else f"{k} {v}" for k, v in value.items())
            print(f"{name}: {', '.join(parts)}")
        elif isinstance(value, list):
            print(f"{name}: {len(value)}")
            for one in value:
                print(f"    {one}")
        else:
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()

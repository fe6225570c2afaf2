"""A graph of what may call what in the package, read from its source; it has too many edges rather than too few."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
MADE = ("__init__", "__post_init__", "__call__", "__enter__", "__exit__")  # what naming a class may call


class Graph:
    """Functions, methods and tables by full name, such as ``fedfloor.deploy.worker.Worker.reply``.

    A name leads to what it was imported or defined as, an attribute of anything but a module to all methods of that
    name (private ones: of the same module); a name that is only mentioned counts as called.

    Args:
        root: the package's folder.
        first: only these modules are read, and those that they import, directly or not, also inside of functions.
    """

    def __init__(self, root: Path, first: Sequence[str]) -> None:
        self.bodies: dict[str, ast.AST] = {}
        self.modules: dict[str, dict[str, str]] = {}  # module → name in it → full name
        self.methods: dict[str, list[str]] = {}  # name → methods of that name
        self.classes: dict[str, list[str]] = {}  # class → what naming it may call
        self._home: dict[str, str] = {}  # body → its module
        self._calls: dict[str, set[str]] = {}  # body → what it may call, once asked
        files = {}
        for file in root.rglob("*.py"):
            parts = [root.name, *file.relative_to(root).with_suffix("").parts]
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
        queue = list(first)
        for module in queue:
            tree = ast.parse(files[module].read_text())
            self._read(module, tree)
            used = {full for node in ast.walk(tree) for full in _imports(node).values()}
            used |= {full.rpartition(".")[0] for full in used}
            queue += sorted((used & set(files)) - set(queue))

    def _read(self, module: str, tree: ast.Module) -> None:
        names = self.modules[module] = {}
        for node in tree.body:
            names.update(_imports(node))
            if isinstance(node, Function | ast.ClassDef):
                names[node.name] = f"{module}.{node.name}"
                self._add(module, f"{module}.{node.name}", node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:  # tables of functions
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        names[target.id] = f"{module}.{target.id}"
                        self._add(module, f"{module}.{target.id}", node.value)

    def _add(self, module: str, name: str, node: ast.AST) -> None:
        if not isinstance(node, ast.ClassDef):
            self.bodies[name] = node
            self._home[name] = module
            return
        inner = [one for one in node.body if isinstance(one, Function)]
        self.classes[name] = [f"{name}.{one.name}" for one in inner if one.name in MADE]
        for one in inner:
            self._add(module, f"{name}.{one.name}", one)
            if one.name != "__init__":  # is called by its class's name
                self.methods.setdefault(one.name, []).append(f"{name}.{one.name}")

    def calls(self, name: str) -> set[str]:
        """Return what a function may call: of ours by full name, of others as it is imported."""
        if name not in self._calls:
            self._calls[name] = self._find(name)
        return self._calls[name]

    def _find(self, name: str) -> set[str]:
        nodes = list(ast.walk(self.bodies[name]))
        own = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        known = {key: full for key, full in self.modules[self._home[name]].items() if key not in own}
        known.update({key: full for one in nodes for key, full in _imports(one).items()})
        found: set[str] = set()
        for one in nodes:
            if isinstance(one, ast.Name) and one.id not in own:
                found.add(known.get(one.id, one.id))
            elif isinstance(one, ast.Attribute):
                dotted = self._dotted(one, known)
                found |= {dotted} if dotted else self._methods(one.attr, self._home[name])
        return found | {call for one in found for call in self.classes.get(one, ())}

    def _methods(self, attribute: str, module: str) -> set[str]:
        """Return the methods that an attribute may mean: private ones are called in their own module only."""
        some = self.methods.get(attribute, ())
        return {one for one in some if not attribute.startswith("_") or self._home[one] == module}

    def _dotted(self, node: ast.Attribute, known: Mapping[str, str]) -> str | None:
        """Return the full name of an attribute of a module, however deep."""
        inner = node.value
        base = known.get(inner.id) if isinstance(inner, ast.Name) else None
        base = self._dotted(inner, known) if isinstance(inner, ast.Attribute) else base
        if base is None or (base.startswith("fedfloor") and base not in self.modules):
            return None
        return self.modules.get(base, {}).get(node.attr, f"{base}.{node.attr}")

    def path(self, roots: Sequence[str], targets: set[str], without: Sequence[str] = ()) -> list[str]:
        """Return a chain of calls from a root to a target, none of which begins ``without``; empty: there is none."""
        before: dict[str, str] = dict.fromkeys(roots, "")
        queue = list(roots)
        for name in queue:
            if name in targets:
                chain = [name]
                while before[chain[0]]:
                    chain.insert(0, before[chain[0]])
                return chain
            for other in sorted(self.calls(name) - set(before)) if name in self.bodies else ():
                if not other.startswith(tuple(without)):
                    before[other] = name
                    queue.append(other)
        return []


def _imports(node: ast.AST) -> Mapping[str, str]:
    """Return what an import brings: name → full name."""
    if isinstance(node, ast.ImportFrom):
        return {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    names = node.names if isinstance(node, ast.Import) else ()
    return {one.asname or one.name.partition(".")[0]: one.name if one.asname else one.name.partition(".")[0]
            for one in names}  # fmt: skip


def methods_of(graph: Graph, *classes: str) -> Iterator[str]:
    """Yield the methods of classes, or the functions of modules, but what makes them."""
    for name in graph.bodies:
        if name.startswith(tuple(f"{one}." for one in classes)) and not name.endswith(".__init__"):
            yield name

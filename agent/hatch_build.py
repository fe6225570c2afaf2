"""What the wheel ``fedfloor-agent`` is made of: the modules that its program imports, and metadata of ``fedfloor``."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SHARED = ("license", "requires-python", "authors", "classifiers")


class Modules(BuildHookInterface):
    """Puts the files of all modules that the program may import into the wheel, those imported on use included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002, hatchling's interface
        """Name the files, and their places in the wheel."""
        source = Path(self.root).parent / "src"
        files = [*modules(source, self.config["program"]), source / "fedfloor" / "py.typed"]
        build_data["force_include"].update({str(path): str(path.relative_to(source)) for path in files})


class Shared(MetadataHookInterface):
    """Gives the wheel the metadata of ``fedfloor``, and its bounds on the packages that the agent needs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what the project file calls dynamic."""
        project = tomllib.loads((Path(self.root).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = [
            *project["dependencies"],
            *(one for extra in project["optional-dependencies"].values() for one in extra),
        ]
        bounds = {re.split(r"[^\w-]", line)[0]: line for line in lines}
        metadata.update({key: project[key] for key in SHARED})
        metadata["dependencies"] = [bounds[name] for name in self.config["packages"]]


def modules(source: Path, program: str) -> list[Path]:
    """Return the files of a module and of all of the package that it imports, directly or not."""
    found: dict[str, Path] = {}
    ahead = [program]
    while ahead:
        name = ahead.pop()
        place = source.joinpath(*name.split("."))
        path = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
        if path is not None and name not in found:
            found[name] = path
            ahead += [name.rpartition(".")[0] or name, *imported(path)]
    return sorted(found.values())


def imported(path: Path) -> Iterator[str]:
    """Yield what a file imports anywhere but for type annotations; a name that is imported may be a module, too."""
    ahead: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            ahead += ast.iter_child_nodes(node)

"""The public interface: what ``fedfloor`` itself names, and that looking at it costs nothing."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import fedfloor


def test_every_public_name_is_there_and_documented() -> None:
    for name in fedfloor.__all__:
        thing = getattr(fedfloor, name)
        assert name in {"__version__", "CLOUD", "Node"} or thing.__doc__, name
    assert set(fedfloor.__all__) == {"__version__", *fedfloor.MODULE_OF}


def test_type_checkers_see_the_public_names() -> None:
    (guard,) = (node for node in ast.parse(Path(fedfloor.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.name: str(node.module).removeprefix("fedfloor.")
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == fedfloor.MODULE_OF
    assert Path(fedfloor.__file__).with_name("py.typed").is_file()


def test_importing_the_package_does_not_wait_for_pytorch() -> None:
    code = "import sys, fedfloor; fedfloor.Method, fedfloor.Train; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_no_public_function_waits_to_be_iterated() -> None:
    """A generator that is called and not read does nothing, and says nothing."""
    public = [getattr(fedfloor, name) for name in fedfloor.__all__]
    managers = {fedfloor.follow}  # ``with`` is not forgotten: the body needs what it yields
    functions = [inspect.unwrap(each) for each in public if inspect.isfunction(each) and each not in managers]
    assert len(functions) >= 10
    assert not any(map(inspect.isgeneratorfunction, functions))

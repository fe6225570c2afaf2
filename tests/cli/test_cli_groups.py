"""The tree of commands: panels, groups, former names, examples, and names that are used in one meaning."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from commands import Command
from fedfloor.cli.app import PANELS, app
from fedfloor.cli.examples import EXAMPLES
from fedfloor.cli.groups import MOVED

ROOT = typer.main.get_command(app)
HERE = Path(__file__).parents[2]
SOURCES = ("reproduce", "bench")  # whose options stand in the source tree


def leaves(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(group, click.Group):
        yield path, group
        return
    for name, command in group.commands.items():
        yield from leaves(command, (*path, name))


LEAVES = dict(leaves(ROOT))


def test_the_help_fits_a_screen_of_80_by_40(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("--help").out.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines[1:] if line.endswith("...")]


def test_every_command_is_in_one_panel() -> None:
    assert isinstance(ROOT, click.Group)
    named = [name for names in PANELS.values() for name in names]
    assert sorted(named) == sorted(ROOT.commands)


@pytest.mark.parametrize("words", [(), ("park",), ("model",), ("park", "live"), ("list",), ("datasets",), ("check",)])
def test_a_group_without_a_command_shows_its_help(words: tuple[str, ...], command: Command) -> None:
    said = command(*words)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: fedfloor {' '.join(words)}".rstrip())


@pytest.mark.parametrize("name", MOVED)
def test_a_former_name_leads_to_the_command(name: str, command: Command) -> None:
    assert MOVED[name].split(" ")[0] in command("--help").out
    said = command(name, "--whatever")
    assert said.code == 2
    assert f"fedfloor {MOVED[name]}" in said.err


def test_a_mistyped_command_is_suggested_once(command: Command) -> None:
    assert command("runn").err.count("Did you mean") == 1
    assert command("park", "provison").err.count("'provision'") == 1


@pytest.mark.parametrize("path", [path for path in LEAVES if path[-1] not in SOURCES], ids=" ".join)
def test_the_examples_of_a_command_parse(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    lines = EXAMPLES[" ".join(path)]
    assert len(lines) == 2
    assert all(len(f"    fedfloor {line}") <= 80 for line in lines)
    for line in lines:
        words = shlex.split(line)
        assert tuple(words[: len(path)]) == path
        command.make_parser(click.Context(command)).parse_args(words[len(path) :])


def test_a_park_and_a_device_are_named_in_one_way() -> None:
    for path, command in LEAVES.items():
        for parameter in command.params:
            names = {*parameter.opts}
            if "--park" in names or "--device" in names:
                assert parameter.type.name != "boolean", path
            assert "--anyway" not in names, path


NAMED = re.compile(r"(?<![\w/.-])fedfloor ((?:[a-z]+ ?)+)")


def test_documents_and_messages_name_commands_that_exist() -> None:
    """Text in back quotes or at a prompt that begins with fedfloor goes on with a command."""
    files = [HERE / "README.md", *(HERE / "docs").glob("*.md"), *(HERE / "src").rglob("*.py")]
    wrong = []
    for file in files:
        lines = re.sub(r"(?<=`fedfloor)\n *", " ", file.read_text(encoding="utf-8"))  # broken between two words
        for text in re.findall(r"(?:`|^\$? ?)(fedfloor [a-z][^`\n]*)", lines, re.MULTILINE):
            if not known(text.split()[1:]):
                wrong.append(f"{file.name}: {text}")
    assert not wrong


def test_the_targets_of_make_type_commands_that_exist() -> None:
    typed = re.findall(r"(?:\$\(BIN\)|empty/bin)/fedfloor ([a-z].*)", (HERE / "Makefile").read_text(encoding="utf-8"))
    assert len(typed) > 5
    assert [line for line in typed if not known(line.split())] == []


@pytest.mark.parametrize("name", SOURCES)
def test_commands_of_the_source_tree_end_their_help_with_examples(name: str, command: Command) -> None:
    *_, first, second = command(name, "--help").out.strip().splitlines()
    assert [line.strip() for line in (first, second)] == [f"fedfloor {line}" for line in EXAMPLES[name]]


def known(words: list[str]) -> bool:
    """Whether words begin with a command; groups may end the text."""
    command: click.Command = ROOT
    for word in words:
        if not isinstance(command, click.Group):
            return True
        word = word.strip(".,:;)'\"")
        if not re.fullmatch("[a-z]+", word):
            return command is not ROOT
        if word not in command.commands:
            return command is not ROOT and "|" in word
        command = command.commands[word]
    return True

"""Groups of commands: headed panels, the names that commands had before, and help where no command is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import click
from typer.core import TyperCommand, TyperGroup

from fedfloor.base.errors import SettingError, nearest

MOVED = {  # former names of commands → their names
    "provision": "park provision",
    "cloud": "park cloud",
    "edge": "park edge",
    "device": "park device",
    "sense": "park sense",
    "live": "park live",
    "audit": "park audit",
    "schedule": "park schedule",
    "release": "model release",
    "promote": "model promote",
    "rollback": "model rollback",
    "releases": "model list",
    "alarms": "model alarms",
    "methods": "list methods",
    "parts": "list parts",
    "models": "list models",
    "networks": "list links",
    "reprice": "price RUN… --network NAME",
}


COMPLETION = ("install_completion", "show_completion")  # options that docs/install.md names


class PathCommand(TyperCommand):
    """A command that refuses empty paths, such as of a shell's variable that is not set, as they mean this folder."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command.

        Raises:
            SettingError: a path is empty.
        """
        given, _, _ = self.make_parser(ctx).parse_args([*args])
        for one in self.params:
            value = given.get(one.name or "") if isinstance(one.type, click.Path) else None
            paths = value if isinstance(value, tuple | list) else (value,)
            if any(isinstance(path, str) and not path.strip() for path in paths):
                name = one.opts[-1] if isinstance(one, click.Option) else one.human_readable_name
                raise SettingError(f"{name}: the path is empty. Name a file or folder; the current one is '.'.")
        return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """A group whose help is printed where no command is given, and which suggests the nearest command once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help, and end with exit code 0, without arguments."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument, and the arguments that remain."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            self._refuse(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: click.Context, name: str) -> NoReturn:
        if ctx.parent is None and name in MOVED:
            raise click.UsageError(f"'{name}' is now: fedfloor {MOVED[name]}", ctx)
        raise click.UsageError(f"No such command '{name}'.{nearest(name, self.commands)}", ctx)


class PanelGroup(CommandGroup):
    """A group whose help lists its commands in headed panels."""

    panels: Mapping[str, Mapping[str, Any]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options but for those of completion, so that the help fits a screen, and the commands."""
        for option in self.params:
            if isinstance(option, click.Option) and option.name in COMPLETION:
                option.hidden = True
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each panel, all with columns of the same width."""
        width = max(map(len, self.commands))
        limit = formatter.width - 4 - width
        for title, names in self.panels.items():
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name in names
                if (command := self.get_command(ctx, name)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

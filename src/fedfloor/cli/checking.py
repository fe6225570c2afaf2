"""Commands that try what somebody wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from fedfloor.cli.options import Json, Set

check = typer.Typer(help="Try what you wrote: a method.", no_args_is_help=True)


@check.callback()
def _root() -> None:
    """Try what you wrote."""


@check.command()
def method(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method's name, or MODULE:NAME of your own.")],
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Try the contract of a method on small parks: pure plans, prices, ranks, resumed runs, lost visits (a minute)."""
    from fedfloor.conformance import CHECKS, check_method
    from fedfloor.terminal import printable, show

    done = []
    for one in check_method(name, changes or ()):
        done.append(one)
        if not as_json:
            print(printable(f"{'ok    ' if not one.why else 'FAILED'}  {one.name}{': ' + one.why if one.why else ''}"))
    broken = sum(bool(one.why) for one in done)
    if as_json:
        rows = [{"check": one.name, "kept": not one.why, "why": one.why} for one in done]
        show(rows, as_json=True, method=name, kept=broken == 0)
    else:
        kept = f"{len(CHECKS) - broken} of {len(CHECKS)} checks"
        print(printable(f"{name} keeps the contract: {kept}." if not broken else f"{name}: {kept} are kept."))
    if broken:
        raise typer.Exit(1)

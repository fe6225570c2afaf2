"""Commands that show what will happen, and what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfloor.cli import budgets, shared
from fedfloor.cli.options import At, File, Json, Set
from fedfloor.errors import SettingError


def draw(
    experiment: File, changes: Set = None,
    number: Annotated[int, typer.Option("--round", metavar="N", help="The round to draw.")] = 1,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture to this file.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Draw the plan of one round, without training."""
    from fedfloor.config import combined
    from fedfloor.parts.server import Sgd
    from fedfloor.parts.server import words as server_words
    from fedfloor.plan import text
    from fedfloor.report.plan_svg import svg as picture
    from fedfloor.report.plan_text import tree
    from fedfloor.runs.parks import build_park
    from fedfloor.runs.preview import plan_of
    from fedfloor.terminal import show

    what = shared.experiment(experiment, changes)
    park = build_park(what)
    plan = plan_of(what, park, number)
    if svg is not None:
        try:
            svg.write_text(picture(plan, lambda k: int(park.factory_of[k]), park.called), encoding="utf-8")
        except OSError as error:
            raise SettingError(f"--svg {svg}: {error.strerror or error}.") from error
    server = combined(what).server
    if as_json:
        show([], as_json=True, plan=text.to_json(plan), plan_hash=text.digest(plan), names=park.called.table())
    else:
        print(tree(plan, names=park.called) if svg is None else f"picture: {svg}")
        if server != Sgd():
            print(f"then the cloud steps: {server_words(server)}")


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: DIR/report.html.")] = None,
    target: Annotated[
        float | None, typer.Option("--target", help="Value of the headline (accuracy) to count rounds to.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table as Markdown, too.")
    ] = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Write an HTML page about runs; print a table."""
    budget = budgets.budget(at)
    shared.check_target(folders, target)
    if markdown is not None:
        shared.markdown(folders, markdown, target, budget)
    shared.summary(folders, out or folders[0] / "report.html", target, as_json=as_json, at=budget)


def track(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="tensorboard, mlflow or csv.")],
    out: Annotated[str | None, typer.Option("--out", metavar="PATH", help="Event folder; CSV file, or - .")] = None,
    as_json: Json = False,
) -> None:
    """Show runs that are there in TensorBoard, MLflow or CSV."""
    shared.track(folders, to, out, as_json=as_json)

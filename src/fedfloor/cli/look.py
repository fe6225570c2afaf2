"""Commands that show plans and runs, and use or try a model or a method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfloor.cli import options, shared
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
    from fedfloor.runs.forecast import plan_of
    from fedfloor.runs.parks import build_park
    from fedfloor.terminal import show

    what = shared.experiment(experiment, changes)
    park = build_park(what)
    plan = plan_of(what, park, number)
    if svg is not None:
        try:
            svg.write_text(picture(plan, lambda k: int(park.factory_of[k]), park.display_names), encoding="utf-8")
        except OSError as error:
            raise SettingError(f"--svg {svg}: {error.strerror or error}.") from error
    server = combined(what).server
    if as_json:
        show([], as_json=True, plan=text.to_json(plan), plan_hash=text.digest(plan), names=park.display_names.table())
    else:
        print(tree(plan, names=park.display_names) if svg is None else f"picture: {svg}")
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
    budget = options.budget(at)
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


Model = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its model.safetensors.")]
OwnCode = Annotated[
    bool, typer.Option("--own-code", help="The file names module:Name; load it only if you trust the file.")
]

Which = Annotated[
    str,
    typer.Option("--which", metavar="last|best", help="The last round's model, or the best one's by validation data."),
]


def predict(
    run: Model,
    files: Annotated[list[Path], typer.Argument(metavar="FILES…", help="Pictures, tables, .npz, or folders of them.")],
    top: Annotated[int, typer.Option("--top", metavar="K", help="Tell the K likeliest classes.")] = 1,
    resize: Annotated[bool, typer.Option("--resize", help="Scale pictures of another size.")] = False,
    invert: Annotated[bool, typer.Option("--invert", help="Exchange light and dark in pictures.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every sample, not the first 20 only.")] = False,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write every sample to this file.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The device that one file is of, and whose model answers.")
    ] = "",
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Say what a trained model sees in pictures or sensor data."""
    from fedfloor.inference import shown

    shown.predict(run, files, shown.How(top, resize, invert, every, table, own, which, device), as_json=as_json)


def export(
    run: Model,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: RUN/model.onnx.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="The device whose model it is.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Write every device's model; FILE is a folder.")] = False,
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Write a trained model as ONNX, for devices without PyTorch."""
    from fedfloor.inference import shown

    if every and (device or which != "last"):
        raise SettingError("--all: these are all devices' last models. Leave --device and --which out.")
    if every:
        shown.export_all(run, out, as_json=as_json, own=own)
    else:
        shown.export(run, out, as_json=as_json, own=own, which=which, device=device)


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

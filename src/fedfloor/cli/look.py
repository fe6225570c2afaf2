"""Commands that show plans and runs, use a trained model, or check a method."""

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

    setup = shared.experiment(experiment, changes)
    park = build_park(setup)
    plan = plan_of(setup, park, number)
    if svg is not None:
        shared.save("--svg", svg, picture(plan, lambda k: int(park.factory_of[k]), park.display_names))
    server = combined(setup).server
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
        float | None,
        typer.Option(
            "--target",
            help="Compare first round and cost at which the headline metric (such as accuracy) has this value.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Also write the table as Markdown.")
    ] = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Write an HTML report on runs and print its table."""
    budget = options.budget(at)
    shared.check_target(folders, target)
    if markdown is not None:
        shared.markdown(folders, markdown, target, budget)
    shared.summary(folders, out or folders[0] / "report.html", target, as_json=as_json, at=budget)


def track(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="tensorboard, mlflow or csv.")],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="Event folder; for csv a file, or - for standard output."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Export the ledgers of existing runs to TensorBoard, MLflow or CSV."""
    shared.track(folders, to, out, as_json=as_json)


Model = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its model.safetensors.")]
OwnCode = Annotated[
    bool,
    typer.Option("--own-code", help="Import code named in the file (module:Name); only for trusted files."),
]

Which = Annotated[
    str,
    typer.Option(
        "--which",
        metavar="last|best",
        help="The model of the last round, or of the round that is best on validation data.",
    ),
]


def predict(
    run: Model,
    files: Annotated[list[Path], typer.Argument(metavar="FILES…", help="Pictures, tables, .npz, or folders of them.")],
    top: Annotated[int, typer.Option("--top", metavar="K", help="List the K most likely classes.")] = 1,
    resize: Annotated[bool, typer.Option("--resize", help="Scale pictures of other sizes.")] = False,
    invert: Annotated[bool, typer.Option("--invert", help="Invert the brightness of pictures.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every sample, not only the first 20.")] = False,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write every sample to this file.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The device of the files, whose own model is used.")
    ] = "",
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Predict pictures or sensor data with a trained model."""
    from fedfloor.inference import shown

    shown.predict(
        run, files, top=top, resize=resize, invert=invert, every=every, table=table, own=own, which=which,
        device=device, as_json=as_json,
    )  # fmt: skip


def export(
    run: Model,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: RUN/model.onnx.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="The device whose model is exported.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Export every device's model; --out is a folder.")] = False,
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Export a trained model as ONNX, for devices without PyTorch."""
    from fedfloor.inference import shown

    if every and (device or which != "last"):
        raise SettingError("--all exports every device's last model. Leave --device and --which out.")
    if every:
        shown.export_all(run, out, as_json=as_json, own=own)
    else:
        shown.export(run, out, as_json=as_json, own=own, which=which, device=device)


check = typer.Typer(help="Check your own method.", no_args_is_help=True)


@check.callback()
def _root() -> None:
    """Check your own method."""


@check.command()
def method(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method's name, or MODULE:NAME of your method.")],
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Check a method's contract on small parks: plans, prices, ranks, resuming, lost visits (about a minute)."""
    from fedfloor.conformance import CHECKS, check_method
    from fedfloor.terminal import printable, show

    done = []
    for check in check_method(name, changes or ()):
        done.append(check)
        if not as_json:
            line = f"FAILED  {check.name}: {check.why}" if check.why else f"ok      {check.name}"
            print(printable(line))
    broken = sum(bool(check.why) for check in done)
    if as_json:
        rows = [{"check": check.name, "kept": not check.why, "why": check.why} for check in done]
        show(rows, as_json=True, method=name, kept=broken == 0)
    else:
        kept = f"{len(CHECKS) - broken} of {len(CHECKS)} checks"
        print(printable(f"{name} keeps the contract: {kept}." if not broken else f"{name}: {kept} are kept."))
    if broken:
        raise typer.Exit(1)

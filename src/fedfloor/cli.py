"""The commands: thin users of the library."""

from __future__ import annotations

import os

from fedfloor.threads import VARIABLES

os.environ.update(VARIABLES)  # before NumPy and PyTorch start

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfloor import __version__, commands
from fedfloor.errors import FedfloorError, SettingError, unknown

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Federated learning on the factory floor: train one model across the devices of an industrial park.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

File = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="An experiment file, or the name of a bundled one.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as work.lr=0.05.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder to write; default runs/NAME.")]
Ranks = Annotated[int | None, typer.Option("--ranks", metavar="N", help="Processes; default: one per core.")]
Stop = Annotated[int | None, typer.Option("--stop-after", metavar="N", help="Stop after round N; schedules stay.")]
Until = Annotated[str | None, typer.Option("--until", metavar="WHAT=X", help="Stop once reached: accuracy=0.8.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Force = Annotated[bool, typer.Option("--force", help="Resume although experiment, version or CPU changed.")]
Model = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its model.safetensors.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="WHERE", help="Follow in tensorboard or mlflow; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"fedfloor {__version__}")
        raise typer.Exit


@app.command()
def run(
    experiment: File, changes: Set = None, out: Out = None, ranks: Ranks = None, stop_after: Stop = None,
    until: Until = None, resume: Resume = False, force: Force = False, track: Track = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Train by one experiment file."""
    from fedfloor.runs.api import run as carry_out
    from fedfloor.runs.launch import is_first
    from fedfloor.terminal import both, progress, seconds
    from fedfloor.tracking.tracker import follow as tracked

    what, limits = commands.experiment(experiment, changes), commands.limits(stop_after, until)
    folder = out or Path("runs") / what.name
    last = min(what.rounds, limits.stop_after or what.rounds)
    with tracked(folder, track or []) as record:
        with progress(what.name, last) as follow:
            got = carry_out(
                what, folder, ranks=commands.ranks(ranks), resume=resume, force=force, limits=limits,
                report=both(follow, record) if is_first() else None,
            )  # fmt: skip
        if not is_first():
            return
        commands.summary([folder], folder / "report.html", limits.accuracy, as_json=as_json)
    if got.stopped == "interrupted":
        _interrupted(f"stopped after round {got.lines[-1].round}")
    print(f"{got.stopped} after {seconds(sum(line.wall_s for line in got.lines))} of rounds", file=sys.stderr)


def _interrupted(what: str) -> None:
    print(f"{what}. {commands.RESUME}", file=sys.stderr)
    raise typer.Exit(130)


@app.command()
def new(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table (CSV), a folder per device, or .npz.")],
    changes: Set = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: NAME.toml here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Look at your own data and write an experiment file for them."""
    from fedfloor import draft
    from fedfloor.terminal import show

    file = out or Path(f"{data.stem.removesuffix('.csv')}.toml")
    text, park = draft.draft(data, file, changes or [])
    draft.write(text, file, force=force)
    show(draft.rows(park), as_json=as_json, experiment=str(file), summary=draft.summary(park))
    if not as_json:
        print(f"{draft.summary(park)}\nexperiment: {file} (now: fedfloor run {file})")


@app.command()
def compare(
    experiment: File,
    methods: Annotated[str, typer.Option("--methods", metavar="A,B", help="Methods, separated by commas.")],
    seeds: Annotated[str, typer.Option("--seeds", metavar="0,1", help="Seeds, separated by commas.")] = "0",
    changes: Set = None, out: Out = None, ranks: Ranks = None, stop_after: Stop = None, until: Until = None,
    resume: Resume = False, track: Track = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Compare methods and seeds in one report."""
    from fedfloor.runs.compare import tasks

    what, limits = commands.experiment(experiment, changes), commands.limits(stop_after, until)
    folder = out or Path("runs") / f"{what.name}-compare"
    names = [name.strip() for name in methods.split(",")]
    work = tasks(what, names, commands.numbers("seeds", seeds), folder)
    size = commands.ranks(ranks)
    if not commands.compare(work, folder, limits, size, resume=resume, as_json=as_json, track=track or []):
        _interrupted("stopped")


@app.command()
def demo(out: Out = None, ranks: Ranks = None, as_json: Json = False) -> None:
    """Watch FedAvg and FedSR train: which wins?"""
    from datetime import datetime

    from fedfloor import config
    from fedfloor.runs.compare import tasks
    from fedfloor.runs.orders import Limits

    folder = out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    what = config.read(commands.bundled()["demo"])  # not a file that happens to be called demo
    work = tasks(what, ["fedavg", "fedsr"], [what.seed], folder)
    if not commands.compare(work, folder, Limits(), commands.ranks(ranks), resume=False, as_json=as_json):
        print(f"stopped. The runs so far are in {folder}", file=sys.stderr)
        raise typer.Exit(130)


@app.command()
def draw(
    experiment: File, changes: Set = None,
    number: Annotated[int, typer.Option("--round", metavar="N", help="The round to draw.")] = 1,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture to this file.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Draw the plan of one round, without training."""
    from fedfloor.plan import draw as pictures
    from fedfloor.plan import text
    from fedfloor.runs.launch import build_park
    from fedfloor.runs.preview import plan_of
    from fedfloor.terminal import show

    what = commands.experiment(experiment, changes)
    park = build_park(what)
    plan = plan_of(what, park, number)
    if svg is not None:
        try:
            svg.write_text(pictures.svg(plan, lambda k: int(park.factory_of[k])), encoding="utf-8")
        except OSError as error:
            raise SettingError(f"--svg {svg}: {error.strerror or error}.") from error
    if as_json:
        show([], as_json=True, plan=text.to_json(plan), plan_hash=text.digest(plan))
    else:
        print(pictures.tree(plan) if svg is None else f"picture: {svg}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: DIR/report.html.")] = None,
    target: Annotated[float | None, typer.Option("--target", help="Accuracy to count the rounds to.")] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML page about runs; print a table."""
    if target is not None and not 0 < target <= 1:
        raise SettingError(f"--target {target}: accuracy is a share, above 0 and at most 1, such as 0.8.")
    commands.summary(folders, out or folders[0] / "report.html", target, as_json=as_json)


@app.command()
def predict(
    run: Model,
    files: Annotated[list[Path], typer.Argument(metavar="FILES…", help="Pictures, .csv, .npz, or folders of them.")],
    top: Annotated[int, typer.Option("--top", metavar="K", help="Tell the K likeliest classes.")] = 1,
    resize: Annotated[bool, typer.Option("--resize", help="Scale pictures of another size.")] = False,
    invert: Annotated[bool, typer.Option("--invert", help="Exchange light and dark in pictures.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every sample, not the first 20 only.")] = False,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write every sample to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a trained model sees in pictures or sensor data."""
    from fedfloor.inference import shown

    shown.predict(run, files, shown.How(top, resize, invert, every, table), as_json=as_json)


@app.command()
def export(
    run: Model,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: RUN/model.onnx.")] = None,
    as_json: Json = False,
) -> None:
    """Write a trained model as ONNX, for devices without PyTorch."""
    from fedfloor.inference import shown

    shown.export(run, out, as_json=as_json)


@app.command()
def track(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="tensorboard, mlflow or csv.")],
    out: Annotated[str | None, typer.Option("--out", metavar="PATH", help="Event folder; CSV file, or - .")] = None,
    as_json: Json = False,
) -> None:
    """Show runs that are there in TensorBoard, MLflow or CSV."""
    commands.track(folders, to, out, as_json=as_json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this method's card.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one method's card."""
    import inspect

    from fedfloor.methods.catalog import METHODS, find
    from fedfloor.terminal import show

    if name is None:
        rows = [{"method": key, "what": (inspect.getdoc(kind) or "").split("\n")[0]} for key, kind in METHODS.items()]
        show(rows, as_json=as_json)
        return
    card = inspect.getdoc(find(name)) or ""
    if as_json:
        show([{"method": name, "card": card}], as_json=True)
    else:
        print(f"{name}\n\n{card}")


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this network's card and layers.")] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="C,H,W", help="Of one sample; C,L or C: sensors.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", metavar="N", help="Number of classes.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks, or show and check one."""
    from fedfloor.models import listing
    from fedfloor.terminal import show

    sides = tuple(commands.numbers("shape", shape)) if shape is not None else None
    if name is None:
        if shape is not None or classes is not None:
            raise SettingError("--shape and --classes belong to one network: fedfloor models NAME --shape C,H,W.")
        show(listing.rows(), as_json=as_json)
        return
    card, facts, layers = listing.card(name, sides, classes)
    if as_json:
        show(layers, as_json=True, model=name, card=card, **facts)
        return
    print(f"{name}\n\n{card}".rstrip())
    show([facts], as_json=False)
    show(layers, as_json=False, title="layers with trained parameters")


datasets = typer.Typer(help="Say which data sets there are, and where they are; get one.")
app.add_typer(datasets, name="datasets")


@datasets.callback(invoke_without_command=True)
def _datasets(context: typer.Context, as_json: Json = False) -> None:
    from fedfloor.park.sources import looked_in
    from fedfloor.terminal import show

    if context.invoked_subcommand is None:
        show(looked_in(), as_json=as_json)
    elif as_json:
        raise SettingError(f"--json stands behind the command: fedfloor datasets {context.invoked_subcommand} … --json")


@datasets.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set.")],
    root: Annotated[Path | None, typer.Option("--root", metavar="DIR", help="Default: $FEDFLOOR_DATA.")] = None,
    mirror: Annotated[str | None, typer.Option("--from", metavar="URL", help="Ask URL/NAME/FILE instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ from the published.")] = False,
    as_json: Json = False,
) -> None:
    """Download a published data set, checked by its checksums."""
    from fedfloor.park import download
    from fedfloor.terminal import downloads, show

    try:
        with downloads() as follow:
            rows = download.get(name, root, mirror=mirror, force=force, follow=follow)
    except KeyboardInterrupt:
        print("stopped: whole files are kept, the rest is fetched by the same command.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        show(rows, as_json=True)
    else:
        show([{key: row[key] for key in ("file", "bytes", "state")} for row in rows], as_json=False)
        print(f"folder: {Path(str(rows[0]['where'])).parent}")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="simulation")] = "simulation",
    ranks: Ranks = None,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Rounds of each kind.")] = 7,
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Cases whose name holds this.")] = "",
    as_json: Json = False,
) -> None:
    """Measure how fast rounds are, beside a bare training loop."""
    from fedfloor.bench import simulation
    from fedfloor.terminal import show

    if what != "simulation":
        raise unknown("benchmark", what, ["simulation"])
    cases = [case for case in simulation.CASES if only in case.name]
    rows = simulation.measure(cases, commands.ranks(ranks), repeats, lambda text: print(text, file=sys.stderr))
    show(rows, as_json=as_json)


def main() -> None:
    """Run the command line; errors a user can mend are shown without a traceback."""
    from fedfloor.terminal import log_to_stderr

    log_to_stderr()
    try:
        app()
    except FedfloorError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except MemoryError as error:
        print(f"error: out of memory ({error}). Use fewer devices, or fewer samples per device.", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Commands that train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.api.source import bundled
from fedfloor.base import regular
from fedfloor.base.errors import SettingError, unknown
from fedfloor.cli import options, shared
from fedfloor.cli.options import At, File, Force, Json, Out, Ranks, References, Resume, Set, Stop, Track, Until
from fedfloor.runs.orders import Limits
from fedfloor.runs.terminal import both, progress, say, seconds, show

if TYPE_CHECKING:
    from fedfloor.api.run import Run
    from fedfloor.api.sweeping import Swept
    from fedfloor.experiment import Experiment
    from fedfloor.runs.replay import Recording
    from fedfloor.runs.sweep import Sweep

DEMOS = ("anomaly", "life", "forecast", "faults")  # each an experiment demo-TASK with data of the generated plant


def new(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table (such as CSV), a folder per device, or .npz.")],
    changes: Set = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="LEVELS",
            help="The meaning of folder levels, such as device/label/file ([data] layout).",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="KIND",
            help="The task: classification, regression, reconstruction, forecasting or survival.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write; default: NAME.toml.")
    ] = None,
    force: options.Overwrite = False,
    as_json: Json = False,
) -> None:
    """Inspect your data and write an experiment file for them."""
    import shlex

    from fedfloor.data.files import expanded
    from fedfloor.drafting.draft import draft, given_settings, title
    from fedfloor.drafting.text import check_free, rows, skew_of, summary
    from fedfloor.runs.folder import write

    file = expanded(out or Path(f"{title(data)}.toml"))
    settings = [*([] if task is None else [f'data.task.kind="{task}"']), *(changes or [])]
    settings += [] if layout is None else [f'data.layout="{layout}"']
    given_settings(data, file, settings)
    check_free(file, force=force)
    drafted = draft(data, file, settings)
    text = drafted.text
    park = drafted.park
    write(file, text)
    skew = skew_of(text, park)
    measured = None if skew is None else skew._asdict()
    size = summary(park)
    now = f"fedfloor run {shlex.quote(str(file))}"
    after = [size, skew.words if skew is not None else "", f"experiment: {file} (now: {now})"]
    show(
        rows(park), as_json=as_json, after=filter(None, after), experiment=str(file), summary=size,
        label_skew=measured, notes=list(drafted.notes),
    )  # fmt: skip


Replay = Annotated[
    Path | None,
    typer.Option(
        "--replay", metavar="RUN", help="Train a run on real machines again, to the bit, in place of EXPERIMENT."
    ),
]  # fmt: skip
Recalibrate = Annotated[
    str | None,
    typer.Option(
        "--recalibrate", metavar="RUN",
        help="Keep RUN's model, and find thresholds or intervals again: --rounds 1 and [model] init_from, keep.",
    ),
]  # fmt: skip


def run(
    experiment: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="An experiment file, or the name of a bundled one.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="Short for --set method.name=NAME.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", help="Short for --set rounds=N.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Short for --set seed=N.")] = None,
    changes: Set = None, out: Out = None, ranks: Ranks = None, stop_after: Stop = None,
    until: Until = None, resume: Resume = False, force: Force = False, track: Track = None,
    references: References = False, watch: options.Watch = False, stay: options.Stay = False, as_json: Json = False,
    replay: Replay = None, recalibrate: Recalibrate = None, own: options.OwnCode = False,
) -> None:  # fmt: skip
    """Train one model as described by an experiment file."""
    from fedfloor.api.run import carried_out
    from fedfloor.cli.look import watched
    from fedfloor.runs.launch import is_first
    from fedfloor.runs.references import accompanied
    from fedfloor.tracking.tracker import follow as tracked

    short = {"method.name": method, "rounds": rounds, "seed": seed}
    if recalibrate is not None:
        short |= {"rounds": rounds or 1, "model.init_from": recalibrate, "model.keep": "true"}
    changes = [*(f"{key}={value}" for key, value in short.items() if value is not None), *(changes or [])]
    if replay is not None and (changes or resume or references or until):
        raise SettingError("--replay RUN repeats a run as it was: leave out settings, --until, --resume, --references.")
    setup, recording = _asked(experiment, replay, changes, own=own)
    limits = options.limits(stop_after, until, setup.evaluate.figure)
    folder = out or Path("runs") / setup.name
    if recording is not None:
        limits = replace(limits, stop_after=min(len(recording.rounds), limits.stop_after or setup.rounds))
    last = min(setup.rounds, limits.stop_after or setup.rounds)
    if references:
        shared.check_references(setup, folder)
    with watched(folder, watch=watch and is_first(), stay=stay), tracked(folder, track or []) as record:
        with progress(setup.name, last) as follow:
            got = carried_out(
                setup, folder, ranks=shared.ranks(ranks, setup), resume=resume, force=force, limits=limits,
                report=both(follow, record) if is_first() else None, replay=recording,
            )  # fmt: skip
        if not is_first():
            return
        wanted = (references or (replay is None and accompanied(setup))) and got.stopped != "interrupted" and got.lines
        whole = not wanted or shared.references(setup, folder, got.lines[-1].round, ranks, only_plain=not references)
        shared.summary([folder], folder / "report.html", limits.target(setup.evaluate.figure), as_json=as_json)
    _ended(got, folder, replay, whole=whole)


def _asked(
    experiment: str | None, replay: Path | None, changes: list[str], *, own: bool
) -> tuple[Experiment, Recording | None]:  # fmt: skip
    """Return the experiment of a run, and the run on real machines that it repeats, which may be a stranger's."""
    from fedfloor.runs.replay import Recording

    if (experiment is None) is (replay is None):
        raise SettingError("give one EXPERIMENT, or --replay RUN.")
    if replay is None:
        return shared.experiment(str(experiment), changes), None
    recording = Recording(replay)
    return recording.simulated(shared.experiment(str(replay / "experiment.toml"), changes, own=own)), recording


def _ended(got: Run, folder: Path, replay: Path | None, *, whole: bool) -> None:
    """State how a run has ended; ``whole``: with all references that it is compared with."""
    import json

    from fedfloor.park.described import LabelSkew

    skew = json.loads(regular.read_text(folder / "park.json")).get("label_skew")
    if skew is not None and (words := LabelSkew(**skew).words):
        say(words, aside=True)
    if got.stopped == "interrupted":
        _interrupted(f"stopped after round {got.lines[-1].round}")
    if not whole:
        _interrupted("stopped during the references")
    say(f"{got.stopped} after {seconds(sum(line.wall_s for line in got.lines))} of rounds", aside=True)
    if replay is not None:
        say(f"the models of {len(got.lines)} rounds are those of the run in {replay}, to the bit", aside=True)


def _interrupted(state: str) -> None:
    say(f"{state}. {shared.RESUME}", aside=True)
    raise typer.Exit(130)


def compare(
    experiment: File,
    methods: options.Methods = None, seeds: options.Seeds = "0",
    changes: Set = None, out: Out = None, ranks: Ranks = None, stop_after: Stop = None, until: Until = None,
    at: At = None, against: options.Against = None, resume: Resume = False, track: Track = None,
    references: References = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Compare methods over seeds in one report."""
    from fedfloor.runs.references import planned

    setup = shared.experiment(experiment, changes, methods=methods)
    limits = options.limits(stop_after, until, setup.evaluate.figure)
    folder = out or Path("runs") / f"{setup.name}-compare"
    names = shared.names(methods, setup)
    every = shared.numbers("seeds", seeds)
    work = planned(setup, names, every, folder, limits, every=references)
    known = {run.experiment.method.name for run in work}
    if against is not None and against not in known:
        raise unknown("method (--against)", against, known)
    size = shared.ranks(ranks, setup)
    budget = options.budget(at)
    if not shared.compare(
        work, folder, limits, size, resume=resume, as_json=as_json, track=track or [], at=budget, against=against
    ):
        _interrupted("stopped")


def sweep(
    experiment: File,
    methods: Annotated[str, typer.Option("--methods", metavar="A,B", help="Comma-separated methods.")],
    grid: Annotated[list[str], typer.Option("--grid", metavar="KEY=X,Y", help="Values to try: work.lr=0.1,0.01.")],
    trials: Annotated[int | None, typer.Option("--trials", metavar="N", help="Trials of each method.")] = None,
    seeds: options.Seeds = "0",
    changes: Set = None, out: Out = None, ranks: Ranks = None, stop_after: Stop = None, resume: Resume = False,
    track: Track = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Search each method's best settings on validation data."""
    from fedfloor.api.sweeping import swept
    from fedfloor.runs import sweep as sweeps

    setup = shared.experiment(experiment, changes, methods=methods)
    limits = options.limits(stop_after, None)
    folder = out or Path("runs") / f"{setup.name}-sweep"
    names = shared.names(methods, setup)
    axes = [sweeps.axis(text) for text in grid]
    work = sweeps.plan(setup, names, axes, shared.numbers("seeds", seeds), trials)
    size = shared.ranks(ranks, setup)
    done = swept(work, folder, limits, size, shared.followed(limits, track or []), resume=resume)
    if done.stopped == "interrupted":
        _interrupted("stopped")
    _show_sweep(work, done, as_json=as_json)


def _show_sweep(plan: Sweep, done: Swept, *, as_json: bool) -> None:
    """Print the trials of a sweep, and the command that tests the best settings.

    Raises:
        DivergedError: every trial of a method diverged.
    """
    from fedfloor.api.sweeping import lost

    best = None if done.lost else str(done.folder / "best.toml")
    if as_json:
        more = {key: value for key, value in done.document.items() if key != "rows"}
        show(done.rows, as_json=True, **more, best=best)
    else:
        _show_trials(plan, done.document)
    if not (done.lost or as_json):
        seeds = ",".join(map(str, plan.seeds))
        say(f"best: {done.winner}; the best settings of each method: {best}")
        say(f"test them: fedfloor compare {best} --methods {','.join(plan.sizes)} --seeds {seeds}")
    if done.lost:
        raise lost(done.lost)


def _show_trials(plan: Sweep, document: Mapping[str, Any]) -> None:
    """Print a sweep as a table with a column per setting."""
    from fedfloor.parts.named import written

    score = f"validation_{plan.original.evaluate.figure.key}"
    names = dict.fromkeys(name for row in document["rows"] for name in row["settings"])
    rows = []
    for row in document["rows"]:
        diverged = "diverged" if row[score] is None else ""
        settings = {name: written(row["settings"][name]) if name in row["settings"] else None for name in names}
        rows.append(
            {"method": row["method"], "trial": row["trial"]}
            | settings
            | {"seeds": row["seeds"], score: row[score]}
            | {name: row[name] for name in ("low", "high", "p_holm")}
            | {"best": "best" if row["best"] else "not told apart" if row["as_good"] else diverged}
        )
    share = f"{document['validation']:.3g} of every device's training samples"
    title = f"{document['trials']} trials of {document['rounds']} rounds each; validation: {share}"
    show(rows, as_json=False, title=title)
    if len(plan.seeds) == 1:
        say("one seed: trials are told apart by the validation samples alone; --seeds 0,1,2 adds the spread of seeds")


def demo(
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Task of plant data: anomaly, life, forecast, faults.")
    ] = None,
    out: Out = None, ranks: Ranks = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Train FedAvg and FedSR and compare them."""
    from datetime import datetime

    from fedfloor import config
    from fedfloor.runs.compare import planned_runs
    from fedfloor.runs.references import beside

    if task is not None and task not in DEMOS:
        raise unknown("task (--task)", task, DEMOS)
    folder = out or Path("runs") / f"demo-{f'{task}-' if task else ''}{datetime.now():%Y%m%d-%H%M%S}"
    setup = config.read(bundled()[f"demo-{task}" if task else "demo"])  # never a file of this name
    names = ["fedavg", "fedsr"]
    seeds = [setup.seed]
    work = planned_runs(setup, names, seeds, folder)
    if task is not None:
        work = beside(work, setup, names, seeds, folder, Limits())
    if not shared.compare(work, folder, Limits(), shared.ranks(ranks, setup), resume=False, as_json=as_json):
        say(f"stopped. The runs so far are in {folder}", aside=True)
        raise typer.Exit(130)

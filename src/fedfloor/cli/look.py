"""Commands that show plans and runs, or check a method."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfloor.base.errors import SettingError, unknown
from fedfloor.base.strict import json_text
from fedfloor.cli import options, shared
from fedfloor.cli.options import At, File, Folders, Json, OwnCode, Set
from fedfloor.runs.terminal import say, show

if TYPE_CHECKING:
    from types import ModuleType

    from fedfloor.experiment import Experiment
    from fedfloor.runs.asking import Asked


def ask(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A table, a folder of tables, an experiment file or its name.")
    ],
    changes: Set = None, own: OwnCode = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Ask before training whether all sites measure the same thing.

    Tables show each site and each sensor; below is what does not fit together, and then the exit code is 1.
    """
    from fedfloor.api.asking import asked_path, of_path
    from fedfloor.runs import asking

    path = asked_path(source)
    if path is not None and changes:
        raise SettingError(f"--set is for experiments, and {source} holds data. fedfloor new {source} writes one.")
    asked = of_path(path) if path else asking.of_experiment(_named(source, changes or [], own=own))
    show_asked(asked, as_json=as_json)


def _named(source: str, changes: list[str], *, own: bool) -> Experiment:
    """Return an experiment by its file or name, or by the name of a data set."""
    from fedfloor.api.source import read
    from fedfloor.config import pair

    shared.ask_for_code(source, changes, own=own)
    return read(source, dict(map(pair, changes)))


def show_asked(asked: Asked, *, as_json: bool) -> None:
    """Print what sites state and what does not fit together; end with exit code 1 if something does not."""
    if as_json:
        print(json_text(asked.to_dict(), indent=2))
    else:
        show(asked.by_site(), as_json=False, title="sites")
        show(asked.by_sensor(), as_json=False, title="sensors over all sites")
        fit = "All sites fit together." if len(asked.sites) > 1 else "A single site: there is none to compare it with."
        say("\n".join(f"- {one.sentence}" for one in asked.findings) or fit)
    if asked.findings:
        raise typer.Exit(1)


def draw(
    experiment: File, changes: Set = None,
    number: Annotated[int, typer.Option("--round", metavar="N", help="The round to draw.")] = 1,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture to this file.")] = None,
    own: OwnCode = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Draw the plan of one round, without training."""
    from fedfloor.parts.server import Sgd
    from fedfloor.parts.server import words as server_words
    from fedfloor.plan import text
    from fedfloor.report.plan_svg import svg as picture
    from fedfloor.report.plan_text import tree
    from fedfloor.runs.forecast import plan_of
    from fedfloor.runs.parks import build_park

    setup = shared.experiment(experiment, changes, own=own)
    park = build_park(setup)
    plan = plan_of(setup, park, number)
    if svg is not None:
        shared.save("--svg", svg, picture(plan, lambda k: int(park.factory_of[k]), park.display_names))
    server = setup.configured.server
    if as_json:
        show([], as_json=True, plan=text.to_json(plan), plan_hash=text.digest(plan), names=park.display_names.table())
        return
    say(tree(plan, names=park.display_names) if svg is None else f"picture: {svg}")
    if server != Sgd():
        say(f"then the cloud steps: {server_words(server)}")


def report(
    folders: Folders,
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
    against: options.Against = None,
    as_json: Json = False,
) -> None:
    """Write an HTML report on runs and print its table."""
    from fedfloor.report import ledger
    from fedfloor.report.groups import groups
    from fedfloor.report.words import markdown as table

    budget = options.budget(at)
    if target is not None:
        headline = groups(ledger.collect(folders)).headline
        headline.check_target(target, f"target {headline.name} (--target)")
    if markdown is not None:
        runs = ledger.collect(ledger.with_references(folders))
        shared.save("--markdown", markdown, table(runs, target, budget))
    shared.summary(folders, out or folders[0] / "report.html", target, as_json=as_json, at=budget, against=against)


def track(
    folders: Folders,
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="tensorboard, mlflow or csv.")],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="Event folder; for csv a file, or - for standard output."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Export ledgers to TensorBoard, MLflow or CSV."""
    from fedfloor.report import ledger
    from fedfloor.tracking import sinks
    from fedfloor.tracking.tracker import replay

    if to not in ("csv", *sinks.LIVE):
        raise unknown("--to", to, ["csv", *sinks.LIVE])
    if to == "mlflow" and out is not None:
        raise SettingError(f"--out {out}: MLflow stores runs at MLFLOW_TRACKING_URI. Leave --out out.")
    if out == "-" and (to != "csv" or as_json):
        raise SettingError("--out - prints CSV on standard output: use it with --to csv and without --json.")
    sinks.check([to] if to != "csv" else [], "--to")
    runs = [run.folder for run in ledger.collect(folders) if run.rounds]
    if to == "csv":
        text = sinks.csv_table([sinks.about(folder) for folder in runs])
        if out == "-":
            print(text, end="")
            return
        where = out or str(folders[0] / "ledger.csv")
        shared.save("--out", where, text)
        show([{"runs": len(runs), "where": where}], as_json=as_json)
        return
    rows = []
    for folder, name in sinks.run_names(runs).items():
        rounds, where = replay(folder, to, None if out is None else Path(out) / name)
        rows.append({"run": name, "rounds": rounds, "where": where})
    show(rows, as_json=as_json)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, a comparison's, or a park's.")],
    park: Annotated[
        Path | None, typer.Option("--park", metavar="DIR", help="The park's folder, whose devices' alarms are shown.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; beyond 127.0.0.1, with TLS and password.")]
        = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free port.")] = 8700,
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The certificate's key (PEM).")] = None,
    password: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="File with the password of the page.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="A host name used by browsers; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON document instead.")]
        = False,
    handed: Annotated[int | None, typer.Option("--socket", hidden=True)] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:  # fmt: skip
    """Serve a page that shows a run while it trains.

    It shows metrics, plan, devices, costs, losses, logs and alarms.
    """
    from fedfloor.watch.several import watched as reader

    state = reader(folder, waiting=handed is not None, alarms=park)
    if as_json:
        state.poll()
        document = dict(state.document)
        show(document.pop("rounds"), as_json=True, **document)
        return
    module = _module()
    place = module.PageListener(host, port, cert, key, password, tuple(names or ()))
    place.check()
    sock = place.listen() if handed is None else socket.socket(fileno=handed)
    if handed is None:
        shared.note(f"{place.address(sock)} shows {folder} until Ctrl-C")
    module.serve(state, sock, place, parent)


def _module() -> ModuleType:
    with shared.needing("watch", "watch", "its packages"):
        from fedfloor.watch import serve as module
    return module


@contextmanager
def watched(folder: Path, *, watch: bool, stay: bool) -> Iterator[None]:
    """Serve a run's page while the body runs, if ``watch``; with ``stay`` also afterwards, until Ctrl-C."""
    if stay and not watch:
        raise SettingError("--stay requires --watch. Give both, or leave --stay out.")
    if not watch:
        yield
        return
    with _module().serving(folder) as (url, _):
        shared.note(f"watch: {url}")
        yield
        if stay:
            shared.note(f"the run is over; {url} is served until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


def method(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method's name, or MODULE:NAME of your method.")],
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Check a method's contract on small parks (about a minute).

    The checks cover plans, prices, ranks, resuming and lost visits.
    """
    from fedfloor.api.conformance import CHECKS, checked

    done = []
    for check in checked(name, changes or ()):
        done.append(check)
        if not as_json:
            line = f"FAILED  {check.name}: {check.why}" if check.why else f"ok      {check.name}"
            say(line)
    broken = sum(bool(check.why) for check in done)
    if as_json:
        rows = [{"check": check.name, "kept": not check.why, "why": check.why} for check in done]
        show(rows, as_json=True, method=name, kept=broken == 0)
    else:
        kept = f"{len(CHECKS) - broken} of {len(CHECKS)} checks"
        say(f"{name} keeps the contract: {kept}." if not broken else f"{name}: {kept} are kept.")
    if broken:
        raise typer.Exit(1)

"""Commands that say what there is: methods, parts, networks, data sets, and how fast they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfloor.cli import shared
from fedfloor.cli.options import Json
from fedfloor.errors import SettingError, require, unknown


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this method's card.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one method's card and its settings."""
    import inspect

    from fedfloor.methods.catalog import METHODS, card
    from fedfloor.parts.named import written
    from fedfloor.terminal import show

    if name is None:
        rows = [{"method": key, "what": (inspect.getdoc(kind) or "").split("\n")[0]} for key, kind in METHODS.items()]
        show(rows, as_json=as_json)
        return
    text, settings = card(name)
    if as_json:
        show(settings, as_json=True, method=name, card=text)
    else:
        print(f"{name}\n\n{text}\n")
        rows = [row if row["default"] is None else row | {"default": written(row["default"])} for row in settings]
        show(rows, as_json=False, title=f"settings, in [methods.{name}]")


def parts(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="objective, mix, server, selection or extractor; all left out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the parts that methods combine with, and their settings."""
    from fedfloor.config import PARTS
    from fedfloor.parts.extractors.names import EXTRACTORS
    from fedfloor.parts.named import rows
    from fedfloor.terminal import show

    every = {**PARTS, "extractor": EXTRACTORS}
    if kind is not None and kind not in every:
        raise unknown("kind of part", kind, every)
    found = [{"part": part, **row} for part, known in every.items() if kind in (None, part) for row in rows(known)]
    show(found, as_json=as_json)


def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this network's card and layers.")] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="C,H,W", help="Of one sample; C,L or C: sensors.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", metavar="N", help="Number of classes.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks, or show and check one."""
    from fedfloor.models import listing
    from fedfloor.terminal import show

    sides = tuple(shared.numbers("shape", shape)) if shape is not None else None
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


@datasets.callback(invoke_without_command=True)
def _datasets(context: typer.Context, as_json: Json = False) -> None:
    from fedfloor.data.sources import looked_in
    from fedfloor.terminal import show

    if context.invoked_subcommand is None:
        rows = looked_in()
        short = [row | {"how": str(row["how"]).partition(" By hand:")[0]} for row in rows]
        show(rows if as_json else short, as_json=as_json)
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
    from fedfloor.data import download
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


@datasets.command()
def query(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the database; $NAME: an environment variable.")],
    text: Annotated[str, typer.Argument(metavar="QUERY", help="SQL, or Flux for InfluxDB; @FILE: what a file holds.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The table, .parquet.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write what a query to a database finds to a Parquet file, with its SHA-256."""
    import shlex

    from fedfloor.data.query import fetch
    from fedfloor.names import count
    from fedfloor.terminal import show

    facts = fetch(url, text, out, force=force)
    show([{"column": name, "type": kind} for name, kind in facts["columns"].items()], as_json=as_json, facts=facts)
    if not as_json:
        print(f"{count(facts['rows'], 'row')}, SHA-256 {facts['sha256']}")
        print(f"table: {out} (now: fedfloor new {shlex.quote(str(out))}); facts: {out}.json")


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="simulation, cohort, fedgs, hfedms, methods, population, sharing, loading, price, allocation, "
            "selection, grouping or live",
        ),
    ] = "simulation",
    ranks: Annotated[
        int | None, typer.Option("--ranks", metavar="N", help="Processes; default: one per core, of methods: 1.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Rounds of each kind.")] = 7,
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Cases whose name holds this.")] = "",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="methods: network; default: cnn-tutorial.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="E", help="methods: epochs of a visit; default: 2.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="K", help="population: devices of the park; default: a million.")
    ] = None,
    active: Annotated[
        int | None, typer.Option("--active", metavar="N", help="population: devices in a round; default: 100.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="R", help="population: rounds of a run; default: 20.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="cohort: cpu or cuda; default: cuda where it is.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="KIND", help="cohort: float32, tf32 or bf16.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="N", help="loading: of the made table; default: 5 million.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="cohort: small cases, to see that they run.")] = False,
    as_json: Json = False,
) -> None:
    """Measure rounds, cohorts, very large parks, a method's cost, loading, pricing, the solvers, real machines."""
    from fedfloor.terminal import show

    if what not in BENCHMARKS:
        raise unknown("benchmark", what, BENCHMARKS)
    given: dict[str, dict[str, Any]] = {
        "methods": {"model": model, "epochs": epochs},
        "population": {"devices": devices, "active": active, "rounds": rounds},
        "cohort": {"device": device, "precision": precision, "quick": quick or None},
        "loading": {"rows": rows},
    }
    _check_owner(what, given)
    require(repeats >= 1, "--repeats", repeats, "a whole number of at least 1")
    show(BENCHMARKS[what](only, ranks, repeats, given.get(what, {})), as_json=as_json)


def _check_owner(what: str, given: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise where an option was given that belongs to another benchmark."""
    from fedfloor.report.numbers import listed

    for owner, options in given.items():
        if what != owner and any(one is not None for one in options.values()):
            named = listed([f"--{name}" for name in options])
            raise SettingError(f"{named} belong to fedfloor bench {owner}, not to bench {what}.")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _loading(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import loading

    rows = loading.ROWS if case["rows"] is None else case["rows"]
    require(rows >= loading.DEVICES * 10, "--rows", rows, f"a whole number of at least {loading.DEVICES * 10}")
    return loading.measure([name for name in loading.NAMES if only in name], _say, rows)


def _simulation(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import simulation

    cases = [case for case in simulation.CASES if only in case.name]
    return simulation.measure(cases, shared.ranks(ranks), repeats, _say)


def _cohort(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import cohort

    for name, allowed in (("device", ("auto", "cpu", "cuda")), ("precision", ("float32", "tf32", "bf16"))):
        if case[name] not in allowed:
            raise unknown(name, case[name], allowed)
    chosen = [one for one in cohort.cases(quick=case["quick"]) if only in one.name]
    return cohort.measure(chosen, case["device"], case["precision"], repeats, _say)


def _fedgs(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import super_node

    cases = [case for case in super_node.CASES if only in case.name]
    return super_node.measure(cases, shared.ranks(ranks), repeats, _say)


def _hfedms(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import calibration

    return calibration.measure([case for case in calibration.CASES if only in case.name], repeats, _say)


def _price(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import price

    return price.measure([case for case in price.CASES if only in case.name], repeats, _say)


def _methods(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:
    from fedfloor.bench import methods as cost
    from fedfloor.methods.catalog import METHODS

    timed = [name for name, kind in METHODS.items() if not kind().needs.network]  # the others choose by a network
    names = [name for name in timed if only in name]
    if not names:
        raise unknown("method", only, timed)
    work = cost.Case(**{key: one for key, one in case.items() if one is not None})
    require(work.epochs >= 1, "--epochs", work.epochs, "a whole number of at least 1")
    return cost.measure(work, names, shared.ranks(1 if ranks is None else ranks), repeats, _say)


def _population(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import population

    numbers = {key: one for key, one in case.items() if one is not None}
    for name, number in numbers.items():
        most = numbers.get("devices", 1_000_000) if name == "active" else None
        ok = number >= 1 and (most is None or number <= most)
        require(ok, f"--{name}", number, "a whole number of at least 1" + (f" and at most {most:,}" if most else ""))
    return population.measure([one for one in population.cases(**numbers) if only in one.name], _say)


def _sharing(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import sharing

    return sharing.measure([name for name in sharing.NAMES if only in name], shared.ranks(ranks), _say)


def _allocation(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import allocation

    return allocation.measure(only, repeats, _say)


def _selection(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import selection

    return selection.measure(only, repeats, _say)


def _live(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import live

    return live.measure([case for case in live.CASES if only in case.name], repeats, _say)


def _grouping(only: str, ranks: int | None, repeats: int, case: dict[str, Any]) -> list[dict[str, object]]:  # noqa: ARG001
    from fedfloor.bench import grouping

    return grouping.measure(only, repeats, _say)


BENCHMARKS = {
    "simulation": _simulation, "cohort": _cohort, "fedgs": _fedgs, "hfedms": _hfedms, "methods": _methods,
    "population": _population, "sharing": _sharing, "loading": _loading, "price": _price, "allocation": _allocation,
    "selection": _selection, "grouping": _grouping, "live": _live,
}  # fmt: skip

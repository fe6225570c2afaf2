"""The command ``fedfloor bench``: every benchmark by name, with its own options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.cli import shared
from fedfloor.cli.options import Json

Rows = list[dict[str, object]]


class Given(NamedTuple):
    """Options of a benchmark; ``own`` are those that belong to it alone."""

    only: str
    ranks: int | None
    repeats: int
    own: dict[str, Any]


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="simulation, cohort, fedgs, hfedms, methods, population, sharing, loading, price, allocation, "
            "selection, grouping, live, sums or watch",
        ),
    ] = "simulation",
    ranks: Annotated[
        int | None, typer.Option("--ranks", metavar="N", help="Processes; default: one per core, 1 for methods.")
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
    from fedfloor.report.numbers import listed
    from fedfloor.runs.terminal import show

    if what not in BENCHMARKS:
        raise unknown("benchmark", what, BENCHMARKS)
    own: dict[str, dict[str, Any]] = {
        "methods": {"model": model, "epochs": epochs},
        "population": {"devices": devices, "active": active, "rounds": rounds},
        "cohort": {"device": device, "precision": precision, "quick": quick or None},
        "loading": {"rows": rows},
    }
    for owner, options in own.items():
        if what != owner and any(one is not None for one in options.values()):
            named = listed([f"--{name}" for name in options])
            raise SettingError(f"{named} belong to fedfloor bench {owner}, not to bench {what}.")
    require(repeats >= 1, "--repeats", repeats, "a whole number of at least 1")
    name, measure = BENCHMARKS[what]
    show(measure(import_module(f"benchmarks.{name}"), Given(only, ranks, repeats, own.get(what, {}))), as_json=as_json)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _cases(module: Any, given: Given) -> list[Any]:
    return [case for case in module.CASES if given.only in case.name]


def _repeated(module: Any, given: Given) -> Rows:
    return module.measure(_cases(module, given), given.repeats, _say)


def _on_ranks(module: Any, given: Given) -> Rows:
    return module.measure(_cases(module, given), shared.ranks(given.ranks), given.repeats, _say)


def _on_ranks_alone(module: Any, given: Given) -> Rows:
    return module.measure(shared.ranks(given.ranks), given.repeats, _say)


def _by_text(module: Any, given: Given) -> Rows:
    return module.measure(given.only, given.repeats, _say)


def _sharing(module: Any, given: Given) -> Rows:
    return module.measure([name for name in module.NAMES if given.only in name], shared.ranks(given.ranks), _say)


def _loading(module: Any, given: Given) -> Rows:
    rows = module.ROWS if given.own["rows"] is None else given.own["rows"]
    fewest = module.DEVICES * 10
    require(rows >= fewest, "--rows", rows, f"a whole number of at least {fewest}")
    return module.measure([name for name in module.NAMES if given.only in name], _say, rows)


def _cohort(module: Any, given: Given) -> Rows:
    device = given.own["device"] or "auto"
    precision = given.own["precision"] or "float32"
    for name, value, allowed in (
        ("device", device, ("auto", "cpu", "cuda")),
        ("precision", precision, ("float32", "tf32", "bf16")),
    ):
        if value not in allowed:
            raise unknown(name, value, allowed)
    chosen = [one for one in module.cases(quick=bool(given.own["quick"])) if given.only in one.name]
    return module.measure(chosen, device, precision, given.repeats, _say)


def _methods(module: Any, given: Given) -> Rows:
    from fedfloor.methods.catalog import METHODS

    timed = [name for name, kind in METHODS.items() if not kind().needs.network]  # the others choose by a network
    names = [name for name in timed if given.only in name]
    if not names:
        raise unknown("method", given.only, timed)
    work = module.Case(**{key: one for key, one in given.own.items() if one is not None})
    require(work.epochs >= 1, "--epochs", work.epochs, "a whole number of at least 1")
    return module.measure(work, names, shared.ranks(1 if given.ranks is None else given.ranks), given.repeats, _say)


def _population(module: Any, given: Given) -> Rows:
    numbers = {key: one for key, one in given.own.items() if one is not None}
    for name, number in numbers.items():
        most = numbers.get("devices", 1_000_000) if name == "active" else None
        ok = number >= 1 and (most is None or number <= most)
        require(ok, f"--{name}", number, "a whole number of at least 1" + (f" and at most {most:,}" if most else ""))
    return module.measure([one for one in module.cases(**numbers) if given.only in one.name], _say)


BENCHMARKS: dict[str, tuple[str, Callable[[Any, Given], Rows]]] = {
    "simulation": ("simulation", _on_ranks), "cohort": ("cohort", _cohort), "fedgs": ("super_node", _on_ranks),
    "hfedms": ("calibration", _repeated), "methods": ("methods", _methods), "population": ("population", _population),
    "sharing": ("sharing", _sharing), "loading": ("loading", _loading), "price": ("price", _repeated),
    "allocation": ("allocation", _by_text), "selection": ("selection", _by_text), "grouping": ("grouping", _by_text),
    "live": ("live", _repeated), "sums": ("sums", _repeated), "watch": ("watch", _on_ranks_alone),
}  # fmt: skip

"""Commands about costs on a network, without training: price, list links, allocate."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.cli import options, shared
from fedfloor.cli.options import At, Json, Methods, OwnCode, Set
from fedfloor.runs.terminal import counted, say, show

if TYPE_CHECKING:
    from fedfloor.network.cell import Cell
    from fedfloor.network.profile import LinkClass, NetworkProfile
    from fedfloor.report.floor import Drawing
    from fedfloor.solvers.allocation.problem import Allocation, AllocationProblem
    from fedfloor.solvers.solution import Solution


Row = dict[str, Any]
WIDTH = 110  # characters of a line of printed sources
Rounds = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Price only the first N rounds.")]


def price(
    what: Annotated[
        list[str],
        typer.Argument(metavar="EXPERIMENT|RUN…", help="An experiment file, a bundled name, or run folders."),
    ],
    network: Annotated[
        str | None, typer.Option("--network", metavar="NAME", help="A network's name, or a TOML file.")
    ] = None,
    methods: Methods = None, rounds: Rounds = None, changes: Set = None, own: OwnCode = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Of runs: folder for their copies with the prices.")
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", metavar="X", help="Of runs: metric for time and bytes to a target.")
    ] = None,
    at: At = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Price rounds in seconds, bytes and joules, without training.

    The rounds are those of an experiment, or of finished runs on another network.
    """
    of_runs = {"--out": out, "--target": target, "--at": at}
    of_experiment = {"--methods": methods, "--rounds": rounds, "--set": changes or None}
    folders = all(_holds_runs(Path(name)) for name in what)
    wrong = [option for option, given in (of_experiment if folders else of_runs).items() if given is not None]
    if wrong:
        raise SettingError(f"{wrong[0]}: applies to {'an experiment' if folders else 'finished runs'}. Leave it out.")
    if folders:
        shared.ask_for_code(", ".join(what), own=own)
        _price_runs([Path(name) for name in what], network, out, target, at, as_json=as_json)
        return
    if len(what) > 1:
        raise SettingError(f"price {' '.join(what)}: give one experiment, or the folders of finished runs.")
    profile = [] if network is None else [f"network.profile={network}"]
    _price_experiment(what[0], methods, rounds, [*profile, *(changes or [])], own=own, as_json=as_json)


def _holds_runs(folder: Path) -> bool:
    """Return whether a folder is that of a run, or of runs."""
    names = ("experiment.toml", "ledger.jsonl", "*/experiment.toml")
    return any(next(folder.glob(name), None) is not None for name in names)


def _price_runs(
    folders: list[Path], network: str | None, out: Path | None, target: float | None, at: str | None, *, as_json: bool
) -> None:
    """Write copies of finished runs with the prices of another network, and print their summary."""
    from fedfloor.api.pricing import copied

    if network is None or out is None:
        raise SettingError(
            "price of finished runs needs --network NAME, the other network, and --out DIR, the folder for copies of "
            "the runs with its prices."
        )
    budget = options.budget(at)
    copies = copied(folders, network, out, lambda copy: say(str(copy), aside=True))
    shared.summary(copies, out / "report.html", target, as_json=as_json, at=budget)


def _price_experiment(
    experiment: str, methods: str | None, rounds: int | None, changes: list[str], *, own: bool, as_json: bool
) -> None:
    from fedfloor.api.pricing import BEFORE, priced

    setup = shared.experiment(experiment, changes, own=own, methods=methods)
    prices = priced(setup, shared.names(methods, setup), rounds, counted)
    rows = prices.rows
    if as_json:
        show(rows, as_json=True, links=prices.links, network=prices.network, names=prices.names)
        return
    if not rows:
        return
    most = max(row["rounds"] for row in rows)
    title = f"{setup.name}: rounds 1 to {most} on {prices.network or 'its network'}"
    costs = [{k: v for k, v in row.items() if not k.startswith(tuple(BEFORE))} for row in rows]
    show(costs, as_json=False, title=title)
    for part, words in BEFORE.items():
        if any(row[f"{part}_seconds"] or row[f"{part}_MB"] for row in rows):
            shown = [
                {
                    k: f"{100 * v:.2g} %" if "_share_" in k else v
                    for k, v in row.items()
                    if k == "method" or k.startswith(part)
                }
                for row in rows
            ]
            show(shown, as_json=False, title=f"of this, {words} before round 1")
    show(prices.links, as_json=False, title="bytes on each link")


def links(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this network with its sources.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks between machines, or show one."""
    from fedfloor.network import profile

    if name is None:
        built = {key: profile.from_table(profile.read_tables(key)) for key in profile.profiles()}
        show([_line(key, network, as_json=as_json) for key, network in built.items()], as_json=as_json)
        return
    profile.build(profile.NetworkSettings(name))
    table = profile.read_tables(name)
    parts = {key: part for key, part in table.items() if isinstance(part, dict)}
    plain = {key: value for key, value in table.items() if key not in parts}
    rows = {key: [{"key": name, "value": value} for name, value in part.items() if name != "source"]
            for key, part in parts.items()}  # fmt: skip
    if as_json:
        flat = [{"table": key, **row} for key, table in rows.items() for row in table]
        show(flat, as_json=True, **plain, sources={key: part.get("source", "") for key, part in parts.items()})
        return
    say(f"{plain.pop('name')}: {plain.pop('about', '')}".rstrip(": "))
    for key, value in plain.items():
        say(f"{key} = {value}")
    for key, part in parts.items():
        say(f"\n[network.{key}]")
        if rows[key]:
            show([{"key": row["key"], "value": str(row["value"])} for row in rows[key]], as_json=False)
        say(textwrap.fill(part.get("source") or "not given", WIDTH, initial_indent="  source: ",
                            subsequent_indent="    "))  # fmt: skip
    say("\nChange a value with --set network.TABLE.KEY=VALUE.")


def _line(name: str, network: NetworkProfile, *, as_json: bool) -> Row:
    """Return a profile's row, with the link of the devices."""
    link = network.uplink
    if as_json:
        rates: Row = {"route": network.route, "up": link.up_bps, "down": link.down_bps, "sharing": shared_by(link)}
        return {"network": name} | rates | {"what": network.about}
    up = "by interference" if link.sharing == "sinr" else rate(link.up_bps)
    return {"network": name, "up": up, "down": rate(link.down_bps), "what": network.about}


def shared_by(link: LinkClass) -> str:
    """Return the sharing rule of a link.

    >>> from fedfloor.network.profile import LinkClass
    >>> shared_by(LinkClass(up_bps=4e6, sharing="serial", over="park")), shared_by(LinkClass())
    ('serial over the park, half duplex', 'dedicated')
    """
    if link.sharing != "serial":
        return link.sharing
    return f"serial over {'the park' if link.over == 'park' else 'each cell'}, {link.duplex} duplex"


def rate(bps: float | None) -> str:
    """Return a rate with its unit.

    >>> rate(62500), rate(4e6), rate(2.5e9), rate(None)
    ('62.5 kbit/s', '4 Mbit/s', '2.5 Gbit/s', 'no limit')
    """
    if bps is None:
        return "no limit"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= size:
            return f"{bps / size:g} {unit}"
    return f"{bps:g} bit/s"


SENDS = ("channel", "power_dbm", "latency_s")
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture of the floor to this file.")]
Limit = Annotated[
    float | None, typer.Option("--time-limit", metavar="S", help="Time limit of the solver exact, in seconds.")
]


def allocate(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell file, or the name of a bundled cell.")],
    solver: Annotated[str, typer.Option("--solver", metavar="NAME", help="search, rafed or exact.")] = "search",
    time_limit: Limit = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the solver.")] = 0,
    svg: Svg = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the cell file with the data of every device.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Choose devices, channels and powers for the shortest training."""
    from fedfloor.network import cell as cells
    from fedfloor.report import floor as pictures
    from fedfloor.solvers.allocation.problem import verify

    require(seed >= 0, "--seed", seed, "a whole number of at least 0")
    place = cells.read(shared.cell_file(cell))
    problem = place.problem()
    solution = _solved(place, problem, solver, seed, time_limit)
    verify(problem, solution)
    rows = rows_of(place, problem, solution.choice)
    facts = facts_of(place, problem, solution, solver)
    if svg is not None:
        shared.save("--svg", svg, pictures.svg(drawing(place, rows, facts)))
    if write is not None:
        shared.save("--write", write, cells.to_toml(place))
    shown = [{key: row[key] for key in row if key not in ("x_m", "y_m")} for row in rows]
    files = [f"{words}: {where}" for words, where in (("picture", svg), ("cell", write)) if where is not None]
    show(rows if as_json else shown, as_json=as_json, title=place.name, after=[summary(facts), *files], **facts)


def _solved(
    cell: Cell, problem: AllocationProblem, solver: str, seed: int, limit: float | None
) -> Solution[Allocation]:
    from fedfloor.solvers.allocation.problem import alone_s
    from fedfloor.solvers.allocation.solve import SOLVERS, ready, solve

    if solver not in SOLVERS:
        raise unknown("--solver", solver, SOLVERS)
    if limit is not None:
        require(0 < limit < math.inf, "--time-limit", limit, "seconds, above 0")
        require(
            solver == "exact", "--time-limit with --solver", solver, "exact, because other solvers have no time limit"
        )
    if not math.isfinite(float(alone_s(problem).min())):
        raise SettingError(
            f"cell '{cell.name}': no device reaches the base station, not even as the only one on its channel. Allow "
            "more power (radio.powers_dbm), a smaller radio.threshold, or shorter distances."
        )
    ready(solver, problem)
    if solver == "exact" and limit is not None:
        from fedfloor.solvers.allocation.solve import exact

        return exact(problem, time_limit_s=limit)
    return solve(solver, problem, seed=seed)


def rows_of(cell: Cell, problem: AllocationProblem, choice: Allocation) -> list[Row]:
    """Return a row for each device that takes part."""
    from fedfloor.solvers.allocation.problem import latency, reception

    physics = cell.sites.network.radio
    took = latency(problem, choice)
    received = reception(problem, choice)
    distance = cell.sites.distance_m
    if physics is None or distance is None:  # cells have both
        return []
    return [
        {
            "device": cell.names[k], "distance_m": float(distance[k]), "channel": int(choice.channel[k]),
            "power_dbm": _whole(physics.powers_dbm[choice.level[k]]), "computing_s": float(problem.compute_s[k]),
            "sending_s": float(took[k] - problem.compute_s[k]), "reception": float(received[k]),
            "latency_s": float(took[k]), "x_m": float(cell.x_m[k]), "y_m": float(cell.y_m[k]),
        }
        for k in choice.active
    ]  # fmt: skip


def _whole(power: float) -> float | int:
    return int(power) if power == int(power) else power


def facts_of(cell: Cell, problem: AllocationProblem, solution: Solution[Allocation], solver: str) -> Row:
    """Return the times, bounds and devices of an allocation."""
    from fedfloor.solvers.allocation.problem import iterations, latency

    active = solution.choice.active
    took = latency(problem, solution.choice)
    slowest = max(active, key=lambda k: took[k])
    silent = [name for k, name in enumerate(cell.names) if k not in set(active.tolist())]
    return {
        "cell": cell.name, "devices": len(cell.names), "active": len(active), "channels": problem.channels,
        "training_s": solution.value, "iterations": iterations(problem, len(active)), "slowest_s": float(took[slowest]),
        "slowest": cell.names[slowest], "bound_s": solution.bound, "gap": solution.gap, "status": solution.status,
        "solver": solver, "seconds": solution.seconds, "silent": silent,
    }  # fmt: skip


def summary(facts: Row) -> str:
    """Return an allocation's facts in one line.

    >>> print(summary({"training_s": 36.0, "iterations": 6.0, "slowest_s": 6.0, "slowest": "d", "active": 3,
    ...     "devices": 4, "bound_s": 30.0, "gap": 0.2, "solver": "search", "seconds": 0.25, "silent": ["a"]}))
    training 36.00 s = 6.00 iterations of 6.000 s (device d is last); 3 of 4 devices take part, 1 silent; no allocation takes less than 30.00 s, gap 20.0 %; search, 250 ms
    """  # noqa: E501
    silent = len(facts["silent"])
    return (
        f"training {facts['training_s']:.2f} s = {facts['iterations']:.2f} iterations of {facts['slowest_s']:.3f} s "
        f"(device {facts['slowest']} is last); {facts['active']} of {facts['devices']} devices take part, {silent} "
        f"silent; no allocation takes less than {facts['bound_s']:.2f} s, gap {100 * facts['gap']:.1f} %; "
        f"{facts['solver']}, {1e3 * facts['seconds']:.0f} ms"
    )


def drawing(cell: Cell, rows: list[Row], facts: Row) -> Drawing:
    """Return the drawing of an allocation."""
    from fedfloor.report.floor import Drawing, Spot

    physics = cell.sites.network.radio
    chosen = {row["device"]: row for row in rows}
    spots = [
        Spot(name, float(x), float(y), *(chosen[name][key] if name in chosen else None for key in SENDS))
        for name, x, y in zip(cell.names, cell.x_m, cell.y_m, strict=True)
    ]
    powers = () if physics is None else (physics.powers_dbm[0], physics.powers_dbm[-1])
    words = (
        f"training {facts['training_s']:.2f} s: {facts['iterations']:.2f} iterations of {facts['slowest_s']:.3f} s",
        f"{facts['active']} of {facts['devices']} devices take part; at best {facts['bound_s']:.2f} s",
    )
    return Drawing(cell.name, words, tuple(spots), facts["slowest"], facts["channels"], powers)

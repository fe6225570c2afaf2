"""The command ``allocate``: who takes part in a round of a cell, on which channel, with how much power."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.cli import shared
from fedfloor.cli.options import Json
from fedfloor.errors import SettingError, require, unknown

if TYPE_CHECKING:
    from fedfloor.network.floor import Floor
    from fedfloor.report.floor import Drawing
    from fedfloor.solvers.allocation.problem import Allocation, AllocationProblem
    from fedfloor.solvers.solution import Solution

Row = dict[str, Any]
SENDS = ("channel", "power_dbm", "latency_s")
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the floor into this file.")]
Limit = Annotated[float | None, typer.Option("--time-limit", metavar="S", help="Seconds that 'exact' may take.")]


def allocate(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell file, or the name of a bundled one.")],
    solver: Annotated[str, typer.Option("--solver", metavar="NAME", help="search, rafed or exact.")] = "search",
    time_limit: Limit = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of what the solver draws.")] = 0,
    svg: Svg = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the cell with every device's numbers.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Choose who takes part, on which channel, with how much power, for the shortest training."""
    from fedfloor.network import floor as floors
    from fedfloor.report import floor as pictures
    from fedfloor.solvers.allocation.problem import verify
    from fedfloor.terminal import show

    require(seed >= 0, "--seed", seed, "a whole number of at least 0")
    there = floors.read(shared.cell_file(cell))
    problem = there.problem()
    found = _solved(there, problem, solver, seed, time_limit)
    verify(problem, found)
    rows, facts = rows_of(there, problem, found.choice), facts_of(there, problem, found, solver)
    if svg is not None:
        _save("--svg", svg, pictures.svg(drawing(there, rows, facts)))
    if write is not None:
        _save("--write", write, floors.text(there))
    if as_json:
        show(rows, as_json=True, **facts)
        return
    show([{key: row[key] for key in row if key not in ("x_m", "y_m")} for row in rows], as_json=False, title=there.name)
    print(summary(facts))
    for words, where in (("picture", svg), ("cell", write)):
        if where is not None:
            print(f"{words}: {where}")


def _solved(
    there: Floor, problem: AllocationProblem, solver: str, seed: int, limit: float | None
) -> Solution[Allocation]:
    from fedfloor.solvers.allocation.bound import alone_s
    from fedfloor.solvers.allocation.solve import SOLVERS, ready, solve

    if solver not in SOLVERS:
        raise unknown("--solver", solver, SOLVERS)
    if limit is not None:
        require(0 < limit < math.inf, "--time-limit", limit, "seconds, above 0")
        require(solver == "exact", "--time-limit with --solver", solver, "exact: the others end by themselves")
    if not math.isfinite(float(alone_s(problem).min())):
        raise SettingError(
            f"cell '{there.name}': no device reaches the base station, not even alone on its channel. Allow more "
            "power (radio.powers_dbm), a smaller radio.threshold, or shorter distances."
        )
    ready(solver, problem)
    if solver == "exact" and limit is not None:
        from fedfloor.solvers.allocation.solve import exact

        return exact(problem, time_limit_s=limit)
    return solve(solver, problem, seed=seed)


def rows_of(there: Floor, problem: AllocationProblem, choice: Allocation) -> list[Row]:
    """Return a row for each device that takes part."""
    from fedfloor.solvers.allocation.problem import latency, reception

    physics, took = there.sites.network.radio, latency(problem, choice)
    heard, distance = reception(problem, choice), there.sites.distance_m
    if physics is None or distance is None:  # a cell has both
        return []
    return [
        {
            "device": there.names[k], "distance_m": float(distance[k]), "channel": int(choice.channel[k]),
            "power_dbm": _whole(physics.powers_dbm[choice.level[k]]), "computing_s": float(problem.compute_s[k]),
            "sending_s": float(took[k] - problem.compute_s[k]), "reception": float(heard[k]),
            "latency_s": float(took[k]), "x_m": float(there.x_m[k]), "y_m": float(there.y_m[k]),
        }
        for k in choice.active
    ]  # fmt: skip


def _whole(power: float) -> float | int:
    return int(power) if power == int(power) else power


def facts_of(there: Floor, problem: AllocationProblem, found: Solution[Allocation], solver: str) -> Row:
    """Return what the whole allocation comes to."""
    from fedfloor.solvers.allocation.problem import iterations, latency

    active, took = found.choice.active, latency(problem, found.choice)
    slowest = max(active, key=lambda k: took[k])
    silent = [name for k, name in enumerate(there.names) if k not in set(active.tolist())]
    return {
        "cell": there.name, "devices": len(there.names), "active": len(active), "channels": problem.channels,
        "training_s": found.value, "iterations": iterations(problem, len(active)), "slowest_s": float(took[slowest]),
        "slowest": there.names[slowest], "bound_s": found.bound, "gap": found.gap, "status": found.status,
        "solver": solver, "seconds": found.seconds, "silent": silent,
    }  # fmt: skip


def summary(facts: Row) -> str:
    """Say what an allocation comes to, in one line.

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


def drawing(there: Floor, rows: list[Row], facts: Row) -> Drawing:
    """Return what is drawn of an allocation."""
    from fedfloor.report.floor import Drawing, Spot

    physics, chosen = there.sites.network.radio, {row["device"]: row for row in rows}
    spots = [
        Spot(name, float(x), float(y), *(chosen[name][key] if name in chosen else None for key in SENDS))
        for name, x, y in zip(there.names, there.x_m, there.y_m, strict=True)
    ]
    powers = () if physics is None else (physics.powers_dbm[0], physics.powers_dbm[-1])
    words = (
        f"training {facts['training_s']:.2f} s: {facts['iterations']:.2f} iterations of {facts['slowest_s']:.3f} s",
        f"{facts['active']} of {facts['devices']} devices take part; at best {facts['bound_s']:.2f} s",
    )
    return Drawing(there.name, words, tuple(spots), facts["slowest"], facts["channels"], powers)


def _save(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{option} {path}: {error.strerror or error}.") from error

"""The command ``sweep``: trials, their table, and the file with the best settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.cli import shared
from fedfloor.errors import DivergedError
from fedfloor.figures import ACCURACY
from fedfloor.report.groups import half_width
from fedfloor.runs import sweep as sweeps
from fedfloor.runs.compare import carry_out
from fedfloor.runs.folder import write, write_json
from fedfloor.runs.orders import Limits
from fedfloor.runs.sweep import Result, Sweep, shown
from fedfloor.terminal import show


def sweep(
    plan: Sweep, out: Path, stop: Limits, size: int, *, resume: bool, as_json: bool, track: Sequence[str] = ()
) -> bool:
    """Carry out a sweep, print its table and write the best settings; return whether all trials are complete.

    Raises:
        SettingError: a run's folder exists already and ``resume`` is false.
        DivergedError: every trial of a method diverged.
        RunError: a run failed for another reason.
    """
    _note(plan)
    work = plan.planned_runs(out)
    ends, whole = carry_out(work, stop, size, shared.followed(stop, track), resume=resume, tolerant=True)
    if not whole:
        done = sum(why != "interrupted" for why in ends.values())
        print(f"{done} of {len(work)} runs done", file=sys.stderr)
        return False
    results = sweeps.results(plan, out, {folder for folder, why in ends.items() if why == "diverged"})
    best = sweeps.winners(results)
    rounds = min(plan.original.rounds, stop.stop_after or plan.original.rounds)
    document = _document(plan, results, best, rounds)
    out.mkdir(parents=True, exist_ok=True)  # a run that diverges in its first round removes its folder
    write_json(out / "sweep.json", document)
    lost = [name for name in plan.sizes if name not in best]
    if not lost:
        write(out / "best.toml", sweeps.document(plan, best, rounds, out))
    if as_json:
        rows = document.pop("rows")
        show(rows, as_json=True, **document, best=None if lost else str(out / "best.toml"))
    else:
        _show(plan, document)
    if not (lost or as_json):
        methods, seeds = ",".join(plan.sizes), ",".join(map(str, plan.seeds))
        print(f"best: {document['winner']}; the best settings of each method: {out / 'best.toml'}")
        print(f"test them: fedfloor compare {out / 'best.toml'} --methods {methods} --seeds {seeds}")
    if lost:
        raise DivergedError(f"every trial of {', '.join(lost)} diverged: no best.toml. Try smaller learning rates.")
    return True


def _note(plan: Sweep) -> None:
    """Print the budget, and the methods whose grids exceed it."""
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}"
    print(f"note: {plan.budget} trials of each method, each with {seeds}", file=sys.stderr)
    for name, size in plan.sizes.items():
        if size > plan.budget:
            print(
                f"note: {plan.budget} of the {size} points of {name}'s grid are drawn, so that every method has the "
                "same number of trials",
                file=sys.stderr,
            )


def _document(plan: Sweep, results: Sequence[Result], best: Mapping[str, Result], rounds: int) -> dict[str, Any]:
    return {
        "experiment": plan.original.name,
        "rows": [_row(plan, result, best=best.get(result.trial.method) is result) for result in results],
        "winner": sweeps.winner(best).trial.method if best else None,
        "trials": plan.budget,
        "points": dict(plan.sizes),
        "rounds": rounds,
        "validation": plan.original.evaluate.validation,
        "grid": {axis.key: list(axis.values) for axis in plan.axes},
    }


def _row(plan: Sweep, result: Result, *, best: bool) -> dict[str, Any]:
    figure = plan.original.evaluate.figure
    known = [value for value in result.values if value is not None]
    return {
        "method": result.trial.method,
        "trial": result.trial.number,
        "settings": result.trial.dotted,
        "seeds": list(plan.seeds),
        "accuracies" if figure == ACCURACY else f"{figure.key}_by_seed": list(result.values),
        f"validation_{figure.key}": result.score,
        "half_width": None if result.score is None else half_width(known),
        "best": best,
    }


def _show(plan: Sweep, document: Mapping[str, Any]) -> None:
    """Print a sweep as a table with a column per setting."""
    score = f"validation_{plan.original.evaluate.figure.key}"
    names = dict.fromkeys(name for row in document["rows"] for name in row["settings"])
    rows = []
    for row in document["rows"]:
        diverged = "diverged" if row[score] is None else ""
        settings = {name: shown(row["settings"][name]) if name in row["settings"] else None for name in names}
        rows.append(
            {"method": row["method"], "trial": row["trial"]}
            | settings
            | {"seeds": row["seeds"], score: row[score]}
            | {"half_width": row["half_width"], "best": "best" if row["best"] else diverged}
        )
    share = f"{document['validation']:.3g} of every device's training samples"
    title = f"{document['trials']} trials of {document['rounds']} rounds each; validation: {share}"
    show(rows, as_json=False, title=title)

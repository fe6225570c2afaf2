"""Texts on what happened to runs: divergence, failures, lost visits, and what devices revealed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedfloor.base.names import count, excerpt
from fedfloor.report.groups import Compared, Group
from fedfloor.report.ledger import RecordedRun, exact_answers, privacy, private_models
from fedfloor.report.numbers import listed

NAMED = 8  # most devices named one by one
SEEDED = " The noise of a simulation is drawn from its public seed and gives no protection."


def untrained(compared: Compared) -> str:
    """Return a text on classes that occur only in test samples, for the run with most of these samples."""
    parks = [run.park for run in compared.runs if run.park.untrained_classes]
    if not parks:
        return ""
    most = max(parks, key=lambda park: sum(park.untrained_classes.values()))
    share = sum(most.untrained_classes.values()) / most.test_samples
    names = listed(list(most.untrained_classes))
    return f"No training sample is of class {names}: {100 * share:.0f} % of the test samples cannot be right."


def diverged(compared: Compared) -> str:
    """Return a text on the runs that diverged and the consequence for the metrics."""
    parts = []
    for group in compared:
        rounds = [f"seed {run.seed} in round {run.diverged}" for run in group.runs if run.diverged is not None]
        if rounds:
            parts.append(f"{group.label.shown} ({listed(rounds)})")
    end = "A method with a diverged run has no mean, and no difference includes that seed."
    return f"Training diverged: {'; '.join(parts)}. {end}" if parts else ""


def unfinished(compared: Compared) -> str:
    """Return a text on the runs that have not completed all scheduled rounds."""
    parts = []
    whole = 0
    for group in compared:
        short = [run for run in group.whole if not run.finished and not run.failed]
        whole += sum(run.finished for run in group.whole)
        done = sorted({run.last for run in short})
        if short:
            where = str(done[0]) if len(done) == 1 else f"{done[0]} to {done[-1]}"
            some = len(short) < len(group.runs)
            seeds = f" (seed {listed([str(run.seed) for run in short])})" if some else ""
            parts.append(f"{group.label.shown}{seeds} did {where} of {short[0].planned} rounds")
    failed_too = any(run.failed for group in compared for run in group.runs)
    rest = " All other runs completed all rounds." if whole and not failed_too else ""
    return f"Schedule not finished: {'; '.join(parts)}, stopped early or still running.{rest}" if parts else ""


def returned(compared: Compared) -> str:
    """Return a text on the runs whose model is that of an earlier round, by ``evaluate.patience``."""
    parts = [
        f"{group.label.shown}{f' (seed {run.seed})' if len(group.runs) > 1 else ''} of round {run.returned}, after "
        f"{run.last} rounds"
        for group in compared
        for run in group.whole
        if run.returned is not None
    ]
    return f"The model is that of the best round on held-out samples: {'; '.join(parts)}." if parts else ""


def gaps(compared: Compared, without: Sequence[Path]) -> list[str]:
    """Return texts on runs that failed, or did fewer rounds than others, or none.

    Args:
        without: the folders of runs without a finished round, which are not among those compared.
    """
    some = any(run.finished for run in compared.runs)
    none = f"Without a finished round: {listed([path.name for path in without])}." if without else ""
    return [text for text in (failed(compared), unfinished(compared) if some else "", none) if text]


def failed(compared: Compared) -> str:
    """Return a text on the runs that ended with an error; "" without any."""
    parts = [
        f"{group.label.shown}{f' (seed {run.seed})' if len(group.runs) > 1 else ''} in round {run.failed.round} of "
        f"{run.planned or '?'}: {run.failed.why.rstrip('.')}"
        for group in compared
        for run in group.runs
        if run.failed is not None
    ]
    return f"The run failed: {'; '.join(parts)}." if parts else ""


def lost(compared: Compared) -> str:
    """Return a text on lost visits, the devices that lost most, and those that never trained; "" without any."""
    parts = [_lost_of(group) for group in compared]
    parts = [text for text in parts if text]
    never = [
        f"{run.park.names.many(untrained)} in {group.label.shown}"
        for group in compared
        for run in group.runs
        if (untrained := never_trained(run))
    ]
    rest = f"Devices that never trained: {listed(list(dict.fromkeys(never)))}." if never else ""
    return " ".join(text for text in (f"Lost visits: {'; '.join(parts)}." if parts else "", rest) if text)


def never_trained(run: RecordedRun) -> tuple[int, ...]:
    """Return the numbers of real devices whose training never succeeded in a run."""
    measured = run.rounds[-1].measured if run.rounds else None
    return () if measured is None else measured.untrained


def _lost_of(group: Group) -> str:
    lines = [line for run in group.runs for line in run.rounds if line.lost]
    if not lines:
        return ""
    visits = [line.visits for line in lines]
    rounds = sum(len(run.rounds) for run in group.runs)
    of = "" if None in visits else f" of {sum(filter(None, visits)):,}"
    where = f"in {len(lines):,} of {count(rounds, 'round')}"
    vain = sum(line.lost == line.visits for line in lines)
    unchanged = f"; {count(vain, 'round')} lost every visit, and left the model unchanged" if vain else ""
    own = f"{sum(line.lost or 0 for line in lines):,}{of} visits of {group.label.shown} {where}{_losers(group)}"
    return own + unchanged


def _losers(group: Group) -> str:
    """Return the devices with most lost visits as text; "" if they are not recorded."""
    lost = Counter[str]()
    for run in group.runs:
        for line in run.rounds:
            by = (line.lost_by or {}).items()
            lost.update({run.park.names.site("device", int(device)): own for device, (own, _) in by})
    named = [f"{name} {own:,}" for name, own in lost.most_common()]
    return f", most of {excerpt(named, NAMED)}" if len(named) > NAMED else f", of {listed(named)}" if named else ""


def private(compared: Compared) -> str:
    """Return a text on the privacy loss of each group's models, and on whether their noise gives protection."""
    parts = []
    seeded = False
    for group in compared:
        statements = [statement for run in group.runs for statement in private_models(run)]
        for protected in dict.fromkeys(statement.protects for statement in statements):
            own = [statement for statement in statements if statement.protects == protected]
            most = max(own, key=lambda statement: math.inf if statement.epsilon is None else statement.epsilon)
            seeded = seeded or most.noise != "secret"
            loss = "no bound" if most.epsilon is None else f"ε = {most.epsilon:.4g} with δ = {most.delta:g}"
            length = count(most.rounds, "step" if protected.startswith("a sample") else "round")
            parts.append(f"{protected} in {group.label.shown} after {length}: {loss}")
    return f"Privacy loss of the models: {'; '.join(parts)}.{SEEDED * seeded}" if parts else ""


def exact(compared: Compared) -> str:
    """Return a text on the numbers that devices of private experiments send without noise; "" without any."""
    parts = []
    for group in compared:
        runs = [run for run in group.runs if private_models(run) or privacy(run) is not None]
        most: dict[str, int] = {}
        for name, answer in (item for run in runs for item in exact_answers(run).items()):
            most[name] = max(most.get(name, 0), answer.times)
        if most:
            sent = listed([f"'{name}' {count(times, 'time')}" for name, times in most.items()])
            parts.append(f"{sent} in {group.label.shown}")
    end = "privacy.json in the run's folder describes each."
    return f"Sent by a device without noise, at most: {'; '.join(parts)}; {end}" if parts else ""


def reported(compared: Compared) -> str:
    """Return a text on the largest privacy loss of noisy censuses, and on whether their noise gives protection."""
    parts = []
    seeded = False
    for group in compared:
        spent = [(body.epsilon or 0.0, body) for body in map(privacy, group.runs) if body is not None and body.reports]
        if spent:
            epsilon, most = max(spent, key=lambda loss: loss[0])
            seeded = seeded or most.noise != "secret"
            where = "" if most.noise == "secret" else "on real machines "
            advanced = most.epsilon_advanced or 0.0
            better = f", or {advanced:.4g} with δ = {most.delta:g}" if advanced < epsilon else ""
            parts.append(
                f"in {group.label.shown} a device sent its class counts {count(most.reports or 0, 'time')}, "
                f"{where}together ε = {epsilon:.4g}{better}"
            )
    return f"With noise: {listed(parts)}.{SEEDED * seeded}" if parts else ""

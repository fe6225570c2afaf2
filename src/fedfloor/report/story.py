"""The results as plain text: the target, the winner, significance, references, thresholds, and caveats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import mean, median

import numpy as np

from fedfloor.figures import ACCURACY, LOSS, Figure, Predictions, Ranking
from fedfloor.names import LOCAL_ONLY, PERSISTENCE, POOLED, SCIKIT_LEARN, SEASONAL, count, excerpt
from fedfloor.report.groups import CLASSES, Compared, Group, contestants, display_name, values
from fedfloor.report.ledger import RecordedRun, exact_answers, privacy, private_models
from fedfloor.report.numbers import COSTS, amount, figure, interval, listed
from fedfloor.report.records import DecidedRecord, DecideRecord, EvaluationRecord
from fedfloor.report.table import Row, leader, paired, seen_from, summary

LEAST = {
    "rounds": "the fewest rounds", "seconds": "the least time", "bytes": "the fewest bytes",
    "joules": "the least energy",
}  # fmt: skip
MOST = 4  # most methods named one by one
NAMED = 8  # most devices named one by one
SEEDED = " The noise of a simulation is drawn from its public seed and gives no protection."


def story(compared: Compared, target: float | None) -> list[str]:
    """Return the runs' results as text; every element is a paragraph of one or two sentences."""
    rivals = contestants(compared)
    rows, headline, best = summary(rivals.runs, target), rivals.headline, _leader(rivals)
    place = standing(rivals)
    reached = "" if place and target is None else verdict(rows, headline)
    paragraphs = [
        apart(compared), reached, prices(rows, headline), place, *map(decision_story, best), *remarks(rivals),
        winner(rivals), *(contrast(compared, group) for group in best), *map(devices, best),
    ]  # fmt: skip
    notes = untrained, diverged, failed, unfinished, returned, lost, private, exact, reported
    paragraphs += [note(compared) for note in notes]
    return [text[0].upper() + text[1:] if text.startswith("centralised") else text for text in paragraphs if text]


def apart(compared: Compared) -> str:
    """Return a note if runs have different headlines, otherwise ""."""
    names = list(dict.fromkeys(run.headline.name for run in compared.runs))
    return f"These runs have different headlines ({listed(names)}); here they are judged by accuracy." * (
        len(names) > 1
    )


def verdict(rows: Sequence[Row], headline: Figure = ACCURACY) -> str:
    """Return a text on the rounds in which methods reached the target of the headline.

    >>> row = {"method": "fedsr", "seeds": [0], "target": 0.9, "reached": 1, "rounds_to_target": 6.0, "rounds": 8}
    >>> verdict([row, row | {"method": "fedavg", "reached": 0, "rounds_to_target": None}])
    'fedsr reached an accuracy of 0.90 after 6 rounds; fedavg did not within 8.'
    """
    if all(row["target"] is None for row in rows):
        return f"No {headline.name} to compare has been reached yet."
    order = sorted(
        rows, key=lambda row: (row["rounds_to_target"] is None, row["rounds_to_target"] or 0, -row["reached"])
    )
    target = f"{rows[0]['target']:.2f}" if round(rows[0]["target"], 2) == rows[0]["target"] else str(rows[0]["target"])
    target = headline.amount(f"{rows[0]['target']:g}") if headline.own else target
    reached = [row for row in order if row["reached"]]
    parts = [_reached(row, "it" if i else f"{headline.phrase} of {target}") for i, row in enumerate(reached)]
    missed = [row for row in order if not row["reached"] and not row.get("diverged")]
    for rounds in sorted({row["rounds"] for row in missed}):
        names = [display_name(row["method"]) for row in missed if row["rounds"] == rounds]
        methods = listed(names) if len(names) <= MOST else f"{len(names)} {'others' if parts else 'methods'}"
        within = f"within {rounds}" if parts else f"reach {headline.phrase} of {target} within {count(rounds, 'round')}"
        parts.append(f"{methods} did not {within}")
    return "; ".join(parts) + "." if parts else f"No run that did not diverge reached {headline.phrase} to compare."


def prices(rows: Sequence[Row], headline: Figure = ACCURACY) -> str:
    """Return a text on the target's cost on the network, and the best methods by rounds, time, bytes and energy.

    Only methods with all seeds at the target are compared.
    """
    reached = [row for row in rows if row["rounds_to_target"] is not None]
    kinds = [kind for kind in COSTS if any(row[f"{kind}_to_target"] for row in reached)]
    if not kinds:
        return ""
    first: dict[str, list[str]] = {}
    for kind in ("rounds", *kinds):
        known = [row for row in reached if row[f"{kind}_to_target"] is not None]
        least = min(row[f"{kind}_to_target"] for row in known)
        methods = listed([display_name(row["method"]) for row in known if row[f"{kind}_to_target"] == least])
        cost = f"{least:g}" if kind == "rounds" else amount(kind, least)
        first.setdefault(methods, []).append(f"{LEAST[kind]} ({cost})")
    target = headline.amount(f"{rows[0]['target']:g}")
    if len(reached) == 1:
        costs = listed([amount(kind, reached[0][f"{kind}_to_target"]) for kind in kinds])
        return f"To {headline.phrase} of {target}, {display_name(reached[0]['method'])} used {costs} on the network."
    needs = [f"{methods} needed {listed(least)}" for methods, least in first.items()]
    end = "the first by every measure" if len(needs) == 1 else "the order of the methods depends on the measure"
    return f"To {headline.phrase} of {target}, {'; '.join(needs)}: {end}."


def _reached(row: Row, target: str) -> str:
    name, seeds = display_name(row["method"]), len(row["seeds"])
    if row["rounds_to_target"] is None:
        return f"{name} reached {target} with {row['reached']} of {seeds} seeds within {count(row['rounds'], 'round')}"
    rounds = float(row["rounds_to_target"])
    length = count(int(rounds), "round") if rounds.is_integer() else f"{rounds:.1f} rounds"
    return f"{name} reached {target} after {length}" + (f" (mean of {seeds} seeds)" if seeds > 1 else "")


def standing(compared: Compared) -> str:
    """Return a text with each method's headline in the last round that all its seeds evaluated, the best first."""
    rows, headline = {row["method"]: row for row in summary(compared.runs)}, compared.headline
    known = sorted((g for g in compared if rows[g.label][headline.key] is not None),
                   key=lambda g: -headline.gain(rows[g.label][headline.key], 0.0))  # fmt: skip
    if not known:
        return ""
    last = {group.label: group.last_lines(headline.read)[0].round for group in known}
    same = len(set(last.values())) == 1
    parts = []
    for group in known[:MOST]:
        row = rows[group.label]
        when = "" if same else f" (round {last[group.label]})"
        parts.append(f"{group.label.shown} {headline.amount(interval(row[headline.key], row['half_width'], 3))}{when}")
    more = f", and {len(known) - MOST} more below" if len(known) > MOST else ""
    opening = f"In round {last[known[0].label]}" if same else "In their last rounds"
    seeds = len(known[0].runs)
    equal = all(len(group.runs) == seeds for group in known)
    mean = "" if all(len(group.runs) == 1 for group in known) else " (mean over the seeds"
    mean += f", {seeds} each)" if mean and equal and len(known) > 1 else f", {seeds})" if mean and equal else ""
    mean += ")" if mean and not equal else ""
    right = "of the test samples" if known[0].runs[0].on == "test" else f"of the {known[0].runs[0].on} samples"
    figure_of = f"the share {right} that the model gets right"
    if headline != ACCURACY:
        figure_of = f"the {headline.name} of the model {right.replace('of', 'on', 1)}"
    return f"{opening}, {figure_of}{mean}: {', '.join(parts)}{more}."


def _leader(compared: Compared) -> list[Group]:
    """Return a list with the best group, or the only one; [] if none was evaluated."""
    rows, headline = summary(compared.runs), compared.headline
    scored = [
        (headline.gain(row[headline.key], 0.0), -i) for i, row in enumerate(rows) if row[headline.key] is not None
    ]
    return [compared[-max(scored)[1]]] if scored else []


def winner(compared: Compared) -> str:
    """Return a text on the lead of the best method, seed by seed, and on its significance."""
    if len(compared) < 2:
        single = len(compared) == 1 and len(compared[0].runs) == 1
        return "This is one run with one seed: the difference to another seed is not known." if single else ""
    pairs = paired(compared.runs)
    if not pairs:
        return "No two methods were evaluated with a common seed, so they cannot be compared seed by seed."
    best = leader(compared, pairs)
    first = next(group for group in compared if group.label == best)
    headline = compared.headline
    seen = (seen_from(row, best) for row in pairs if best in (row["method"], row["against"]))
    rivals = sorted(seen, key=lambda row: headline.gain(row["difference"], 0.0))
    sentences = [_difference(first, row, headline) for row in rivals[:MOST]]
    if len(rivals) > MOST:
        clear = sum(_beyond_chance(row) for row in rivals[MOST:])
        sentences.append(f"Of the {len(rivals) - MOST} methods further behind, {clear} are behind by more than chance.")
    return " ".join(sentences)


def _beyond_chance(row: Row) -> bool:
    width = row["half_width"]
    return width is not None and abs(row["difference"]) > width


def _difference(first: Group, row: Row, headline: Figure) -> str:
    name, other, width = first.label.shown, display_name(row["against"]), row["half_width"]
    gap = headline.gain(row["difference"], 0.0)
    rounds = row["rounds"]
    when = f"in round {rounds[0]}" if len(rounds) == 1 else "in their last common rounds" if rounds else "at their ends"
    if gap == 0 and not width:
        seeds = "the only common seed" if width is None else "every common seed"
        equal = "are equally accurate" if headline == ACCURACY else f"have the same {headline.name}"
        return f"{name} and {other} {equal} {when}, with {seeds}."
    words = f"{name} is ahead of {other} by {headline.amount(figure(gap, 3))} {when}"
    if gap < 0:
        words = f"{name} is behind {other} by {headline.amount(figure(-gap, 3))} {when}"
    if width is None:
        return f"{words}, with one common seed: more seeds are needed to exclude chance."
    words += f" (95 % interval {figure(gap - width, 3)} to {figure(gap + width, 3)}, {len(row['seeds'])} seeds)"
    if _beyond_chance(row):
        return f"{words}: more than chance explains."
    return f"No significant difference: {words}; the interval contains 0."


def devices(group: Group) -> str:
    """Return a text on the headline that a group's model attains on nine of ten devices."""
    alone = Compared([group])
    measure = alone.placed
    spreads = group.last_spreads(measure)
    if not spreads:
        return ""
    higher = measure.kind.better == "higher"
    end = sum(spread.p10 if higher else spread.p90 for spread in spreads) / len(spreads)
    kind, name = alone.figures, group.label.shown
    right = f"{measure.phrase} of at {'least' if higher else 'most'} {measure.amount(f'{end:.2f}')}"
    right = f"a share of at least {end:.2f} right" if measure == ACCURACY else right
    if kind == "measured":
        which = "with test samples" if measure == ACCURACY else "on which it is defined"
        return f"On nine in ten of the devices {which}, the model of {name} gets {right}."
    if kind == "expected":
        return (
            f"By the classes they hold, nine devices in ten can expect the model of {name} to get {right}; this is not "
            "a measurement, as no test sample belongs to a device."
        )
    return (
        f"On nine devices in ten, the model of {name} gets {right}, measured or expected by the classes they hold: the "
        "runs do not record which."
    )


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
    parts, whole = [], 0
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
    visits, rounds = [line.visits for line in lines], sum(len(run.rounds) for run in group.runs)
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
    parts, seeded = [], False
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
    parts, seeded = [], False
    for group in compared:
        spent = [(body.epsilon or 0.0, body) for body in map(privacy, group.runs) if body is not None and body.reports]
        if spent:
            epsilon, most = max(spent, key=lambda loss: loss[0])
            seeded, where = seeded or most.noise != "secret", "" if most.noise == "secret" else "on real machines "
            advanced = most.epsilon_advanced or 0.0
            better = f", or {advanced:.4g} with δ = {most.delta:g}" if advanced < epsilon else ""
            parts.append(
                f"in {group.label.shown} a device sent its class counts {count(most.reports or 0, 'time')}, "
                f"{where}together ε = {epsilon:.4g}{better}"
            )
    return f"With noise: {listed(parts)}.{SEEDED * seeded}" if parts else ""


SMOOTH = 3  # evaluations in a median, as one bad round is not a trend
RISE = 1.1  # ratio to the lowest loss


def remarks(compared: Compared) -> list[str]:
    """Return texts on the baseline, on models that predict only one class, and on rising losses."""
    classes = compared.task == CLASSES
    own = (baseline(compared), one_class(compared)) if classes else (mean_baseline(compared),)
    return [text for text in (attacked(compared), *own, rising(compared)) if text]


def attacked(compared: Compared) -> str:
    """Return a text on the attacking devices and their attack; "" without any."""
    attacks: dict[str, list[str]] = {}
    for group in compared:
        acting = group.runs[0].settings.faults.attackers
        if acting is not None:
            share = "" if acting.share is None else f"{100 * acting.share:g} % of the devices"
            many = share or ("" if acting.count is None else count(acting.count, "device"))
            which = many or f"device {listed([str(device) for device in acting.devices or ('?',)])}"
            attacks.setdefault(f"{which} by '{acting.kind}'", []).append(group.label.shown)
    everyone = [labels for labels in attacks.values() if len(labels) == len(compared)]
    parts = list(attacks) if everyone else [f"{how} in {listed(labels)}" for how, labels in attacks.items()]
    return f"Attackers: {'; '.join(parts)}." if parts else ""


def baseline(compared: Compared) -> str:
    """Return a text on the metrics of always predicting the most frequent class of the test samples."""
    runs = compared.runs
    finals = {tuple(map(sum, run.evaluation.confusion)): run.evaluation for run in runs if run.evaluation}
    if not finals or len({final.classes for final in finals.values()}) > 1:
        return ""
    parts = []
    for measure in dict.fromkeys((ACCURACY, compared.headline)):
        reached = [value for final in finals.values() if (value := constant(final, measure)) is not None]
        if reached:
            low, high = (figure(value, _digits(value)) for value in (min(reached), max(reached)))
            parts.append(f"{measure.phrase} of {low if low == high else f'{low} to {high}'}")
    names = " or ".join(dict.fromkeys(f"'{majority(final)}'" for final in finals.values()))
    return f"Always predicting {names} would reach {' and '.join(parts)}." if parts else ""


def mean_baseline(compared: Compared) -> str:
    """Return a text on the RMSE of always predicting the mean of the test values.

    For a single target it follows from the metrics of any model: R² = 1 − RMSE²/s², with s the RMSE of the mean. It
    does not follow from metrics averaged over several targets.
    """
    runs = compared.runs
    several = any(str(run.settings.data.get("path", "")).endswith(".npz") for run in runs)
    if compared.task != "regression" or compared.headline.kind.name != "RMSE" or several:
        return ""
    figures = [run.rounds[-1].figures or {} for run in runs if run.rounds]
    both = [(row.get("RMSE"), row.get("R2")) for row in figures]
    reached = [rmse / math.sqrt(1 - r2) for rmse, r2 in both if rmse is not None and r2 is not None and r2 < 1]
    if not reached:
        return ""
    low, high = (figure(value, 2) for value in (min(reached), max(reached)))
    amount = compared.headline.amount(low if low == high else f"{low} to {high}")
    return f"Always predicting the mean of the test values would reach an RMSE of {amount}."


def _digits(value: float) -> int:
    """Return the number of decimals at which a share differs from 0 and from 1."""
    return 3 if 0 < value < 0.01 or 0.985 < value < 1 else 2


def majority(final: EvaluationRecord) -> str:
    """Return the most frequent class of the test samples, the first one in a tie."""
    return final.classes[int(np.argmax(np.sum(final.confusion, axis=1)))]


def constant(final: EvaluationRecord, headline: Figure) -> float | None:
    """Return a metric of the best model without input: the most frequent class, with class shares as probabilities.

    Its loss is the entropy of the mix, −Σ_c p(c)·ln p(c); its scores are all equal.

    >>> final = EvaluationRecord(1, ("ok", "fault"), ((80, 10), (5, 5)))
    >>> constant(final, ACCURACY), round(constant(final, LOSS), 4)
    (0.9, 0.3251)
    """
    counts = np.sum(final.confusion, axis=1)
    table = np.zeros((len(counts), len(counts)), np.int64)
    table[:, int(np.argmax(counts))] = counts
    mix = counts[counts > 0] / counts.sum()
    scored = headline.scored(final.classes)
    ranked = {c: Ranking(counts[[c]], (counts.sum() - counts[c])[None]) for c in scored}
    return headline.value(Predictions(table, float(-(mix * np.log(mix)).sum()), ranked), final.classes)


def one_class(compared: Compared) -> str:
    """Return a text on the final models that predict one class for every test sample."""
    parts = []
    for group in compared:
        same = [(run, name) for run in group.runs if run.evaluation and (name := only(run.evaluation)) is not None]
        if same:
            names = listed(list(dict.fromkeys(f"'{name}'" for _, name in same)))
            seeds = "" if len(same) == len(group.runs) else f" with seed {listed([str(run.seed) for run, _ in same])}"
            parts.append(f"that of {group.label.shown}{seeds} predicts {names} for every test sample")
    return f"A model that does not separate the classes: {'; '.join(parts)}." if parts else ""


def only(final: EvaluationRecord) -> str | None:
    """Return the only class that a model predicts; None if it predicts several or there is only one class."""
    table = np.array(final.confusion)
    taken = np.flatnonzero(table.sum(axis=0))
    return final.classes[int(taken[0])] if len(taken) == 1 and np.count_nonzero(table.sum(axis=1)) > 1 else None


def rising(compared: Compared) -> str:
    """Return a text on the groups whose loss on the test data rises during training."""
    parts = []
    for group in compared:
        risen = [(run, *ends) for run in group.runs if (ends := risen_from(run)) is not None]
        if risen:
            run, best, low, high = risen[0]
            seeds = "" if len(group.runs) == 1 else f" (seed {run.seed}; {len(risen)} of {len(group.runs)} seeds)"
            parts.append(f"{group.label.shown} from {low:.3g} in round {best} to {high:.3g} in the last{seeds}")
    advice = (
        "The model becomes overconfident, and its probabilities are less reliable than before: fewer rounds, a smaller "
        "learning rate or calibrated confidence help."
    )
    if compared.task != CLASSES:
        advice = "The model overfits its training samples: fewer rounds or a smaller learning rate help."
    return f"The test loss rises: {'; '.join(parts)}. {advice}" if parts else ""


def risen_from(run: RecordedRun) -> tuple[int, float, float] | None:
    """Return (round, lowest, last) of a test loss that ends a tenth or more above its lowest value; None otherwise.

    Both values are medians of three evaluations.
    """
    by_round = values(run, LOSS.read)
    rounds, losses = list(by_round), list(by_round.values())
    smooth = [median(losses[i - SMOOTH : i]) for i in range(SMOOTH, len(losses) + 1)]
    if len(smooth) < SMOOTH + 1:
        return None
    low = min(smooth)
    best = smooth.index(low)
    return (rounds[best + SMOOTH // 2], low, smooth[-1]) if smooth[-1] > RISE * low else None


ABOUT = {
    POOLED: "pooled training (the same network, all data in one place)",
    LOCAL_ONLY: "local training only (each device by itself)",
    SCIKIT_LEARN: "gradient boosting (scikit-learn, on the pooled table; of a window five statistics of each sensor)",
    PERSISTENCE: "persistence (the last value repeated)",
    SEASONAL: "the seasonal forecast (the value one season before)",
}
# texts for a method behind and ahead, filled with the method, the reference, the difference, the metric
PLAIN = ("{} is behind {} by {} of {}", "{} is ahead of {} by {} of {}")
OPENINGS = {
    POOLED: (
        "Federation has a cost: {} is behind {} by {} of {}",
        "Federation costs nothing: {} is ahead of {} by {} of {}",
    ),
    LOCAL_ONLY: (
        "Federation brings nothing: {} is behind {} by {} of {}",
        "Federation brings a gain: {} is ahead of {} by {} of {}",
    ),
} | dict.fromkeys((SCIKIT_LEARN, PERSISTENCE, SEASONAL), PLAIN)


def contrast(compared: Compared, first: Group) -> str:
    """Return texts on the lead of ``first`` over each reference, such as pooled and local training, seed by seed."""
    sentences, headline = list[str](), Compared([first, *compared]).headline
    for name in OPENINGS:
        same = [group for group in compared if group.runs[0].method == name and group.label != first.label]
        rows = paired([*first.runs, *same[0].runs]) if len(same) == 1 else []
        sentences += [_sentence(name, first, seen_from(row, first.label), headline) for row in rows]
    return " ".join(sentences)


def _sentence(name: str, first: Group, row: Row, headline: Figure) -> str:
    gap, width = headline.gain(row["difference"], 0.0), row["half_width"]
    if gap == 0 and not width:
        equal = "are equally accurate" if headline == ACCURACY else f"have the same {headline.name}"
        return f"{first.label.shown} and {ABOUT[name]} {equal}."
    facts = (first.label.shown, ABOUT[name], headline.amount(figure(abs(gap), 3)), headline.name)
    if width is None:
        return f"{PLAIN[gap > 0].format(*facts)} with one common seed: only more seeds can exclude chance."
    ends = f"95 % interval {figure(abs(gap) - width, 3)} to {figure(abs(gap) + width, 3)}, {len(row['seeds'])} seeds"
    if abs(gap) <= width:
        return f"No significant difference: {PLAIN[gap > 0].format(*facts)} ({ends}); the interval contains 0."
    return f"{OPENINGS[name][gap > 0].format(*facts)} ({ends})."


DECISION_HEAD = ["method", "seed", "decided", "recall", "precision", "F1", "found", "missed", "false alarms"]
SHARES = ("recall", "precision", "f1")
COUNTS = ("found", "missed", "false_alarms")


def decided(run: RecordedRun) -> tuple[str, DecideRecord] | None:
    """Return the class with a threshold in a run's last model, and the decision's record; None without one."""
    final = run.evaluation
    if final is None or final.decide is None or final.decide.positive is None:
        return None
    return final.classes[final.decide.positive], final.decide


def decision_story(group: Group) -> str:
    """Return a text on a group's threshold, with its metrics and those of the likeliest class, means over the seeds."""
    known = [decision for decision in map(decided, group.runs) if decision is not None]
    if not known or len({(name, made.validation.by) for name, made in known}) > 1:
        return ""
    (name, first), every = known[0], [made for _, made in known]
    limits = [made.threshold for made in every]
    low, high = f"{min(limits):.4g}", f"{max(limits):.4g}"
    many = "" if len(every) == 1 else f", means of {len(every)} seeds"
    return (
        f"{group.label.shown} decides for '{name}' where its probability is at least "
        f"{low if low == high else f'{low} to {high}'} ({_decision_rule(name, first)}). On the "
        f"{_decided_on(group.runs[0])} samples{many}: {_decided_words([made.decided for made in every])}; by the "
        "likeliest class, as in all other figures here: "
        f"{_decided_words([made.likeliest for made in every])}."
    )


def _decided_words(decisions: Sequence[DecidedRecord]) -> str:
    """Return the means of a decision's metrics over the seeds as text, with a dash if a seed has no value."""
    shares = []
    for name in SHARES:
        values = [getattr(decision, name) for decision in decisions]
        value = None if None in values else mean(values)
        shares.append(f"{'F1' if name == 'f1' else name} {figure(value, 3)}")
    alarms = [decision.false_alarms for decision in decisions]
    many = count(alarms[0], "false alarm") if len(set(alarms)) == 1 else f"{mean(alarms):.1f} false alarms"
    return listed([*shares, many])


def _decision_rule(name: str, made: DecideRecord) -> str:
    held = made.validation
    kept = ", which no threshold attains on these samples" if held.missed_rule else ""
    return f"{held.by}{kept}; chosen on {count(held.samples, 'validation sample')}, {held.positives:,} of them '{name}'"


def _decided_on(run: RecordedRun) -> str:
    return "test" if run.on == "test" else "same validation"


def decision_rows(compared: Compared) -> list[list[str]]:
    """Return two rows of texts per run with a threshold: decisions by the threshold, and by the likeliest class."""
    cells = []
    for group, run in [(runs_of, run) for runs_of in compared for run in runs_of.runs]:
        if (known := decided(run)) is None:
            continue
        name, made = known
        ways = {f"'{name}' from {made.threshold:.4g} on": made.decided, "likeliest class": made.likeliest}
        for way, figures in ways.items():
            numbers = [figure(getattr(figures, key)) for key in SHARES]
            numbers += [f"{getattr(figures, key):,}" for key in COUNTS]
            cells.append([group.label.shown, str(run.seed), way, *numbers])
    return cells


def decision_caption(compared: Compared) -> str:
    """Return a caption on the rules that chose the thresholds and on the samples of the metrics."""
    known = [(run, *decision) for run in compared.runs if (decision := decided(run)) is not None]
    ways = listed(list(dict.fromkeys(_decision_rule(name, made) for _, name, made in known)))
    on = listed(list(dict.fromkeys(_decided_on(run) for run, _, _ in known)))
    return (
        f"The last round's model on the {on} samples. A sample is of the class where its probability reaches the "
        f"threshold ({ways}), else of the likeliest other class. predict and ONNX files decide by the threshold; the "
        "headline and all other figures of this page are those of the likeliest class."
    )

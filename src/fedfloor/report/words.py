"""The captions and table cells of a report, and its table as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from fedfloor.base.names import REFERENCES, ROUNDLESS, count
from fedfloor.report.charts import MOST_DEVICES, class_samples
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.groups import CLASSES, Compared, Group, display_name, groups
from fedfloor.report.ledger import RecordedRun, frequent, summed
from fedfloor.report.numbers import COSTS, NAMES, amount, between, decimals, figure, listed, metric, percent, plain
from fedfloor.report.records import ParkRecord
from fedfloor.report.table import Budget, Row, at, paired, seen_from, summary
from fedfloor.tasks.figures import ACCURACY, KINDS, LOSS, MACRO_F1, Figure

SHARES = {each.name: each.share for each in (ACCURACY, MACRO_F1, *(Figure(kind) for kind in KINDS))}
CLASSED = (CLASSES, "reconstruction", "survival")  # tasks whose bins are classes
LOSSES = {
    CLASSES: "cross-entropy",
    "reconstruction": "reconstruction error",
    "survival": "log-likelihood",
}  # names of the loss, by task
SPREAD = "Mean over seeds; the whiskers are its 95 % Student-t interval, cut at 0{one}."


def on(runs: Sequence[RecordedRun]) -> str:
    """Return the kind of data of the evaluations, ``"test"`` or ``"validation"``.

    >>> on([])
    'test'
    """
    return " or ".join(dict.fromkeys(run.on for run in runs)) or "test"


def when(compared: Compared, read: object = None) -> str:
    """Return a text on the last evaluated rounds; ``read`` returns the metric of a ledger line."""
    pick = read if callable(read) else compared.headline.read
    last = sorted({lines[0].round for group in compared if (lines := group.last_lines(pick))})
    if not last:
        return "in the last evaluated round"
    return f"in round {last[0]}" if len(last) == 1 else f"in each run's last evaluated round ({last[0]} to {last[-1]})"


def seeds(compared: Compared) -> str:
    """Return the number of runs behind a metric as text.

    >>> seeds([])
    'no run'
    """
    numbers = sorted({len(group.drawn) for group in compared if group.drawn})
    if not numbers:
        return "no run"
    if numbers == [1]:
        return f"one run of each of {len(compared)} methods" if len(compared) > 1 else "one run"
    many = f"{numbers[0]} seeds" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
    return many + (" of each method" if len(compared) > 1 else "")


def summary_head(rows: Sequence[Row], target: float | None, headline: Figure = ACCURACY) -> list[str]:
    """Return the column names of the summary."""
    reach = [] if target is None else [f"rounds to {metric(headline, target)}"]
    lost = ["diverged"] if any(row["diverged"] for row in rows) else []
    return ["method", "seeds", "rounds", _named(headline), *reach, *lost]


def others_head(rows: Sequence[Row], headline: Figure = ACCURACY) -> list[str]:
    """Return the column names of the summary's further metrics."""
    return ["method", "best", *(name for name, _, _ in beside(rows, headline)), "simulation time (s)"]


def _named(headline: Figure) -> str:
    return f"{headline.name} ({headline.own})" if headline.own else headline.name


def beside(rows: Sequence[Row], headline: Figure) -> list[tuple[str, str, int]]:
    """Return the metrics other than the headline: column name, key, number of decimals."""
    figures = (ACCURACY, MACRO_F1, *(Figure(kind) for kind in KINDS if kind.tasks))
    others = [other for other in figures if other.key != headline.key]
    known = [(other, [row[other.key] for row in rows if row.get(other.key) is not None]) for other in others]
    columns = [(other.name, other.key, decimals(values)) for other, values in known if values]
    columns += [("backdoor", "backdoor", 4)] if any(row.get("backdoor") is not None for row in rows) else []
    return columns + ([] if headline == LOSS else [("loss", "loss", 3)])


def summary_cells(row: Row, headline: Figure = ACCURACY, *, lost: bool = False) -> list[str]:
    """Return the cells of one line of the summary as texts; ``lost``: a run of any line diverged."""
    roundless = row["method"] in ROUNDLESS
    cells = [
        display_name(row["method"]),
        _seeds(row),
        "–" if roundless else str(row["rounds"]),
        metric(headline, row[headline.key], row["low"], row["high"]),
    ]
    if row["target"] is not None:
        rounds = row["rounds_to_target"]
        some = f"{row['reached']} of {len(row['seeds'])} seeds" if row["reached"] else "not reached"
        reach = some if rounds is None else f"{rounds:.1f}".removesuffix(".0")
        cells.append("–" if roundless else reach)
    return [*cells, *([diverged(row) or "–"] if lost else [])]


def _seeds(row: Row) -> str:
    return count(len(row["seeds"]), "seed")


def others_cells(row: Row, headline: Figure, more: Sequence[tuple[str, str, int]]) -> list[str]:
    """Return the cells of one line of the summary's further metrics; ``more``: the columns of :func:`beside`."""
    cells = [display_name(row["method"]), metric(headline, row[f"best_{headline.key}"])]
    for name, key, digits in more:
        value = row.get(key)
        ends = (row.get(f"{key}_low"), row.get(f"{key}_high"))
        share = key == "backdoor" or SHARES.get(name, False)
        cells.append(metric(ACCURACY, value, *ends) if share else between(value, *ends, digits))
    return [*cells, figure(row["wall_s"], 1)]


def diverged(row: Row) -> str | None:
    """Return the seeds and rounds in which training diverged as text; None if it did not.

    >>> diverged({"diverged": [{"seed": 1, "round": 3}, {"seed": 2, "round": 5}]})
    'seed 1 in round 3, seed 2 in round 5'
    """
    return ", ".join(f"seed {run['seed']} in round {run['round']}" for run in row["diverged"]) or None


def summary_caption(rows: Sequence[Row], where: str, headline: Figure = ACCURACY, *, hindsight: bool) -> str:
    """Return the caption of the summary; ``hindsight``: the target was chosen after the results."""
    share = " (share of samples that it gets right)" if headline == ACCURACY else ""
    parts = [f"{headline.title}{share} of the model on the {where} data in the last evaluated round."]
    if rows[0]["target"]:
        parts.append("The target counts as reached in the first evaluated round that attains it.")
        if hindsight:
            best = "highest" if headline.kind.better == "higher" else "lowest"
            apart = " (apart from references)" * any(row["method"] in REFERENCES for row in rows)
            parts.append(f"No target was given: the {best} rounded value that all seeds of one method{apart} reached.")
    if any(row["diverged"] for row in rows):
        parts.append("A method with a diverged run has no mean, as that of the other seeds would be too good.")
    if any(len(row["seeds"]) > 1 for row in rows):
        parts.append("Mean over seeds.")
    parts.append(interval_caption(rows, headline))
    return " ".join(filter(None, parts))


def others_caption(rows: Sequence[Row], headline: Figure, where: str) -> str:
    """Return the caption of the summary's further metrics."""
    best = "highest" if headline.kind.better == "higher" else "lowest"
    known = {key for _, key, _ in beside(rows, headline)}
    parts = [f"Best: the {best} {headline.name} of any round, chosen with hindsight, on the {where} data."]
    if "macro_f1" in known:
        parts.append("Macro-F1: the mean over classes of 2·precision·recall/(precision + recall), final model.")
    if "loss" in known:
        mean = "mean cross-entropy, in nats" if "macro_f1" in rows[0] or headline == ACCURACY else "mean over samples"
        parts.append(f"Loss: {mean}.")
    if "backdoor" in known:
        parts.append("Backdoor: the share of test samples of other classes that its trigger turns into its target.")
    return " ".join([*parts, "Simulation time: the duration of the computation on the machine that ran it."])


def interval_caption(rows: Sequence[Row], headline: Figure = ACCURACY) -> str:
    """Return a text on the intervals of rows: over what they are; "" without any."""
    over = list(dict.fromkeys(row["over"] for row in rows if row["over"]))
    if not over:
        return ""
    units = [*dict.fromkeys(unit for text in over for unit in re.findall(r"test [a-z ]+", text))]
    how = ["Student's t over seeds"] if any("seed" in text for text in over) else []
    how += [f"a bootstrap over {listed(units)}"] if units else []
    exact = headline.share and any(
        "test sample" in unit or row[headline.key] in (0, 1) for unit in units for row in rows
    )
    how += ["with few errors at least Clopper and Pearson's bounds"] if exact else []
    return f"In brackets: the 95 % interval over {'; '.join(over)} ({' and '.join(how)})."


LAST = ", seed by seed, in the last round that both evaluated"
CHANCE = 0.05  # largest p-value of a difference that counts as more than chance


def paired_caption(headline: Figure, when: str = LAST) -> str:
    """Return the caption of paired differences of a headline; ``when``: by which round or budget."""
    how = "How much more accurate the first method is than the second, in percentage points"
    if headline != ACCURACY:
        how = f"The first method's {headline.name} minus the second's ({headline.kind.better} is better)"
    return (
        f"{how}{when}: the mean over the common seeds and its 95 % interval over what is named beside it; test samples "
        "are the same for both methods. Interval and p allow for the number of pairs (by Holm's method): an interval "
        "that contains 0, which is one with p of 0.05 or more, does not separate them."
    )


def fewer(pairs: int, listed: Sequence[Row], name: Callable[[str], str] = display_name) -> str:
    """Return a note on the pairs that are not listed, without a full stop; "" if all are.

    >>> rows = [{"method": "fedsr", "against": name} for name in ("fedavg", "fedprox")]
    >>> fewer(3, rows), fewer(2, rows)
    ('only those of fedsr, the best method, are listed; --json lists all 3 pairs', '')
    >>> rows = [{"method": "fedsr", "against": name} for name in ("pooled", "local-only")]
    >>> fewer(3, rows)
    'those of two references are not listed; --json lists all 3 pairs'
    >>> fewer(6, [*rows, {"method": "fedsr", "against": "fedavg"}])
    'only those of fedsr, the best method apart from references, are listed; --json lists all 6 pairs'
    """
    if len(listed) == pairs or not listed:
        return ""
    methods = {row["method"] for row in listed}
    references = [row["against"] in REFERENCES for row in listed]
    few = "those of two references are not"
    if len(methods) == 1 and not all(references):
        apart = " apart from references" if any(references) else ""
        few = f"only those of {name(*methods)}, the best method{apart}, are"
    return f"{few} listed; --json lists all {pairs} pairs"


def paired_cells(row: Row, headline: Figure) -> list[str]:
    """Return the cells of a paired difference as texts; of shares in percentage points."""
    sign = "+" if row["difference"] >= 0 else ""
    difference = sign + metric(headline, row["difference"], row["low"], row["high"]).replace("\u00a0%", "")
    without = f" (without seed {', '.join(map(str, row['left_out']))})" if row["left_out"] else ""
    seeds = count(len(row["seeds"]), "seed") + without
    rounds = [", ".join(map(str, row["rounds"]))] if "rounds" in row else []
    pair = f"{display_name(row['method'])} – {display_name(row['against'])}"
    return [pair, seeds, *rounds, difference, row["over"] or "–", chance(row["p_holm"])]


def chance(value: float | None) -> str:
    """Return a p-value as text.

    >>> chance(0.0312), chance(0.0002), chance(None)
    ('0.031', '<0.001', '–')
    """
    return "<0.001" if value is not None and value < 0.001 else figure(value, 3)


def evidence(row: Row, headline: Figure) -> tuple[bool, str]:
    """Return whether seeds and test samples in an interval do not explain a difference, and a text on it."""
    ends = sorted(headline.gain(end, 0.0) for end in (row["low"], row["high"]))
    if headline.gain(row["difference"], 0.0) < 0:
        ends = [-ends[1], -ends[0]]
    one = ", one seed" if one_draw(row) else ""
    corrected = ", both corrected for the number of comparisons" if row["p_holm"] != row["p"] else ""
    p = chance(row["p_holm"])
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    low, high = (plain(headline, end) for end in ends)
    text = f"95 % interval {low} to {high} over {row['over']}{one}; {p}{corrected}"
    return row["p_holm"] < CHANCE, text


def one_draw(row: Row) -> bool:
    """Return whether a difference is that of one seed, though another may give another difference."""
    return bool(row["seeded"]) and len(row["seeds"]) == 1


def beyond_chance(row: Row) -> bool:
    """Return whether a difference is more than chance explains, in training and in the choice of test samples."""
    return row["p_holm"] is not None and row["p_holm"] < CHANCE and not one_draw(row)


def lacking(row: Row) -> str:
    """Return a text on what would be needed to exclude chance from a difference without an interval.

    Too few test units, which are named, show no difference with any number of seeds.
    """
    if one_draw(row) and row["over"] is None:
        return "more seeds are"
    return f"{'more seeds and ' * one_draw(row)}more test samples, of other devices or recordings, are"


def curve_caption(compared: Compared, *, share: bool) -> str:
    """Return the caption of curves.

    Args:
        share: whether the metric is a share, so that its band is cut at 0 and 1.
    """
    if len(compared.runs) == 1:
        return "The line joins the evaluated rounds of one run; at most 12 of them have a mark."
    if all(len(group.runs) == 1 for group in compared):
        return f"Every line joins the evaluated rounds of one run ({seeds(compared)}); at most 12 have a mark."
    cut = ", cut at 0 and 1" if share else ""
    mean = f"Thick line: mean over seeds ({seeds(compared)}); thin: each seed"
    lost = " Means exclude diverged seeds." if any(run.diverged is not None for run in compared.runs) else ""
    return f"{mean}; band: 95 % Student-t interval of the mean{cut}.{lost}"


def headline_caption(compared: Compared, target: float | None) -> str:
    """Return the caption of the headline's curve."""
    where = on(compared.runs)
    headline = compared.headline
    at = "" if target is None else headline.amount(f"{target:g}")
    line = "" if target is None else f" The dotted line is {at}, the {headline.name} compared above."
    shown = f"{headline.title} of the model on the {where} samples ({headline.kind.better} is better)."
    if headline == ACCURACY:
        shown = f"Share of the {where} samples that the model gets right."
    return f"{shown} {curve_caption(compared, share=headline.share)}{line}"


def loss_caption(compared: Compared) -> str:
    """Return the caption of the loss's curve."""
    where = on(compared.runs)
    loss = LOSSES.get(compared.task, "loss on scaled targets")
    return f"Mean {loss} of the model on the {where} data. {curve_caption(compared, share=False)}"


def devices_caption(compared: Compared, *, dots: bool) -> str:
    """Return the caption of the headline per device."""
    where = on(compared.runs)
    measure = compared.placed
    each = " Dots: single devices, with the final model." if dots else ""
    mean = " Means over seeds." if compared.several else ""
    last = when(compared, lambda line: line.spread(measure))
    made = {
        "measured": f"measured on the device's own {where} samples; devices without test samples are left out",
        "expected": f"expected on {where} samples in the device's own mix of classes, as no {where} sample is its own",
        None: f"measured on the device's own {where} samples if the data have owners, otherwise expected on "
        f"{where} samples in the device's own mix of classes",
    }[compared.figures]
    return (
        f"The model's {measure.name}, device by device, {last}: {made}. The bar runs from the 10 % point of "
        f"these devices to the 90 % point, the diamond is the median.{each}{mean} {seeds(compared).capitalize()}."
        f"{_defined(compared)}"
    )


def _defined(compared: Compared) -> str:
    """Return a text on the number of devices for which the headline is defined; "" for the accuracy."""
    measure = compared.placed
    judged_by = compared.headline
    if measure != judged_by:
        return f" The {judged_by.name} is not recorded per device: no device has samples for it, or the runs are older."
    spreads = [spread for group in compared for spread in group.last_spreads(measure)]
    known = [spread.devices for spread in spreads if spread.devices is not None]
    if not known:
        return ""
    few = min(known)
    many = max(known)
    devices = count(few, "device") if few == many else f"{few} to {many} devices"
    needs = {CLASSES: "is of a required class", "reconstruction": "is an anomaly, or all are"}
    return f" It is defined on {devices}: not if no test sample {needs.get(compared.task, 'is its own')}."


def places_title(compared: Compared, kind: str) -> str:
    """Return the heading of the section on devices or factories, with "expected" for expected values."""
    measure = compared.placed
    expected = compared.figures == "expected"
    return f"{f'Expected {measure.name}' if expected else measure.title} per {kind}"


def devices_listed(rows: int, compared: Compared) -> str:
    """Return a text on the number of listed devices and on whether these are all devices."""
    every = rows >= max(run.park.size for run in compared.runs)
    return f"{'All ' if every else ''}{count(rows, 'device')}{'' if every else ', evenly spread'}"


def places_caption(compared: Compared, kind: str, *, spread: bool = True) -> str:
    """Return the caption of the headline per factory, or, without ``spread``, of the table of devices."""
    known = Compared(group for group in compared if group.finals)
    model = f"after {_rounds([final for group in known for final in group.finals])}"
    several = known.several
    where = on(known.runs)
    measure = compared.placed
    mean = f" {_cut(measure) if spread else 'Mean over seeds.'}" if several else ""
    if measure != ACCURACY:
        way = {
            "measured": f"on the {where} samples of each {kind}",
            "expected": f"expected on {where} samples in the mix of classes of each {kind}",
            None: f"on the {where} samples of each {kind}, or expected in its mix of classes",
        }[known.figures]
        return f"{measure.title} of the final model ({model}) {way}, if it is defined; {seeds(known)}.{mean}"
    made = {
        "measured": f"Share of the {where} samples of each {kind} that the final model ({model}) gets right, if it "
        "has any",
        "expected": f"Expected share that the final model ({model}) gets right, by its accuracy per class on the "
        f"{where} data and the mix of classes of each {kind}: no {where} sample belongs to a device",
        None: f"Share that the final model ({model}) gets right in each {kind}: of its own {where} samples where the "
        f"data have owners, otherwise expected by its mix of classes",
    }[known.figures]
    return f"{made}; {seeds(known)}.{mean}"


def _cut(headline: Figure) -> str:
    return SPREAD.format(one=" and 1" if headline.share else "")


def _rounds(finals: Sequence[EvaluationRecord]) -> str:
    """Return the rounds of final models as text."""
    rounds = sorted({final.round for final in finals})
    return f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"


def classes_caption(compared: Compared) -> str:
    """Return the caption of the accuracy per class."""
    spread = f" {_cut(ACCURACY)}" if compared.several else ""
    where = on(compared.runs)
    last = when(compared, lambda line: line.by_class)
    share = f"Share of the {where} samples of each class that the model gets right {last}"
    return f"{share}; {seeds(compared)}.{spread}"


def hardest(group: Group) -> str:
    """Return a text on the classes with most wrong predictions by a group's model."""
    means = sorted((sum(v) / len(v), i) for i, v in enumerate(class_samples(group)) if v)
    names = group.runs[0].park.classes
    worst = ", ".join(f"'{names[i]}' ({metric(ACCURACY, value)})" for value, i in means[:5])
    return f"Lowest accuracies with {group.label.shown}: {worst}." if worst else ""


def confusion_caption(group: Group, *, numbers: bool) -> str:
    """Return the caption of a confusion matrix; ``numbers``: whether cells show their share."""
    percent = ", which is written in it in %" if numbers else ""
    many = len(group.finals)
    several = f", {many} seeds added up" if many > 1 else f", seed {group.runs[0].seed}"
    total = sum(map(sum, summed(group.finals)))
    tests = sum(run.park.test_samples for run in group.runs)
    each = f" {total:,} predictions for {tests:,} samples, as several devices' models predict the same samples."
    each *= total > tests
    return (
        f"{group.label.shown}, final model ({_rounds(group.finals)}{several}), on the {on(group.runs)} data.{each} "
        "A row is the true class, a column a predicted one; a cell's colour grows with the square root of its share "
        f"of the row{percent}. "
        "The diagonal holds correct predictions."
    )


def confusions(matrix: tuple[tuple[int, ...], ...], classes: Sequence[str]) -> list[str]:
    """Return texts on the most frequent confusions.

    >>> confusions(((8, 2), (0, 3)), ["a", "b"])
    ["'a' is taken for 'b': 2 of 10 (20\xa0%)"]
    """
    return [
        f"'{true}' is taken for '{predicted}': {n:,} of {total:,} ({percent(n / total)})"
        for true, predicted, n, total in frequent(matrix, classes)
    ]


def bin_noun(run: RecordedRun) -> str:
    """Return the noun for the bins of a run's samples: "class", or "range" of a number."""
    return "class" if run.settings.task in CLASSED else "range"


def bin_nouns(run: RecordedRun) -> str:
    """Return the plural of :func:`bin_noun`."""
    return "classes" if run.settings.task in CLASSED else "ranges of the target"


def holdings_words(park: ParkRecord, noun: str = "class") -> str:
    """Return a text on the spread of classes and samples over devices."""
    kinds = sorted(sum(1 for number in device.counts if number) for device in park.devices)
    sizes = sorted(device.samples for device in park.devices)
    middle = len(park.devices) // 2
    some = len(park.devices) < park.size
    plural = "classes" if noun == "class" else f"{noun}s"
    classes = count(len(park.classes), noun, plural)
    scope = f"Of {count(len(park.devices), 'device')}, evenly spread over the park, " if some else ""
    return (
        f"{scope}{'t' if some else 'T'}he median device holds {kinds[middle]} of {classes}"
        f"{_range(kinds)} and {count(sizes[middle], 'sample')}{_range(sizes)}."
    )


def _range(ascending: Sequence[int]) -> str:
    """Return the smallest and the largest of sorted numbers in brackets; "" if they are equal."""
    return "" if ascending[0] == ascending[-1] else f" (fewest {ascending[0]:,}, most {ascending[-1]:,})"


def holdings_caption(run: RecordedRun, shown: int) -> str:
    """Return the caption of the bubble chart of classes on devices."""
    hidden = run.park.size - shown
    more = f" The first {MOST_DEVICES} devices are drawn; there are {hidden:,} more." if hidden else ""
    return (
        f"A bubble's area is the number of training samples of a {bin_noun(run)} on a device; colours and shades are "
        f"factories. {run.park.dataset}, seed {run.seed}.{more}"
    )


def plan_caption(run: RecordedRun, *, handed: bool) -> str:
    """Return the caption of the plan's drawing; ``handed``: whether devices hand the model on."""
    green = "green is handed on from device to device, " if handed else ""
    return (
        f"The first round of {run.title}, seed {run.seed}, as the method wrote it. Arrows: blue goes out, "
        f"{green}orange comes back. Later rounds may visit other devices."
    )


def config_title(group: Group) -> str:
    """Return the title of a group's configurations."""
    seeds = listed([str(run.seed) for run in group.runs])
    return f"{group.label.shown}: seed{'s' if len(group.runs) > 1 else ''} {seeds}"


MARKDOWN_HEAD = ("method", "{headline}", "minus {first}", "loss", "rounds", "seeds", "s per run")


def markdown(runs: Iterable[RecordedRun], target: float | None = None, budget: Budget | None = None) -> str:
    """Return a Markdown table with a line per method: the headline and its difference to the first method.

    Both have 95 % intervals. Further columns: the cost of the target and of all rounds if rounds have a price, the
    headline at the end of a budget, and diverged runs.

    Args:
        budget: the budget of each run.
    """
    runs = list(runs)
    rows = summary(runs, target)
    headline = groups(runs).headline
    first = rows[0]["method"]
    apart = {row["against"]: row for row in paired(runs) if row["method"] == first}
    more = cost_columns(rows, target) + _budget_columns(runs, budget) + _lost_columns(rows)
    figures = [column for column in beside(rows, headline) if column[1] not in ("accuracy", "macro_f1", "loss")]
    figures = figures or [("macro-F1", "macro_f1", 4)]
    head = [of_head.format(first=first, headline=_named(headline)) for of_head in MARKDOWN_HEAD]
    head = [*head[:3], *[name for name, _, _ in figures], *head[3:], *[name for name, _ in more]]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for i, row in enumerate(rows):
        other = apart.get(row["method"])
        minus = ""
        if other is not None:
            other = seen_from(other, row["method"])
            minus = between(other["difference"], other["low"], other["high"])
        cells = [
            row["method"], between(row[headline.key], row["low"], row["high"]), minus,
            *[figure(row.get(key), digits) for _, key, digits in figures],
            figure(row["loss"], 3), str(row["rounds"]), str(len(row["seeds"])), figure(row["wall_s"], 1),
            *[column[i] for _, column in more],
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cost_columns(rows: Sequence[Row], target: float | None, total: str = "") -> list[tuple[str, list[str]]]:
    """Return the price columns, each a name and its cells; empty if no run has a price.

    ``total`` is appended to the names of the columns of all rounds.
    """
    kinds = [kind for kind in COSTS if any(row[kind] for row in rows)]
    totals = [(f"{NAMES[kind]}{total}", [amount(kind, row[kind]) for row in rows]) for kind in kinds]
    if target is None or not kinds:
        return totals
    rounds = [figure(row["rounds_to_target"], 1).removesuffix(".0") for row in rows]
    reach = [(f"{NAMES[kind]} to {target:g}", [amount(kind, row[f"{kind}_to_target"]) for row in rows])
             for kind in kinds]  # fmt: skip
    return [(f"rounds to {target:g}", rounds), *reach, *totals]


def _budget_columns(runs: Sequence[RecordedRun], budget: Budget | None) -> list[tuple[str, list[str]]]:
    if budget is None:
        return []
    key = groups(runs).headline.key
    return [(f"after {budget.words}", [between(row[key], row["low"], row["high"]) for row in at(runs, budget)])]


def _lost_columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    return [("diverged", [diverged(row) or "–" for row in rows])] if any(row["diverged"] for row in rows) else []

"""The sections of the report as HTML; their content is escaped by the macros of ``pieces.html``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from markupsafe import Markup

from fedfloor.base.names import count
from fedfloor.base.templates import template
from fedfloor.report import charts, words
from fedfloor.report.charts import AT_ONCE, FEW, FEW_POINTS, control_figure, heat_map, scatter
from fedfloor.report.contrast import about
from fedfloor.report.decisions import DECISION_HEAD, decision_caption, decision_rows
from fedfloor.report.evaluation_records import ErrorsOfRecord, ErrorsRecord
from fedfloor.report.groups import CLASSES, Compared, Group, contestants, display_name, groups
from fedfloor.report.ledger import RecordedRun, summed
from fedfloor.report.numbers import COSTS, NAMES, amount, listed, metric, plain, unit
from fedfloor.report.plan_svg import svg
from fedfloor.report.plan_text import tree
from fedfloor.report.records import ParkRecord
from fedfloor.report.story import MOST, Paragraph
from fedfloor.report.table import Budget, Row, at, paired, paired_at, shown, summary
from fedfloor.tasks.figures import ACCURACY, LOSS, Figure, named

Drawn = dict[str, Any]  # element id → Plotly figure of the page
PIECES: Any = template("fedfloor.report", "pieces.html").module
Piece = Callable[..., Markup]
section: Piece = PIECES.section
table: Piece = PIECES.table
folded: Piece = PIECES.folded
scroll: Piece = PIECES.scroll
lines: Piece = PIECES.lines
title: Piece = PIECES.title


def soft(text: str) -> Markup:
    """Return a paragraph in a muted colour."""
    return Markup(lines([text], "soft"))


def chart(name: str, figure: Any | None, caption: str, drawn: Drawn, min_width: int = 0) -> Markup:
    """Return the element for a Plotly figure with its caption, and add the figure to ``drawn``; a note for None.

    The element scrolls on screens narrower than ``min_width`` px.
    """
    if figure is None:
        return soft("These runs did not measure it.")
    drawn[name] = figure
    return Markup(PIECES.place(name, figure.layout.height, caption, min_width))


LONG_PX = 900  # a taller chart is collapsed


def summary_section(
    runs: Sequence[RecordedRun], target: float | None, *, hindsight: bool, against: str | None = None
) -> str:  # fmt: skip
    """Return the summary's tables."""
    rows = summary(runs, target)
    headline = groups(runs).headline
    known = [(group.label.shown, about(group.runs[0].method, group)) for group in groups(runs)]
    references = listed([f"{name} is {what}" for name, what in known if what] or [""])
    caption = words.summary_caption(rows, words.on(runs), headline, hindsight=hindsight)
    caption += f" {references[0].upper()}{references[1:]}." if references else ""
    lost = any(row["diverged"] for row in rows)
    cells = [words.summary_cells(row, headline, lost=lost) for row in rows]
    body = table(caption, words.summary_head(rows, target, headline), cells)
    more = words.beside(rows, headline)
    others = [words.others_cells(row, headline, more) for row in rows]
    further = table(words.others_caption(rows, headline, words.on(runs)), words.others_head(rows, headline), others)
    body += folded("Loss and other metrics", further, kind="list")
    pairs = _pairs(runs, paired(runs, against=against), words.paired_caption(headline))
    body += folded("Method against method, with intervals and p", pairs, kind="list") if pairs else ""
    return section("Summary", body, "summary")


def _pairs(runs: Sequence[RecordedRun], pairs: Sequence[Row], caption: str) -> Markup:
    """Return the table of paired differences; "" without any."""
    if not pairs:
        return Markup("")
    listed = shown(runs, pairs)
    rounds = ["in round"] if "rounds" in pairs[0] else []
    head = ["methods", "common seeds", *rounds, "difference", "interval over", "p"]
    few = words.fewer(len(pairs), listed)
    note = f"{few[0].upper()}{few[1:]}. {caption}" if few else caption
    headline = groups(runs).headline
    return Markup(table(note, head, [words.paired_cells(row, headline) for row in listed]))


def words_section(told: Sequence[Paragraph]) -> Markup:
    """Return the story; the paragraphs with intervals and p-values are folded."""
    body = lines([part.text for part in told if not part.statistics])
    statistics = [part.text for part in told if part.statistics]
    body += folded("Differences, seed by seed", lines(statistics), kind="list") if statistics else ""
    return section("In words", body, "words")


def findings_section(compared: Compared) -> str:
    """Return the findings on the data of all parks, such as a sensor in another unit on one device; "" without any."""
    findings = list(dict.fromkeys(text for run in compared.runs for text in run.park.findings))
    return section("To check in the data", lines(findings), "data") if findings else ""


def decision_section(compared: Compared) -> str:
    """Return the thresholds chosen on validation data; "" without any."""
    rows = decision_rows(compared)
    if not rows:
        return ""
    return section("Decisions by a threshold", table(decision_caption(compared), DECISION_HEAD, rows), "decisions")


def promise_section(compared: Compared) -> str:
    """Return the promised shares of samples beside the measured ones; "" without a promise."""
    head = [
        "method",
        "promised",
        "measured",
        "worst device",
        "median device",
        "devices at the promise",
        "held-out units",
    ]
    rows = []
    for group in compared:
        every = [final.promise for final in group.finals if final.promise]
        if not every:
            continue
        shares = [value for one in every for value in one.devices if value is not None]
        reached = sum(value >= one.promised for one in every for value in one.devices if value is not None)
        middle = sorted(shares)[len(shares) // 2 :][:1]
        rows.append([
            group.label.shown, _mean_percent([every[0].promised]),
            _mean_percent([one.measured for one in every if one.measured is not None]),
            _mean_percent([min(shares)] if shares else []), _mean_percent(middle), f"{reached} of {len(shares)}",
            "–" if every[0].units is None else f"{every[0].units:,}",
        ])  # fmt: skip
    if not rows:
        return ""
    note = (
        "The share of numbers within their intervals, or of normal samples without an alarm: promised for new samples "
        "that are like the held-out ones, and measured on test samples. A measured share well below the promised one "
        "tells that test samples differ from held-out ones, as after a drift."
    )
    return section("Promised and measured", table(note, head, rows), "promise")


def curve_sections(compared: Compared, target: float | None, drawn: Drawn) -> str:
    """Return the curves of the headline and of the loss."""
    headline = compared.headline
    upper = chart("accuracy", charts.headline_figure(compared, target), words.headline_caption(compared, target), drawn)
    if headline == LOSS:
        return section("Loss against rounds", upper, "loss")
    lower = chart("loss", charts.loss_figure(compared), words.loss_caption(compared), drawn)
    body = upper + folded("Loss against rounds", lower)
    return section(f"{headline.title} against rounds", body, "accuracy")


def cohort_section(compared: Compared) -> str:
    """Return the members of each run's cohorts; "" if all devices have the same model."""
    rows = []
    for run in compared.runs:
        cohorts = (run.evaluation and run.evaluation.cohorts) or ()
        for cohort in sorted(set(cohorts)):
            devices = [k for k, number in enumerate(cohorts) if number == cohort]
            named = run.park.names.many(devices, len(devices))
            rows.append([run.title, str(run.seed), str(cohort), str(len(devices)), named])
    if not rows:
        return ""
    caption = "The devices that share a final model. A device that never trained has the model with its lowest loss."
    return section("Cohorts", table(caption, ["method", "seed", "cohort", "devices", "members"], rows), "cohorts")


def factory_section(compared: Compared, drawn: Drawn) -> str:
    """Return the headline per factory; "" with a single factory, or without an evaluation by factory."""
    drawing = charts.factory_figure(compared) if compared.by_place else None
    if drawing is None or len({bar for trace in drawing.data for bar in trace.y}) < 2:
        return ""
    body = chart("factories", drawing, words.places_caption(compared, "factory"), drawn)
    if drawing.layout.height > LONG_PX:
        body = folded("All factories", body)
    return section(words.places_title(compared, "factory"), body, "factories")


def class_section(compared: Compared, drawn: Drawn) -> str:
    """Return the accuracy per class; "" if classes are not predicted."""
    if compared.task != CLASSES:
        return ""
    drawing = charts.class_figure(compared)
    body = chart("classes", drawing, words.classes_caption(compared), drawn)
    if drawing is not None and drawing.layout.height > LONG_PX:
        hardest = lines([words.hardest(group) for group in compared])
        body = hardest + folded(f"All {len(compared[0].runs[0].park.classes)} classes", body)
    return section("Accuracy per class", body, "classes")


def confusion_section(compared: Compared) -> str:
    """Return the confusions of classes; "" if no final model was evaluated or no classes are predicted."""
    if compared.task != CLASSES:
        return ""
    parts: list[Markup] = []
    for group in compared:
        finals = group.finals
        if not finals or len({final.classes for final in finals}) > 1:
            continue
        matrix = summed(finals)
        classes = finals[0].classes
        mistaken = words.confusions(matrix, classes)
        listing = PIECES.numbered(mistaken) if mistaken else soft("There are no confusions.")
        picture = scroll(Markup(heat_map(matrix, classes)), "confusion matrix")
        caption = words.confusion_caption(group, numbers=len(classes) <= FEW)
        drawing = PIECES.figure(picture, caption)
        if len(classes) > FEW:
            drawing = folded(f"All {len(classes)} × {len(classes)} pairs of classes", drawing, shown=not parts)
        parts.append(title(f"{group.label.shown}: most often") + listing + drawing)
    if not parts:
        return ""
    kind = "tiles" if "ff-confusion few" in parts[0] else "wide-tiles"
    return section("Confusions of classes", PIECES.boxes(parts, kind), "confusion")


def holdings_section(compared: Compared, drawn: Drawn) -> str:
    """Return the classes or ranges of values on each device, once per park."""
    firsts: dict[ParkRecord, RecordedRun] = {}
    for group in compared:
        firsts.setdefault(group.runs[0].park, group.runs[0])
    parts = []
    for i, (park, run) in enumerate(firsts.items()):
        columns = min(len(park.devices), charts.MOST_DEVICES)
        width = int(80 + min(1020, (charts.bubble_px(park) + 2) * columns))  # 120 columns fit a wide screen
        drawing = charts.holdings_figure(park, words.bin_noun(run))
        body = chart(f"holdings-{i}", drawing, words.holdings_caption(run, columns), drawn, width)
        if drawing.layout.height > LONG_PX:
            body = folded(f"All {len(park.classes)} {words.bin_nouns(run)} on {count(columns, 'device')}", body)
        parts.append(lines([words.holdings_words(park, words.bin_noun(run))]) + body)
    nouns = words.bin_nouns(next(iter(firsts.values())))
    return section(f"{nouns[0].upper()}{nouns[1:]} on each device", Markup("").join(parts), "holdings")


def drawn_round(run: RecordedRun) -> str:
    """Return the drawing of a run's first round as SVG; "" without a plan."""
    if run.plan is None:
        return ""
    factories = dict(zip(run.park.numbers, (device.factory for device in run.park.devices), strict=True))
    known = run.park.size == len(factories)  # otherwise edges that only relay are not drawn
    return svg(run.plan, factories.__getitem__ if known else None, run.park.names)


def plan_section(compared: Compared) -> str:
    """Return each method's first round as a drawing and as text."""
    parts = []
    for group in contestants(compared):
        run = group.runs[0]
        parts.append(title(group.label.shown))
        drawing = drawn_round(run)
        if run.plan is None:
            parts.append(soft("This run folder has no plan.json that can be read."))
            continue
        caption = words.plan_caption(run, handed='class="hand' in drawing)
        picture = scroll(Markup(drawing), f"plan of {group.label}")
        text = folded("The same round as text", PIECES.verbatim(tree(run.plan, names=run.park.names)), kind="text")
        parts.append(PIECES.figure(picture, caption) + text)
    return section("A round as a plan", Markup("").join(parts), "plan")


def timeline_section(compared: Compared, drawn: Drawn) -> str:
    """Return the visits of rounds that do not wait for all devices as lines in time; "" if all rounds wait."""
    parts = []
    for number, group in enumerate(contestants(compared)):
        run = group.runs[0]
        if not any(line.arrivals for line in run.rounds):
            continue
        live = any(line.measured for line in run.rounds)
        priced = live or any(line.priced for line in run.rounds)
        longest = max(row[3] for line in run.rounds for row in line.arrivals)
        unit_s, symbol = unit("seconds", longest) if priced else (1.0, "mini-batches")
        drawing = charts.timeline_figure(run, unit_s)
        clock = f"time {'of the machines' if live else 'on the network'} ({symbol})" if priced else "mini-batches"
        drawing.update_layout(xaxis_title_text=clock)
        caption = (
            f"Every line is a visit, from the departure of the model to the arrival of its result, of the first "
            f"{charts.MOST_VISITS} results of seed {run.seed}; its colour is the age of the model that it started from."
        )
        parted = any(len(row) > 4 for line in run.rounds for row in line.arrivals)
        caption += " Grey: the model or the result is on its way, or waits for a link." if parted and priced else ""
        late = any(line.late for line in run.rounds)
        caption += " Dotted: results that came after the end of their round, and do not count." if late else ""
        parts.append(title(group.label.shown) + chart(f"timeline-{number}", drawing, caption, drawn))
    return section("Visits in time", Markup("").join(parts), "timeline") if parts else ""


def config_section(compared: Compared) -> str:
    """Return every run's resolved configuration."""
    parts = []
    for group in compared:
        inner = Markup("").join(
            folded(f"{run.method}, seed {run.seed} ({run.folder.name})", PIECES.verbatim(run.config), kind="text")
            for run in group.runs
        )
        few = len(group.runs) == 1 or len(compared) == 1
        parts.append(inner if few else folded(words.config_title(group), inner, kind="text"))
    note = soft("Each experiment with all default values, and its machine.")
    return section("Resolved configuration", note + Markup("").join(parts), "configuration")


# -- costs and budgets -------------------------------------------------------------------------------------------------

CURVES = (
    "{title} against the cost of all rounds so far on the network, as the experiments describe it. {how} The mean over "
    "seeds is taken round by round, of the {name} and of the cost.{line}"
)


def cost_section(compared: Compared, target: float | None, drawn: Drawn) -> str:
    """Return the cost of the target and of all rounds, and the curves against it; "" if no round has a price."""
    rows = summary(compared.runs, target)
    headline = compared.headline
    columns = words.cost_columns(rows, target, ", all rounds")
    if not columns:
        return ""
    head = ["method", *[name for name, _ in columns]]
    cells = [[display_name(row["method"]), *[column[i] for _, column in columns]] for i, row in enumerate(rows)]
    body = table(_cost_caption(rows, target, headline), head, cells)
    first = {group.label.shown: group.runs[0].rounds[0].priced for group in compared if group.runs[0].rounds}
    surveys = [f"{name} {amount('seconds', price.normalise.seconds)} and {amount('bytes', price.normalise.bytes)}"
               for name, price in first.items() if price and price.normalise]  # fmt: skip
    if surveys:
        body += soft(f"Of this, questions of the normalisation to all devices before round 1: {listed(surveys)}.")
    line = "" if target is None else f" The dotted line is {target:g}."
    how = words.curve_caption(compared, share=headline.share)
    caption = CURVES.format(how=how, line=line, title=headline.title, name=headline.name)
    parts = []
    for kind in (kind for kind in COSTS if any(row[kind] for row in rows)):
        drawing = charts.cost_figure(compared, kind, target)
        heading = f"{headline.title} against {NAMES[kind]}"
        parts.append(title(heading) + chart(f"cost-{kind}", drawing, f"{heading} on the network.", drawn))
    body += title("Curves") + soft(caption) + PIECES.boxes(parts, "pair")
    return section("Costs on the network", body, "cost")


def _cost_caption(rows: Sequence[Row], target: float | None, headline: Figure) -> str:
    mean = "Means over the seeds. " if any(len(row["seeds"]) > 1 for row in rows) else ""
    reach = ""
    if target is not None:
        reach = (
            f"To {target:g}: all rounds up to the first evaluated one that has this {headline.name}; a dash if not "
            "every seed reached it. "
        )
    return f"{reach}{mean}Bytes are the sum over all links; 1 kB is 1000 bytes."


def budget_section(runs: Sequence[RecordedRun], budget: Budget | None, against: str | None = None) -> str:
    """Return the methods' table at a budget; "" without a budget."""
    if budget is None:
        return ""
    headline = groups(runs).headline
    head = ["method", "seeds", headline.name, "measured in round", "ended before"]
    caption = (
        f"{headline.title} in each run's last evaluated round that was complete within {budget.words}. A dash: not "
        "every seed has such a round, or training had diverged. Ended before: seeds whose run was over before the "
        "budget was used, and count with their last evaluated round."
    )
    rows = at(runs, budget)
    note = words.interval_caption(rows, headline)
    body = table(f"{caption} {note}".strip(), head, [_budget_cells(row, headline) for row in rows])
    caption = words.paired_caption(headline, " when both have used the budget, seed by seed")
    body += folded("Method against method", _pairs(runs, paired_at(runs, budget, against), caption), kind="list")
    return section(f"Ranking after {budget.words}", body, "budget")


def budget_story(runs: Sequence[RecordedRun], budget: Budget) -> str:
    """Return a text on the order of methods at the end of a budget, and on methods without a value by then."""
    headline = groups(runs).headline
    rows = at(runs, budget)
    known = sorted(
        (row for row in rows if row[headline.key] is not None), key=lambda row: -headline.gain(row[headline.key], 0.0)
    )
    if not known:
        return f"After {budget.words}, no method has {headline.phrase} with every seed."
    results = [
        f"{display_name(row['method'])} {metric(headline, row[headline.key], row['low'], row['high'])}"
        for row in known[:MOST]
    ]
    more = f", and {len(known) - MOST} more below" if len(known) > MOST else ""
    none = [display_name(row["method"]) for row in rows if row[headline.key] is None]
    rest = f"; {listed(none) if len(none) <= MOST else f'{len(none)} methods'} had none by then" if none else ""
    values = "accuracies are" if headline == ACCURACY else f"values of {headline.name} are"
    return f"After {budget.words}, the {values}: {', '.join(results)}{more}{rest}."


def _budget_cells(row: Row, headline: Figure) -> list[str]:
    rounds = ", ".join("–" if number is None else str(number) for number in row["in_rounds"])
    ended = ", ".join(map(str, row["ended"])) or "–"
    seeds = count(len(row["seeds"]), "seed")
    value = metric(headline, row[headline.key], row["low"], row["high"])
    return [display_name(row["method"]), seeds, value, rounds, ended]


# -- predicted numbers -------------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[ErrorsOfRecord], float]] = {
    "RMSE": lambda errors: errors.rmse,
    "mean absolute error": lambda errors: errors.mae,
    "mean error": lambda errors: errors.bias,
}


def errors_section(compared: Compared, drawn: Drawn) -> str:
    """Return predicted against true numbers; "" if no run predicts numbers."""
    every = [(group, [final.errors for final in group.finals if final.errors]) for group in compared]
    known = [(group, errors) for group, errors in every if errors]
    if not known:
        return ""
    first = known[0][1][0]
    body = chart("predicted", scatter(known), _errors_caption(known), drawn)
    body += title("Error by range") + _by_name(known, [errors_of.name for errors_of in first.ranges], "ranges", first)
    promised = any(final.promise for group in compared for final in group.finals)  # of both ends together
    if first.levels and not promised:
        body += title("Calibration of the levels") + _calibration(known, first)
    if len(first.targets) > 1:
        names = [errors_of.name for errors_of in first.targets]
        body += folded(f"All {len(names)} targets", scroll(_by_name(known, names, "targets", first), "all targets"))
    return section("Predicted against true", body, "predicted")


def control_section(compared: Compared, drawn: Drawn) -> str:
    """Return the control charts of test recordings; "" if no run has limits."""
    found = next(((group, final) for group in compared for final in group.finals if final.charts), None)
    if found is None:
        return ""
    group, final = found
    body = ""
    for number, one in enumerate(final.charts):
        where = group.runs[0].park.names.site("device", one.device) if one.device >= 0 else "a recording"
        caption = (
            f"{group.label.shown} on {where}: {sum(one.alarm)} of {len(one.alarm)} samples have an alarm (marked), "
            f"{sum(one.abnormal)} are abnormal by their labels (shaded). Dashed: the limits; dotted: the centre line. "
            "Drawn are the values that leave their limits farthest."
        )
        body += chart(f"control{number}", control_figure(one), caption, drawn)
    return section("In control?", body, "control")


def _errors_caption(known: Sequence[tuple[Group, Sequence[ErrorsRecord]]]) -> str:
    group, errors = known[0]
    first = errors[0]
    points = len(errors[0].points.true)
    some = "" if points == first.samples else f" of {first.samples:,}, evenly over the true values"
    capped = "" if first.cap is None else f" True values above {first.cap:g} count as {first.cap:g}."
    several = "" if len(first.targets) == 1 else f" Drawn is '{first.targets[0].name}'."
    seeds = "" if len(group.runs) == 1 else f", seed {group.runs[0].seed}"
    bars = ""
    if first.levels:
        bars = f" Intervals lie between the levels {first.levels[0]:g} and {first.levels[-1]:g}."
        bars = bars if points <= FEW_POINTS else ""
    hidden = "" if len(known) <= AT_ONCE else " A click on a name shows its method or hides it."
    return (
        f"The last round's model{seeds}: {count(points, 'sample')}{some}. Predictions on the dotted line are right, "
        f"those above it too high.{capped}{bars}{several}{hidden}"
    )


def _by_name(
    known: Sequence[tuple[Group, Sequence[ErrorsRecord]]], names: Sequence[str], part: str, first: ErrorsRecord
) -> str:
    """Return a table of errors by range or by target, as means over the seeds."""
    head = ["range" if part == "ranges" else "target", "samples"]
    if len(known) > 1:
        head += [f"{group.label.shown}: RMSE (mean error)" for group, _ in known]
    else:
        head += [*FIGURES, *(["inside the interval"] if first.levels else [])]
    rows = []
    for name in names:
        cells = []
        entries = [[one for every in errors for one in getattr(every, part) if one.name == name] for _, errors in known]
        means = [[mean(map(read, own)) if own else None for read in FIGURES.values()] for own in entries]
        largest = max((abs(value) for row in means for value in row if value is not None), default=0.0)
        for own, numbers in zip(entries, means, strict=True):
            values = ["–" if number is None else plain(named("RMSE"), number, largest) for number in numbers]
            if len(known) > 1:
                cells.append(f"{values[0]} ({values[-1]})")
                continue
            cells += [*values, *([_mean_percent([entry.inside or 0.0 for entry in own])] if first.levels else [])]
        many = next((entry.samples for entry in getattr(first, part) if entry.name == name), 0)
        rows.append([name, f"{many:,}", *cells])
    unit = f" in {first.unit}" if first.unit else ""
    several = "; means over the seeds" if any(len(errors) > 1 for _, errors in known) else ""
    return table(f"Errors{unit}: predicted − true{several}.", head, rows)


def _calibration(known: Sequence[tuple[Group, Sequence[ErrorsRecord]]], first: ErrorsRecord) -> str:
    """Return a table of the share of true numbers up to each trained level."""
    rows = []
    for i, level in enumerate(first.levels):
        shares = [_mean_percent([every.targets[0].below[i] for every in errors]) for _, errors in known]
        rows.append([f"{100 * level:g} %", *shares])
    inside = [_mean_percent([every.targets[0].inside or 0.0 for every in errors]) for _, errors in known]
    rows.append([f"{100 * (first.levels[-1] - first.levels[0]):g} % between", *inside])
    head = [
        "level",
        *[f"not above it, {group.label.shown}" if len(known) > 1 else "not above it" for group, _ in known],
    ]
    wide = listed([f"{100 * level:g} %" for level in first.levels])
    note = f"The share of true values up to the predicted levels {wide}: equal to the level if calibrated."
    return table(note, head, rows)


def _mean_percent(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f} %" if values else "–"

"""The report's sections, each from the groups of runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedfloor.figures import ACCURACY, LOSS
from fedfloor.names import count
from fedfloor.plan.draw import svg, tree
from fedfloor.report import decided, figures, holdings, places, words
from fedfloor.report.confusion import FEW, heat_map
from fedfloor.report.evaluation import Place, added, by_place
from fedfloor.report.groups import CLASSES, Group, contestants, judged, placed, spoken, task
from fedfloor.report.html import Drawn, chart, folded, scroll, section, table
from fedfloor.report.ledger import Park, Run
from fedfloor.report.numbers import figure
from fedfloor.report.table import paired, shown, summary

LONG_PX = 900  # a taller chart is folded away


def summary_section(runs: Sequence[Run], target: float | None, *, hindsight: bool) -> str:
    """Return the summary's tables."""
    rows, of = summary(runs, target), judged(runs)
    caption = words.summary_caption(rows, words.on(runs), of, hindsight=hindsight)
    lost = any(row["diverged"] for row in rows)
    cells = [words.summary_cells(row, of, more=words.beside(rows, of), lost=lost) for row in rows]
    body = table(caption, words.summary_head(rows, target, of), cells)
    pairs = paired(runs)
    listed = shown(runs, pairs)
    if pairs:
        head = ["methods", "common seeds", "in round", "difference"]
        note = words.fewer(len(pairs), listed) + words.paired_caption(of)
        body += "<h3>Method against method</h3>" + table(note, head, [words.paired_cells(row) for row in listed])
    return section("Summary", body, "summary")


def decision_section(found: Sequence[Group]) -> str:
    """Return the thresholds that validation data chose, or nothing where they chose none."""
    rows = decided.rows(found)
    if not rows:
        return ""
    return section("Decisions by a threshold", table(decided.caption(found), decided.HEAD, rows), "decisions")


def curve_sections(found: Sequence[Group], target: float | None, drawn: Drawn) -> str:
    """Return the curves of the headline and of the loss."""
    of = judged(words.members(found))
    upper = chart("accuracy", figures.headline_figure(found, target), words.headline_caption(found, target), drawn)
    if of == LOSS:
        return section("Loss against rounds", upper, "loss")
    lower = chart("loss", figures.loss_figure(found), words.loss_caption(found), drawn)
    both = section(f"{of.title} against rounds", upper, "accuracy") + section("Loss against rounds", lower, "loss")
    return f'<div class="pair">{both}</div>'


def device_section(found: Sequence[Group], drawn: Drawn) -> str:
    """Return the headline per device: how it is spread and, where known, a table of all."""
    known = any(run.evaluation and run.evaluation.devices for group in found for run in group.runs)
    body = chart("devices", places.device_figure(found), words.devices_caption(found, dots=known), drawn)
    if known:
        several = any(run.park.factories > 1 for run in words.members(found))
        rows = _device_rows(found, several=several)
        head = ["device", *(["factory"] if several else []), *[spoken(group.label) for group in found]]
        caption = f'<p class="soft">{escape(words.places_caption(found, "device", spread=False))}</p>'
        listing = scroll(table("", head, rows, "plain"), "all devices")  # a caption in it would scroll away
        body += folded(words.devices_listed(len(rows), found), listing + caption, kind="list")
    return section(words.places_title(found, "device"), body, "devices")


def _device_rows(found: Sequence[Group], *, several: bool) -> list[list[str]]:
    finals = [[run.evaluation for run in group.runs if run.evaluation] for group in found]
    of = placed(words.members(found))
    columns = [{key[0]: values for key, values in by_place(one, lambda e: e.devices, of).items()} for one in finals]
    every: dict[int, Place] = {place.number: place for one in finals for e in one for place in e.devices}
    names = found[0].runs[0].park.names
    halls = {place.factory: place.name for one in finals for e in one for place in e.factories if place.name}
    rows = []
    for number, place in sorted(every.items()):
        cells = [column.get(number) or [] for column in columns]
        none = "trains only" if place.role == "trains only" else figure(None) if of == ACCURACY else "not defined"
        means = [figure(sum(v) / len(v)) if v else none for v in cells]
        name = place.name or names.short("device", number)
        named = f"{name} (tests only)" if place.role == "tests only" else name
        hall = "–" if place.factory is None else halls.get(place.factory) or names.short("factory", place.factory)
        rows.append([named, *([hall] if several else []), *means])
    return rows


def cohort_section(found: Sequence[Group]) -> str:
    """Return the members of each run's cohorts, or nothing where all devices have one model."""
    rows = []
    for run in (run for group in found for run in group.runs if run.evaluation and run.evaluation.cohorts):
        of = run.evaluation.cohorts if run.evaluation else ()
        for cohort in sorted(set(of)):
            members = [k for k, number in enumerate(of) if number == cohort]
            named = run.park.names.many(members, len(members))
            rows.append([run.title, str(run.seed), str(cohort), str(len(members)), named])
    if not rows:
        return ""
    caption = "The devices that have one model in the end. Those that never trained have the one of their least loss."
    return section("Cohorts", table(caption, ["method", "seed", "cohort", "devices", "members"], rows), "cohorts")


def factory_section(found: Sequence[Group], drawn: Drawn) -> str:
    """Return the headline per factory, or nothing where there is one only or no run was evaluated by factory."""
    drawing = places.factory_figure(found)
    if drawing is None or len({bar for trace in drawing.data for bar in trace.y}) < 2:
        return ""
    body = chart("factories", drawing, words.places_caption(found, "factory"), drawn)
    if drawing.layout.height > LONG_PX:
        body = folded("All factories", body)
    return section(words.places_title(found, "factory"), body, "factories")


def class_section(found: Sequence[Group], drawn: Drawn) -> str:
    """Return the accuracy per class, or nothing where classes are not predicted."""
    if task(words.members(found)) != CLASSES:
        return ""
    drawing = places.class_figure(found)
    body = chart("classes", drawing, words.classes_caption(found), drawn)
    if drawing is not None and drawing.layout.height > LONG_PX:
        told = "".join(f"<p>{escape(words.hardest(group))}</p>" for group in found)
        body = told + folded(f"All {len(found[0].runs[0].park.classes)} classes", body)
    return section("Accuracy per class", body, "classes")


def confusion_section(found: Sequence[Group]) -> str:
    """Return which classes are mistaken for which, or nothing where no final model was evaluated, or no classes are."""
    if task(words.members(found)) != CLASSES:
        return ""
    parts: list[str] = []
    for group in found:
        finals = [run.evaluation for run in group.runs if run.evaluation]
        if not finals or len({one.classes for one in finals}) > 1:
            continue
        matrix, classes = added(finals), finals[0].classes
        told = "".join(f"<li>{escape(line)}</li>" for line in words.confusions(matrix, classes))
        listing = f"<ol>{told}</ol>" if told else '<p class="soft">No class was taken for another.</p>'
        picture = scroll(heat_map(matrix, classes), "confusion matrix")
        caption = words.confusion_caption(group, numbers=len(classes) <= FEW)
        drawing = f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"
        if len(classes) > FEW:
            drawing = folded(f"All {len(classes)} × {len(classes)} pairs of classes", drawing, shown=not parts)
        parts.append(f"<div><h3>{escape(spoken(group.label))}: most often</h3>{listing}{drawing}</div>")
    if not parts:
        return ""
    kind = "tiles" if "ff-confusion few" in parts[0] else "wide-tiles"
    return section("Which classes are mistaken for which", f'<div class="{kind}">{"".join(parts)}</div>', "confusion")


def holdings_section(found: Sequence[Group], drawn: Drawn) -> str:
    """Return who holds which classes, once for every park."""
    firsts: dict[Park, Run] = {}
    for group in found:
        firsts.setdefault(group.runs[0].park, group.runs[0])
    parts = []
    for i, (park, run) in enumerate(firsts.items()):
        columns = min(len(park.devices), holdings.MOST_DEVICES)
        width = int(80 + min(1020, (holdings.bubble_px(park) + 2) * columns))  # 120 columns fit a wide screen
        drawing = holdings.holdings_figure(park, words.bin_noun(run))
        body = chart(f"holdings-{i}", drawing, words.holdings_caption(run, columns), drawn, width)
        if drawing.layout.height > LONG_PX:
            body = folded(f"All {len(park.classes)} {words.bin_nouns(run)} on {count(columns, 'device')}", body)
        parts.append(f"<p>{escape(words.holdings_words(park, words.bin_noun(run)))}</p>{body}")
    return section(f"Who holds which {words.bin_nouns(next(iter(firsts.values())))}", "".join(parts), "holdings")


def plan_section(found: Sequence[Group]) -> str:
    """Return each method's first round as a picture and as text."""
    parts = []
    for group in contestants(found):
        run = group.runs[0]
        parts.append(f"<h3>{escape(spoken(group.label))}</h3>")
        if run.plan is None:
            parts.append('<p class="soft">This run folder has no plan.json that can be read.</p>')
            continue
        factories = {device.number: device.factory for device in run.park.devices}
        known = run.park.of_devices == len(factories)  # else no edges are drawn that only relay
        drawing = svg(run.plan, factories.__getitem__ if known else None, run.park.names)
        caption = words.plan_caption(run, handed='class="hand' in drawing)
        picture = scroll(drawing, f"plan of {group.label}")
        text = folded(
            "The same as text", f'<pre tabindex="0">{escape(tree(run.plan, names=run.park.names))}</pre>', kind="text"
        )
        parts.append(f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>{text}")
    return section("A round as a plan", "".join(parts), "plan")


def config_section(found: Sequence[Group]) -> str:
    """Return every run's resolved configuration."""
    parts = []
    for group in found:
        inner = [
            folded(
                f"{run.method}, seed {run.seed} ({run.folder.name})",
                f'<pre tabindex="0">{escape(run.config)}</pre>',
                kind="text",
            )
            for run in group.runs
        ]
        few = len(inner) == 1 or len(found) == 1
        parts.append("".join(inner) if few else folded(words.config_title(group), "".join(inner), kind="text"))
    note = '<p class="soft">What each experiment file came to, with every default filled in, and where it ran.</p>'
    return section("Resolved configuration", note + "".join(parts), "configuration")

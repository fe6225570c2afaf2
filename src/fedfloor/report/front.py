"""The first screen of a report: does sharing a model pay, three tiles, the worst device, and what to do next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Literal

from markupsafe import Markup

from fedfloor.base.checking import toml
from fedfloor.base.errors import SettingError
from fedfloor.base.names import AUTOENCODER, COMPARISON_FILE, LOCAL_ONLY, PCA, REFERENCES, SPEC, count
from fedfloor.base.templates import render
from fedfloor.report.groups import Compared, Group, contestants, groups
from fedfloor.report.ledger import Place, RecordedRun, by_place
from fedfloor.report.numbers import COSTS, amount, distance, listed, metric, plain
from fedfloor.report.rare import decision_settings, rare_figures
from fedfloor.report.remarks import baseline, no_better
from fedfloor.report.story import leading
from fedfloor.report.table import Row, cost, paired, seen_from, summary
from fedfloor.report.words import beyond_chance, bin_nouns, lacking, one_draw
from fedfloor.tasks.figures import Figure

Tone = Literal["yes", "no", "open", "none"]
FEW = 3  # methods that differ in a title by name
SEEDS = "0,1,2"  # of the next comparison
QUESTIONS = {
    "classification": "which of {classes} {noun} a sample has",
    "regression": "{targets}",
    "forecasting": "the next values of sensors",
    "reconstruction": "whether rows are normal operation",
    "survival": "how long machines live",
}


@dataclass(frozen=True)
class Tile:
    """A tile: what it says of a quantity, or, where it was not measured, the command that measures it."""

    name: str
    value: str
    notes: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class SharingVerdict:
    """The answer to "does sharing pay?"."""

    tone: Tone
    answer: str
    reason: str


@dataclass(frozen=True)
class NextStep:
    """A next step and its command."""

    purpose: str
    command: str


def ordered(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return runs with the best method first, and references, the best first, after all methods."""
    compared = groups(runs)
    rows = {row["method"]: row for row in summary(runs)}

    def place(group: Group) -> tuple[bool, bool, float]:
        value = rows[group.label][compared.headline.key]
        reference = group.runs[0].method in REFERENCES
        return reference, value is None, 0.0 if value is None else -compared.headline.gain(value, 0.0)

    return [run for group in sorted(compared, key=place) for run in group.runs]


def front(compared: Compared) -> Markup:
    """Return the first screen as HTML."""
    best, local, pair = _sides(compared)
    priced = best or contestants(compared)
    return Markup(render(
        "fedfloor.report", "front.html", title=title(compared), about=about(compared), question=question(compared),
        verdict=verdict(compared, best, local, pair), worst=[text for group in best if (text := worst(group))],
        tiles=[model_tile(compared, best), gain_tile(compared, best, local, pair), cost_tile(priced)],
        steps=steps(compared, best, local),
    ))  # fmt: skip


def title(compared: Compared) -> str:
    """Return the names of the experiments and of their methods."""
    names = list(dict.fromkeys(run.name for run in compared.runs))
    methods = [group.label.shown for group in contestants(compared)]
    shown = listed(methods) if len(methods) <= FEW else f"{len(methods)} methods"
    return f"{names[0] if len(names) == 1 else f'{len(names)} experiments'}: {shown}"


def about(compared: Compared) -> list[str]:
    """Return the day of the last round, the parks, and the number of seeds."""
    ledgers = [run.folder / "ledger.jsonl" for run in compared.runs]
    last = max((path.stat().st_mtime for path in ledgers if path.exists()), default=None)
    day = [] if last is None else [f"{(at := datetime.fromtimestamp(last)).day} {at:%B %Y}"]
    parks = dict.fromkeys(
        f"{count(park.size, 'device')} in {count(park.factories, 'factory', 'factories')}, data {park.dataset}, "
        f"{count(park.test_samples, 'test sample')}"
        for park in (run.park for run in compared.runs)
    )
    numbers = sorted({len(group.runs) for group in contestants(compared)})
    seeds = count(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
    return [*day, *parks, seeds]


def question(compared: Compared) -> str:
    """Return the question that the runs answer."""
    run = compared.runs[0]
    task = QUESTIONS.get(run.settings.task, "the target")
    errors = [final.errors for group in compared for final in group.finals if final.errors]
    unit = f" in {run.settings.unit}" if run.settings.unit else ""
    names = [f"'{target.name}'{unit}" for target in errors[0].targets] if errors else [f"a number{unit}"]
    what = task.format(classes=len(run.park.classes), noun=bin_nouns(run), targets=listed(names))
    return f"Does a shared model predict {what} better than each device alone?"


def answer(compared: Compared) -> str:
    """Return the answer to "does sharing pay?" as a sentence; "" where no run trained each device alone."""
    best, local, pair = _sides(compared)
    found = verdict(compared, best, local, pair)
    text = f"Does sharing pay? {found.answer} {found.reason}".replace("\u00a0", " ")
    return text if best and local else ""


def _sides(compared: Compared) -> tuple[list[Group], list[Group], Row | None]:
    """Return the best method, the devices' own models, and the difference of both."""
    best = list(leading(contestants(compared)))
    local = [group for group in compared if group.runs[0].method == LOCAL_ONLY and group not in best]
    return best, local, _pair(compared, best, local)


def _pair(compared: Compared, best: Sequence[Group], local: Sequence[Group]) -> Row | None:
    """Return the difference of the best method to the devices' own models; None without both."""
    if not best or not local:
        return None
    labels = {best[0].label, local[0].label}
    rows = [row for row in paired(compared.runs) if {row["method"], row["against"]} == labels]
    return seen_from(rows[0], best[0].label) if rows else None


def verdict(compared: Compared, best: Sequence[Group], local: Sequence[Group], pair: Row | None) -> SharingVerdict:
    """Return the answer to "does sharing pay?" for the best method."""
    if not best:
        return SharingVerdict("none", "Not known yet.", "No model has been evaluated.")
    if pair is None:
        alone = "No run trained each device alone; the command for it is below."
        return SharingVerdict("none", "Not measured.", "No common seed of both was evaluated." if local else alone)
    headline = compared.headline
    rows = {row["method"]: row for row in summary(compared.runs)}
    own, other = (rows[group.label][headline.key] for group in (best[0], local[0]))
    gap = headline.gain(pair["difference"], 0.0)
    facts = f"The model of {best[0].label.shown} reaches {headline.phrase} of {metric(headline, own)}"
    facts += f", each device alone {metric(headline, other)}" if other is not None else ""
    size = f"{distance(headline, gap, own)}{_relative(headline, gap, other)}"
    facts += f": {size} {'better' if gap > 0 else 'worse'}." if gap else "."
    if useless := no_better(compared, best[0], own):
        facts += f" {useless}"
    if gap == 0:
        return SharingVerdict("open", "No difference was measured.", facts)
    if beyond_chance(pair):
        return SharingVerdict(
            "yes" if gap > 0 else "no", "Yes, sharing pays." if gap > 0 else "No, sharing does not pay.", facts
        )
    settled = pair["p_holm"] is not None and pair["p_holm"] < 0.05
    needed = "more seeds or test samples are" if pair["over"] is None else lacking(pair)
    why = "This is one seed: another may give another result." if one_draw(pair) and settled else (
        "The difference is no larger than chance explains."
        if pair["low"] is not None else f"There is no interval: {needed} needed."
    )  # fmt: skip
    answer = "Yes, with one seed." if gap > 0 else "No, with one seed."
    return SharingVerdict("open", answer if settled and one_draw(pair) else "Not certain.", f"{facts} {why}")


def _relative(headline: Figure, gap: float, other: float | None) -> str:
    """Return a difference relative to a reference, for metrics that are no shares; "" for others."""
    return "" if headline.share or not other or other < 0 else f" ({100 * abs(gap) / other:.0f}\u00a0%)"


def model_tile(compared: Compared, best: Sequence[Group]) -> Tile:
    """Return the tile of the best model, with its interval."""
    headline = compared.headline
    if not best:
        return Tile("Best model", "not evaluated", ("Wait for the first evaluated round.",))
    row = next(row for row in summary(compared.runs) if row["method"] == best[0].label)
    ends = "No interval: one seed, and too few test samples or devices to resample."
    if row["low"] is not None:
        ends = f"95\u00a0%: {plain(headline, row['low'])} to {plain(headline, row['high'])}, over {row['over']}"
    name = f"{headline.name} of {best[0].label.shown}"
    value = metric(headline, row[headline.key])
    if rare := rare_figures(compared, best[0]):  # on which the accuracy hardly depends
        return Tile("Best model", rare[0], (rare[1], f"{name}: {value}; {ends}", baseline(compared)))
    return Tile("Best model", value, (name, ends))


def gain_tile(compared: Compared, best: Sequence[Group], local: Sequence[Group], pair: Row | None) -> Tile:
    """Return the tile of the gain over each device alone."""
    name = "Gain over each device alone"
    headline = compared.headline
    if pair is None:
        return Tile(name, "not measured", (), alone_command(compared))
    gap = headline.gain(pair["difference"], 0.0)
    like = next(row[headline.key] for row in summary(compared.runs) if row["method"] == best[0].label)
    notes = []
    if pair["low"] is not None:
        low, high = sorted(headline.gain(pair[end], 0.0) for end in ("low", "high"))
        ends = f"95\u00a0%: {plain(headline, low, like)} to {plain(headline, high, like)}, over {pair['over']}"
        notes.append(ends if gap or low < high else f"{pair['over']} do not tell them apart")
    both = [places(group, compared.placed) for group in (best[0], local[0])]
    known = both[0].keys() & both[1].keys()
    if known:
        gaining = sum(compared.placed.gain(both[0][k], both[1][k]) > 0 for k in known)
        notes.append(f"better on {gaining} of {count(len(known), 'device')}")
    return Tile(name, f"{'+' if gap > 0 else '−' if gap < 0 else ''}{distance(headline, gap, like)}", tuple(notes))


def cost_tile(some: Sequence[Group]) -> Tile:
    """Return the tile of the cost of training the first method on the network."""
    name = "Training on the network"
    group = some[0]
    sums = {kind: [cost(run, kind) for run in group.runs] for kind in COSTS}
    known = {kind: mean(filter(None, values)) for kind, values in sums.items() if all(values)}
    if "seconds" not in known:
        command = f"{reading('fedfloor price', group.runs[0].folder)} --network lte-cat-m2 --out runs/on-lte"
        return Tile(name, "not measured", (), command)
    others = listed([amount(kind, known[kind]) for kind in known if kind != "seconds"] or ["no bytes"])
    rounds = count(min(run.last for run in group.runs), "round")
    return Tile(name, amount("seconds", known["seconds"]), (f"{others}, {rounds} of {group.label.shown}",))


def places(group: Group, measure: Figure) -> dict[Place, float]:
    """Return the metric of a group's final models on each device: the mean over the seeds that have the device."""
    found = by_place(group.finals, "devices", measure)
    return {place: mean(values) for place, values in found.items() if values}


def worst(group: Group) -> str:
    """Return a text on the device with the worst metric; "" if devices have none."""
    alone = Compared([group])
    measure = alone.placed
    own = places(group, alone.placed)
    if not alone.by_place or len(own) < 2:
        return ""
    first, *_, last = sorted(own, key=lambda k: measure.gain(own[k], 0.0))
    park = group.runs[0].park
    first_name, last_name = (name or park.names.site("device", number) for number, name, _ in (first, last))
    hall = first[2]
    of = f" ({park.names.site('factory', hall)})" if hall is not None and park.factories > 1 else ""
    expected = "expected " if alone.figures == "expected" else ""
    low, high = metric(measure, own[first]), metric(measure, own[last])
    if own[first] == own[last]:
        return f"All devices are alike with {group.label.shown}: {expected}{measure.name} {high}."
    return (
        f"Worst device with {group.label.shown}: {first_name}{of}, {expected}{measure.name} {low}. Best: {last_name}, "
        f"{high}."
    )


def shown(folder: Path) -> str:
    """Return a run's folder for a command: relative to the current folder, or its name alone.

    A report may be sent elsewhere, and contains no path of this machine.
    """
    relative = os.path.relpath(folder)
    return shlex.quote(folder.name if relative.startswith("..") else relative)


def own_code(folder: Path) -> list[str]:
    """Return the names of code of its own in a run's experiment, which commands that only read it import if allowed."""
    try:
        held = toml(folder / "experiment.toml", "an experiment")
    except SettingError:
        return []
    parts = [value for key, value in held.items() if key not in ("name", "data")]
    return [text for text in dict.fromkeys(texts_in(parts)) if SPEC.fullmatch(text)]


def reading(command: str, folder: Path) -> str:
    """Return a command that reads a run, with the permission to import the code that it names."""
    return f"{command} {shown(folder)}{' --own-code' if own_code(folder) else ''}"


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts of nested lists and tables.

    >>> [*texts_in({"a": ["b", {"c": "d"}], "e": 1})]
    ['b', 'd']
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


def alone_command(compared: Compared) -> str:
    """Return the command that trains each device alone beside the runs."""
    rivals = contestants(compared)
    file = f"{shown(rivals.runs[0].folder)}/experiment.toml"
    if all(run.settings.kind == PCA for run in rivals.runs):
        return f"fedfloor run {file} --references {AUTOENCODER} --out runs/again"
    if len(rivals) == 1 and len(rivals.runs) == 1:
        return f"fedfloor run {file} --references --resume --out {shown(rivals.runs[0].folder)}"
    return compare_command(compared, ",".join(str(run.seed) for run in rivals[0].runs), (LOCAL_ONLY, "pooled"))


def compare_command(compared: Compared, seeds: str, more: Sequence[str] = ()) -> str:
    """Return the command that compares the methods again with other seeds, or with more methods."""
    rivals = contestants(compared)
    first = rivals.runs[0]
    whole = first.folder.parent / COMPARISON_FILE
    file = whole if whole.is_file() else first.folder / "experiment.toml"
    known = entries(file)
    runs = [group.runs[0] for group in rivals]
    methods = [run.method for run in runs if run.method in known or run.settings.kind == run.method]
    listed = shlex.quote(",".join(dict.fromkeys([*methods, *more])))
    place = f"{shown(file.parent)}/{file.name}"
    return f"fedfloor compare {place} --methods {listed} --seeds {seeds} --out runs/again"


def entries(file: Path) -> set[str]:
    """Return the names that an experiment gives to methods of its own; none if the file is damaged."""
    try:
        held = toml(file, "an experiment").get("methods")
    except SettingError:
        return set()
    return set(held) if isinstance(held, dict) else set()


def steps(compared: Compared, best: Sequence[Group], local: Sequence[Group]) -> list[NextStep]:
    """Return the next steps that these runs lack."""
    found = []
    rivals = contestants(compared)
    present = [group.runs[0].method for group in compared if group.runs[0].method in REFERENCES]
    if not local:
        found.append(NextStep("Train each device alone, and all data in one place", alone_command(compared)))
    if any(len(group.runs) == 1 and group.runs[0].seeded for group in rivals):
        found.append(NextStep("Repeat with three seeds", compare_command(compared, SEEDS, present)))
    run = (best[0] if best else rivals[0]).runs[0]
    code = f" (imports {listed(names)})" if (names := own_code(run.folder)) else ""
    if best and (decide := decision_settings(compared, best[0])):
        command = f"fedfloor run {shown(run.folder)}/experiment.toml {decide[1]} --out runs/decided"
        found.append(NextStep(f"Decide for '{decide[0]}' by a threshold, as it is rare", command))
    if not any(line.priced for line in run.rounds):
        command = cost_tile([Group(rivals[0].label, (run,))]).command
        found.append(NextStep(f"Price the rounds on a network{code}", command))
    if best:
        found.append(NextStep(f"Put the model on a device{code}", reading("fedfloor export", run.folder)))
    return found

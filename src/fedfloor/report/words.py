"""The report's sentences, captions and table cells."""

from __future__ import annotations

from collections.abc import Sequence

from fedfloor.report.figures import MOST_DEVICES
from fedfloor.report.ledger import Park, Run
from fedfloor.report.table import Row

PAIRED = (
    "How much more accurate the first method is than the second, seed by seed, in the last round that both evaluated: "
    "mean and 95 % Student-t interval over the common seeds. An interval that contains 0 does not tell them apart."
)
DEVICES = (
    "The global model's accuracy, device by device: on the device's own test samples where the data have owners, "
    "otherwise expected on test samples in the device's own mix of classes. The bar runs from the device at 10 % of "
    "all devices to the one at 90 %, the diamond is the median. Last evaluated round; mean over seeds if several."
)
CLASSES = "Share of the test samples of each class that the global model gets right in the last evaluated round."
WHISKERS = " Mean over seeds; the whiskers are its 95 % Student-t interval."


def park_words(park: Park) -> str:
    """Describe a park in one line."""
    devices = _count(len(park.devices), "device")
    factories = _count(park.factories, "factory", "factories")
    return f"{park.dataset}: {devices} in {factories}, {_count(park.test_samples, 'test sample')}"


def _count(number: int, noun: str, plural: str = "") -> str:
    digits = f"{number:,}".replace(",", "\u202f")
    return f"{digits} {noun if number == 1 else plural or noun + 's'}"


def figure(value: float | None, digits: int = 4) -> str:
    """Write a number, or a dash for one that is missing.

    >>> figure(0.91234), figure(None)
    ('0.9123', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def interval(value: float | None, half_width: float | None, digits: int = 4) -> str:
    """Write a mean with its half width, if it has one.

    >>> interval(0.9, 0.01), interval(0.9, None)
    ('0.9000 ± 0.0100', '0.9000')
    """
    return figure(value, digits) + ("" if half_width is None else f" ± {figure(half_width, digits)}")


def verdict(rows: Sequence[Row]) -> str:
    """Say in plain words which method reached the target when.

    >>> row = {"method": "fedsr", "seeds": [0], "target": 0.9, "reached": 1, "rounds_to_target": 6.0, "rounds": 8}
    >>> verdict([row, row | {"method": "fedavg", "reached": 0, "rounds_to_target": None}])
    'fedsr reached 0.90 after 6 rounds; fedavg did not within 8.'
    """
    if all(row["target"] is None for row in rows):
        return "No accuracy to compare has been reached yet."
    order = sorted(
        rows, key=lambda row: (row["rounds_to_target"] is None, row["rounds_to_target"] or 0, -row["reached"])
    )
    target = f"{rows[0]['target']:.2f}" if round(rows[0]["target"], 2) == rows[0]["target"] else str(rows[0]["target"])
    parts = [_reached(row, target if i == 0 else "it") for i, row in enumerate(order)]
    return "; ".join(parts) + "."


def _reached(row: Row, target: str) -> str:
    name, seeds = row["method"], len(row["seeds"])
    if row["reached"] == 0:
        within = row["rounds"]
        if target == "it":
            return f"{name} did not within {within}"
        return f"{name} did not reach {target} within {_count(within, 'round')}"
    if row["rounds_to_target"] is None:
        return f"{name} reached {target} with {row['reached']} of {seeds} seeds within {_count(row['rounds'], 'round')}"
    rounds = float(row["rounds_to_target"])
    length = _count(int(rounds), "round") if rounds.is_integer() else f"{rounds:.1f} rounds"
    mean = f" (mean of {seeds} seeds)" if seeds > 1 else ""
    return f"{name} reached {target} after {length}{mean}"


def summary_head(target: float | None) -> list[str]:
    """Return the summary's column names."""
    reach = [] if target is None else [f"rounds to {target:g}"]
    return ["method", "seeds", "rounds", "accuracy", "best", "loss", *reach, "seconds"]


def summary_cells(row: Row) -> list[str]:
    """Return one line of the summary as text."""
    seeds = ", ".join(map(str, row["seeds"])) if len(row["seeds"]) <= 4 else str(len(row["seeds"])) + " seeds"
    cells = [row["method"], seeds, str(row["rounds"]), interval(row["accuracy"], row["half_width"])]
    cells += [figure(row["best_accuracy"]), figure(row["loss"], 3)]
    if row["target"] is not None:
        rounds = row["rounds_to_target"]
        some = f"{row['reached']} of {len(row['seeds'])} seeds" if row["reached"] else "not reached"
        cells.append(some if rounds is None else f"{rounds:.1f}".removesuffix(".0"))
    return [*cells, figure(row["wall_s"], 1)]


def summary_caption(rows: Sequence[Row], *, hindsight: bool) -> str:
    """Say how the summary was made, and whether the target was chosen only after the results were there."""
    several = any(len(row["seeds"]) > 1 for row in rows)
    seeds = " Mean over seeds; ± is the 95 % Student-t interval of the mean." if several else ""
    reach = " The target counts as reached in the first evaluated round that has it." if rows[0]["target"] else ""
    if reach and hindsight:
        reach += " Nobody gave one: it is the highest round figure that all seeds of one method reached."
    return (
        "Accuracy and loss of the global model on the test data in the last evaluated round; best is the highest "
        f"accuracy of any round, chosen with hindsight; seconds are those of the computation.{reach}{seeds}"
    )


def paired_cells(row: Row) -> list[str]:
    """Return one paired difference as text."""
    sign = "+" if row["difference"] >= 0 else ""
    difference = sign + interval(row["difference"], row["half_width"])
    return [f"{row['method']} – {row['against']}", ", ".join(map(str, row["seeds"])), difference]


def curve_caption(bands: bool) -> str:
    """Say how curves were made."""
    if not bands:
        return "A point per evaluated round; every line is one run."
    return "Thick: mean over seeds; thin: each seed; band: 95 % Student-t interval of the mean."


def accuracy_caption(how: str, target: float | None) -> str:
    """Say how the accuracy's curve was made."""
    line = "" if target is None else f" The dotted line is {target:g}, the accuracy compared above."
    return f"Share of the test samples that the global model gets right. {how}{line}"


def holdings_caption(run: Run, shown: int) -> str:
    """Say what the bubbles are."""
    hidden = len(run.park.devices) - shown
    more = f" The first {MOST_DEVICES} devices are drawn; there are {hidden} more." if hidden else ""
    return (
        f"A bubble's area is the number of training samples of a class on a device; colours and shades are factories. "
        f"{run.park.dataset} as dealt with seed {run.seed}.{more}"
    )


def plan_caption(run: Run) -> str:
    """Say what the plan's picture shows."""
    return (
        f"The first round of {run.method}, seed {run.seed}, as the method wrote it. "
        "Later rounds may visit other devices."
    )

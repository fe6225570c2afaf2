"""A recalibrated model: the share of samples within the thresholds before and after, beside the promised one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from fedfloor.base.names import count
from fedfloor.report.evaluation_records import RecalibratedRecord, ShareRecord
from fedfloor.report.groups import Compared

HEAD = ["method", "promised", "before", "after", "worst device before", "worst device after", "nearer to the promise"]
UNKNOWN = "not known"
NOTE = (
    "The model is that of an earlier run, to the bit, and its thresholds were found again on present held-out samples. "
    "Before and after: the share of present test samples within the earlier thresholds and within the new ones."
)


def rows(compared: Compared) -> list[list[str]]:
    """Return a row of the report's table for each recalibrated model."""
    return [
        [
            group.label.shown, _percent([every[0].promised]), _total([one.before for one in every]),
            _total([one.after for one in every]), _worst([one.before for one in every]),
            _worst([one.after for one in every]), _nearer(every),
        ]
        for group in compared if (every := records(group.finals))
    ]  # fmt: skip


def words(compared: Compared) -> str:
    """Return a sentence on the first recalibrated model; "" without any."""
    every = next((known for group in compared if (known := records(group.finals))), [])
    if not every:
        return ""
    before, after = (_total([getattr(one, when) for one in every]) for when in ("before", "after"))
    if UNKNOWN in after:
        return "The model was kept and its thresholds found again; no other samples measure them."
    kept = [one.nearer for one in every]
    verdict = "nearer to it" if all(kept) else "no nearer to it"
    verdict = verdict if len({*kept}) == 1 else f"nearer to it in {sum(map(bool, kept))} of {count(len(kept), 'run')}"
    return (
        f"The model was kept and its thresholds found again: {after} of the test samples are within them, {before} "
        f"were within the earlier ones, and {_percent([every[0].promised])} are promised; {verdict}."
    )


def records(finals: Sequence[object]) -> list[RecalibratedRecord]:
    """Return what runs recorded of their recalibration."""
    return [one for final in finals if (one := getattr(final, "recalibrated", None)) is not None]


def _total(parts: Sequence[ShareRecord]) -> str:
    known = [one.measured for one in parts if one.measured is not None]
    return _percent(known) if len(known) == len(parts) else UNKNOWN


def _worst(parts: Sequence[ShareRecord]) -> str:
    known = [value for one in parts for value in one.devices if value is not None]
    return _percent([min(known)]) if known else UNKNOWN


def _nearer(every: Sequence[RecalibratedRecord]) -> str:
    known = [one.nearer for one in every if one.nearer is not None]
    return f"{sum(known)} of {count(len(known), 'run')}" if known else UNKNOWN


def _percent(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f} %"

"""Whether runs were measured on the same data: a difference between accuracies means nothing where they were not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedfloor.errors import SettingError
from fedfloor.report.ledger import Run

# What of [data] says where data lie, or what devices train on, and not what is tested
ELSEWHERE = ("name", "root", "path", "partition", "stream", "normalise", "samples_per_device")


def check_same_test(runs: Iterable[Run]) -> None:
    """Refuse runs whose accuracies cannot be compared, because they were measured on different data.

    Runs with a common seed must have the same test samples, by their digest where both recorded it, else as far as
    their records show. With different seeds a split or generated data differ as they should: the data set, its classes
    and whether it is test or validation data must be the same.

    Raises:
        SettingError: two runs were measured on different data; both are named, and in what the data differ.
    """
    first: dict[int, Run] = {}
    for run in runs:
        if run.seed not in first:
            others = list(first.values())[:1]
            first[run.seed] = run
        else:
            others = [first[run.seed]]
        for other in others:
            different = list(_different(other, run))
            if different:
                raise SettingError(
                    f"{other.folder} and {run.folder} were measured on different data, so that no difference between "
                    f"their accuracies means anything: {'; '.join(different)}. Report them one by one."
                )


def _different(one: Run, other: Run) -> Iterator[str]:
    digests = one.park.test_sha256, other.park.test_sha256
    known = None not in digests
    if known and digests[0] == digests[1]:
        return
    contents = [run.settings.provenance.get("data_sha256") for run in (one, other)]
    same = None not in contents and contents[0] == contents[1]
    facts: list[tuple[str, Any, Any]] = [("measured on", one.on, other.on)]
    if not same:
        facts += [("data set", one.park.dataset, other.park.dataset)]
        facts += [("classes", len(one.park.classes), len(other.park.classes))]
    if one.seed == other.seed:
        facts += [("test samples", one.park.test_samples, other.park.test_samples)]
        if None not in contents:
            facts.append(("content (data_sha256)", str(contents[0])[:12], str(contents[1])[:12]))
        a, b = one.settings.data, other.settings.data
        facts += [(f"[data] {key}", a.get(key), b.get(key)) for key in sorted({*a, *b} - {*ELSEWHERE})]
    named = [f"{name} {_short(a)} and {_short(b)}" for name, a, b in facts if a != b]
    yield from named
    if known and not named and one.seed == other.seed:
        yield f"test samples (test_sha256) {str(digests[0])[:12]} and {str(digests[1])[:12]}"


def _short(value: Any) -> str:
    text = "not set" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 60 else text[:60] + "…"

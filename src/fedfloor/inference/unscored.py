"""Labels of files to predict that are no class of the model, or no number: their samples are answered, not scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedfloor.base.names import count, excerpt, meant, some

NAMED = 10  # labels named in a note, at most


def note(unscored: Mapping[str, int], classes: Sequence[str], samples: int) -> list[str]:
    """Return a warning of labels that no score counts, with their samples; empty without such labels.

    Args:
        unscored: label → its samples.
        classes: the model's classes; empty where it predicts numbers.
        samples: the number of all samples.

    >>> print(*note({"nok": 2, "n.i.O.": 1}, ("NOK", "OK"), 200))
    3 of 200 samples have a label that is no class of the model, and count in no score: 'nok' (2, probably 'NOK'), \
'n.i.O.' (1). If these are the model's classes (NOK, OK), write them so; if others, the model is wrong on them.
    >>> print(*note({"<5": 1}, (), 200))
    1 of 200 samples has a label that is no number, and counts in no score: '<5' (1).
    """
    if not unscored:
        return []
    many = sum(unscored.values())
    verbs = ("has", "counts") if many == 1 else ("have", "count")
    ordered = sorted(unscored.items(), key=lambda item: (-item[1], item[0]))
    named = excerpt([f"'{label}' ({times:,}{_meant(label, classes)})" for label, times in ordered], NAMED)
    noun = "class of the model" if classes else "number"
    shown = some(classes, 20)
    known = f"If these are the model's classes ({shown}), write them so; if others, the model is wrong on them."
    return [
        f"{many:,} of {count(samples, 'sample')} {verbs[0]} a label that is no {noun}, and {verbs[1]} in no score: "
        f"{named}.{f' {known}' if classes else ''}"
    ]


def _meant(label: str, classes: Sequence[str]) -> str:
    """Return a clause on the class that a label probably stands for; "" if none does."""
    found = meant(label, classes)
    return f", probably '{found}'" if found else ""

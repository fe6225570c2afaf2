"""Which parts and settings exclude each other: each declares what it cannot be combined with, and one loop refuses it.

A part has a property ``excludes``: trait → the reason, with what to do instead. Methods and settings have traits. A
part of your own may declare its own reasons for the traits below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedfloor.base.errors import SettingError

# of methods
COHORTS = "several models"
SEPARATE = "no shared model"
CLOCK = "does not wait"
OBJECTIVE = "an objective of its own"
REMEMBERS = "keeps tensors on devices"
PARTIAL = "trains a part of the model"
SUMS = "sums that must be exact"
RECURS = "sums over the same rows"
DRAWS = "draws devices"
PERSONAL = "a model for each device"
READS_SAMPLES = "asks for what single samples reveal"
READS_ACCURACY = "reads training accuracy"
# of settings
PROTECTED = "masks or noise on updates"
NOISED = "devices add noise"
BOUNDED = "noise on sums of bounded updates"
LIVE = "real machines"
CLOSE = "rounds end early"
DECIDE = "devices decide"
FINETUNE = "devices train before an evaluation"
INTERFERENCE = "uploads interfere"
MOVES = "devices change factories"

# what masks or noise on updates exclude, whichever setting adds them
PROTECTING = {
    CLOCK: "results that arrive at different times form no sum, and the privacy loss of visits from earlier models is "
    "not counted. Choose a method with common rounds, such as fedavg.",
    READS_SAMPLES: "masks and noise protect updates, not answers. Choose a method and a rule without such a question, "
    "such as fedavg, or leave this protection out.",
}


@dataclass(frozen=True)
class Choice:
    """A method, a part or a setting of an experiment.

    Args:
        key: its name in messages, such as ``method.mix = 'private'``.
        traits: its traits → what a message adds to the key, such as "which may have several models"; "" for nothing.
        excludes: traits of others that it excludes → the reason, with what to do instead.
    """

    key: str
    traits: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, str] = field(default_factory=dict)


def check(choices: Sequence[Choice]) -> None:
    """Check that no choice excludes a trait of another one.

    Raises:
        SettingError: one does; the message names both.

    >>> check([Choice("a", excludes={LIVE: "leave it out."}), Choice("b", {CLOSE: ""})])
    """
    for one in choices:
        for other in choices:
            for trait, which in other.traits.items():
                if trait in one.excludes and other is not one:
                    about = f", {which}" if which else ""
                    raise SettingError(f"{one.key} with {other.key}{about}: {one.excludes[trait]}", key="combination")

"""The questions of a ``Probe`` by name: the data that an answer is computed from, and what it reveals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedfloor.base.errors import unknown
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Probe, Select


@dataclass(frozen=True)
class QuestionFacts:
    """The facts of a question on which protections and privacy statements depend.

    Attributes:
        name: the question's name, ``Probe.what``.
        reads: the data of a device from which an answer is computed: ``nothing``: no samples; ``counts``: the class
            counts, to which censuses may add noise; ``samples``: the values of training samples, without noise;
            ``held out``: the values of samples that are not trained on.
        reveals: the content of an answer.
        varies: settings whose values change between rounds; all others have the values of the method's ``Needs``.
    """

    name: str
    reads: Literal["nothing", "counts", "samples", "held out"]
    reveals: str
    varies: frozenset[str] = frozenset()


CENSUS = QuestionFacts("census", "counts", "the class counts of the samples that a device holds at that time")
CLASSES = QuestionFacts("classes", "counts", "the class counts of all samples of a device")
LOSS = QuestionFacts("loss", "samples", "the mean loss of the sent model over a device's samples")
LOSSES = QuestionFacts("losses", "samples", "the mean loss of each sent model over a device's samples")
GRADIENT = QuestionFacts(
    "gradient", "samples", "the gradient of the sent model's mean loss, from which samples can be reconstructed"
)
RESOURCES = QuestionFacts("resources", "nothing", "the speed of a device and its distance to the base station")
MOMENTS = QuestionFacts("moments", "samples", "number, mean and covariance matrix of a device's samples")
SCORES = QuestionFacts(
    "scores",
    "held out",
    "the number of held-out samples in each of 66 bins of the sent model's score, and of their units where a share is "
    "promised; with models and bins made up for it, values of single held-out samples",
    frozenset({"low", "width"}),
)
FEATURES = QuestionFacts("features", "samples", "the mean features of a device's samples")
HASH = QuestionFacts("hash", "samples", "hashes of the mean features of a device's samples")
PROFILE = QuestionFacts("profile", "samples", "a model after local training, like an update", frozenset({"rate"}))
OUTPUTS = QuestionFacts(
    "outputs",
    "held out",
    "losses, predictions and scores of a device's model for its test samples",
    frozenset({"scored"}),
)
SURVEY = QuestionFacts("survey", "samples", "an answer of the normalisation's survey")

FACTS = {
    facts.name: facts
    for facts in (
        CENSUS,
        CLASSES,
        LOSS,
        LOSSES,
        GRADIENT,
        RESOURCES,
        MOMENTS,
        SCORES,
        FEATURES,
        HASH,
        PROFILE,
        OUTPUTS,
        SURVEY,
    )
}


def facts_of(what: str) -> QuestionFacts:
    """Return the facts of a question that a ``Probe`` can put to devices.

    Raises:
        SettingError: the name is unknown.
    """
    if what not in FACTS or what == SURVEY.name:
        raise unknown("question", what, [name for name in FACTS if name != SURVEY.name])
    return FACTS[what]


def asked(plan: Node) -> Iterator[Probe]:
    """Yield every question of a plan, with the census questions of ``Select`` nodes whose policy reads the census."""
    for node, _ in walk.every(plan):
        if isinstance(node, Probe):
            yield node
        elif isinstance(node, Select) and node.reads_census:
            yield Probe(node.candidates, CENSUS.name, node.at)


def covers(declared: Probe, question: Probe) -> bool:
    """Return whether a declared question is this one, whose devices and varying settings do not matter.

    >>> covers(Probe((), "hash", settings={"hashes": 5}), Probe((0, 1), "hash", settings={"hashes": 6}))
    False
    >>> covers(Probe((), "scores"), Probe((3,), "scores", settings={"low": -40.0, "width": 80.0}))
    True
    """
    if declared.what != question.what:
        return False
    varies = facts_of(declared.what).varies
    ours, theirs = (
        {name: (type(value), value) for name, value in node.settings.items() if name not in varies}
        for node in (declared, question)
    )
    return ours == theirs

"""HFedMS's comparison of groupings (Zeng et al., IEEE TCC 2023, arXiv 2211.03300, Fig. 6), as data."""

from __future__ import annotations

from papers.groupings import Groupings, Point, Way

PAPER = "HFedMS, arXiv 2211.03300"
WAYS = (
    Way("FedAvg: every device alone"),
    Way("Benchmark: at random", "random", (0.625, None)),
    Way("Astraea", "astraea"),
    Way("ICG", "icg", (0.25, 0.4)),
    Way("exchanges (ours)", "exchange"),
)
NOTES = (
    "devices hold batches of 50 characters of FEMNIST's writers, of whom there are 300: some of the 368 devices share "
    "one, but not the batch. The paper does not say how many groups there are; M = 10 is its β, 184 are pairs",
    "the writers differ in hand, not in labels: a batch's classes differ from everybody's by no more than the chance "
    "of its 50 characters, which more of them in a group average out whoever they are. The paper's population may have "
    "skewed labels: the characters of all writers are dealt to 368 devices by a Dirichlet draw for every class, too",
    "median CPD: over all pairs of groups, then the mean over the populations; ratios are those of each population's "
    "medians, with the 95 % interval of their mean. CPD is (1 − e^{−1/σ²})·‖p − p′‖² with σ = √2; ratios do not depend "
    "on it. Were CPD the MMD and not its square, they would be the square roots of these",
    "the paper says ICG's median is about 1/4 of FedAvg's and 2/5 of the benchmark's, which makes the benchmark's 5/8 "
    "of FedAvg's",
)


def groupings() -> tuple[Groupings, ...]:
    """Return the comparison of groupings."""
    points = tuple(Point(groups, alpha) for alpha in (None, 0.7) for groups in (10, 52, 100, 184))
    return (
        Groupings("hfedms-cpd", "how far groups' classes are apart", f"{PAPER}, Fig. 6", 368, 50, points, WAYS, NOTES),
    )

"""FLDG's claim that hashes keep mean features private (Liu et al., "Towards Fast and Accurate Federated Learning with
non-IID Data for Cloud-Based IoT Applications", Section IV), as data."""

from __future__ import annotations

from fedfloor.methods.fldg import FLDGL
from papers.disclosure import Disclosure, Point, Telling

PAPER = "FLDG, Liu et al."
HASHES = (1, 2, 3, 4, 5, 8, 16, 32, 64)
WIDTHS = (FLDGL.width, 3.0)  # 3 is the paper's number, for other features
TELLINGS = (
    Telling("nothing"), Telling("census"), Telling("features"),
    *(Telling("hash", h, width) for width in WIDTHS for h in HASHES),
)  # fmt: skip
NOTES = (
    "the paper says that of hashes it is extremely hard to restore what was hashed, and measures nothing",
    "the attacker knows of 100 devices what they told, the label they have most of and their mean features, and sees "
    "what 100 others tell, who share no sample with them; each has 271 samples of MNIST. Where that is not here: "
    "rendered digits, in one style",
    "the label is that of the known device that told the nearest; where several are equally near, that of most of "
    "them. There is nothing to tune. Chance: 0.1",
    "mean features by ridge regression on what was told, and as the mean of the same nearest devices; error: "
    "Σ‖v̂ − v‖²/Σ‖v − v̄‖² over the 100, where 0 is all and 1 what one knows without being told anything. Better attacks "
    "may exist: these are lower bounds of what is given away",
    "purity: the share of the 100 devices that are of the most frequent label of their group, in the 10 groups that "
    "K-Means makes of what they tell. It is what FLDG has of it",
    "features: HOG, D = 324, for MobileNetV2's need weights; devices of different labels are 1.5 apart (case 1), those "
    "of one label 0.15. r = 0.5 is the method's default, r = 3 the paper's number, which is wide for these features",
    "every park has hash functions of its own; with the 95 % interval of the mean over parks, which are different "
    "ways to deal the same samples",
)


def disclosures() -> tuple[Disclosure, ...]:
    """Return what hashes give away, beside the census and the mean features."""
    title = "what devices give away by what they tell"
    points = (Point(1), Point(3), Point(4))
    return (Disclosure("fldg-privacy", title, f"{PAPER}, Section IV", 100, points, TELLINGS, NOTES),)

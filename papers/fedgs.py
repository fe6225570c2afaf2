"""The comparison of samplers in FedGS (its Section VII, Figs. 3 and following), as data.

Li, Qi, Wang, Sun, Li, Chen, "Data Heterogeneity-Robust Federated Learning via Group Client Selection in Industrial
IoT", IEEE IoT-J 9(18), 2022, arXiv 2202.01512. The figures are those of the plot script in the authors' code.
"""

from __future__ import annotations

from typing import Any

from papers.selection import Begun, Comparison, Point, Printed, Sampler

STREAM = {"kind": "fifo", "window": 32}
SAMPLERS = (
    Sampler("random", "random", Printed(0.083, 0.082, 0.010, 0.072, 0.105, 0.0001)),
    Sampler("Monte Carlo", "monte-carlo", Printed(0.040, 0.039, 0.005, 0.031, 0.050, 0.1197)),
    Sampler("genetic", "genetic", Printed(0.036, 0.036, 0.003, 0.028, 0.041, 0.9975)),
    Sampler("Bayesian", "bayesian", Printed(0.047, 0.046, 0.009, 0.035, 0.064, 7.9925), share=0.05, needs="bayes_opt"),
    Sampler("GBP-CS", "gbpcs", Printed(0.036, 0.034, 0.004, 0.029, 0.042, 0.0154),
            init="mpinv", begun=Begun(0.037, 3, 0.029, 0.030)),
    Sampler("GBP-CS from zero", "gbpcs-zero", init="zero", begun=Begun(0.033, 1, 0.030, 0.029)),
    Sampler("GBP-CS from random", "gbpcs-random", init="random", begun=Begun(0.055, 2, 0.044, 0.044)),
    Sampler("exchanges (ours)", "swap"),
    Sampler("exact (ours)", "exact"),
    Sampler("brute force", "brute", Printed(0.032, 0.030, 0.004, 0.026, 0.038, 978.7786)),
)  # fmt: skip
NOTES = (
    "devices are FEMNIST's writers, in factories at random; at tick t a device holds samples 32t … 32t + 31 of its "
    "stream. Of a factory's devices two are drawn beforehand, at random; a sampler chooses 8 of the others, so that "
    "all ten have the class shares of the whole park's training data",
    "divergence: Eq. 6 of the paper, that of the ten windows' sum. Mean, median, std, min and max are over selections: "
    "every factory at tick 0, at tick 1, … The paper has ten figures, one for each factory, and does not say whether "
    "each is of one selection; its std is that of single selections here, not that of means over many",
    "above optimum: the mean of d/d* − 1 with d* of the exact solver; the paper's is the ratio of its means",
    "levels depend on whose characters these are. The paper has 368 writers of 100 characters or more in ten "
    "factories, some 37 in each. 300 writers in ten factories are 30 in each, and some may hold next to nothing, so "
    "that their windows are the same few characters again and again; the 259 in seven are 37 in each, and hold 90 or "
    "more for training, which are 100 with a tenth for tests",
    "the writers differ in hand, not in labels: random choices are at 0.050 and 0.055, what 320 characters drawn by "
    "chance are from everybody's classes (0.054), where the paper's are at 0.083. What samplers take off it there is "
    "the chance of the draw. Labels are skewed where the characters of all writers are dealt to 368 devices by a "
    "Dirichlet draw for every class",
    "Monte Carlo: 1000 draws; genetic: 100 chromosomes, 100 generations; Bayesian: 5 + 25 points, on a twentieth of "
    "the selections. Times are medians of processor time, one thread; exchanges, exact and brute force are compiled, "
    "the others NumPy; the paper's are of another machine",
    "starts: the paper shows one selection of each. Its text and its plot's data disagree on where zero and the "
    "pseudo-inverse end",
    "curves are of the first selection in the last park; points in the course of a sampler are it stopped earlier",
)


def _point(key: str, devices: int, factories: int, partition: dict[str, Any]) -> Point:
    data = {"name": "femnist", "partition": partition, "stream": STREAM}
    return Point(key, data, {"devices": devices, "factories": factories, "assignment": "random"})


def comparisons() -> tuple[Comparison, ...]:
    """Return the comparison of samplers."""
    points = (
        _point("300 writers, 10 factories", 300, 10, {"kind": "natural", "at_least": 1}),
        _point("259 writers of 90 or more, 7 factories", 259, 7, {"kind": "natural", "at_least": 90}),
        _point("368 devices, Dirichlet, α = 0.7, 10 factories", 368, 10, {"kind": "dirichlet", "alpha": 0.7}),
    )
    title = "class divergence and time of samplers"
    return (Comparison("fedgs-samplers", title, "FedGS (Li et al. 2022, arXiv 2202.01512)", points, SAMPLERS, NOTES),)

"""Courses of selections, and of forgetting, as SVG in the colours, dashes and symbols of the reports."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from fedfloor.report.charts import COLOURS, GREY

DASHES = ("-", "--", "-.", ":", (0, (7, 2)), (0, (7, 2, 1, 2)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)))
SYMBOLS = ("o", "s", "D", "^", "X", "P", "*", "v")
INK = "#1d2733"
LINE = "#c3ccd6"
SIZE_IN = (7.2, 4.2)
WIDE_IN = (11.0, 4.2)
ABOVE = (-1.0, 5.0)  # points that are always in view: tenths of them are to look small
PRINTED = {"mpinv": "pseudo-inverse", "zero": "zero, with its warm-up", "random": "random"}
# The same file for the same numbers: no date, and names that are not chance. Text stays text.
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "fedfloor", "svg.fonttype": "none", "font.family": ["DejaVu Sans", "sans-serif"], "font.size": 10.5,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": LINE, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": LINE, "grid.alpha": 0.5,
    "axes.axisbelow": True, "legend.frameon": False,
}  # fmt: skip


def steps(starts: Mapping[str, Sequence[float]], optimum: float) -> str:
    """Draw divergence against steps of GBP-CS, a curve for each start, as in the paper's Fig. 3.

    Args:
        starts: start → divergence after each step.
        optimum: the least divergence.
    """

    def drawn(axes: Any) -> None:
        for i, (start, values) in enumerate(starts.items()):
            _curve(axes, i, range(1, len(values) + 1), values, PRINTED.get(start, start))
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)

    return _svg(_divergence(drawn, optimum))


def against_time(courses: Mapping[str, Sequence[tuple[float, float]]], optimum: float) -> str:
    """Draw the best divergence so far against time.

    Args:
        courses: sampler → (seconds, divergence), …
        optimum: the least divergence.
    """

    def drawn(axes: Any) -> None:
        for i, (label, pairs) in enumerate(courses.items()):
            _curve(axes, i, [pair[0] for pair in pairs], [pair[1] for pair in pairs], label)
        axes.set_xscale("log")
        axes.set_xlabel("time of the selection (s)")

    return _svg(_divergence(drawn, optimum))


def forgotten(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw accuracy on a batch, and how far it is above two controls, against the rounds since, as in HFedMS's Fig. 9a.

    Args:
        curves: variant → ``batch``, ``over_fresh`` and ``over_unseen``, shares by lag.
    """
    panels = {
        "batch": "accuracy on the batch (%)",
        "over_fresh": "above fresh windows (points)",
        "over_unseen": "above unseen samples (points)",
    }

    above = [100 * value for row in curves.values() for name in panels if name != "batch" for value in row[name]]
    limits = min(ABOVE[0], *above) - 0.2, max(ABOVE[1], *above) + 0.2

    def drawn(figure: Any) -> None:
        for axes, (name, words) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for i, (variant, row) in enumerate(curves.items()):
                values = [100 * value for value in row[name]]
                _curve(axes, i, range(len(values)), values, variant if name == "batch" else "", every=5)
            axes.set_xlabel("rounds since")
            axes.set_ylabel(words)
            axes.xaxis.get_major_locator().set_params(integer=True)
            if name != "batch":
                axes.axhline(0, color=GREY, linewidth=1.3, linestyle=":")
                axes.set_ylim(limits)

    return _svg(drawn, WIDE_IN)


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    printed: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> str:
    """Draw curves, and hollow points of the same colour at what the paper prints.

    Args:
        curves: label → (x, y), …
        x, y: what the axes show.
        printed: label → (x, y), … of the paper.
    """

    def drawn(figure: Any) -> None:
        axes = figure.add_subplot()
        for i, (label, pairs) in enumerate(curves.items()):
            every = max(1, len(pairs) // 8)
            _curve(axes, i, [pair[0] for pair in pairs], [pair[1] for pair in pairs], label, every)
            known = (printed or {}).get(label, ())
            axes.scatter(
                [pair[0] for pair in known], [pair[1] for pair in known], s=60, facecolors="none", zorder=3,
                edgecolors=COLOURS[i % len(COLOURS)], marker=SYMBOLS[i % len(SYMBOLS)], linewidths=1.6,
            )  # fmt: skip
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if all(float(pair[0]).is_integer() for pairs in curves.values() for pair in pairs):
            axes.xaxis.get_major_locator().set_params(integer=True)

    return _svg(drawn)


FAR = 20.0  # ratio of the largest and the least from which on an axis is logarithmic


def beside(pairs: Sequence[tuple[str, float, float, float, float]]) -> str:
    """Draw figures beside the printed ones, a line each.

    Args:
        pairs: name, the printed number, ours, and the ends of its interval.
    """

    def drawn(figure: Any) -> None:
        axes = figure.add_subplot()
        places = range(len(pairs), 0, -1)
        ours = [pair[2] for pair in pairs]
        printed = [pair[1] for pair in pairs]
        reach = [[value - low for *_, value, low, _ in pairs], [high - value for *_, value, _, high in pairs]]
        axes.errorbar(ours, places, xerr=reach, fmt="o", color=COLOURS[0], capsize=4, label="ours")
        axes.scatter(printed, places, s=70, facecolors="none", edgecolors=INK, marker="D", label="the paper", zorder=3)
        axes.set_yticks(list(places), [pair[0] for pair in pairs])
        axes.set_ylim(0.4, len(pairs) + 0.6)
        if min(*ours, *printed) > 0 and max(*ours, *printed) > FAR * min(*ours, *printed):
            axes.set_xscale("log")

    return _svg(drawn, (SIZE_IN[0], 1.2 + 0.5 * len(pairs)))


def _curve(axes: Any, i: int, x: Sequence[float], y: Sequence[float], label: str, every: int = 1) -> None:
    hollow = i >= len(COLOURS)  # a second time through the colours
    look = {
        "color": COLOURS[i % len(COLOURS)],
        "marker": SYMBOLS[i % len(SYMBOLS)],
        "linewidth": 1.9,
        "markersize": 6.5,
        "markevery": every,
    }
    axes.plot(x, y, label=label, linestyle=DASHES[i % len(DASHES)], **look, **({"fillstyle": "none"} if hollow else {}))


def _divergence(drawn: Any, optimum: float) -> Any:
    """Return what draws curves of divergence into a figure, above a line for the least one."""

    def whole(figure: Any) -> None:
        axes = figure.add_subplot()
        drawn(axes)
        axes.axhline(optimum, color=GREY, linewidth=1.3, linestyle=":", label=f"optimum, {optimum:.4f}")
        axes.set_ylabel("class divergence (L2 distance of shares)")
        axes.set_ylim(bottom=0.8 * optimum)

    return whole


def _svg(drawn: Any, size: tuple[float, float] = SIZE_IN) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        drawn(figure)
        figure.legend(loc="outside upper left", ncols=3, handlelength=3.2)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()

"""A page per paper: ``fedfloor reproduce fedgs`` writes all tables and figures with commands, claims and pictures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.runs.folder import write
from papers import catalog, pictures
from papers.claims import HEAD, ROOT, cell, read, row
from papers.documents import table
from papers.verdicts import OUTCOMES, Claim, parsed, span

ERRATA = ROOT / "docs" / "errata.md"
RESULTS = ROOT / "results"
OTHERS = "Everything else"
LEGEND = (
    "In pictures, filled points are ours with their 95 % intervals, or three standard deviations of a single run where "
    "they are known, and hollow ones are printed. Means of rounds by seed are geometric there."
)
Drawn = Callable[[], Mapping[str, str]]  # what pictures show → SVG


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper, or several that one command computes.

    Args:
        name: its number in the paper.
        title: what it shows.
        command: computes it; what follows ``fedfloor reproduce`` is the name of a table.
        page: ours, in the folder of the results; empty where there is none.
        where: a pattern of the places of claims that it is about.
        drawn: draws the pictures of its page's numbers; None where it has none.
    """

    name: str
    title: str
    command: str
    page: str
    where: str
    drawn: Drawn | None = None


def stored(*names: str) -> Drawn:
    """Return what reads pictures that lie beside the results' pages."""
    return lambda: {name.replace("-", " "): (RESULTS / f"{name}.svg").read_text(encoding="utf-8") for name in names}


def against_parks(figure: str, over: str, value: str, axis: str) -> Drawn:
    """Return what draws a figure of RaFed from its points of :mod:`benchmarks.parks`, for γ = 1 and 0.1.

    Args:
        figure: such as ``rafed-fig7``.
        over: ``devices`` or ``channels``, the x-axis.
        value: the column of the rows that is drawn.
        axis: what it is called.
    """

    def drawn() -> Mapping[str, str]:
        paths = sorted((RESULTS / "rafed-parks").glob(f"{figure}-*.json"))
        found = [one for path in paths for one in json.loads(path.read_text(encoding="utf-8"))["rows"]]
        made = {}
        for gamma in ("1", "0.1"):
            lines: dict[str, list[tuple[float, float]]] = {}
            for one in found:
                if one["point"].startswith(f"γ = {gamma},") and one[value] is not None and one[value] < LONGEST:
                    lines.setdefault(one["scheme"], []).append((one[over], one[value]))
            if lines:
                made[f"{axis} against {over}, γ = {gamma}"] = pictures.lines(lines, f"available {over}", axis)
        return made

    return drawn


LONGEST = 60.0  # seconds; schemes that collide take up to 10³⁰⁰


def training_curves() -> Mapping[str, str]:
    """Draw FedGS's Table II with the 2NN, means over the seeds, and in its colours what the paper prints of its CNN."""
    from papers.fedgs_training import BASELINES

    lines: dict[str, list[tuple[float, float]]] = {}
    printed: dict[str, list[tuple[float, float]]] = {}
    for key, (label, *_, (accuracy, _, rounds)) in BASELINES.items():
        paths = sorted(_runs(f"{key}-cnn")) or sorted(_runs(key))  # with the rates of the CNN, where there are such
        runs = [json.loads(path.read_text(encoding="utf-8"))["evaluations"] for path in paths]
        if runs:
            paired = zip(*runs, strict=False)
            lines[label] = [(one[0]["round"], float(np.mean([run["accuracy"] for run in one]))) for one in paired]
            printed[label] = [(500, accuracy / 100), *([] if rounds is None else [(rounds, 0.82)])]
    return {"accuracy by round, 2NN; hollow: the paper's CNN": pictures.lines(lines, "round", "accuracy", printed)}


def _runs(name: str) -> Iterator[Path]:
    return (RESULTS / "fedgs-baselines").glob(f"fedgs-baselines-2nn-writers-{name}-seed?.json")


def _points(page: str, rows: Iterable[tuple[float, str]], column: str) -> list[tuple[float, float]]:
    """Return what stands in a column of rows of a results' page, each beside its place on the x-axis."""
    return [(x, parsed(cell(f"results/{page}.md", row, column))[0]) for x, row in rows]


def by_interval() -> Mapping[str, str]:
    """Draw HFedMS's rounds to 70 % against T, and what Table IV prints."""
    lines = {}
    printed = {}
    for label, intervals in (("HFedMS-D", (3, 5, 7, 9)), ("D, calibration of 3 epochs", (3, 5, 7))):
        where = f"chains of the paper's length | {label} | rounds to 70%"
        rows = [(every, f"FEMNIST, the paper's CNN | stream, T = {every}, {where}") for every in intervals]
        lines[label] = _points("hfedms-table4", rows, "measured")
        printed[label] = _points("hfedms-table4", rows, "paper")
    return {"rounds to 70 % against T; hollow: Table IV": pictures.lines(lines, "T", "rounds", printed)}


def by_partition() -> Mapping[str, str]:
    """Draw FedSR's Table II on MNIST after 20 rounds, and what is printed after 500."""
    from papers.fedsr import ACCURACY, LABELS

    head = ("IID", "ξ = 4", "ξ = 2", "α = 0.3", "α = 0.1")
    lines = {}
    printed = {}
    for key in ("fedsr", "ring", "hierfavg", "fedavg", "moon"):
        label = LABELS[key]
        one = [cell("results/fedsr-tables.md", label, column, "Table II, MNIST, all") for column in head]
        lines[label] = [(i, parsed(text)[0]) for i, text in enumerate(one, start=1)]
        printed[label] = [(i, value / 100) for i, value in enumerate(ACCURACY["mnist"][key], start=1)]
    title = f"accuracy on MNIST after 20 rounds; hollow: after 500, printed. Partitions 1 to 5: {', '.join(head)}"
    return {title: pictures.lines(lines, "partition", "accuracy", printed)}


def by_case() -> Mapping[str, str]:
    """Draw FedAvg's accuracy in FLDG's cases on CIFAR-10, and what Fig. 1 prints."""
    rows = [(case, f"CIFAR-10 | case {case} | FedAvg | accuracy") for case in (1, 2, 3, 4)]
    lines = {"FedAvg": _points("fldg-cases-cifar", rows, "measured")}
    printed = {"FedAvg": _points("fldg-cases-cifar", rows, "paper")}
    return {"FedAvg on CIFAR-10 after 300 rounds; hollow: Fig. 1": pictures.lines(lines, "case", "accuracy", printed)}


R = "fedfloor reproduce "
TESTS = "pytest tests/papers/test_errata.py"
# paper → the name in the claims, the reference, its exhibits in the order of their numbers
PAPERS: Mapping[str, tuple[str, str, tuple[Exhibit, ...]]] = {
    "fedgs": ("FedGS", "Li et al., IEEE IoT-J 9(18), 2022, arXiv 2202.01512", (
        Exhibit("Figs. 3 and 4", "class divergence and time of samplers", f"{R}fedgs-samplers --only Dirichlet",
                "fedgs-samplers-dealt", r"Fig\. [34]", stored("fedgs-samplers-dealt-starts",
                                                              "fedgs-samplers-dealt-time")),
        Exhibit("Fig. 5", "accuracy by T, n, M and L", f"{R}fedgs-grid", "fedgs-grid", r"Fig\. 5"),
        Exhibit("Table II, Figs. 6 and 7", "accuracy, loss and rounds of fifteen methods", f"{R}fedgs-table2",
                "fedgs-baselines", r"Table II|VII-B", training_curves),
        Exhibit("§I", "choosing by labels beside random devices, on skewed labels", f"{R}fedgs-skew", "fedgs-skew",
                r"§I$"),
        Exhibit("the code's log", "accuracy by round", f"{R}fedgs-log", "fedgs-log", "log"),
        Exhibit("Proposition 1", "the choice of devices is NP-complete", TESTS, "", "Proposition 1"),
        Exhibit("Propositions 2 and 3", "gradients of super nodes", "python -m papers.gradients", "fedgs-gradients",
                "Propositions 2"),
        Exhibit("Proposition 4", "seconds of a round", "python -m papers.round_time", "fedgs-round", "Proposition 4"),
    )),
    "rafed": ("RaFed", "Gao, Zhao, Min, Ni, Jiang", (
        Exhibit("Table I, Fig. 2, Algorithm 1", "an example of four devices; the search", TESTS, "",
                "Table I|Algorithm|III-C"),
        Exhibit("Fig. 3", "training latency of the schemes", f"{R}rafed-fig3", "rafed-parks", r"Fig\. 3"),
        Exhibit("Fig. 4", "training accuracy", f"{R}rafed-fig4", "rafed-fig4", r"Fig\. 4"),
        Exhibit("Fig. 5", "training latency by channels", f"{R}rafed-fig5", "rafed-parks", r"Fig\. 5",
                against_parks("rafed-fig5", "channels", "median_s", "training latency (s)")),
        Exhibit("Fig. 6", "training latency by powers", f"{R}rafed-fig6", "rafed-parks", r"Fig\. 6",
                against_parks("rafed-fig6", "devices", "median_s", "training latency (s)")),
        Exhibit("Fig. 7", "training latency by devices", f"{R}rafed-fig7", "rafed-parks", r"Fig\. 7",
                against_parks("rafed-fig7", "devices", "median_s", "training latency (s)")),
        Exhibit("Fig. 8", "active devices", f"{R}rafed-fig8", "rafed-parks", r"Fig\. 8",
                against_parks("rafed-fig8", "devices", "active", "active devices")),
    )),
    "hfedms": ("HFedMS", "Zeng et al., IEEE TCC 2023, arXiv 2211.03300", (
        Exhibit("Table I", "parameters of the network", "pytest tests/network/test_network_papers.py", "",
                "^Table I$|^Eqs"),
        Exhibit("Table III, Figs. 7 and 9b", "accuracy and loss", f"{R}hfedms-table3", "hfedms-table3",
                r"Table III|Fig\. (7|9b)|^§IV-B$"),
        Exhibit("Table IV, Fig. 10", "rounds, bytes and hours to 70 %", f"{R}hfedms-table4", "hfedms-table4",
                r"Table IV|Fig\. 10|\(e\)", by_interval),
        Exhibit("Fig. 6", "how far groups' classes are apart", f"{R}hfedms-cpd", "hfedms-cpd", r"Fig\. 6"),
        Exhibit("Fig. 8", "growth functions", f"{R}hfedms-growth", "", r"Fig\. 8|III-B"),
        Exhibit("Proposition 1", "centroids of groups", TESTS, "", "Proposition 1"),
        Exhibit("Fig. 9a", "accuracy on a batch that the model was trained on", f"{R}hfedms-tuned", "hfedms-tuned",
                r"Fig\. 9a"),
        Exhibit("Fig. 9a, of the stream", "accuracy on a round's batch in the rounds after it", f"{R}hfedms-forgetting",
                "hfedms-forgetting", "^$", stored("hfedms-forgetting")),
    )),
    "fedsr": ("FedSR", "arXiv 2403.14718", (
        Exhibit("§IV-A", "the networks", TESTS, "", "IV-A"),
        Exhibit("Table I, Fig. 3", "ten devices", f"{R}fedsr-table1", "fedsr-tables", "Table I,"),
        Exhibit("Table II, Fig. 5", "accuracy of seven methods", f"{R}fedsr-table2", "fedsr-tables",
                "Table II$|Tables II|IV-D", by_partition),
        Exhibit("Table III", "models sent to a target", f"{R}fedsr-table3", "fedsr-tables", "Table III|abstract"),
        Exhibit("Table IV", "a hundred devices", f"{R}fedsr-table4", "fedsr-tables", "Table IV"),
        Exhibit("Tables II to IV, small network", "on Fashion-MNIST and CIFAR-10", f"{R}fedsr-2nn", "", "^$"),
        Exhibit("Fig. 7, theorem", "convergence", TESTS, "", "Lemma"),
        Exhibit("Figs. 9 and 10", "laps, epochs and rings", f"{R}fedsr-settings", "fedsr-settings", "Figs. 9"),
    )),
    "fldg": ("FLDG, FLDG-L", "Liu et al.", (
        Exhibit("Tables I and II", "the networks; who holds what", TESTS, "", "Table I"),
        Exhibit("Fig. 1", "FedAvg by case", f"{R}fldg-cases-cifar --only fedavg", "fldg-cases-cifar", r"Fig\. 1",
                by_case),
        Exhibit("Fig. 3", "accuracy by hashes", f"{R}fldg-hash", "fldg-hash", r"Fig\. 3"),
        Exhibit("Figs. 4 and 5", "accuracy by groups", f"{R}fldg-groups", "fldg-groups", r"Figs?\. [45]"),
        Exhibit("Fig. 6", "accuracy in the four cases", f"{R}fldg-cases", "fldg-cases", "V-C"),
        Exhibit("§IV-C", "what hashes tell", f"{R}fldg-privacy", "fldg-privacy", "IV-C"),
    )),
}  # fmt: skip


def sorted_claims(paper: str) -> dict[Exhibit | None, list[Claim]]:
    """Return a paper's claims by the first exhibit that their place names; None has those of no exhibit."""
    name, _, exhibits = PAPERS[paper]
    found: dict[Exhibit | None, list[Claim]] = {one: [] for one in (*exhibits, None)}
    for claim in read():
        if claim.paper == name:
            found[next((one for one in exhibits if re.search(one.where, claim.where)), None)].append(claim)
    return found


def rows(paper: str) -> list[dict[str, Any]]:
    """Return a row per exhibit: what it shows, its command, its cost with one seed, and the outcomes of its claims."""
    costs = {one["table"]: one for one in catalog.costs(1.0)}
    found = []
    for exhibit, those in sorted_claims(paper).items():
        if exhibit is not None:
            words = exhibit.command.split()
            cost = costs.get(words[2], {}) if exhibit.command.startswith(R) else {}
            found.append(
                {"exhibit": exhibit.name, "what": exhibit.title, "runs": cost.get("runs"), "rounds": cost.get("rounds")}
                | {one: sum(claim.outcome == one for claim in those) for one in OUTCOMES}
                | {"command": exhibit.command}
            )
    return found


def errata(paper: str) -> str:
    """Return the paper's sections of the errata, as Markdown."""
    name = PAPERS[paper][0].split(",")[0]
    sections = re.split(r"^## ", ERRATA.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return "\n".join(f"### {one}" for one in sections if one.startswith(name))


def markdown(paper: str) -> str:
    """Return a paper's page as Markdown, without pictures."""
    parts = [text for _, text in sections(paper)]
    return "\n\n".join(parts) + "\n"


def sections(paper: str) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the sections of a paper's page: pictures (what they show → SVG), and Markdown."""
    name, reference, _ = PAPERS[paper]
    several = rows(paper)
    cells = [["–" if one is None else str(one) for one in line.values()] for line in several]
    words = f"{reference}, table by table. Runs and rounds are those of one seed. {LEGEND}"
    yield {}, "\n\n".join([f"# {name}", words, table(list(several[0]), cells)])
    for exhibit, those in sorted_claims(paper).items():
        if exhibit is not None or those:
            yield _section(exhibit, those)
    yield {}, f"## Errata\n\n{errata(paper)}"


def _section(exhibit: Exhibit | None, those: Sequence[Claim]) -> tuple[Mapping[str, str], str]:
    parts = [f"## {OTHERS}"]
    shown: dict[str, str] = {}
    if exhibit is not None:
        page = f" Ours: [{exhibit.page}](../results/{exhibit.page}.md)." if exhibit.page else ""
        parts = [f"## {exhibit.name}: {exhibit.title}", f"`{exhibit.command}`.{page}"]
        shown |= exhibit.drawn() if exhibit.drawn else {}
    if those:
        parts.append(table(HEAD, [row(claim) for claim in those]))
    shown |= {claim.claim: picture for claim in those if (picture := beside(claim))}
    return shown, "\n\n".join(parts)


def beside(claim: Claim) -> str | None:
    """Draw a claim's figures beside the printed ones; None where fewer than one is printed or ours are endless."""
    pairs = []
    for one in claim.figures:
        ours, low, high = span(claim, one)
        if one.paper is not None and math.isfinite(ours):
            pairs.append((one.name, parsed(one.paper)[0], ours, low, high))
    return pictures.beside(pairs) if pairs else None


def document(paper: str) -> str:
    """Return a paper's page as one HTML document, pictures included."""
    name, reference, _ = PAPERS[paper]
    made = []
    for shown, text in sections(paper):
        made.append(_html(text))
        if shown:
            drawn = (f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(words)}</figcaption></figure>"
                     for words, svg in shown.items())  # fmt: skip
            made.append(f'<div class="pictures">{"".join(drawn)}</div>')
    return PAGE.format(title=escape(f"{name} – {reference}"), text="\n".join(made))


def save(paper: str, out: Path) -> Path:
    """Write ``page.html`` and ``page.md`` into a folder, each whole or not at all, and return the first.

    Raises:
        RunError: they cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    write(out / "page.md", markdown(paper))
    write(out / "page.html", document(paper))
    return out / "page.html"


PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1d2733; --ground: #fff; --shade: #f2f5f8; --line: #c3ccd6;
  --met: #0a6b3d; --confirmed: #1d5fa7; --contradicted: #a3261d; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #dfe6ed; --ground: #161b21; --shade: #232a32; --line: #414c58;
  --met: #5cc892; --confirmed: #7fb4f0; --contradicted: #f08d84; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-size: 13px; }} td:last-child {{ min-width: 13rem; }}
th, td {{ border: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top; }}
th {{ background: var(--shade); }}
code {{ background: var(--shade); padding: 0 .2rem; overflow-wrap: anywhere; }}
.pictures {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: 1rem;
  margin: 1rem 0; }}
figure {{ margin: 0; border: 1px solid var(--line); padding: .5rem; background: #fff; color: #1d2733; }}
figure svg {{ width: 100%; height: auto; }}
figcaption {{ font-size: 13px; }}
.met {{ color: var(--met); }} .confirmed {{ color: var(--confirmed); }} .contradicted {{ color: var(--contradicted); }}
@media (max-width: 55rem) {{
  table, tbody, tr, td {{ display: block; }} tr:first-child, td:empty {{ display: none; }}
  tr {{ border: 1px solid var(--line); margin: .6rem 0; padding: .3rem .5rem; }}
  td {{ border: 0; padding: .1rem 0; overflow-wrap: anywhere; }} td:first-child {{ font-weight: 600; }}
  td:not(:first-child)::before {{ content: attr(data-of) ": "; color: var(--ink); opacity: .7; }}
}}
</style>
{text}
</html>
"""


def _html(text: str) -> str:
    """Return the HTML of the Markdown that these pages consist of: headings, paragraphs, lists, tables."""
    made = []
    for block in re.split(r"\n{2,}", text.strip()):
        lines = block.splitlines()
        level = len(lines[0]) - len(lines[0].lstrip("#"))
        if level:
            made.append(f"<h{level}>{_words(lines[0].lstrip('# '))}</h{level}>")
            lines = lines[1:]
        if lines and lines[0].startswith("|"):
            made.append(_html_table(lines))
        elif lines and lines[0].startswith("- "):
            items = re.split(r"^- ", "\n".join(lines), flags=re.MULTILINE)[1:]
            made.append("<ul>" + "".join(f"<li>{_words(one)}</li>" for one in items) + "</ul>")
        elif lines:
            made.append(f"<p>{_words(' '.join(lines))}</p>")
    return "\n".join(made)


def _html_table(lines: Sequence[str]) -> str:
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    said = "".join(f"<th>{_words(cell)}</th>" for cell in head)
    cells = ["".join(map(_html_cell, head, line)) for line in body]
    return f"<table><tr>{said}</tr>" + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


def _html_cell(name: str, cell: str) -> str:
    """Return a cell, with its column's name for narrow windows, where rows are lists."""
    outcome = next((one for one in OUTCOMES if cell.startswith(one)), "").replace(" ", "-")
    kind = f' class="{outcome}"' if outcome else ""
    return f'<td{kind} data-of="{escape(name)}">{_words(cell)}</td>'


def _words(text: str) -> str:
    """Return a line's HTML: code and emphasis marked, links as their words.

    >>> _words("`a < b` of [claims](claims.md), *so*")
    '<code>a &lt; b</code> of claims, <em>so</em>'
    """
    made = re.sub(r"`([^`]*)`", r"<code>\1</code>", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", escape(text, quote=False)))
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", made)

"""Writes docs/methods.md: ``python docs/methods.py`` makes the table of all methods.

The paper of a method stands in its docstring, the needs of its plan in its class, and its protections in
results/revealed.json, for which every method ran with every protection.
"""

from __future__ import annotations

import json
import re
from inspect import getdoc
from pathlib import Path

from fedfloor.methods.catalog import METHODS, title

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
NUMBER = re.compile(r"arXiv \d{4}\.\d{5}|[A-Z]{3,} \d{4}(?=[.;,])")
BEGIN = re.compile(r"(?<!al)[.:)(;] |^")  # of a reference within a docstring
WITHOUT = {  # papers that a docstring names beside others, or without a number
    "rafed": "Gao, Zhao, Min, Ni and Jiang, *Resource Allocation for Latency-aware Federated Learning*",
    "astraea": "Duan et al., ICCD 2019, arXiv 1907.01132",
    "fldg": "Liu et al., FLDG",
    "fldgl": "Liu et al., FLDG-L",
    "kcenter": "a baseline of FAVOR, Wang et al., INFOCOM 2020",
    "fedper": "Arivazhagan et al., arXiv 1912.00818",
    "flhc": "Briggs, Fan and Andras, IJCNN 2020, arXiv 2004.11791",
    "ifca": "Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, arXiv 2006.04088",
    "boosting": "Chen and Guestrin, KDD 2016, arXiv 1603.02754, on sums over devices",
}
REFERENCE = "centralized"  # training on pooled data
SIMULATED = ("ifca", "flhc")  # several models at once
PROTECTIONS = {
    "`secure-sum`": "secure sums",
    '`mix = "private"`': "private devices",
    "`sample_noise`": "private samples",
}
HEAD = """---
kind: reference
---

# All methods

A name leads to the card of the method, with its equation and settings. All methods are simulated, drawn, and
[priced](network.md) before training. **Live**: [real machines](deploy.md) carry
out its plans; several models at once are refused there. The three protections were
[tried with every method](../results/revealed.md). **Own model**: each device, or each cohort of devices, has a model of
its own. **Does not wait**: a new model is made as results arrive. **As pooled**: the model is the same as that of all
data in one place. `python docs/methods.py` makes this table.

"""


def paper(name: str) -> str:
    """Return authors, place and year of a method's paper."""
    if name in WITHOUT:
        return WITHOUT[name]
    text = " ".join((getdoc(METHODS[name]) or "").split())
    found = NUMBER.search(text, text.find(" et al."))
    if found is None:
        raise SystemExit(f"no paper in the docstring of {name}")
    begin = [match.end() for match in BEGIN.finditer(text, 0, found.start())]
    return text[begin[-1] : found.end()]


def cells(name: str, tried: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    """Return a method's row."""
    needs = METHODS[name]().needs
    row: list[str | bool] = [f"[{title(name)}](reference/cards.md#{name})", paper(name), name not in SIMULATED]
    row += [name in tried and tried[name][key]["status"] != "refused" for key in PROTECTIONS]
    row += [bool(needs.own or needs.cohorts), needs.clock, needs.pooled]
    return [one if isinstance(one, str) else "yes" if one else "–" for one in row]


def page() -> str:
    """Return the page."""
    tried = json.loads((ROOT / "results" / "revealed.json").read_text(encoding="utf-8"))
    head = ["method", "paper", "live", *PROTECTIONS.values(), "own model", "does not wait", "as pooled"]
    rows = [head, ["---"] * len(head), *(cells(name, tried) for name in METHODS if name != REFERENCE)]
    return HEAD + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

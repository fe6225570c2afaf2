"""A round as a picture: the terminal tree, and an SVG that is well formed for every kind of node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast
from xml.etree import ElementTree

import pytest

from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Radio,
    Repeat,
    Select,
    Sequence,
    Train,
    Work,
    device,
    edge,
)
from fedfloor.report.plan_svg import CHIP_H, between, svg
from fedfloor.report.plan_text import tree

WORK = Work(epochs=1, rate=0.01, momentum=0.5)
SVG = "{http://www.w3.org/2000/svg}"


def visit(k: int, work: Work = WORK, radio: Radio | None = None) -> Train:
    return Train(device(k), work, radio)


def ring(first: int, size: int = 4) -> Repeat:
    return Repeat(5, Sequence(tuple(visit(first + i) for i in range(size))), tick=False)


FEDSR = Parallel(tuple(ring(4 * m) for m in range(5)))
PLANS: dict[str, Node] = {
    "fedsr": FEDSR,
    "fedavg": Parallel(tuple(visit(k) for k in range(20))),
    "fedgs": Parallel(
        tuple(Repeat(50, Select("gbp-cs", tuple(range(35)), 10, WORK, edge(m))) for m in range(10)), mix="equal"
    ),
    "hfedms": Sequence(
        (
            Parallel(tuple(Sequence(tuple(visit(5 * g + i) for i in range(5))) for g in range(4))),
            Broadcast((1, 2), "head"),
        )
    ),
    "hierfavg": Parallel(
        tuple(Repeat(2, Parallel((visit(2 * m), visit(2 * m + 1)), edge(m)), tick=False) for m in range(3))
    ),
    "rafed": Parallel(tuple(visit(k, radio=Radio(k % 2, 17.5)) for k in range(4))),
    "ring of all": Repeat(5, Sequence(tuple(visit(k) for k in range(20))), tick=False),
    "chain of all": Sequence(tuple(visit(k) for k in range(20))),
    "probe": Probe(tuple(range(140)), "features & <hash>"),
    "centralised": Train(CLOUD, WORK),
    "one visit": visit(7),
    "ring of two": ring(0, 2),
    "ring of three": ring(0, 3),
    "ring of five": ring(0, 5),
    "mixed chain": Parallel((Sequence((visit(0), Parallel((visit(1), visit(2)), edge(0)), visit(3))), visit(4))),
    "nothing": Parallel(()),
    "empty chain": Sequence(()),
    "nested repeats": Repeat(2, Repeat(3, Parallel((visit(0), ring(1, 30))))),
}


def numbers(picture: str) -> set[int]:
    """The devices that are drawn as chips."""
    return {int(title) for title in re.findall(r"<title>device (\d+):", picture)}


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_is_drawn_well_formed(name: str) -> None:
    root = ElementTree.fromstring(svg(PLANS[name]))
    assert root.tag == SVG + "svg"
    assert root[0].tag == SVG + "title"  # the accessible name comes first
    assert root[0].text == root.get("aria-label")
    assert "nan" not in svg(PLANS[name])


@pytest.mark.parametrize("name", PLANS)
def test_nothing_reaches_out_of_the_picture(name: str) -> None:
    root = ElementTree.fromstring(svg(PLANS[name]))
    width = float(root.get("width", 0))
    height = float(root.get("height", 0))

    def walk(node: ElementTree.Element, x: float, y: float) -> None:
        shift = re.match(r"translate\((\S+) (\S+)\)", node.get("transform", ""))
        if shift:
            x, y = x + float(shift[1]), y + float(shift[2])
        if node.tag == SVG + "rect" and node.get("width") != "100%":
            left = x + float(node.get("x", 0))
            top = y + float(node.get("y", 0))
            assert left >= 0
            assert top >= 0
            assert left + float(node.get("width", 0)) <= width
            assert top + float(node.get("height", 0)) <= height
        for child in node:
            walk(child, x, y)

    walk(root, 0.0, 0.0)


def test_a_ring_is_a_loop_with_its_laps() -> None:
    picture = svg(ring(0))
    # four visits, four hand-overs (the last one closes the loop), and one in the legend
    assert picture.count('<path class="hand"') == 4 + 1
    assert "×5" in picture
    assert "laps" in picture
    assert numbers(picture) == {0, 1, 2, 3}


def test_a_chain_is_not_closed() -> None:
    assert svg(PLANS["chain of all"]).count('<path class="hand"') == 19 + 1


def test_parallel_branches_go_out_and_come_back() -> None:
    picture = svg(PLANS["fedavg"])
    assert picture.count('<path class="out"') == picture.count('<path class="back"') == 20 + 1
    assert "mean by samples" in picture


def test_an_edge_that_only_relays_is_shown_where_factories_are_known() -> None:
    assert "edge 3" not in svg(FEDSR)
    known = svg(FEDSR, lambda k: k // 4)
    assert known.count('class="box dashed"') == 5
    assert "a dashed edge only passes the model on" in known


def test_branches_that_cross_factories_have_no_relay() -> None:
    assert "edge" not in svg(FEDSR, lambda k: k % 4)


def test_select_is_dashed_broadcast_and_probe_are_dotted() -> None:
    assert "choose 10 of 35" in svg(PLANS["fedgs"])
    assert "frame dashed" in svg(PLANS["fedgs"])
    assert "frame dotted" in svg(PLANS["hfedms"])
    assert "features &amp; &lt;hash&gt;?" in svg(PLANS["probe"])
    assert "… and 40 more" in svg(PLANS["probe"])


@pytest.mark.parametrize(
    ("plan", "dotted"),
    [
        (Select("fraction", tuple(range(35)), 10, WORK), set()),
        (Broadcast(tuple(range(35))), {"out dotted"}),
        (Probe(tuple(range(35)), "loss"), {"out dotted", "back dotted"}),
    ],
)
def test_what_is_only_sent_or_asked_is_dotted(plan: Node, dotted: set[str]) -> None:
    """A model that trains goes out and comes back in whole lines; nothing comes back of a broadcast."""
    kinds = re.findall(r'<path class="((?:out|back)[^"]*)"', svg(plan))
    assert {kind for kind in kinds if "dotted" in kind} == dotted


def test_an_arrow_leaves_and_reaches_the_borders_of_chips_by_hand() -> None:
    """From 0 to 100, chips 40 wide: it begins 1.5 beyond the border at 20, and ends 3 before that at 80."""
    assert re.findall(r"-?[\d.]+", between((0, 0), (100, 0), width=40.0).split('"')[3]) == ["21.5", "0", "77", "0"]
    high = re.findall(r"-?[\d.]+", between((10, 20), (10, 220), shift=5.0).split('"')[3])  # downwards, 5 to the left
    assert [float(value) for value in high] == [5, 20 + CHIP_H / 2 + 1.5, 5, 220 - CHIP_H / 2 - 3]


def test_a_hundred_devices_are_all_drawn_and_of_a_thousand_the_first() -> None:
    assert numbers(svg(Parallel(tuple(visit(k) for k in range(100))))) == set(range(100))
    thousand = svg(Parallel(tuple(visit(k) for k in range(1000))))
    assert numbers(thousand) == set(range(24))
    assert "… and 976 more" in thousand


def test_many_rings_and_long_rings_are_cut_short() -> None:
    many = svg(Parallel(tuple(ring(20 * m, 20) for m in range(50))))
    assert len(numbers(many)) <= 100
    assert "more" in many


def test_different_works_get_letters() -> None:
    plan = Parallel((visit(0), visit(1, Work(steps=3, objective="fedprox", settings={"mu": 0.1}))))
    picture = svg(plan)
    assert "a: 1 epoch, b 32, η 0.01, momentum 0.5" in picture
    assert "b: 3 steps, b 32, η 0.01, fedprox (mu 0.1)" in picture


def test_tree_of_fedsr_collapses_what_looks_alike() -> None:
    text = tree(FEDSR)
    assert text.splitlines()[0] == "in parallel: 5 branches, meets at the cloud (mean by samples)"
    assert text.splitlines()[-1] == "└─ … 3 more like this (devices 8–19)"
    assert text.count("5 laps") == 2


def test_tree_keeps_what_differs() -> None:
    others = [visit(k, Work(epochs=1, batch_size=k + 1)) for k in range(6)]
    assert "more like this" not in tree(Parallel(tuple(others)))


def test_a_mixing_rule_is_named_with_its_numbers() -> None:
    rules = [("trimmed_mean", {"share": 0.2}), ("krum", {"outliers": 1}), ("gated:Own", {"open": True}), ("median", {})]
    for (mix, settings), words in zip(
        rules, ("trimmed mean, share 0.2", "Krum, outliers 1", "gated:Own, open true", "coordinate median"), strict=True
    ):
        plan = Parallel((visit(0), visit(1)), CLOUD, mix, settings)
        assert tree(plan).splitlines()[0] == f"in parallel: 2 branches, meets at the cloud ({words})"
        assert words in svg(plan)


def test_meetings_that_differ_in_a_number_are_not_alike() -> None:
    meetings = [Parallel((visit(k),), edge(0), "trimmed_mean", {"share": k / 20}) for k in range(6)]
    assert "more like this" not in tree(Parallel(tuple(meetings)))


def test_tree_names_every_kind_of_node() -> None:
    text = "\n".join(tree(plan) for plan in PLANS.values())
    for words in (
        "50 times, one tick each",
        "choose 10 of 35 by gbp-cs, meets at edge 0 (mean by samples), each: 1 epoch",
        "hand 'head' to 2 devices (1–2) to keep",
        "ask 140 devices (0–139) for features & <hash>, answers to the cloud",
        "cloud: 1 epoch",
        "[channel 1, 17.5 dBm]",
        "2 times",
    ):
        assert words in text


# -- a kind of node that has no picture of its own ---------------------------------------------------------------------


@dataclass(frozen=True)
class Later:
    """A node from outside."""

    hours: int
    child: Node


def test_a_node_of_another_kind_is_drawn_by_its_name_its_fields_and_what_is_below_it() -> None:
    plan = Parallel((*(cast(Node, Later(2, visit(k))) for k in range(6)), visit(7)))
    assert tree(plan).splitlines()[1:] == [
        "├─ later: hours 2",
        "│  └─ device 0: 1 epoch, b 32, η 0.01, momentum 0.5",
        "├─ later: hours 2",
        "│  └─ device 1: 1 epoch, b 32, η 0.01, momentum 0.5",
        "├─ … 4 more like this (devices 2–5)",
        "└─ device 7: 1 epoch, b 32, η 0.01, momentum 0.5",
    ]
    words = [one.text for one in ElementTree.fromstring(svg(plan, lambda k: k % 2)).iter(f"{SVG}text")]
    assert words.count("later: hours 2") == 6
    assert {"0", "1", "edge 0", "edge 1"} <= set(words)

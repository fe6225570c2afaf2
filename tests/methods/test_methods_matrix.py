"""Any method with any objective, mix, server and selection: it runs, or is refused by name with the reason."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfloor.base.errors import SettingError
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.chosen import PARTS
from fedfloor.methods.contract import State, View
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Node, Parallel, Probe, Train, device
from fedfloor.plan.walk import devices, fold, visited
from floor import bits, park, walk
from refusals import refused
from rounds import Job, after, digest, method

# Settings that no part could be tried without, and such that several models meet.
GIVEN: dict[str, dict[str, dict[str, Any]]] = {
    "objective": {"prox": {"mu": 0.1}},
    "mix": {
        "krum": {"outliers": 0},
        "multi_krum": {"outliers": 0},
        "bulyan": {"outliers": 0},
        "trimmed_mean": {"share": 0.3},
        "private": {"delta": 0.1},
    },
    "selection": {"fraction": {"share": 0.8}, "by_samples": {"share": 0.8}, "poisson": {"share": 0.8}},
}
ALL = {part: [{"kind": name, **GIVEN.get(part, {}).get(name, {})} for name in known] for part, known in PARTS.items()}
SIZES = (6, 10, 4, 9, 5, 8)
FACTORIES = (0, 1, 0, 1, 2, 2)
OWNERS = {"corrected": "fedl", "variates": "scaffold"}  # what their objectives read, only their servers keep
NOTHING_MEETS = ("centralized", "ring")


def floor_() -> Park:
    return park(SIZES, factory_of=FACTORIES)


PRIVATE = {
    "fedavg",
    "fedprox",
    "moon",
    "fedmmd",
    "fedfusion",
    "qffl",
    "ida",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "cgau",
    "rafed",
    "fedper",
    "fedrep",
    "fedbn",
    "ditto",
    "apfl",
}  # whose rounds meet once


def reason(name: str, parts: dict[str, dict[str, Any]]) -> str | None:
    """Why a combination is refused; None where it must run."""
    kind = {part: one["kind"] for part, one in parts.items()}
    why = reason_of_parts(name, parts)
    goal = kind.get("objective")  # in whose place nothing is sent beside the model
    plain = name == "scaffold" and goal not in (None, "variates", "weighted", "focal")
    fits = kind.get("selection") == "poisson" and (name in PRIVATE or plain)
    if kind.get("mix") != "private" or (fits and why is None):
        return why
    return "|".join(filter(None, (why, "mix (= )?'private'")))


def reason_of_parts(name: str, parts: dict[str, dict[str, Any]]) -> str | None:
    """Why a combination is refused, but for what the rule ``private`` asks of rounds."""
    kind = {part: one["kind"] for part, one in parts.items()}
    if name == "centralized" and kind.get("selection", "everyone") != "everyone":
        return "its rounds visit no devices"
    per_sample = kind.get("objective") in ("weighted", "focal")  # in the method's own objective
    if name in ("fedasync", "fedbuff") and kind.get("selection", "everyone") != "everyone":
        return "visits depart as others arrive"
    if name == "boosting" and "objective" in kind and not per_sample:
        return "whose rounds depend on its own objective"
    if name == "boosting" and kind.get("server", "sgd") != "sgd":
        return "train only a part of the model"
    if per_sample and name in ("fedl", "cgau"):
        return "losses of samples"
    if name == "fedfusion" and not per_sample and kind.get("objective", "fusion") != "fusion":
        return "gamma is missing"
    if "mix" in kind and name in NOTHING_MEETS:
        return "aggregate no models at the cloud"
    if name == "cgau" and kind.get("objective") == "gated":
        return "which sets it from round to round"
    if name == "fedgs" and kind.get("objective") == "contrastive":
        return "it needs visits of at least 2 mini-batches"
    if name == "fedrep" and kind.get("objective") == "fusion":  # its layer lies between those of the body
        return r"work\.trains = 'all but head'.*are 2 separate pieces"
    if name in ("fedper", "fedrep", "fedbn") and kind.get("objective") == "corrected":
        return f"keep {'norms' if name == 'fedbn' else 'head'} of the model"
    if name in ("fedper", "fedrep", "fedbn", "ditto", "apfl") and kind.get("objective") in (
        "contrastive",
        "gated",
        "variates",
        "replay",
    ):
        return "devices keep tensors between visits already"
    if name in ("ifca", "flhc") and (
        kind.get("server", "sgd") != "sgd"
        or kind.get("mix") == "q_fair"
        or kind.get("objective") in ("gated", "variates", "corrected")
    ):
        return "may have several models"
    if name in ("ifca", "fedasync") and kind.get("mix") in ("krum", "multi_krum", "bulyan"):
        return "models to mix"  # of a cohort of one or two, or of one result
    if name == "hfedms":
        if kind.get("objective") in ("contrastive", "gated", "variates", "replay"):
            return "devices keep tensors between visits already"
        if kind.get("server", "sgd") != "sgd":
            return "train only a part of the model"
    if kind.get("objective") == "replay":
        return "it trains the classifier alone"
    if OWNERS.get(kind.get("objective", ""), name) != name:
        return "to travel beside the model"
    own = per_sample or kind.get("objective", "variates") == "variates"
    if name == "scaffold" and own and kind.get("mix") == "by_samples":
        return "averaged equally"
    return None


def attempt(name: str, parts: dict[str, dict[str, Any]], folder: Path) -> None:
    why = reason(name, parts)
    if why is None:
        job = Job(method(name, parts), floor_(), rounds=2, folder=folder)
        state = job.run()
        assert bool(torch.isfinite(state.packet["w"]).all())
        assert bits(state.packet["w"]) != bits(job.start["w"])
        return
    with pytest.raises(SettingError, match=why) as caught:
        Job(method(name, parts), floor_(), rounds=2, folder=folder).run()
    named = (name, "work.trains", *(one["kind"] for one in parts.values()))
    assert any(one in str(caught.value) for one in named)


SINGLE = [(name, {part: one}) for name in METHODS for part, several in ALL.items() for one in several]


@pytest.mark.parametrize(("name", "parts"), SINGLE, ids=[f"{name}-{next(iter(p.values()))['kind']}-{next(iter(p))}"
                                                         for name, p in SINGLE])  # fmt: skip
def test_every_method_with_every_part(name: str, parts: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    attempt(name, parts, tmp_path)


def fours() -> list[dict[str, dict[str, Any]]]:
    """Combinations of four parts in which every two parts meet."""
    objectives, mixes, servers, selections = (ALL[part] for part in ("objective", "mix", "server", "selection"))
    return [
        {"objective": goal, "mix": mix, "server": servers[(i + j) % len(servers)],
         "selection": selections[(i + j + j // 2) % len(selections)]}
        for (i, goal), (j, mix) in itertools.product(enumerate(objectives), enumerate(mixes))
    ]  # fmt: skip


def test_every_two_parts_meet() -> None:
    met = {tuple(sorted((p, four[p]["kind"]) for p in pair)) for four in fours()
           for pair in itertools.combinations(PARTS, 2)}  # fmt: skip
    assert len(met) == sum(len(ALL[a]) * len(ALL[b]) for a, b in itertools.combinations(PARTS, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_parts_of_all_four_kinds(name: str, tmp_path: Path) -> None:
    """What is refused is refused, all else is planned; fifteen, other ones for each method, are carried out."""
    every = fours()
    drawn = set(np.random.default_rng(list(METHODS).index(name)).choice(len(every), size=15, replace=False).tolist())
    for place, parts in enumerate(every):
        few = name.startswith(("fldg", "hfedms")) and parts["selection"]["kind"] != "everyone"
        if few and parts["mix"]["kind"].endswith(("krum", "bulyan")):
            continue  # whether somebody of every group may be chosen is chance
        if place in drawn or reason(name, parts) is not None:
            attempt(name, parts, tmp_path / str(place))
        else:
            job = Job(method(name, parts), floor_(), folder=tmp_path / str(place))
            plan = job.plan(job.begin(), 1)
            assert devices(plan) or list(visited(plan))


def test_visits_of_one_step_are_too_short_for_moons_objective() -> None:
    short = method("fedavg", {"objective": "contrastive"}, work={"epochs": None, "steps": 1})
    with refused("objective"):
        Job(short, floor_()).run()


# -- questions of a rule that is exchanged -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts", "questions"),
    [
        ("qffl", {"mix": {"kind": "q_fair", "q": 2.0}}, ["loss"]),
        ("qffl", {"mix": "equal"}, []),
        ("qffl", {}, ["loss"]),
        ("fedavg", {"mix": "q_fair"}, ["loss"]),
        ("hfedms", {"mix": "q_fair"}, ["census", "loss"]),
    ],
    ids=str,
)
def test_devices_are_asked_once_for_what_the_rule_reads(name: str, parts: dict[str, Any], questions: list[str]) -> None:
    here = floor_()
    view = View(1, 3, here.holdings, here.factory_of, {}, census=np.ones((len(SIZES), 3)))
    node = method(name, parts).plan(State({}), view, np.random.default_rng(0))

    def asked(one: Node, below: list[list[str]]) -> list[str]:
        return sum(below, [one.what] if isinstance(one, Probe) else [])

    assert fold(node, asked) == questions


# -- parts that are nothing, or something else -------------------------------------------------------------------------


def model(name: str = "fedavg", parts: dict[str, Any] | None = None, **settings: Any) -> bytes:
    return bits(after(method(name, parts, **settings), floor_()).packet["w"])


@pytest.mark.parametrize(
    "parts",
    [
        {"server": "sgd"},
        {"server": {"kind": "sgd", "rate": 1.0, "momentum": 0.0}},
        {"objective": "plain"},
        {"objective": {"kind": "prox", "mu": 0.0}},
        {"objective": {"kind": "mmd", "weight": 0.0}},
        {"objective": {"kind": "distilled", "weight": 0.0}},
        {"mix": "by_samples"},
        {"selection": "everyone"},
    ],
    ids=str,
)
def test_the_methods_own_parts_change_nothing(parts: dict[str, Any]) -> None:
    assert model(parts=parts) == model()


@pytest.mark.parametrize(
    "mix",
    [
        {"kind": "trimmed_mean", "share": 0.0},
        {"kind": "multi_krum", "outliers": 0},
        {"kind": "q_fair", "q": 0.0},
    ],
    ids=str,
)
def test_rules_that_come_to_the_plain_mean(mix: dict[str, Any]) -> None:
    assert model(parts={"mix": mix}) == model(parts={"mix": "equal"})


def test_selection_by_fraction_is_the_methods_own_fraction() -> None:
    assert model(parts={"selection": {"kind": "fraction", "share": 0.5}}) == model(fraction=0.5)


def test_a_part_in_the_methods_table_goes_before_that_of_method() -> None:
    general = {"kind": "adam"}
    own = {"kind": "yogi"}
    assert model(parts={"server": general}, server=own) == model(parts={"server": own})
    assert model(parts={"server": general}, server=own) != model(parts={"server": general})


def test_krum_picks_a_member() -> None:
    here = floor_()
    job = Job(method("fedavg", {"mix": {"kind": "krum", "outliers": 1}}), here)
    state = job.round(job.begin(), 1)
    work = job.plan(job.begin(), 1).children[0].work  # type: ignore[union-attr]
    alone = [walk(job.engine, Parallel((Train(device(k), work),)), job.start).packet["w"] for k in range(6)]
    assert bits(state.packet["w"]) in {bits(one) for one in alone}


def test_too_few_that_came_back_change_nothing_under_krum() -> None:
    # 6 devices are enough for one outlier (2·1 + 3 = 5); with half of all visits lost fewer than 5 come back
    job = Job(method("fedavg", {"mix": {"kind": "krum", "outliers": 1}}), floor_(), loss=0.5)
    state = job.round(job.begin(), 1)
    arrived = sum(not one.lost for one in job.outcomes[0].receipts)
    assert 0 < arrived < 5
    assert bits(state.packet["w"]) == bits(job.start["w"])


def test_a_server_does_not_step_where_too_few_came_back_for_the_rule() -> None:
    # round 1 loses nobody, so that there is momentum; in round 2 too few come back
    parts = {"mix": {"kind": "krum", "outliers": 1}, "server": {"kind": "sgd", "momentum": 0.5}}
    good, bad = (Job(method("fedavg", parts), floor_(), loss=chance) for chance in (0.0, 0.5))
    first = good.round(good.begin(), 1)
    second = bad.round(first, 2)
    assert 0 < sum(not one.lost for one in bad.outcomes[0].receipts) < 5
    assert digest(second, []) == digest(first, [])


def test_both_ways_to_say_who_takes_part_are_refused() -> None:
    with refused("combination"):
        method("fedavg", {"selection": {"kind": "fraction", "share": 0.5}}, fraction=0.5)

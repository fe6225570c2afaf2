"""Attacks on secure sums: one device stops no sum but its own part, and no two sums reveal an update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_faults import losing
from test_deploy_sums import SECURE
from test_deploy_sums_across import SECURE as ACROSS
from test_deploy_sums_across import Protocol

from fedfloor.base.errors import RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks
from fedfloor.deploy.checks import STAGES
from fedfloor.deploy.cloud_executor import CloudExecutor
from fedfloor.deploy.device_sum import DeviceSum
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.message import Message
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.revealed_sums import RevealedSums
from fedfloor.deploy.summing import MOST_FALSE, Conduct
from fedfloor.parts.protection import masking
from fedfloor.parts.protection.masking import LEAST
from fedfloor.runs import ledger, loop
from live_park import Broker, InMemory, Inside, Live, experiment, figures, live, simulated
from refusals import refused

DEVICES = range(9)
UNLIMITED = "deploy.norm_limit = false\n"
FALSE = 3  # the false device
Answer = Callable[[Any], Any]


class Attacked(Protocol):
    """A sum in which a device changes its answer to a stage; ``refused`` are the devices that are named."""

    def __init__(self, folder: Path, stage: str = "", change: Answer = lambda answer: answer, **about: Any) -> None:
        super().__init__(folder, [set()] * 4, {}, **about)
        self.changes = {k: torch.full_like(self.start["w"], float(k + 1)) for k in DEVICES}
        self.refused: dict[int, str] = {}
        self._stage = stage
        self._change = change
        self.tolerant = False  # whether a device that refuses a stage just does not answer

    def _ask(self, kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        answers = dict[int, Any]()
        for k, about in told.items():
            try:
                answers |= super()._ask(kind, {k: about})
            except RefusedError:
                if not self.tolerant:
                    raise
        if kind == self._stage:
            answers[FALSE] = self._change(answers[FALSE])
        return answers

    def _refuse(self, device: int, kind: str, error: RefusedError) -> None:
        assert kind in checks.REQUESTS
        self.refused[device] = str(error)

    def summed(self) -> set[int]:
        """Run the sum; return the devices whose changes it holds, by the weights of 20, 21, … samples."""
        self.run()
        group = self.made.sums[0]
        assert not group.lost, group.lost
        _, weight, _ = self.made.fixed.decoded(group.total)  # type: ignore[arg-type]
        assert weight == sum(20 + k for k in group.members)
        return group.members


def false_shares(answer: Mapping[str, str], among: set[int]) -> dict[str, str]:
    return {v: "00" * 80 if int(v) in among else text for v, text in answer.items()}


@pytest.mark.parametrize("attack", ["one key twice", "low order", "shares for all", "shares for two", "rejects all"])
def test_a_device_with_false_keys_or_shares_is_named_and_left_out_and_the_others_have_their_sum(
    attack: str, tmp_path: Path
) -> None:
    stage, change = {
        "one key twice": ("sum-keys", lambda pair: [pair[0], pair[0], *pair[2:]]),
        "low order": ("sum-keys", lambda pair: [pair[0], "00" * 32, *pair[2:]]),
        "shares for all": ("sum-shares", lambda answer: false_shares(answer, set(DEVICES))),
        "shares for two": ("sum-shares", lambda answer: false_shares(answer, {0, 7})),
        "rejects all": ("sum-check", lambda _: [k for k in DEVICES if k != FALSE]),
    }[attack]  # fmt: skip
    attacked = Attacked(tmp_path, stage, change)
    assert attacked.summed() == set(DEVICES) - {FALSE}
    assert set(attacked.refused) == {FALSE}


def opposed(attacked: Attacked, victim: int) -> None:
    """Let the false device deal a false share to a device and reject that device's, too."""
    usual = attacked.server.request

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Any]:
        answers = dict(usual(kind, told))
        if kind == "sum-shares" and FALSE in answers:
            answers[FALSE] = false_shares(answers[FALSE], {victim})
        elif kind == "sum-check" and FALSE in answers:
            answers[FALSE] = [victim]
        return answers

    attacked.server.request = ask


@pytest.mark.parametrize("victim", [0, 8])
def test_a_device_that_disputes_a_share_in_both_directions_leaves_nobody_out(victim: int, tmp_path: Path) -> None:
    """The one with the lower number was left out and named, though it was honest."""
    attacked = Attacked(tmp_path)
    opposed(attacked, victim)
    assert attacked.summed() == set(DEVICES)
    assert attacked.refused == {}


@pytest.mark.parametrize(
    ("pairs", "out"),
    [
        ({(3, 0), (0, 3)}, set()),
        ({(3, 0), (0, 3), (3, 1)}, {3}),
        ({(3, 0), (0, 3), (3, 1), (4, 1)}, {1, 3}),  # colluders 3 and 4: a tie between 3 and 1
        ({(3, 0), (3, 1), (4, 0), (4, 1)}, {0, 1, 3, 4}),
        ({(3, v) for v in (0, 1, 2)} | {(4, v) for v in (0, 1, 2)}, {3, 4}),
    ],
)
def test_disputes_are_counted_by_pairs_and_devices_with_as_many_are_left_out_together(
    pairs: set[tuple[int, int]], out: set[int], tmp_path: Path
) -> None:
    attacked = Attacked(tmp_path)
    checked = {k: {v for receiver, v in pairs if receiver == k} for k in DEVICES}
    assert set(attacked.server.agreed(checked)) == set(DEVICES) - out
    assert set(attacked.refused) == out


def test_a_false_device_leaves_no_honest_one_out_whatever_it_disputes(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(50):
        deals, rejects = (set(rng.choice(9, rng.integers(10), replace=False).tolist()) - {FALSE} for _ in range(2))
        attacked.refused.clear()
        checked = {k: {FALSE} & ({FALSE} if k in deals else set()) for k in DEVICES} | {FALSE: rejects}
        left = attacked.server.agreed(checked)
        assert set(left) >= set(DEVICES) - {FALSE}
        assert set(attacked.refused) <= {FALSE}


def test_a_device_in_disputes_with_more_than_half_of_the_others_takes_no_further_part(tmp_path: Path) -> None:
    conduct = Conduct()
    outs = list[bool]()
    for n, victim in enumerate((0, 0, 1, 2, 4, 5, 6)):
        attacked = Attacked(tmp_path / str(n))
        attacked.server.conduct = conduct
        opposed(attacked, victim)
        members = attacked.summed()
        assert members >= set(DEVICES) - {FALSE}
        assert set(attacked.refused) <= {FALSE}
        outs.append(FALSE not in members)
    assert outs == [False] * 6 + [True]  # after five of eight others


def test_colluders_that_are_a_minority_do_not_keep_a_device_out_of_later_sums() -> None:
    conduct = Conduct()
    conduct.dispute({frozenset((0, 7)), frozenset((0, 8))})
    assert conduct.flaw(0, [1, 7, 8])  # most of those that it has met
    assert not conduct.flaw(0, [2, 3, 4])
    assert not conduct.flaw(0, [1, 7, 8])
    for _ in range(MOST_FALSE):
        assert not conduct.flaw(5, [1])
        conduct.guilty(5)
    assert conduct.flaw(5, [1])


def test_a_restart_of_the_server_forgets_no_devices_conduct(tmp_path: Path) -> None:
    """A device that was left out returned after each restart of its edge, or of the cloud."""
    path = tmp_path / "state" / "e0.conduct.json"
    first = Conduct(path, "run")
    first.dispute({frozenset((0, 7)), frozenset((0, 8))})
    assert not first.flaw(0, [1, 2, 3, 7, 8])
    for _ in range(MOST_FALSE):
        first.guilty(5)
    again = Conduct(path, "run")
    assert again == first
    assert again.flaw(5, [1])
    assert not Conduct(path, "the next run").flaw(5, [1])
    path.write_text("[]")
    with refused("damaged-record"):
        Conduct(path, "run")


def test_an_edge_and_a_cloud_keep_the_conduct_of_devices(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=3, factories=1, more=SECURE)
    with live(tmp_path, what) as park:
        edge = park.edges[0]
        edge.factory.begin("a", 1)
        edge.factory.conduct.guilty(1)
        executor = CloudExecutor(park.settings(), Inside(park.edges), [], edge.names)
        executor._conduct.guilty(2)
        restarted = Edge(edge.settings, edge.experiment, None, InMemory(Broker()))
        restarted.factory.begin("a", 2)
        assert restarted.factory.conduct.false == {1: 1}
        assert CloudExecutor(park.settings(), Inside(park.edges), [], edge.names)._conduct.false == {2: 1}


def revealing(attacked: Attacked, dealt: set[int], revealed: set[int]) -> None:
    """Let the false device deal well-sealed false shares to some devices, and reveal some of others' secrets."""
    usual = attacked.server.request

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Any]:
        if kind == "sum-shares":
            with pytest.MonkeyPatch.context() as patch:
                real = masking.split

                def split(secret: bytes, holders: Any, threshold: int) -> dict[int, bytes]:
                    return real(secret, holders, threshold) | dict.fromkeys(dealt, bytes([5]) * 31 + b"\0")

                own = usual(kind, {k: about for k, about in told.items() if k != FALSE})
                patch.setattr(masking, "split", split)
                return {**own, **usual(kind, {FALSE: told[FALSE]})}
        answers = dict(usual(kind, told))
        if kind == "sum-unmask":
            answers[FALSE] = answers[FALSE] | dict.fromkeys(map(str, revealed), "07" * 32)
        return answers

    attacked.server.request = ask


@pytest.mark.parametrize(
    ("dealt", "revealed", "named"),
    [
        ({8}, {1}, {FALSE, 8, 1}),  # or these two collude
        ({0}, {8}, {FALSE, 0, 8}),
        ({0}, set(), {FALSE, 0}),
        (set(), {1, 8}, {FALSE, 1, 8}),
        ({8}, {8}, {FALSE, 8}),  # all between two devices
        ({0}, {0, 8}, {FALSE, 0, 8}),
        ({0, 1}, set(), {FALSE, 0, 1}),
        ({0, 1}, {4}, {FALSE}),
        (set(), {1, 2, 8}, {FALSE}),
        ({0}, {0, 1, 2, 8}, {FALSE}),
        (set(), {FALSE}, {FALSE}),  # a share of its own
    ],
)
def test_a_device_that_deals_and_reveals_false_shares_frames_nobody_and_costs_nothing(
    dealt: set[int], revealed: set[int], named: set[int], tmp_path: Path
) -> None:
    attacked = Attacked(tmp_path)
    revealing(attacked, dealt, revealed)
    assert attacked.summed() == set(DEVICES)
    assert set(attacked.refused) == named
    assert set(attacked.server.conduct.false) == ({FALSE} if named == {FALSE} else set())


@pytest.mark.parametrize("attack", ["deal", "reveal", "both"])
def test_two_that_collude_have_no_honest_device_named_alone_and_cost_nothing(attack: str, tmp_path: Path) -> None:
    """They dealt it false shares, or revealed false ones of its secrets: after three sums it was out of the run."""
    victim = 2
    conduct = Conduct()
    for n in range(2 * MOST_FALSE):
        attacked = Attacked(tmp_path / str(n))
        attacked.server.conduct = conduct
        collude(attacked, (1, 4), victim, attack)
        assert attacked.summed() == set(DEVICES)
        assert set(attacked.refused) == {1, 4, victim}
        assert attacked.refused[victim].startswith("sum: of devices")
    assert not conduct.false
    assert not conduct.flaw(victim, [v for v in DEVICES if v != victim])


def collude(attacked: Attacked, false: tuple[int, ...], victim: int, attack: str) -> None:
    """Let devices deal well-sealed false shares to an honest one, or reveal false shares of its secrets, or both."""
    usual = attacked.server.request
    real = masking.split

    def split(secret: bytes, holders: Any, threshold: int) -> dict[int, bytes]:
        return real(secret, holders, threshold) | {victim: bytes([5]) * 31 + b"\0"}

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Any]:
        answers = dict[int, Any]()
        for k, about in told.items():
            with pytest.MonkeyPatch.context() as patch:
                if kind == "sum-shares" and k in false and attack != "reveal":
                    patch.setattr(masking, "split", split)
                answers |= usual(kind, {k: about})
            if kind == "sum-unmask" and k in false and attack != "deal":
                answers[k] = answers[k] | {str(victim): f"{k:02x}" * 31 + "00"}
        return answers

    attacked.server.request = ask


def test_where_too_many_collude_to_be_told_the_sum_is_lost_and_nobody_is_named(tmp_path: Path) -> None:
    """Of six shares with the threshold 4 one false one is found; with two of them the owner would seem false."""
    attacked = Attacked(tmp_path)
    attacked.gone = [{0, 2, 3}, set(), set(), set()]
    collude(attacked, (1, 4), 6, "reveal")
    attacked.run()
    assert "cannot be unmasked" in attacked.made.sums[0].lost
    assert attacked.refused == {}
    assert not attacked.server.conduct.false


def test_a_device_that_deals_several_false_shares_and_reveals_another_loses_its_sum_and_is_named(
    tmp_path: Path,
) -> None:
    attacked = Attacked(tmp_path)
    revealing(attacked, {0, 1, 2}, {4})
    attacked.run()
    assert attacked.made.sums[0].lost
    assert set(attacked.refused) == {FALSE}


def test_two_devices_with_one_key_are_both_named_as_nobody_knows_whose_it_is(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path)
    taken = dict[int, Any]()

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        answers = Attacked._ask(attacked, kind, told)
        if kind == "sum-keys":
            taken.update(answers)
            answers[FALSE] = [answers[FALSE][0], *answers[5][1:2], *answers[FALSE][2:]]
        return answers

    attacked.server.request = ask
    assert attacked.summed() == set(DEVICES) - {FALSE, 5}
    assert set(attacked.refused) == {FALSE, 5}


@pytest.mark.parametrize("attack", ["a share for one", "rejects one", "reveals false", "reveals one false"])
def test_a_single_false_share_costs_nothing(attack: str, tmp_path: Path) -> None:
    stage, change = {
        "a share for one": ("sum-shares", lambda answer: false_shares(answer, {0})),
        "rejects one": ("sum-check", lambda _: [0]),
        "reveals false": ("sum-unmask", lambda answer: dict.fromkeys(answer, "07" * 32)),
        "reveals one false": ("sum-unmask", lambda answer: {**answer, "8": "07" * 32}),
    }[attack]  # fmt: skip
    attacked = Attacked(tmp_path, stage, change)
    assert attacked.summed() == set(DEVICES)
    named = {"reveals false": {FALSE}, "reveals one false": {FALSE, 8}}  # or the share was dealt so
    assert set(attacked.refused) == named.get(attack, set())


def test_a_device_whose_secret_does_not_fit_its_shares_loses_the_sum_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shares are encrypted properly, but not on one polynomial, so its mask cannot be removed."""
    attacked = Attacked(tmp_path)

    def split(secret: bytes, holders: Any, threshold: int) -> dict[int, bytes]:
        return {v: hashlib.sha256(bytes([v])).digest()[:31] + b"\0" for v in holders}

    def share(keys: Any, others: Any, least: int) -> Any:
        if keys.device != FALSE:
            return real(keys, others, least)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masking, "split", split)
            return real(keys, others, least)

    real = masking.share
    monkeypatch.setattr(masking, "share", share)
    attacked.run()
    assert attacked.made.sums[0].lost
    assert set(attacked.refused) == {FALSE}
    assert "do not fit each other" in attacked.refused[FALSE]


def test_an_edge_that_states_a_device_without_shared_secrets_loses_the_sum(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path)
    attacked.gone = [{0}, set(), set(), set()]
    usual = attacked.server.end

    def end() -> None:
        attacked.made.sums[0].members.add(0)
        usual()

    attacked.server.end = end  # type: ignore[method-assign]
    attacked.run()
    assert "did not share their secrets" in attacked.made.sums[0].lost


# -- two sums over one round ------------------------------------------------------------------------------------------


def test_a_device_reveals_shares_for_one_sum_of_an_update_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state" / "revealed.sqlite"
    first = RevealedSums(RevealRecord(path))
    first.admit([b"update 1"], "a sum")
    first.admit([b"update 1"], "a sum")  # once more
    second = RevealedSums(RevealRecord(path))
    with refused("sum", RefusedError):
        second.admit([b"update 1"], "another")
    second.admit([b"update 2"], "another")
    path.write_bytes(b"no database" * 100)
    with refused("unwritable"):
        RevealRecord(path)


def renew(sums: Protocol, devices: Iterable[int], number: int = 2) -> None:
    """Give devices new samples, and so another update and another digest of their samples."""
    for k in devices:
        sums.devices[k].held = f"{k:016x}{number:032x}"
        sums.changes[k] = torch.full_like(sums.start["w"], 0.01 * number * (k + 1) / len(DEVICES))  # type: ignore[index]


def again(folder: Path, first: Attacked, *, number: int) -> Attacked:
    """Return another sum of the same devices, over a model that differs in a number without effect."""
    second = Attacked(folder)
    second.devices = first.devices
    second.tolerant = True
    second.changes = {k: change + 1e-6 for k, change in first.changes.items()}
    second.start = {"w": first.start["w"].clone()}
    second.start["w"][0] += 1e-6
    second.place = replace(first.place, round=number)
    return second


def decoded(one: Attacked) -> np.ndarray[Any, Any]:
    """Return what an edge has of a sum: the weighted changes of its devices; zeros of one that it cannot unmask."""
    group = one.made.sums[0]
    return np.zeros(1) if group.lost else np.asarray(one.made.fixed.decoded(group.total)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("honest", [True, False], ids=["", "the device itself does not check"])
@pytest.mark.parametrize("new", [1, 2, 3])
@pytest.mark.parametrize("number", [1, 2])
def test_two_sums_over_nearly_the_same_model_do_not_show_what_one_or_two_devices_new_samples_change(
    new: int, number: int, honest: bool, tmp_path: Path
) -> None:
    """An edge chooses the models, and in runs that it makes up when devices read their samples again."""
    first = Attacked(tmp_path / "first")
    renew(first, DEVICES, 1)
    assert first.summed() == set(DEVICES)
    second = again(tmp_path / "second", first, number=number)
    renew(second, range(new))
    for k in range(new):
        if not honest:
            second.devices[k].revealed = RevealedSums()
    second.run()
    group = second.made.sums[0]
    learnt = decoded(second) - decoded(first)
    if new >= LEAST:
        assert not group.lost
        assert group.members == set(DEVICES)
        assert np.allclose(learnt, sum(0.01 * (k + 1) / len(DEVICES) * (20 + k) for k in range(new)), atol=1e-3)
        return
    # they stay away or are left out, and the others have their sum, where it is not of a round that had another one
    assert set(DEVICES) - group.members == set(range(new))
    assert bool(group.lost) == (number == 1)
    assert honest or second.refused.keys() >= set(range(new))


def test_a_device_in_the_place_of_another_one_stops_no_sums(tmp_path: Path) -> None:
    first = Attacked(tmp_path / "first")
    renew(first, DEVICES, 1)
    first.summed()
    second = again(tmp_path / "second", first, number=2)
    # its record is a new one
    second.devices[0].held = "f" * 48
    second.devices[0].revealed = RevealedSums()
    assert second.summed() == set(DEVICES)
    third = again(tmp_path / "third", first, number=3)
    third.devices[0].held = "f" * 16 + "0" * 32
    third.run()
    assert third.made.sums[0].members == set(DEVICES) - {0}


def test_devices_that_missed_the_first_sum_with_new_samples_come_back(tmp_path: Path) -> None:
    first = Attacked(tmp_path / "first")
    renew(first, DEVICES, 1)
    first.summed()
    second = again(tmp_path / "second", first, number=2)
    renew(second, DEVICES)
    second.gone = [{0, 1}, set(), set(), set()]
    second.run()
    third = again(tmp_path / "third", second, number=3)
    assert third.summed() == set(DEVICES)


@pytest.mark.parametrize("beside", [(), (3,), (3, 4)], ids=["a sum without them", "with one", "with two"])
def test_new_samples_of_others_hide_one_devices_only_where_all_sums_had_them(beside: tuple[int, ...]) -> None:
    """An edge chooses the devices of sums: one without the others, before and after, differs by a single change."""
    sums = RevealedSums()

    def admit(number: int, held: Mapping[int, int]) -> None:
        sums.admit([b"%d" % number], "unit", {k: f"{k:016x}{samples:032x}" for k, samples in held.items()})

    admit(1, dict.fromkeys((0, 1, 2, *beside), 1))
    admit(2, dict.fromkeys((0, 3, 4, 5), 1))
    admit(3, {0: 1, 3: 2, 4: 2, 5: 2})
    if len(beside) == LEAST - 1:
        admit(4, {0: 1, 1: 2, 2: 1})
        return
    with refused("sum", RefusedError):
        admit(4, {0: 1, 1: 2, 2: 1})


@pytest.mark.parametrize("what", ["visit", "memory, number of visits, or samples"])
@pytest.mark.parametrize("asked", [True, False], ids=["", "who had no part in the unmasking"])
def test_two_sums_of_a_round_do_not_differ_by_what_an_edge_chooses_for_one_device(
    what: str, asked: bool, tmp_path: Path
) -> None:
    """The others' updates are the same to the bit, and their sum: the two differed by one device's update."""
    first = Attacked(tmp_path / "first")
    usual = first.server.request

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Any]:
        return usual(kind, {k: about for k, about in told.items() if asked or kind != "sum-unmask" or k != 0})

    first.server.request = ask
    assert first.summed() == set(DEVICES)
    second = Attacked(tmp_path / "second")
    second.devices = first.devices
    second.changes[0] = second.changes[0] / 100
    if what == "visit":
        masked = second.devices[0].masked
        second.devices[0].masked = lambda *args: masked(*args[:-1], replace(args[-1], visit=1))  # type: ignore[method-assign]
    else:
        second.devices[0].state = ("another",)
    with refused("sum", RefusedError):
        second.run()
    third = Attacked(tmp_path / "third")
    third.devices = {k: replace(one, state=()) for k, one in first.devices.items()}
    assert third.summed() == set(DEVICES)


def test_a_round_has_one_sum_whatever_its_model(tmp_path: Path) -> None:
    """Mini-batches are the same in a round: of two models alike the sums differed by the update of a missing device."""
    first = Attacked(tmp_path / "first")
    first.summed()
    second = again(tmp_path / "second", first, number=1)
    second.gone = [{0}, set(), set(), set()]
    second.run()
    assert second.made.sums[0].lost
    assert again(tmp_path / "third", first, number=1).summed() == set(DEVICES)


@pytest.mark.parametrize("gone", ["before keys", "before its vector"])
def test_two_sums_over_one_visit_with_a_device_fewer_cannot_both_be_unmasked(gone: str, tmp_path: Path) -> None:
    first = Attacked(tmp_path / "first")
    second = Attacked(tmp_path / "second")
    second.devices = first.devices  # the same devices train the same model a second time
    assert first.summed() == set(DEVICES)
    second.gone = [{0}, set(), set(), set()] if gone == "before keys" else [set(), set(), {0}, set()]
    refusals = list[str]()

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        answers = dict[int, Any]()
        for k, about in told.items():
            if k == 0 and (gone == "before keys" or kind == "sum-unmask"):
                continue
            try:
                answers[k] = first.devices[k].reply(kind, about)["answer"]
            except RefusedError as error:
                refusals.append(str(error))
        return answers

    second.server.request = ask
    second.run()
    assert second.made.sums[0].lost
    assert len(refusals) == 8
    assert all("earlier sum of other devices" in why for why in refusals)
    third = Attacked(tmp_path / "third")
    third.devices = first.devices
    assert third.summed() == set(DEVICES)  # the sum of the same devices reveals nothing new


@pytest.mark.parametrize(("differing", "refuses"), [({"visit": 1}, True), ({"tick": 1}, False), ({"round": 2}, False)])
def test_who_refuses_a_second_sum_does_not_state_whose_update_was_zero(
    differing: dict[str, int], refuses: bool, tmp_path: Path
) -> None:
    """Training that fails counts as no change: only these devices refused the same model with another number of visits.

    An edge could choose a model whose loss is undefined exactly if a sample has some property, and read that again.
    """
    first = Attacked(tmp_path / "first")
    second = Attacked(tmp_path / "second")
    second.devices = first.devices
    second.tolerant = True
    second.place = replace(second.place, **differing)  # as an edge may state
    second.changes = {k: change + 0.5 for k, change in first.changes.items()}  # of other mini-batches
    first.changes[FALSE] = second.changes[FALSE] = torch.zeros_like(first.start["w"])
    assert first.summed() == set(DEVICES)
    second.gone = [set(), set(), {0}, set()]
    usual = second.server.request
    revealing = set[int]()

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Any]:
        answers = usual(kind, told)
        if kind == "sum-unmask":
            revealing.update(answers)
        return answers

    second.server.request = ask
    with suppress(RefusedError):  # with another number of visits before they train
        second.run()
    assert revealing == (set() if refuses else set(DEVICES) - {0})


def test_a_device_reveals_no_shares_for_survivors_with_whom_it_has_no_masks(tmp_path: Path) -> None:
    """A server could otherwise repeat a sum without a device, and name it among the survivors all the same."""
    second = Attacked(tmp_path)
    second.gone = [{0}, set(), set(), set()]

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        if kind != "sum-unmask":
            return Protocol._ask(second, kind, told)
        for k, about in told.items():
            with refused("sum", RefusedError):
                second.devices[k].reply(kind, {**about, "survivors": list(DEVICES)})
        return {}

    second.server.request = ask
    second.run()
    assert second.made.sums[0].lost


def stopped(park: Live, after: int) -> None:
    """End the cloud as a crash does: after the sums of a round, before anything of it is on disk."""
    usual = loop._Run.check

    def check(self: Any, state: Any, number: int) -> None:
        if number == after:
            raise KeyboardInterrupt
        usual(self, state, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Run, "check", check)
        with pytest.raises(KeyboardInterrupt):
            park.run()


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
def test_a_cloud_that_dies_between_a_sum_and_its_checkpoint_goes_on_to_the_same_bits(tmp_path: Path, more: str) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3, devices=9, factories=3, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        stopped(park, 3)
        assert [line.round for line in ledger.read(tmp_path / "live/ledger.jsonl")] == [1, 2]
        assert any((tmp_path / "live/checkpoint").glob("round-00000002"))  # a secure round is begun twice at most
        lines = park.run(resume=True)
    assert [figures(line) for line in lines] == [figures(line) for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
def test_a_round_that_is_repeated_without_a_device_has_no_second_sum_and_the_run_goes_on(
    tmp_path: Path, more: str
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=5, devices=12, factories=3, more=more)
    with live(tmp_path, what) as park:
        factory_of = {k: agent.settings.factory for k, agent in park.agents.items()}
        stopped(park, 3)
        park.links[0].die()
        lines = park.run(resume=True)
    mates = [k for k in factory_of if more == ACROSS or factory_of[k] == factory_of[0]]
    lost = {3: mates, 4: [0], 5: [0]}
    with losing(lambda key: key.device in lost.get(key.round, [])):
        _, wanted = simulated(what, tmp_path / "simulated")
    assert [line.lost for line in lines] == [0, 0, *(len(lost[n]) for n in (3, 4, 5))]
    assert [line.loss for line in lines] == [line.loss for line in wanted]
    failed = (lines[2].measured or {})["failed"]
    assert all("earlier sum of other devices" in failed[f"d{k}"] for k in mates if k != 0)
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
def test_a_curious_edge_gets_no_second_sum_in_the_same_session(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=8, more=SECURE)
    with live(tmp_path, what) as park:
        asked = list[Message]()
        edge = park.edges[0]
        usual = edge.walk
        edge.walk = lambda message: (asked.append(message), usual(message))[1]  # type: ignore[method-assign]
        park.run()
        (message,) = asked
        first = usual(message)
        second = usual(replace(message, about={**message.about, "mine": message.about["mine"][1:]}))
    assert first[1]["shown"][1] == [[0, message.about["mine"]]]  # once more with the same devices
    assert second[1]["shown"][1] == []  # no sum


# -- sums that are too long ------------------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.parametrize(("method", "more"), [("fedavg", SECURE), ("fedavg", ACROSS), ("hierfavg", SECURE)])
def test_a_limit_on_sums_changes_no_bits_of_honest_devices(tmp_path: Path, method: str, more: str) -> None:
    what = experiment(tmp_path, method, rounds=4, devices=9, factories=3, more=more.replace(UNLIMITED, ""))
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [figures(line) for line in lines] == [figures(line) for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
def test_a_device_that_adds_seven_to_every_number_loses_its_sum_and_does_not_move_the_model(
    tmp_path: Path, more: str
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3, devices=9, factories=3, more=more.replace(UNLIMITED, ""))
    with live(tmp_path, what) as park:
        factory_of = {k: agent.settings.factory for k, agent in park.agents.items()}
        false = park.agents[0].worker()._sum
        assert false is not None
        usual = false.masked
        false.codec = replace(false.codec, bound=8.0)  # it clips nothing

        def masked(work: Any, arrived: Any, change: Any, *others: Any) -> Any:
            return usual(work, arrived, np.full_like(change, 7.0), *others)

        false.masked = masked  # type: ignore[method-assign]
        with suppress(RunError):  # with one sum of all devices no round changes the model
            park.run()
    lost = [k for k in factory_of if more == ACROSS or factory_of[k] == factory_of[0]]
    with losing(lambda key: key.device in lost), suppress(RunError):
        simulated(what, tmp_path / "simulated")
    lines, wanted = (ledger.read(tmp_path / name / "ledger.jsonl") for name in ("live", "simulated"))
    assert len(lines) == 3
    assert [line.loss for line in lines] == [line.loss for line in wanted]
    for line in lines:
        assert set(line.info["refused"]) == {str(k) for k in lost}
        assert all("mean update of" in why for why in line.info["refused"].values())


# -- a device that refuses a stage ------------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
@pytest.mark.parametrize("stage", [*STAGES, "visit"])
def test_a_device_that_refuses_a_stage_costs_its_own_visit_at_most_and_is_named(
    tmp_path: Path, stage: str, more: str
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=12, factories=3, more=more)
    own = [] if stage == "sum-unmask" else [0]  # its vector has arrived by then
    with losing(lambda key: key.device in own):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        worker = park.agents[0].worker()
        usual = worker.reply

        def reply(message: Message) -> Any:
            if message.kind == stage:
                raise RefusedError("sum", "it does not want to.")
            return usual(message)

        worker.reply = reply  # type: ignore[method-assign]
        lines = park.run()
    assert [line.lost for line in lines] == [len(own)] * 2
    assert [figures(line) for line in lines] == [figures(line) for line in wanted]
    for line in lines:
        assert line.measured is not None
        assert line.measured["absent"] == []
        assert set(line.measured["failed"]) == {"d0"}
        assert "does not want to" in line.measured["failed"]["d0"]


def test_a_report_of_failures_costs_no_results() -> None:
    about = {
        "failed": {"d0": ["sum-shares", "RunError", "x"], "d1": ["rm -rf", "RunError", "x"], "d2": ["visit"], "": 0},
        "refused": {"d0": {"sum": 1, "\x1b": 1}, "d1": {"sum": 2}},
    }
    stated = checks.measured(about, [], 8)
    assert set(stated.failed) == {"d0"}
    assert stated.refused == {"d1": {"sum": 2}}
    assert len(stated.flaws) == 4
    for hostile in (None, [], 3, "x", {str(k): 0 for k in range(99)}):
        stated = checks.measured({"failed": hostile, "refused": hostile}, [], 8)
        assert (stated.failed, stated.refused) == ({}, {})
        assert len(stated.flaws) == 2


def test_the_requests_of_a_device_are_those_whose_failures_an_edge_may_report() -> None:
    for kind in checks.REQUESTS:
        assert checks.read_failure([kind, "RunError", "x"]).kind == kind
    for kind in ("walk", "", "sum", 3, None, ["visit"]):
        with refused("range", RefusedError):
            checks.read_failure([kind, "RunError", "x"])


@pytest.mark.live
@pytest.mark.parametrize("factories", [1, 2])
def test_figures_that_no_device_can_have_cost_their_own_sum(
    factories: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that adds to the words beside its masked vector ended the run, or its edge's part in it."""
    what = experiment(
        tmp_path, "fedavg", rounds=2, devices=6, factories=factories, more="method.travel = 'secure-sum'\n"
    )
    masked = DeviceSum.masked

    def forged(self: DeviceSum, *given: Any) -> Any:
        vector, receipt = masked(self, *given)
        if self.device == 3:
            words = vector[-32:].view("<u8")
            words[2:4] += np.uint64(2**62)
        return vector, receipt

    monkeypatch.setattr(DeviceSum, "masked", forged)
    with live(tmp_path, what) as park, suppress(RunError):  # with one factory no round changes the model
        park.run()
    lines = ledger.read(tmp_path / "live/ledger.jsonl")
    assert [line.lost for line in lines] == [6 // factories] * 2
    assert all("e1" not in line.measured.get("failed", {}) for line in lines if line.measured is not None)

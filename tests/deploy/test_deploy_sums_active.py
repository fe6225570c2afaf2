"""Secure sums against an edge or a cloud that breaks the protocol: devices reveal no more than one sum of an update."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_deploy_sums_across
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_deploy_questions import DISTRIBUTED
from test_deploy_sums import SECURE
from test_deploy_sums_across import FACTORIES, VISIT, Protocol
from test_deploy_sums_across import SECURE as ACROSS
from test_deploy_sums_attacks import DEVICES, FALSE, Attacked

import refusals
from fedfloor import config
from fedfloor.base.errors import RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import authority
from fedfloor.deploy.device_sum import DeviceSum, most_devices
from fedfloor.deploy.machines import device_settings
from fedfloor.deploy.message import Message
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.revealed_sums import RevealedSums
from fedfloor.deploy.settings import DataSource, DeviceSettings, read, to_toml
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.sum_messages import Advertisement, common, packed, unpacked
from fedfloor.engine.summing import SecureAggregation
from fedfloor.parts.mixing.mix import BySamples
from fedfloor.parts.mixing.private import Private
from fedfloor.parts.protection import masking
from fedfloor.parts.protection.masking import PublicKeys
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.plan.nodes import Parallel, Train, Work, device
from fedfloor.plan.schedule import Key
from fedfloor.runs import ledger
from live_park import Live, experiment, figures, live, member, simulated

CA = authority.found("trial", authority.now())
PER_DEVICE = 40
HOME = "127.0.0.1"


def own_samples(folder: Path, devices: int) -> tuple[str, Callable[[int], DataSource]]:
    """Write sensors' values of each device, and of all together; return the setting of the latter, and the sources."""
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, (devices * PER_DEVICE, 3))
    y = rng.integers(0, 2, devices * PER_DEVICE)
    owner = np.repeat(np.arange(devices), PER_DEVICE)
    classes = np.array(["good", "bad"])
    train = np.arange(len(x)) % PER_DEVICE < 30
    np.savez(folder / "all.npz", x=x[train], y=y[train], device=owner[train], x_test=x[~train], y_test=y[~train],
             device_test=owner[~train], classes=classes)  # fmt: skip
    for k in range(devices):
        np.savez(folder / f"{k}.npz", x=x[train & (owner == k)], y=y[train & (owner == k)], classes=classes)
    return f"data.path = '{folder}/all.npz'\n", lambda k: DataSource("folder", folder / f"{k}.npz")


# -- inputs that differ between devices -------------------------------------------------------------------------------


def test_each_input_on_which_an_update_depends_changes_the_masks() -> None:
    work = Work(steps=1, trains="head")
    model = np.arange(4.0)
    place = Key(0, 1, 2, 3, 4)
    inputs: dict[str, Any] = {
        "work": work, "arrived": model, "place": place, "facts": "f", "rule": ("equal", {}), "fraction": 3,
        "ring": (4, 3),
    }  # fmt: skip
    other = {
        "work": replace(work, rate=1e-30), "arrived": np.array([0.0, 1.0, 2.0, 4.0]),
        "place": replace(place, tick=3), "facts": "", "rule": ("by_samples", {}), "fraction": 4, "ring": (3, 4),
    }  # fmt: skip
    digests = {common(**inputs), common(**{**inputs, "place": replace(place, round=2)})}
    digests |= {common(**{**inputs, name: value}) for name, value in other.items()}
    assert len(digests) == 2 + len(other)
    assert common(**{**inputs, "place": Key(0, 1, 2, 9, 9)}) == common(**inputs)  # these differ by device


@pytest.mark.live
@pytest.mark.parametrize("normalise", ["standard", "robust"])
@pytest.mark.parametrize("more", [SECURE, ACROSS])
def test_devices_with_samples_of_their_own_have_the_simulations_sums(tmp_path: Path, more: str, normalise: str) -> None:
    setting, data = own_samples(tmp_path, 9)
    more = f"{setting}data.normalise = '{normalise}'\n{more}"
    what = experiment(tmp_path, "fedavg", devices=9, factories=3, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=data) as park:
        lines = park.run()
    assert [line.lost for line in lines] == [0, 0]
    assert [line.train_loss for line in lines] == [line.train_loss for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
def test_an_edge_that_normalises_the_others_samples_to_zero_gets_no_sum(tmp_path: Path, more: str) -> None:
    setting, data = own_samples(tmp_path, 9)
    what = experiment(tmp_path, "fedavg", rounds=1, devices=9, factories=3, more=setting + more)
    with live(tmp_path, what, data=data) as park:
        joining = park.edges[0].joining
        target = min(park.edges[0].own)
        usual = joining.holding

        def holding(k: int, facts: Any, *others: Any) -> Any:
            if k != target and facts.standard is not None:
                facts = replace(facts, standard=(facts.standard[0], (1e20,) * len(facts.standard[1])))
            return usual(k, facts, *others)

        joining.holding = holding  # type: ignore[method-assign]
        with suppress(RunError):  # without any sum the run ends
            park.run()
    (line,) = ledger.read(tmp_path / "live/ledger.jsonl")
    assert line.lost == (9 if more == ACROSS else 3)


@pytest.mark.live
def test_an_edge_that_sends_new_devices_zeros_for_their_own_part_gets_no_update(tmp_path: Path) -> None:
    """With a head of zeros the updates of the layers below it would be zero in a device's first step."""
    what = experiment(tmp_path, "fedper", rounds=1, model="mlp-2nn", more=SECURE)
    with live(tmp_path, what) as park:
        factory = park.edges[0].factory
        usual = factory.visit

        def visit(engine: Any, work: Work, packet: Any, *others: Any) -> Any:
            cut = engine.network.parcel(work.travels)
            return usual(engine, work, {**packet, "w": cut.put(cut.cut(packet["w"]), 0 * packet["w"])}, *others)

        factory.visit = visit  # type: ignore[method-assign]
        (line,) = park.run()
    assert line.lost == 4
    assert "stays on devices" in str(line.measured)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 9)), max_size=5), st.booleans())
def test_requests_for_the_devices_of_an_edge_arrive_as_sent(near: dict[int, set[int]], keys: bool) -> None:
    sums = {
        str(k): {"identity": "x", **({"keys": {str(v): [v] for v in some}} if keys else {})} for k, some in near.items()
    }
    assert unpacked(json.loads(json.dumps(packed(sums))), len(sums)) == sums
    for hostile in (
        {"sums": []}, {"sums": {"0": 3}}, {"sums": {"0": {"keys": ["7"]}}}, {"sums": {"0": {"keys": 3}}},
        {"sums": {"0": {"keys": [[]]}}, "keys": []}, {"sums": {"0": {"keys": ["1"]}}, "keys": None},
        {"sums": {"0": {}}, "shared": 3}, {"sums": {"0": {}, "1": {}}},
    ):  # fmt: skip
        with pytest.raises(RefusedError):
            unpacked(hostile, 1)


# -- several sums of one update ---------------------------------------------------------------------------------------


def again(first: Attacked, folder: Path, visit: Work = VISIT, mix: str = "by_samples", round_: int = 1) -> Attacked:
    """Return a second sum in which the same devices have the same updates."""
    second = Attacked(folder)
    second.devices = first.devices
    second.tolerant = True
    node = Parallel(tuple(Train(device(k), visit) for k in DEVICES), mix=mix)
    made = SecureAggregation(second.engine, node, second.start, first.made.codec)
    second.made = second.server.aggregation = made
    second.server.group = made.sums[0]
    second.visit = visit
    second.place = Key(0, round_, 0, 0, 0)
    return second


@pytest.mark.parametrize(
    ("visit", "mix", "round_", "gone"),
    [
        (VISIT, "equal", 1, set[int]()), (replace(VISIT, beta1=0.5), "by_samples", 1, {0}),
        (replace(VISIT, eps=1e-3), "by_samples", 1, {0}), (VISIT, "by_samples", 2, {0}),
    ],
)  # fmt: skip
def test_no_second_sum_of_the_same_updates_by_another_rule_text_or_round(
    visit: Work, mix: str, round_: int, gone: set[int], tmp_path: Path
) -> None:
    first = Attacked(tmp_path / "first")
    assert first.summed() == set(DEVICES)
    second = again(first, tmp_path / "second", visit, mix, round_)
    second.gone = [gone, set(), set(), set()]
    second.run()
    assert second.made.sums[0].lost
    third = again(first, tmp_path / "third", replace(VISIT, beta1=0.5), round_=2)
    assert third.summed() == set(DEVICES)  # the same sum again reveals nothing new


def test_devices_with_updates_of_zeros_reveal_no_others_update_but_take_part_in_every_round(tmp_path: Path) -> None:
    """They hold shares of the others' secrets: six of them could unmask both sums."""
    first = Attacked(tmp_path / "first")
    first.changes = {k: change * (k < 3) for k, change in first.changes.items()}
    assert first.summed() == set(DEVICES)
    for number, (work, place, model, lost) in enumerate(
        [
            (VISIT, first.place, 0.0, True),
            (replace(VISIT, beta1=0.5), first.place, 0.0, True),
            (VISIT, first.place, 0.5, True),
            (VISIT, replace(first.place, round=2), 0.0, False),
        ]
    ):
        second = again(first, tmp_path / str(number), work)
        second.place = place
        second.start["w"] += model
        second.changes = first.changes
        second.gone = [{0}, set(), set(), set()]
        second.run()
        assert bool(second.made.sums[0].lost) is lost


def test_a_sum_of_many_devices_is_not_repeated_without_one_whose_neighbours_are_told_that_it_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours in the ring, which all devices know, have no masks with it."""
    many = 70
    monkeypatch.setattr(test_deploy_sums_across, "FACTORIES", tuple(k % 3 for k in range(many)))
    first, second = (Protocol(tmp_path / name, [set()] * 4, {}) for name in ("first", "second"))
    first.changes = {k: torch.full_like(first.start["w"], float(k + 1)) for k in range(many)}
    first.run()
    assert not first.made.sums[0].lost
    second.devices = first.devices
    second.changes = first.changes
    second.gone = [{0}, set(), set(), set()]
    ring = second.server.ring
    refused = set[int]()

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        if kind != "sum-unmask":
            return Protocol._ask(second, kind, told)
        answers = dict[int, Any]()
        for k, about in told.items():
            try:
                answers[k] = second.devices[k].reply(kind, {**about, "survivors": list(range(many))})["answer"]
            except RefusedError:
                refused.add(k)
        return answers

    second.server.request = ask
    second.run()
    assert refused == set(masking.neighbours(ring, 0))
    assert len(refused) == 64
    assert second.made.sums[0].lost


@pytest.mark.live
def test_an_edge_gets_no_second_sum_with_settings_of_the_work_that_have_no_effect(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=8, more=SECURE)
    with live(tmp_path, what) as park:
        message = requested(park)
        edge = park.edges[0]
        usual = edge.factory.visit

        def visit(engine: Any, work: Work, *others: Any) -> Any:
            return usual(engine, replace(work, beta1=0.5), *others)

        edge.factory.visit = visit  # type: ignore[method-assign]
        fewer = edge.walk(replace(message, about={**message.about, "mine": message.about["mine"][1:]}))
        assert fewer[1]["shown"][1] == []  # no sum
        assert all("its beta1 is 0.5" in failure.text for failure in edge.factory.failed.values())
        edge.factory.visit = usual  # type: ignore[method-assign]
        same = edge.walk(message)
        assert same[1]["shown"][1] == [[0, message.about["mine"]]]


def requested(park: Live) -> Message:
    """Run a park; return the cloud's request for the only round to the first edge."""
    asked = list[Message]()
    edge = park.edges[0]
    usual = edge.walk
    edge.walk = lambda message: (asked.append(message), usual(message))[1]  # type: ignore[method-assign]
    park.run()
    edge.walk = usual  # type: ignore[method-assign]
    (message,) = asked
    return message


@pytest.mark.live
def test_where_devices_add_noise_a_visit_is_in_one_sum_of_a_run_and_rounds_end(tmp_path: Path) -> None:
    """Repeated sums of the same devices would average their noise out."""
    noisy = DISTRIBUTED.replace('{ kind = "secure-sum", across = true }', '"secure-sum"')
    what = experiment(tmp_path, "fedavg", rounds=1, devices=8, more=noisy)
    with live(tmp_path, what) as park:
        message = requested(park)
        edge = park.edges[0]
        own = message.run
        for run, number, summed in ((own, 1, False), (own, 2, False), ("other", 1, True), ("other", 1, False)):
            result = edge.walk(within(edge, message, run, number))
            assert bool(result[1]["shown"][1]) is summed


def within(edge: Any, message: Message, run: str, number: int) -> Message:
    """Return a request as of another run or round, as the edge itself could state it to devices."""
    edge.factory.run = run
    edge.factory.round = number
    return replace(message, run=run, round=number)


NOISY = Private(clip=1.0, noise=64.0, delta=1e-2, distributed=True)


class NoisyProtocol(Attacked):
    """A sum of devices that add noise, and keep their records in ``folder``."""

    def __init__(self, folder: Path, records: Path, number: int = 1, run: str = "a") -> None:
        super().__init__(folder)
        node = Parallel(tuple(Train(device(k), VISIT) for k in DEVICES), mix="private", settings=NOISY_SETTINGS)
        self.made = SecureAggregation(self.engine, node, self.start, SecureSum(across=True, bound=8.0))
        self.server.aggregation = self.made
        self.server.group = self.made.sums[0]
        kept = {k: RevealedSums(RevealRecord(records / f"{k}.sqlite")) for k in DEVICES}
        self.devices = {
            k: DeviceSum(
                k, 20 + k, self.made.codec, NOISY, kept[k], 3, factory=FACTORIES[k], devices=len(DEVICES)
            )
            for k in DEVICES
        }  # fmt: skip
        self.place = Key(0, number, 0, 0, 0)
        self.named = run
        self.left = set[int]()
        for k, of in self.devices.items():
            of.masked = partial(self._masked, of.masked, k)  # type: ignore[method-assign]

    def _masked(self, usual: Any, k: int, *given: Any) -> Any:
        with suppress(RefusedError):
            masked = usual(*given, self.named)
            self.left.add(k)
            return masked
        return self.made.fixed.ring.zeros(), given[4]


NOISY_SETTINGS = {"clip": 1.0, "noise": 64.0, "delta": 1e-2, "distributed": True}


def test_with_noise_a_masked_update_leaves_for_one_sum_of_each_round_also_after_a_restart(tmp_path: Path) -> None:
    """It was recorded where shares were revealed, so that a device could send updates for several sums of a round."""
    first = NoisyProtocol(tmp_path / "first", tmp_path)
    first.server.end = lambda: None  # type: ignore[method-assign]
    first.run()
    assert first.left == set(DEVICES)  # masked updates have left; nothing is revealed
    for number, run, left in ((1, "a", False), (2, "a", True), (1, "b", True), (2, "a", False), (4, "a", False)):
        later = NoisyProtocol(tmp_path / f"{run}{number}", tmp_path, number, run)
        later.place = replace(later.place, tick=7, visit=7)  # as an edge may state
        later.tolerant = True
        later.run()
        assert later.left == (set(DEVICES) if left else set())
        assert bool(later.made.sums[0].lost) is not left


def test_with_noise_devices_that_drop_out_before_and_after_their_masked_update_cost_no_sum(tmp_path: Path) -> None:
    one = NoisyProtocol(tmp_path / "sum", tmp_path)
    one.gone = [{0}, set(), {4}, {6}]
    one.run()
    assert not one.made.sums[0].lost
    assert one.made.sums[0].members == set(DEVICES) - {0, 4}


def test_with_noise_a_device_is_refused_a_second_sum_before_it_trains(tmp_path: Path) -> None:
    first, second = (NoisyProtocol(tmp_path / name, tmp_path) for name in ("first", "second"))
    first.run()
    size = second.engine.network.size
    second.server.begin()
    for k in DEVICES:
        with refusals.refused("sum", RefusedError):
            second.devices[k].standing(size, VISIT, second.server.about(k), second.place, "a")


@pytest.mark.parametrize(("survivors", "revealed"), [(6, True), (5, False)])
def test_with_noise_no_sum_of_fewer_devices_is_unmasked_than_its_noise_is_for(
    tmp_path: Path, survivors: int, revealed: bool
) -> None:
    """A server could state a ring of nine, whose noise is for six, and leave so many out that fewer shares suffice."""
    one = NoisyProtocol(tmp_path / "sum", tmp_path)
    one.gone = [{1, 2, 3}, set(), set(), set()]
    one.server.end = lambda: None  # type: ignore[method-assign]
    one.run()
    with suppress(RefusedError) if not revealed else nullcontext():
        about = {"identity": one.server.identity, "survivors": [0, 4, 5, 6, 7, 8][:survivors]}
        assert one.devices[0].reply("sum-unmask", about)["answer"]
        assert revealed


def test_a_device_accepts_no_ring_of_more_devices_than_its_park_has(tmp_path: Path) -> None:
    """The noise of each device falls with their number."""
    one = NoisyProtocol(tmp_path / "sum", tmp_path)
    one.server.begin()
    about = one.server.about(0)
    assert about is not None
    for ring in ([*DEVICES, 9], list(range(1000))):
        with refusals.refused("sum", RefusedError):
            one.devices[0].standing(one.engine.network.size, VISIT, {**about, "ring": ring}, one.place, "a")
    assert one.devices[0].standing(one.engine.network.size, VISIT, about, one.place, "a").needed == 6


def test_a_device_knows_the_devices_of_its_factory_where_it_does_not_see_all(tmp_path: Path) -> None:
    """An edge stated all devices of the park for those of its factory, so that each added less noise."""
    table = [DeviceTable(f"n{k}", "north" if k < 70 else "south", number=k) for k in range(90)]
    hubs = tuple(FactoryTable(name, HOME, port, HOME) for name, port in (("north", 2), ("south", 3)))
    park = ParkFile("trial", tmp_path / "e.toml", CloudTable(HOME, 1, HOME), hubs, tuple(table))
    settings = device_settings(park, table[0], (), crosses=False)
    assert settings.devices == (70, 90)
    assert read(DeviceSettings, written(tmp_path, settings)).devices == (70, 90)
    few = replace(park, device=park.device[:65])
    assert device_settings(few, table[0], (), crosses=False).devices == ()
    known = config.read(experiment(tmp_path, "fedavg"), [])
    for across, stated, most in ((False, 90, 70), (True, 90, 90), (True, 80, 80)):
        stating = replace(known, park=replace(known.park, devices=stated))
        assert most_devices(settings, stating, SecureSum(across=across)) == most


def written(folder: Path, settings: DeviceSettings) -> Path:
    """Write settings to a file."""
    (folder / "device.toml").write_text(to_toml(settings))
    return folder / "device.toml"


def test_a_unit_that_rounds_updates_away_is_refused(tmp_path: Path) -> None:
    """With steps so coarse that all updates but the largest are zero, the sum would be that one."""
    one = Attacked(tmp_path)
    one.server.begin()
    about = one.server.about(0)
    assert about is not None
    network = one.engine.network
    honest = one.devices[0].standing(network.size, VISIT, about, one.place)
    assert honest.fixed.fraction == one.made.fixed.fraction
    for fraction, refused in ((honest.fixed.fraction - 4, False), (-5, True), (-100, True)):
        with pytest.raises(RefusedError, match="round this device's update away") if refused else nullcontext():
            one.devices[0].standing(network.size, VISIT, {**about, "fraction": fraction}, one.place)


def test_a_wide_bound_is_no_reason_for_coarse_steps() -> None:
    """With steps in proportion to a bound of 10⁶, an edge could round the sums of all devices but one to zero."""
    sums = DeviceSum(0, 24, SecureSum(bits=64, bound=1e6, together=True), BySamples())
    assert sums.coarsest(1e6, 9) == sums.coarsest(8.0, 9) == 8 * 2.0**-12
    few = DeviceSum(0, 24, SecureSum(bits=16), BySamples())
    assert few.coarsest(8.0, 9) == 8 * 16 * 9 * 2.0**-15  # all that 16 bits allow for nine devices


# -- keys and factories that are not the devices' ---------------------------------------------------------------------


def signer(folder: Path, name: str) -> Signer:
    return Signer(member(folder, CA, name), name)


def advertised(folder: Path, k: int, name: str, identity: str) -> Advertisement:
    """Return keys that a member of the park signs as device ``k``."""
    return Advertisement.made(masking.advertise(k, bytes.fromhex(identity)), 0, signer(folder, name))


FORGED: dict[str, Callable[[Path, str, Advertisement], Advertisement]] = {
    "unsigned": lambda _, __, true: replace(true, seal=b""),
    "the edge's certificate": lambda folder, identity, _: advertised(folder, 1, "e0", identity),
    "the cloud's certificate": lambda folder, identity, _: advertised(folder, 1, "cloud", identity),
    "another device's certificate": lambda folder, identity, _: advertised(folder, 1, "d2", identity),
    "the receiver's certificate": lambda folder, identity, _: advertised(folder, 1, "d0", identity),
    "another device's number": lambda folder, identity, _: advertised(folder, 2, "d1", identity),
    "another sum": lambda folder, _, __: advertised(folder, 1, "d1", "22" * 32),
    "another factory": lambda _, __, true: replace(true, factory=7),
    "other keys": lambda _, __, true: replace(true, public=PublicKeys(true.public.mask, true.public.channel)),
    "a seal that is none": lambda _, __, true: replace(true, seal=true.seal[:-9]),
}


@pytest.mark.parametrize("attack", ["none", *FORGED])
def test_a_device_shares_its_secrets_only_with_keys_that_devices_have_signed(attack: str, tmp_path: Path) -> None:
    identity = "11" * 32
    device_sum = DeviceSum(0, 24, SecureSum(bound=8.0), BySamples(), signer=signer(tmp_path, "d0"))
    device_sum.reply("sum-keys", {"identity": identity})
    others = {k: advertised(tmp_path, k, f"d{k}", identity) for k in (1, 2, 3)}
    if attack != "none":
        others[1] = FORGED[attack](tmp_path, identity, others[1])
    about = {"identity": identity, "keys": {str(k): keys.to_json() for k, keys in others.items()}}
    if attack == "none":
        assert set(device_sum.reply("sum-shares", about)["answer"]) == {"1", "2", "3"}
    else:
        with pytest.raises(RefusedError):
            device_sum.reply("sum-shares", about)


@pytest.mark.parametrize("attack", ["factory", "unsigned", "the edge's certificate", "another device's certificate"])
def test_a_device_with_keys_that_others_refuse_is_named_before_they_are_passed_on(attack: str, tmp_path: Path) -> None:
    attacked = Attacked(tmp_path / "sum", "sum-keys", lambda answer: forged(answer))
    attacked.server.signer = signer(tmp_path, "e0")
    for k, device_sum in attacked.devices.items():
        device_sum.signer = signer(tmp_path, f"d{k}")
    keys = masking.advertise(FALSE, bytes.fromhex(attacked.server.identity))
    factory = FACTORIES[FALSE]

    def forged(answer: list[Any]) -> list[Any]:
        if attack == "factory":
            return Advertisement.made(keys, factory + 1, signer(tmp_path, f"d{FALSE}")).to_json()
        name = {"the edge's certificate": "e0", "another device's certificate": "d5"}.get(attack)
        return Advertisement.made(keys, factory, signer(tmp_path, name) if name else None).to_json()

    named = {FALSE, 5} if attack == "another device's certificate" else {FALSE}  # the cloud may not know their names
    assert attacked.summed() == set(DEVICES) - named
    assert set(attacked.refused) == named


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
def test_an_edge_that_replaces_the_devices_keys_by_its_own_reads_no_update(tmp_path: Path, more: str) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=12, factories=3, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, ca=CA) as park:
        edge = park.edges[0]
        usual = edge.factory.stage
        target = min(edge.own)

        def stage(engine: Any, kind: str, abouts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
            if kind == "sum-shares" and edge.factory.round == 2 and target in abouts:
                about = abouts[target]
                mine = {
                    v: Advertisement.made(
                        masking.advertise(int(v), bytes.fromhex(about["identity"])), entry[2], edge.filter.signer
                    ).to_json()
                    for v, entry in about["keys"].items()
                }
                abouts = {**abouts, target: {**about, "keys": mine}}
            return usual(engine, kind, abouts)

        edge.factory.stage = stage  # type: ignore[method-assign]
        lines = park.run()
    assert figures(lines[0]) == figures(wanted[0])  # with signatures, too
    assert [line.lost for line in lines] == [0, 1]
    assert "is not a device by its certificate" in str(lines[1].measured)


def test_a_sum_across_factories_is_not_revealed_for_survivors_of_two(tmp_path: Path) -> None:
    """An edge could otherwise run the stages among its own devices, and have its factory's sum."""
    attacked = Attacked(tmp_path)
    least = [k for k in DEVICES if FACTORIES[k] < 2]
    reasons = list[str]()

    def ask(kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        if kind != "sum-unmask":
            return Attacked._ask(attacked, kind, told)
        for k in least:
            with refusals.refused("sum", RefusedError) as refusal:
                attacked.devices[k].reply(kind, {**told[k], "survivors": least})
            reasons.append(str(refusal.value))
        return {}

    attacked.server.request = ask
    attacked.run()
    assert len(reasons) == len(least) == 6
    assert all("2 factories" in why for why in reasons)


# -- false shares -----------------------------------------------------------------------------------------------------


def test_a_device_that_deals_one_false_share_frames_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder opens the share and reveals it as it is: one of the two is false, and both are named."""
    attacked = Attacked(tmp_path)
    holder = 5
    usual = masking.split

    def split(secret: bytes, holders: Any, threshold: int) -> dict[int, bytes]:
        return {**usual(secret, holders, threshold), holder: b"\x07" * 32}

    def share(keys: Any, others: Any, least: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if keys.device == FALSE:
                patch.setattr(masking, "split", split)
            return dealt(keys, others, least)

    dealt = masking.share
    monkeypatch.setattr(masking, "share", share)
    assert attacked.summed() == set(DEVICES)
    assert set(attacked.refused) == {FALSE, holder}

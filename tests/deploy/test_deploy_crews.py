"""Crews: no two secure sums, of whichever rounds, differ by fewer than three devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_faults import losing
from test_deploy_sums_active import written
from test_deploy_sums_attacks import DEVICES, UNLIMITED, Attacked, decoded
from typer.testing import CliRunner

from fedfloor.base.ranges import RefusedError
from fedfloor.cli.app import app
from fedfloor.deploy.checks import STAGES
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.revealed_sums import RevealedSums
from fedfloor.parts.protection import masking
from fedfloor.parts.travel.codecs import SecureSum
from live_park import experiment, figures, live, simulated
from refusals import refused

CREWS = [{0, 1, 2}, {3, 4, 5}, {6, 7, 8}]
TOGETHER = SecureSum(together=True)
SECURE = "method.travel = { kind = 'secure-sum', together = true }\n" + UNLIMITED
ACROSS = "method.travel = { kind = 'secure-sum', together = true, across = true }\n" + UNLIMITED


class Crewed(Attacked):
    """A sum of nine devices of a factory in three crews; ``told`` changes what a device hears about the sum."""

    def __init__(self, folder: Path, codec: SecureSum = TOGETHER) -> None:
        super().__init__(folder, codec=codec, factories=(0,) * len(DEVICES))
        self.told: dict[int, Mapping[str, Any]] = {}
        for k, one in self.devices.items():
            one.held = f"{k:016x}{1:032x}"
        usual = self.server.about

        def about(k: int) -> dict[str, Any] | None:
            given = usual(k)
            return given and {**given, **self.told.get(k, {})}

        self.server.about = about  # type: ignore[method-assign]

    def later(self, folder: Path, round_: int = 2) -> Crewed:
        """Return a sum of the same devices in another round, over nearly the same model."""
        other = Crewed(folder, self.made.codec)
        other.devices = self.devices
        other.tolerant = True
        other.changes = {k: change * (1 + 1e-6) for k, change in self.changes.items()}
        other.place = replace(self.place, round=round_)
        return other

    def members(self) -> set[int]:
        """Run the sum; return the devices that it holds, none if it is lost."""
        self.run()
        group = self.made.sums[0]
        return set() if group.lost else group.members


def lacking(out: set[int]) -> list[set[int]]:
    return [out, set(), set(), set()]


def test_without_losses_the_sum_has_the_bits_of_one_without_crews(tmp_path: Path) -> None:
    one = Crewed(tmp_path / "a")
    other = Crewed(tmp_path / "b", SecureSum())
    assert one.summed() == other.summed() == set(DEVICES)
    assert (one.made.sums[0].total == other.made.sums[0].total).all()


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("who", [0, 4, 8])
def test_a_device_that_drops_out_takes_its_crew_with_it_and_no_other(who: int, stage: int, tmp_path: Path) -> None:
    one = Crewed(tmp_path)
    one.gone = [{who} if at == stage else set() for at in range(4)]
    mine = next(crew for crew in CREWS if who in crew)
    assert one.members() == set(DEVICES) - (mine if stage < 3 else set())  # by then its vector was there
    assert one.made.sums[0].apart == (mine - {who} if stage < 2 else set())
    assert not one.refused


def test_sums_of_two_rounds_with_a_device_fewer_in_the_second_differ_by_three(tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    first.changes = {k: change / 99 for k, change in first.changes.items()}
    first.summed()
    second = first.later(tmp_path / "second")
    second.gone = lacking({0})
    assert second.members() == set(DEVICES) - {0, 1, 2}
    learnt = decoded(first) - decoded(second)
    assert np.allclose(learnt, sum((k + 1) / 99 * (20 + k) for k in (0, 1, 2)), atol=1e-3)


def without_zero(sums: Crewed, crews: Iterable[Iterable[int]]) -> None:
    """Let a server leave device 0 out, and say that the others are in such crews."""
    made = [tuple(crew) for crew in crews]
    sums.gone = lacking({0})
    sums.tolerant = True
    sums.server.recognised = lambda _: made  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "crews",
    [
        [(1, 2, 3), (4, 5, 6, 7, 8)],
        [(1, 2, 3, 4, 5), (6, 7, 8)],
        [tuple(range(1, 9))],
        [(1, 2), (3, 4, 5, 6, 7, 8)],
    ],
)
def test_a_server_that_puts_devices_into_other_crews_gets_no_sum(crews: list[tuple[int, ...]], tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    first.summed()
    second = first.later(tmp_path / "second")
    without_zero(second, crews)
    with pytest.raises(RefusedError, match=r"in earlier sums it was|its crews must|the size of a crew|its crews"):
        second.run()


def test_a_server_that_names_no_crews_gets_no_sum(tmp_path: Path) -> None:
    sums = Crewed(tmp_path)
    usual = sums.server.about

    def about(k: int) -> dict[str, Any] | None:
        given = usual(k) or {}
        given.pop("crews", None)
        return given

    sums.server.about = about  # type: ignore[method-assign]
    with refused("range", RefusedError):
        sums.run()


class Thief(RevealedSums):
    """A device that states the crew of others."""

    crew = ""


def test_a_device_that_states_the_crew_of_others_is_named_and_stops_nobody(tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    first.gone = lacking({8})
    first.server.recognised = lambda _: [(0, 1, 2), (3, 4, 5, 6, 7)]  # type: ignore[method-assign]
    assert first.members() == set(DEVICES) - {8}
    second = first.later(tmp_path / "second")
    thief = Thief()
    thief.crew = first.devices[3].revealed.crew  # type: ignore[misc]
    second.devices[8].revealed = thief
    assert second.members() == set(DEVICES) - {8}
    assert "it states the crew of other devices" in str(second.refused)


def test_a_server_that_names_survivors_without_one_device_of_a_crew_gets_no_shares(tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    first.summed()
    second = first.later(tmp_path / "second")
    second.gone = [set(), set(), {0}, set()]
    usual = second.server.hang
    group = second.made.sums[0]

    def hang(*given: Any) -> None:
        usual(*given)
        group.crews = [frozenset({k}) for k in DEVICES]  # it adds up whatever arrives

    second.server.hang = hang  # type: ignore[method-assign]
    assert second.members() == set()
    assert group.members == set(DEVICES) - {0}
    assert "0 shares of a secret arrived" in group.lost


def test_devices_that_are_told_different_crews_in_their_first_sum_get_no_sum(tmp_path: Path) -> None:
    """Device 0 would be asked for no more sums, while the others are in whole crews without it."""
    first = Crewed(tmp_path / "first")
    first.server._order([(0, 1, 2), (3, 4, 5), (6, 7, 8)])
    ring = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    first.told = {k: {"ring": ring, "crews": [4, 5]} for k in DEVICES if k}
    assert first.members() == set()
    assert "cannot be unmasked" in first.made.sums[0].lost


@pytest.mark.parametrize("what", ["visit", "place in a stream"])
def test_an_edge_gives_no_device_alone_another_place_than_its_mates(what: str, tmp_path: Path) -> None:
    """Two rounds would differ by the change of that device's update: its mates' masks with it are left in the sum."""
    for moved in ({0}, {0, 1, 2}):
        sums = Crewed(tmp_path / str(moved))
        for k in moved:
            masked = sums.devices[k].masked
            if what == "visit":
                sums.devices[k].masked = lambda *args, masked=masked: masked(*args[:-1], replace(args[-1], visit=1))  # type: ignore[method-assign]
            else:
                sums.devices[k].at = 7
        assert sums.members() == (set(DEVICES) if what != "visit" and len(moved) == 3 else set())


def test_a_device_keeps_its_crew_after_a_restart_and_is_recognised_by_it(tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    paths = {k: tmp_path / "state" / str(k) / "revealed.sqlite" for k in DEVICES}
    for k, one in first.devices.items():
        one.revealed = RevealedSums(RevealRecord(paths[k]))
    first.summed()
    for k, one in first.devices.items():
        one.revealed = RevealedSums(RevealRecord(paths[k]))
        assert one.revealed.crew
    second = first.later(tmp_path / "second")
    without_zero(second, [(1, 2, 3), (4, 5, 6, 7, 8)])
    with refused("sum", RefusedError):
        second.run()
    third = first.later(tmp_path / "third", 3)
    third.server._order([(0, 3, 6), (1, 4, 7), (2, 5, 8)])  # as if the park had other devices
    assert third.members() == set(DEVICES)
    assert [set(crew) for crew in third.server.crews] == CREWS


def test_a_device_that_died_before_its_first_vector_left_is_in_its_crew_later(tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    first.gone = [set(), set(), {0}, set()]
    assert first.members() == set(DEVICES) - {0, 1, 2}
    assert [bool(first.devices[k].revealed.crew) for k in (0, 1, 2)] == [False, True, True]
    assert first.later(tmp_path / "second").members() == set(DEVICES)


def test_a_device_in_the_place_of_another_one_is_in_no_sum_until_its_mates_leave_their_crew(tmp_path: Path) -> None:
    first = Crewed(tmp_path / "first")
    first.summed()
    new = first.devices[0]
    new.held = "f" * 16 + "0" * 32
    new.revealed = RevealedSums()
    second = first.later(tmp_path / "second")
    assert second.members() == set(DEVICES) - {0, 1, 2}
    for k in (1, 2):
        assert first.devices[k].revealed.leave_crew() == "0, 1, 2"
    assert second.later(tmp_path / "third", 3).members() == set(DEVICES)
    assert len({first.devices[k].revealed.crew for k in (0, 1, 2)}) == 1


def renewed(sums: Crewed, devices: Iterable[int]) -> Crewed:
    """Let devices have new samples."""
    for k in devices:
        sums.devices[k].held = f"{k:016x}{2:032x}"
        sums.changes[k] = sums.changes[k] * 1.5
    return sums


@pytest.mark.parametrize(
    ("new", "left"),
    [
        ((0, 3, 6), set()),  # sums with and without the crew of 3, before and after, gave the change of 3 by itself
        ((3, 4, 5), set(DEVICES)),
        ((0, 3, 4, 5), {3, 4, 5, 6, 7, 8}),
        ((0, 1, 2, 3, 4, 5, 6, 7, 8), set(DEVICES)),
    ],
)
def test_new_samples_are_used_where_enough_devices_of_a_crew_have_some(
    new: tuple[int, ...], left: set[int], tmp_path: Path
) -> None:
    first = Crewed(tmp_path / "first")
    assert first.members() == set(DEVICES)
    second = first.later(tmp_path / "second")
    second.gone = lacking({4})
    assert second.members() == set(DEVICES) - {3, 4, 5}
    third = renewed(second.later(tmp_path / "third", 3), new)
    assert third.members() == left


def test_new_devices_wait_until_they_are_a_crew(tmp_path: Path) -> None:
    """Nine devices, of which eight were in sums before, in crews of three and five."""
    first = Crewed(tmp_path / "first")
    first.gone = lacking({8})
    first.server.recognised = lambda _: [(0, 1, 2), (3, 4, 5, 6, 7)]  # type: ignore[method-assign]
    assert first.members() == set(DEVICES) - {8}
    second = first.later(tmp_path / "second")
    assert second.members() == set(DEVICES) - {8}
    assert second.made.sums[0].apart == {8}


def test_crews_of_many_devices_are_neighbours(tmp_path: Path) -> None:
    for devices in range(3, 200):
        crews = masking.crews(range(devices), [0] * devices)
        assert sorted(k for crew in crews for k in crew) == [*range(devices)]
        assert {len(crew) for crew in crews} <= {3, 4, 5}
        if devices > 8:  # one of them may be missing
            assert devices - max(map(len, crews)) >= masking.threshold(0.6, devices)
        ring, sizes = masking.crewed_ring(crews)
        assert sum(sizes) == devices
        for crew in crews:
            assert all({*crew} - {k} <= {*masking.neighbours(ring, k)} for k in crew)
    homes = [home for home, count in enumerate([4, 2, 1, 3, 1, 9, 1]) for _ in range(count)]
    crews = masking.crews(range(len(homes)), homes)
    assert sorted(k for crew in crews for k in crew) == [*range(len(homes))]
    assert all(masking.LEAST <= len(crew) <= masking.MOST_CREW for crew in crews)


# -- live -------------------------------------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.parametrize(("method", "more"), [("fedavg", SECURE), ("hierfavg", SECURE), ("fedavg", ACROSS)])
def test_bits_are_the_simulations_and_those_without_crews(tmp_path: Path, method: str, more: str) -> None:
    what = experiment(tmp_path, method, devices=9, factories=3, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    apart = experiment(
        tmp_path, method, devices=9, factories=3, more=more.replace("together = true", "together = false")
    )
    simulated(apart, tmp_path / "apart")
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("live", "simulated", "apart")]
    assert models[0] == models[1] == models[2]


@pytest.mark.live
@pytest.mark.parametrize(
    ("more", "factories"), [(SECURE, 1), (ACROSS, 4), (ACROSS, 6)], ids=["", "across", "two devices of each factory"]
)
@pytest.mark.parametrize("stage", [*STAGES, "visit"])
def test_a_device_that_vanishes_costs_the_visits_that_the_simulation_loses(
    stage: str, more: str, factories: int, tmp_path: Path
) -> None:
    what = experiment(tmp_path, "fedavg", devices=9 if factories == 1 else 12, factories=factories, more=more)
    gone = 2 if stage == "sum-unmask" else 1  # its update was there already
    with losing(lambda key: key.device == 0 and key.round >= gone):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        usual = park.agents[0].reply

        def done(edge: str, message: Any) -> Any:
            if message.kind == stage:
                park.links[0].die()
            return usual(edge, message)

        park.agents[0].reply = done  # type: ignore[method-assign]
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    crew = len(lines[-1].info["refused"]) + 1
    assert [one.lost for one in lines] == [crew * (gone == 1), crew]
    assert all("did not deliver; a crew is" in why for why in lines[-1].info["refused"].values())
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
@pytest.mark.parametrize("kind", ["recycle", "fifo"])
@pytest.mark.parametrize("refuses", ["sum-keys", "visit"])
def test_a_crew_that_lost_a_round_of_a_stream_stays_at_one_place_in_it(refuses: str, kind: str, tmp_path: Path) -> None:
    more = SECURE + f"data.stream = {{ kind = '{kind}', window = 10 }}\n"
    what = experiment(tmp_path, "fedavg", rounds=4, devices=9, factories=1, more=more)
    with losing(lambda key: key.device == 0 and key.round == 2):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        worker = park.agents[0].worker()
        usual = worker.reply

        def reply(message: Any) -> Any:
            if message.kind == refuses and message.round == 2:
                raise RefusedError("sum", "it does not want to.")
            return usual(message)

        worker.reply = reply  # type: ignore[method-assign]
        lines = park.run()
    assert [one.lost for one in lines] == [0, 3, 0, 0]
    assert [figures(one) for one in lines] == [figures(one) for one in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.live
def test_a_crew_that_misses_one_of_its_devices_for_ever_is_told_so(tmp_path: Path) -> None:
    """A device of a factory's only crew gets a new disk: the others' visits are lost with a reason."""
    what = experiment(tmp_path, "fedavg", devices=7, factories=2, rounds=2, more=SECURE)
    with live(tmp_path, what) as park:
        worker = park.agents[0].worker()
        usual = worker.reply

        def reply(message: Any) -> Any:
            if message.round == 2:
                worker._sum.held = "f" * 16 + "0" * 32  # type: ignore[union-attr]
                worker._sum.revealed = RevealedSums()  # type: ignore[union-attr]
            return usual(message)

        worker.reply = reply  # type: ignore[method-assign]
        lines = park.run()
    mine = sum(agent.settings.factory == park.agents[0].settings.factory for agent in park.agents.values())
    assert [one.lost for one in lines] == [0, mine]
    assert all("crew" in why for why in lines[1].info["refused"].values())


@pytest.mark.live
@pytest.mark.parametrize("visit", [0, 1])
def test_two_sums_of_a_round_lose_what_the_simulation_loses(visit: int, tmp_path: Path) -> None:
    what = experiment(tmp_path, "floor:Twice", devices=12, factories=4, rounds=2, more=ACROSS)
    with losing(lambda key: (key.device, key.round, key.visit) == (0, 2, visit)):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        worker = park.agents[0].worker()
        usual = worker.reply

        def reply(message: Any) -> Any:
            if message.kind == "visit" and message.round == 2 and message.about["visit"] == visit:
                raise RefusedError("sum", "it does not want to.")
            return usual(message)

        worker.reply = reply  # type: ignore[method-assign]
        lines = park.run()
    assert [one.lost for one in lines] == [one.lost for one in wanted] == [0, 3]


@pytest.mark.live
def test_a_command_forgets_a_devices_crew_and_says_what_that_gives_away(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=3, factories=1, more=SECURE)
    with live(tmp_path, what) as park:
        park.run()
        assert len({agent.worker()._sum.revealed.crew for agent in park.agents.values()}) == 1  # type: ignore[union-attr]
        file = written(tmp_path, park.agents[1].settings)
    answers = [
        " ".join(CliRunner().invoke(app, ["park", "device", str(file), "--leave-crew"]).output.split()) for _ in "ab"
    ]
    assert "its crew (0, 1, 2) is forgotten" in answers[0]
    assert "differ by the devices that are gone" in answers[0]
    assert "has no crew" in answers[1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("methods.fedavg.fraction = 0.5\n", "combination"),
        ("method.selection = { kind = 'fraction', share = 0.5 }\n", "combination"),
        ("method.travel = { kind = 'secure-sum', together = true, threshold = 0.55 }\n", "method.travel"),
    ],
)
def test_what_leaves_devices_out_is_refused(more: str, why: str, tmp_path: Path) -> None:
    own = more if "travel" in more else SECURE + more
    with refused(why):
        simulated(experiment(tmp_path, "fedavg", more=own), tmp_path / "out")

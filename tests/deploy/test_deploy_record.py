"""A record of what must not be forgotten is not silently made again when it is lost or restored from a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import record
from fedfloor.deploy.device import Agent
from fedfloor.deploy.record import RevealRecord, mark_of
from fedfloor.deploy.revealed_sums import RevealedSums
from live_park import experiment, live
from refusals import refused

SECURE = 'method.travel = "secure-sum"\n'


@pytest.mark.parametrize("protection", ["masks", "noise on counts"])
def test_a_device_whose_state_is_lost_does_not_start_as_a_new_one(protection: str, tmp_path: Path) -> None:
    """It began an empty record: it took part in second sums of its updates, and drew new noise on the same counts."""
    more = SECURE if protection == "masks" else ""
    what = experiment(tmp_path, "fedavg", rounds=1, devices=3, factories=1, more=more)
    if not more:
        what.write_text(what.read_text().replace("factories = 1", "factories = 1, census_epsilon = 0.5"))
    with live(tmp_path, what) as park:
        settings = park.agents[0].settings
        read = park.agents[0].experiment
        link = park.links[0]
        Agent(settings, read, None, lambda _: link)  # a restart
        shutil.rmtree(settings.state)
        with refused("record-missing"):
            Agent(settings, read, None, lambda _: link)
        mark_of(settings.state / record.REVEALED).unlink()  # its user begins anew
        Agent(settings, read, None, lambda _: link)


def test_a_device_that_reveals_nothing_only_once_keeps_no_record(tmp_path: Path) -> None:
    read = config.read(experiment(tmp_path, "fedavg", devices=3, factories=1), [])
    with live(tmp_path, tmp_path / "experiment.toml") as park:
        Agent(park.agents[0].settings, read, None, lambda _: park.links[0])
        assert not list(tmp_path.rglob(f"*{record.REVEALED}"))


def test_a_record_from_before_its_last_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "revealed.sqlite"
    RevealedSums(RevealRecord(path)).admit([b"update 1"], "a sum")
    copy = path.read_bytes()
    RevealedSums(RevealRecord(path)).admit([b"update 2"], "a sum")
    newest = path.read_bytes()
    path.write_bytes(copy)
    with refused("record-missing"):
        RevealRecord(path)
    path.write_bytes(newest)
    with refused("sum", RefusedError):
        RevealedSums(RevealRecord(path)).admit([b"update 2"], "another")


def test_a_record_of_another_machine_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / name / "state" / "revealed.sqlite" for name in "ab"]
    for path in paths:
        RevealRecord(path)
    for n in range(9):
        RevealedSums(RevealRecord(paths[1])).admit([bytes([n])], "a sum")
    shutil.copy(paths[1], paths[0])
    with refused("record-missing"):
        RevealRecord(paths[0])


def test_a_change_counts_only_once_the_mark_states_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the record and its mark has revealed nothing, and starts again."""
    path = tmp_path / "state" / "revealed.sqlite"
    sums = RevealedSums(RevealRecord(path))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(record, "write_mark", dies)
        with pytest.raises(KeyboardInterrupt):
            sums.admit([b"update"], "a sum")
    with refused("sum", RefusedError):
        RevealedSums(RevealRecord(path)).admit([b"update"], "another")


def test_what_an_earlier_version_kept_is_still_known(tmp_path: Path) -> None:
    former = RevealRecord(tmp_path / "other" / record.FORMER)
    RevealedSums(former).admit([b"update"], "a sum")
    (tmp_path / "state").mkdir()
    shutil.copy(tmp_path / "other" / record.FORMER, tmp_path / "state" / record.FORMER)
    (tmp_path / "state" / record.FORMER_KEY).write_bytes(bytes(range(32)))
    now = record.of_device(tmp_path / "state")
    with refused("sum", RefusedError):
        RevealedSums(now).admit([b"update"], "another")
    assert now.secret("census", 32) == bytes(range(32))


def test_a_key_is_drawn_once_and_readable_by_its_user_alone(tmp_path: Path) -> None:
    paths = [tmp_path / name / "state" / "revealed.sqlite" for name in "ab"]
    keys = [RevealRecord(path).secret("census", 32) for path in paths]
    assert keys[0] == RevealRecord(paths[0]).secret("census", 32) != keys[1]
    assert paths[0].stat().st_mode & 0o777 == 0o600


def test_a_run_with_noise_leaves_one_row_however_many_rounds_it_has(tmp_path: Path) -> None:
    """A row for each round was kept for ever."""
    path = tmp_path / "state" / "revealed.sqlite"
    sums = RevealedSums(RevealRecord(path))
    for number in range(1, 200):
        sums.admit_round("a", number, str(number))
    assert RevealRecord(path).rows("SELECT count(*) FROM noisy") == [(1,)]
    for number, total in ((198, "198"), (199, "another"), (1, "1")):
        with refused("sum", RefusedError):
            RevealedSums(RevealRecord(path)).admit_round("a", number, total)
    sums.admit_round("a", 199, "199")
    sums.admit_round("b", 1, "1")

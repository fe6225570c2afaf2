"""By what real machines know a run: a new one in a folder of the same name is another, a resumed one is the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedfloor.deploy.message import decode
from fedfloor.runs.folder import IDENTITY, identity
from fedfloor.runs.orders import Limits
from live_park import Live, experiment, live
from parks import until

PRIVATE = "work = { sample_clip = 1.0, sample_noise = 1.0, batch_size = 8, epochs = 1 }"


def private(folder: Path, rounds: int = 2) -> Path:
    path = experiment(folder, "fedavg", rounds=rounds, devices=4)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("work =")]
    path.write_text("\n".join([*lines, PRIVATE]) + "\n")
    return path


def runs(park: Live) -> set[str]:
    """Return the names of the runs that edges have stated to devices."""
    found = {decode(payload).run for topic, payload in park.broker.said if "/in/" in topic}
    park.broker.said.clear()
    return found


def test_a_private_run_in_a_folder_of_an_earlier_one_is_another_run(tmp_path: Path) -> None:
    """Devices knew it by the folder's name, and refused each of its visits as a second update."""
    with live(tmp_path, private(tmp_path)) as park:
        first = park.run()
        shutil.rmtree(tmp_path / "live")
        second = park.run()
    assert [line.lost for line in (*first, *second)] == [0, 0, 0, 0]


def test_a_run_that_goes_on_has_the_same_name(tmp_path: Path) -> None:
    with live(tmp_path, private(tmp_path)) as park:
        park.run(limits=Limits(stop_after=1))
        (before,) = runs(park)
        lines = park.run(resume=True)
        assert runs(park) == {before} == {identity(tmp_path / "live")}
        (tmp_path / "live" / IDENTITY).unlink()  # as of a run that an earlier version began
        assert identity(tmp_path / "live") == "live"
        shutil.rmtree(tmp_path / "live")
        park.run()
        (after,) = runs(park)
    assert [line.lost for line in lines] == [0, 0]
    assert before.startswith("live ")
    assert after.startswith("live ")
    assert before != after


def test_a_round_whose_updates_have_all_left_is_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    """The cloud and all devices were killed before the round was on the cloud's disk: every resume failed at it."""
    with live(tmp_path, private(tmp_path, rounds=4)) as park:
        park.run(limits=Limits(stop_after=2))
        first, second = sorted((tmp_path / "live/checkpoint").glob("round-*"))  # one for each round, however short
        assert first.name.endswith("01")
        shutil.rmtree(second)
        for k in list(park.agents):
            park.join(k)
        lines = park.run(resume=True)
    assert [line.lost for line in lines] == [0, 4, 0, 0]


def test_a_devices_own_part_is_that_of_one_run(tmp_path: Path) -> None:
    """A released model of the earlier run answered with the own part of a later one that had its folder's name."""
    with live(tmp_path, experiment(tmp_path, "fedper", devices=4, model="mlp-2nn")) as park:
        park.run()
        models = park.agents[0].settings.models
        (before,) = models.glob("own-*.npy")
        kept = before.read_bytes()
        shutil.rmtree(tmp_path / "live")
        park.run()
        assert before.read_bytes() == kept
        assert len(list(models.glob("own-*.npy"))) == 2


def test_a_copy_of_a_devices_key_is_named_at_both_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever uses it later has the device's place, which the edge can tell by the device's next greeting."""
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2)) as park:
        rightful = park.agents[0]
        park.join(0)
        rightful.announce()
        assert until(lambda: "e0 refuses this device" in caplog.text, 5)
    assert "refused a message of d0: replayed" in caplog.text
    assert caplog.text.count("or another process has its key: revoke it, and restart e0.") == 2

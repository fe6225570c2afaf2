"""A run's state as its folder has it: what is read, what changes, damaged and hostile files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import refusals
from commands import Command
from fedfloor.watch.files import Tail, short
from fedfloor.watch.several import WatchedRuns, watched
from fedfloor.watch.state import MOST_LINES, MOST_ROUNDS, Watched
from run_folders import diverge, evaluate, line, make_run, price


def live_line(number: int, **measured: Any) -> str:
    body = json.loads(line(number, 0.5))
    links = {"device_edge_down": 1100, "edge_cloud_up": 220}
    body["measured"] = {"floor_s": 1.0, "training_s": 0.5, "bytes": links, "absent": [], "refused": {}, "failed": {}}
    body["measured"] |= measured
    return json.dumps(body) + "\n"


def checkpoint(run: Path, number: int, receipts: list[list[Any]]) -> None:
    place = run / "checkpoint" / f"round-{number:08d}"
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"round": number, "receipts": receipts}))


def receipt(device: int, *, lost: bool = False, loss: float = 0.5, refused: str = "") -> list[Any]:
    row = [device, 0, 0, 3, 30, loss, loss, 0.75, 400, lost, None, 2.0]
    return [*row, [], refused] if refused else row


def test_all_sections_of_a_run(tmp_path: Path) -> None:
    run = price(make_run(tmp_path / "run", [0.25, 0.5], lost=2, rounds=3), [4.0, 6.0], [{"device_edge_up": 1000}] * 2)
    checkpoint(run, 2, [receipt(0), receipt(0, lost=True), receipt(5, loss=1.5)])
    watched = Watched(run)
    assert set(watched.poll()) == set(watched.document)
    got = watched.document
    about = {"name": "trial", "method": "fedsr", "devices": 8, "round": 2, "rounds": 3, "value": 0.5, "lost": 4}
    assert about.items() <= got["run"].items()
    assert [row["predicted_s"] for row in got["rounds"]] == [4.0, 6.0]
    assert got["links"] == [
        {"link": "device_edge_up", "predicted": 1000, "measured": None, "predicted_all": 2000, "measured_all": None}
    ]
    first = got["devices"][0]
    fifth = got["devices"][5]
    assert (first["visits"], first["lost"], first["loss"], first["seconds"]) == (2, 1, 0.5, 4.0)
    assert (fifth["factory"], fifth["loss"], fifth["accuracy"]) == (1, 1.5, 0.75)
    assert [(row["visited"], row["lost"], row["loss"]) for row in got["factories"]] == [(1, 1, 0.5), (1, 0, 1.5)]
    assert [(row["round"], row["who"]) for row in got["troubles"]] == [(2, "2 visits"), (1, "2 visits")]
    assert got["plan"]["svg"].startswith("<svg")
    assert "<style" not in got["plan"]["svg"]  # the page's policy would refuse it
    assert watched.poll() == {}


def test_visits_of_rounds_that_do_not_wait(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25])
    body = json.loads(line(2, 0.5)) | {"arrivals": [[1, 1, 2.0, 3.5], [0, 0, 0.5, 4.0]], "info": {"late": [5]}}
    late = ["6", -1, None, 10**40]
    odd = json.loads(line(3, 0.5)) | {"arrivals": [[2, 2, 4.0, 5.0, 4.25, 4.5]], "info": {"late": late}}
    with (run / "ledger.jsonl").open("a") as file:
        file.write(f"{json.dumps(body)}\n{json.dumps(odd)}\n")
    watched = Watched(run)
    watched.poll()
    rows = watched.document["trips"]
    assert [(row["device"], row["begin"], row["end"], row["ended"], row["age"]) for row in rows[:4]] == [
        (1, 2.0, 3.5, 4.0, 0), (0, 0.5, 4.0, 4.0, 1), (5, 0.5, 4.0, 4.0, None), (2, 4.0, 5.0, 5.0, 0)
    ]  # fmt: skip
    assert [row["training"] for row in rows[:4]] == [[], [], [], [4.25, 4.5]]
    assert rows[0]["name"] == "device 1"
    assert watched.document["rounds"][-1]["round"] == 3


def test_a_new_round_is_appended(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25])
    watched = Watched(run)
    watched.poll()
    text = line(2, 0.75)
    with (run / "ledger.jsonl").open("a") as file:
        file.write(text[:50])
        file.flush()
        assert "append" not in watched.poll()  # half a line is none
        file.write(text[50:])
    changes = watched.poll()
    assert [row["round"] for row in changes["append"]["rounds"]] == [2]
    assert changes["run"]["value"] == 0.75
    assert "rounds" not in changes


@pytest.mark.parametrize("back", [1, 2])
def test_a_resume_cuts_the_ledger(tmp_path: Path, back: int) -> None:
    run = make_run(tmp_path / "run", [0.1, 0.2, 0.3])
    watched = Watched(run)
    watched.poll()
    kept = "".join(line(i, 0.9) for i in range(1, 4 - back))
    (run / "ledger.jsonl").write_text(kept + line(4 - back, 0.8))
    os.utime(run / "ledger.jsonl")
    watched.poll()
    watched.poll()
    assert [row["value"] for row in watched.document["rounds"]] == [0.9] * (3 - back) + [0.8]
    assert watched.document["run"]["round"] == 4 - back


def test_a_ledger_that_was_cut_and_grew_between_two_looks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.1, 0.2])
    watched = Watched(run)
    watched.poll()
    with (run / "ledger.jsonl").open("r+") as file:  # in place, as a resume does
        file.write("".join(line(i, 0.75) for i in (1, 2, 3)))
    for _ in range(3):
        watched.poll()
    assert [row["value"] for row in watched.document["rounds"]] == [0.75] * 3
    assert not watched.document["troubles"]


def test_long_runs_are_thinned_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.5] * 1000)
    watched = Watched(run)
    watched.poll()
    rounds = [row["round"] for row in watched.document["rounds"]]
    assert len(rounds) <= MOST_ROUNDS
    assert (rounds[0], rounds[-1], watched.document["run"]["round"]) == (1, 1000, 1000)


def test_what_real_machines_measured_and_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.1])
    (run / "ledger.jsonl").write_text(
        live_line(
            1, absent=["factory 1"], failed={"device 3": "its sensor failed"}, refused={"north": {"x": {"range": 4}}}
        )
        + live_line(2)
    )
    watched = Watched(run)
    watched.poll()
    got = watched.document
    assert got["run"]["live"]
    assert {row["link"]: (row["measured"], row["measured_all"]) for row in got["links"]} == {
        "device_edge_down": (1100, 2200), "edge_cloud_up": (220, 440),
    }  # fmt: skip
    assert {(row["who"], row["kind"], row["why"]) for row in got["troubles"]} == {
        ("factory 1", "absent", "its edge did not answer: its visits are lost"),
        ("device 3", "failed", "its sensor failed"),
        ("x", "refused", "by north: range (4 so far)"),
    }
    assert got["factories"][1]["absent"] == 1
    assert got["devices"][3]["why"] == "its sensor failed"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ledger.jsonl", "{}\n"), ("ledger.jsonl", "nonsense\n"), ("ledger.jsonl", "[" * 100_000 + "\n"),
        ("park.json", "{"), ("experiment.toml", "= 3"), ("plan.json", '{"plan": 3}'),
        ("checkpoint/round-00000009/state.json", '{"round": 1, "receipts": [[1]]}'),
        ("checkpoint/round-00000009/state.json", '{"round": {}, "receipts": 3}'),
        ("checkpoint/round-00000009/state.json", '{"round": Infinity, "receipts": []}'),
        ("checkpoint/round-00000009/state.json", json.dumps({"round": 1, "receipts": [[10**400]]})),
    ],
)  # fmt: skip
def test_damaged_files_are_named_and_passed_over(tmp_path: Path, file: str, text: str) -> None:
    run = make_run(tmp_path / "run", [0.1])
    path = run / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    watched = Watched(run)
    watched.poll()
    (run / "ledger.jsonl").open("a").write(line(2, 0.4))
    watched.poll()
    assert watched.document["run"]["round"] == 2
    named = file == "plan.json" or any(path.name in row["why"] + row["who"] for row in watched.document["troubles"])
    assert named or file.startswith("checkpoint")


def test_a_number_beyond_floats_is_no_figure_of_a_device(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25])
    checkpoint(run, 1, [[0, 0, 0, 3, 30, 1.0, 10**400, -(10**400), 400, False, None, 10**400]])
    watched = Watched(run)
    watched.poll()
    first = watched.document["devices"][0]
    assert (first["visits"], first["loss"], first["accuracy"], first["seconds"]) == (1, None, None, None)


def test_the_end_of_a_run(tmp_path: Path) -> None:
    ends = {}
    for name, rounds, close in (
        ("whole", 2, evaluate),
        ("early", 9, evaluate),
        ("gone", 9, diverge),
        ("killed", 9, None),
    ):
        run = make_run(tmp_path / name, [0.1, 0.2], rounds=rounds)
        if close:
            close(run)
        watched = Watched(run)
        watched.poll()
        ends[name] = watched.document["run"]["state"]
    assert ends == {"whole": "finished", "early": "stopped", "gone": "diverged", "killed": "not running"}


def test_a_run_whose_folder_a_process_owns_is_running(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.1], rounds=3)
    with (run / ".lock").open("w"):
        watched = Watched(run)
        watched.poll()
        assert watched.document["run"]["state"] == "running"


def test_what_a_round_waits_for_is_shown_while_it_waits(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.1], rounds=3)
    watched = Watched(run)
    shown = list[Any]()

    def look() -> None:
        watched._looked = -1e9  # processes are looked at once a second
        watched.poll()
        shown.append(watched.document["run"]["waits"])

    waits = run / "waiting.json"
    with (run / ".lock").open("w"):
        look()
        waits.write_text(json.dumps({"round": 2, "why": "0 of 8 devices\x1b", "since": 5.04, "until": 65.04}))
        look()
        waits.write_text(json.dumps({"round": 2, "why": "7 of 8 devices", "since": 5.04, "until": 65.04}))
        look()
        waits.unlink()
        look()
        waits.write_text(json.dumps({"round": 2, "why": 7}))
        look()
        waits.write_text(json.dumps({"round": 0, "why": "before round 1", "since": 1, "until": 2}))
        look()
    look()  # it has ended
    assert [row and row["why"] for row in shown] == [
        None, "0 of 8 devices\\x1b", "7 of 8 devices", None, "7 of 8 devices", "before round 1", None,
    ]  # fmt: skip
    assert shown[1]["since"] == 5.0
    assert shown[1]["until"] == 65.0


def test_a_park_with_its_processes_and_logs(tmp_path: Path) -> None:
    park = tmp_path / "park"
    make_run(park / "run", [0.1])
    (park / "logs").mkdir()
    members = [{"name": f"device-{k}", "kind": "device", "pid": 2**22 + k, "log": "/etc/passwd"} for k in range(8)]
    members += [{"name": "../../secret", "kind": "edge", "pid": os.getpid(), "log": "x"}]
    (park / "live.json").write_text(json.dumps(members))
    (tmp_path / "secret.log").write_text("secret\n")
    log = park / "logs" / "device-3.log"
    log.write_text("note: old\n")
    watched = Watched(park)
    watched.poll()
    watched.poll()
    assert {row["state"] for row in watched.document["processes"]} == {"dead"}
    assert watched.document["devices"][3]["machine"] == "dead"
    with log.open("a") as file:
        file.write("\x1b[31mred\x1b[0m <b>\x07\n")
    assert [row["text"] for row in watched.poll()["append"]["log"]] == ["red <b>\\x07"]
    assert [row["text"] for row in watched.document["log"]] == ["note: old", "red <b>\\x07"]
    with log.open("a") as file:  # a flood
        file.write("x" * 70 + "\n" * 1 + "y\n" * 500_000)
    watched.poll()
    assert len(watched.document["log"]) <= MOST_LINES


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"z" * 9_000_000)
    tail = Tail(path)
    pieces = [tail.read()[1] for _ in range(4)]
    assert max(len(piece[0]) for piece in pieces if piece) <= 4_000_000
    assert short("a\nb") == "a b"


def test_a_folder_that_is_none(tmp_path: Path, command: Command) -> None:
    with refusals.refused("folder-of-run"):
        Watched(tmp_path)
    assert Watched(tmp_path / "later", waiting=True).poll()["run"]["state"] == "waiting"
    got = command("watch", str(tmp_path))
    assert (got.code, got.out) == (2, "")


def test_the_state_as_json(tmp_path: Path, command: Command) -> None:
    run = make_run(tmp_path / "run", [0.25, 0.5])
    got = command("watch", str(run), "--json")
    assert got.code == 0
    assert [row["round"] for row in got.document["rows"]] == [1, 2]
    assert got.document["run"]["round"] == 2
    assert not got.new


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host", "0.0.0.0"], "is reachable from elsewhere: give a certificate"),
        (["--host", "192.0.2.1", "--password-file", "p"], "is reachable from elsewhere"),
        (["--cert", "x"], "--cert and --key belong together"),
        (["--cert", "x", "--key", "x"], "--cert x, --key x: No such file"),
        (["--password-file", "absent"], "--password-file absent: No such file"),
        (["--password-file", "short"], "holds 5 characters, but needs at least 12"),
    ],
)
def test_what_is_refused_before_anything_listens(tmp_path: Path, command: Command, words: list[str], told: str) -> None:
    run = make_run(tmp_path / "run", [0.25])
    Path("short").write_text("12345\n")
    got = command("watch", str(run), *words)
    assert got.code == 2
    assert told in got.err


def test_stay_belongs_to_watch(command: Command) -> None:
    got = command("run", "tiny.toml", "--stay")
    assert got.code == 2
    assert "--stay requires --watch" in got.err


def test_a_folder_of_runs_shows_all_and_the_one_that_goes_on(tmp_path: Path) -> None:
    first = make_run(tmp_path / "fedavg-seed0", [0.2, 0.3], method="fedavg")
    second = make_run(tmp_path / "fedsr-seed0", [0.5], method="fedsr")
    make_run(tmp_path / "pooled-seed0", [0.9], method="pooled")
    os.utime(first / "ledger.jsonl", (1e9, 1e9))
    several = watched(tmp_path)
    assert isinstance(several, WatchedRuns)
    changes = several.poll()
    assert changes["run"]["method"] == "fedsr"  # the newest that is no reference
    assert [row["name"] for row in changes["runs"]] == ["fedavg-seed0", "fedsr-seed0", "pooled-seed0"]
    assert changes["runs"][0]["points"] == [[1, 0.2, 0.8], [2, 0.3, 0.7]]
    assert several.poll() == {}
    with (second / "ledger.jsonl").open("a") as ledger:
        ledger.write(line(2, 0.75))
    changes = several.poll()
    assert [row["round"] for row in changes["append"]["rounds"]] == [2]
    assert changes["runs"][1]["points"][-1] == [2, 0.75, 0.25]
    with (first / ".lock").open("w"):  # a process works on it
        make_run(tmp_path / "moon-seed0", [0.4], method="moon")
        assert len(several.poll()["runs"]) == 4
        assert several.device(3) == {"device": 3, "rounds": [], "tested": []}
        assert several.device(8) is None
    with refusals.refused("folder-of-run"):
        watched(tmp_path / "nothing")


def test_the_rounds_of_a_device_are_remembered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25], rounds=3)
    state = Watched(run)
    for number, loss in ((1, 0.9), (2, 0.4)):
        checkpoint(run, number, [receipt(5, loss=loss), receipt(5, lost=True)])
        state.poll()
    rows = ['{"round": 1, "headline": "accuracy", "devices": {"5": 0.25, "6": 0.5}}', "damaged", '{"devices": 3}']
    rows += [f'{{"round": {number}, "headline": "accuracy", "devices": {{"5": NaN}}}}' for number in ("1e400", "2")]
    (run / "devices.jsonl").write_text("".join(f"{row}\n" for row in rows))
    expected = {"device": 5, "rounds": [[1, 0.9, 0.75, 1], [2, 0.4, 0.75, 1]], "tested": [[1, 0.25]]}
    assert state.device(5) == expected

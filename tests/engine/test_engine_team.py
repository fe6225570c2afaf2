from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from fedfloor.base import outside
from fedfloor.base.errors import DivergedError, RunError, SettingError
from fedfloor.engine.team import Alone, PeerLostError, Shared, Team, shared_file
from fedfloor.plan.nodes import Parallel
from fedfloor.runs import launch
from floor import bits, engine, everywhere, park, together, visits, walk
from refusals import refused

ROOM = 1 << 20  # bytes of the smallest mailbox
HEAD = 8 * 3  # a message of two parts begins with three 64-bit words: how many parts, and their lengths


def message(turn: int, rank: int, sizes: tuple[int, ...]) -> list[bytes]:
    """What a rank says in a turn: every rank can work out what every other one says."""
    rng = np.random.default_rng([turn, rank])
    return [rng.bytes(size) for size in sizes]


def heard_all(team: Team, turn: int, sizes: Callable[[int], tuple[int, ...]]) -> bool:
    said = team.gather(message(turn, team.rank, sizes(team.rank)))
    expected = [message(turn, rank, sizes(rank)) for rank in range(team.size)]
    return [[bytes(part) for part in one] for one in said] == expected


def test_mailboxes_are_as_large_as_this_file_thinks(tmp_path: Path) -> None:
    path = shared_file(2, 0)
    team = Shared(path, 0, 2)
    path.unlink()
    assert team._room == ROOM
    team.close()


def test_alone_hears_itself() -> None:
    assert [[bytes(part) for part in one] for one in Alone().gather([b"", b"ab"])] == [[b"", b"ab"]]
    assert Alone().gather([]) == [[]]


@pytest.mark.parametrize("ranks", [2, 3])
def test_small_and_empty_messages_over_many_turns(ranks: int) -> None:
    def body(team: Team) -> bool:
        shapes = np.random.default_rng(0).integers(0, 300, (400, team.size, 4))
        counts = np.random.default_rng(1).integers(0, 5, (400, team.size))
        return all(
            heard_all(team, turn, lambda r, t=turn: tuple(shapes[t, r, : counts[t, r]].tolist())) for turn in range(400)
        )

    assert everywhere(ranks, body) == [True] * ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_larger_than_a_mailbox_come_in_several_turns(ranks: int) -> None:
    # With its head a message of ROOM − HEAD bytes fills a mailbox exactly, and so do two and three of them.
    cases = [0, 1, ROOM - HEAD - 1, ROOM - HEAD, ROOM - HEAD + 1, 2 * ROOM - HEAD, 3 * ROOM - HEAD, 5 * ROOM // 2]

    def body(team: Team) -> bool:
        rng = np.random.default_rng(2)
        for turn in range(24):
            sizes = [cases[turn % 8], *rng.choice(cases, team.size - 1)]  # the first rank's is sometimes the longest
            cut = [int(rng.integers(0, size + 1)) for size in sizes]
            if not heard_all(team, turn, lambda r, s=sizes, c=cut: (c[r], int(s[r]) - c[r])):
                return False
        return True

    assert everywhere(ranks, body) == [True] * ranks


def test_what_was_heard_stays_when_the_mailboxes_are_filled_again() -> None:
    def body(team: Team) -> bool:
        first = team.gather([bytes([team.rank]) * 1000])
        for turn in range(6):
            team.gather([bytes([100 + turn]) * 1000])
        return [bytes(one[0]) for one in first] == [bytes([rank]) * 1000 for rank in range(team.size)]

    assert everywhere(2, body) == [True, True]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_message_is_read_before_all_of_it_is_written(ranks: int) -> None:
    """A rank that leaves a barrier early, or a processor that reorders, shows numbers of another turn."""

    def body(team: Team) -> bool:
        rng = np.random.default_rng(team.rank)
        for turn in range(1500):
            said = team.gather([np.full(500, turn * team.size + team.rank).data])
            if any((np.frombuffer(one[0], np.int64) != turn * team.size + rank).any() for rank, one in enumerate(said)):
                return False
            if rng.random() < 0.01:
                time.sleep(rng.random() / 500)  # the others run ahead, and sleep
        return True

    assert everywhere(ranks, body) == [True] * ranks


def test_arrays_are_sent_as_their_bytes() -> None:
    def body(team: Team) -> list[float]:
        said = team.gather([np.full(3, team.rank + 0.5).data, memoryview(np.zeros(0))])
        assert all(len(one[1]) == 0 for one in said)
        return [float(np.frombuffer(one[0]).sum()) for one in said]

    assert everywhere(2, body) == [[1.5, 4.5]] * 2


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 30.0)  # on a busy machine a rank may need long to note what it heard


def pass_together(team: Team, folder: Path) -> None:
    """Return once every rank is past the team's first turn: who is still in it when another fails hears of it there."""
    team.gather([b"before"])
    (folder / f"{team.rank}.past").touch()
    while len(list(folder.glob("*.past"))) < team.size:
        time.sleep(0.001)


def failing(tmp_path: Path, error: BaseException, guilty: int, ranks: int = 3) -> tuple[BaseException, list[list[str]]]:
    """Let a rank fail while the others wait; return what the first rank raises and what the innocent ones heard."""

    def body(team: Team) -> None:
        pass_together(team, tmp_path)
        if team.rank == guilty:
            time.sleep(0.15)  # the others wait by then, or soon, and have looked after the living
            raise error
        try:
            team.gather([b"after"])
        except BaseException as heard:
            (tmp_path / f"{team.rank}.json").write_text(json.dumps([type(heard).__name__, str(heard)]))
            raise

    with pytest.raises(BaseException) as caught:  # noqa: PT011  (which one is what the tests ask)
        together(ranks, body)
    return caught.value, [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]


@pytest.mark.parametrize("guilty", [0, 1, 2])
@pytest.mark.parametrize("kind", [SettingError, RunError, DivergedError])
def test_a_failure_is_raised_in_the_others_with_its_class_and_text(
    tmp_path: Path, kind: type[Exception], guilty: int
) -> None:
    raised, heard = failing(tmp_path, kind("η = −1: must be above 0."), guilty)
    assert (type(raised), str(raised)) == (kind, "η = −1: must be above 0.")
    assert heard == [[kind.__name__, "η = −1: must be above 0."]] * 2


def test_the_first_of_several_failures_is_the_one_that_counts() -> None:
    path = shared_file(3, 0)
    teams = [Shared(path, rank, 3) for rank in range(3)]
    path.unlink()
    teams[1].fail(SettingError("first"))
    teams[2].fail(RunError("second, and longer"))
    for team in (teams[0], teams[2], teams[1], teams[0]):  # who failed hears it too, and everyone as often as it asks
        with pytest.raises(SettingError, match=r"^first$"):
            team.gather([b"x"])
    for team in teams:
        team.close()


def test_an_error_nobody_thought_of_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_LOADED", {})  # without code of one's own
    raised, heard = failing(tmp_path, ZeroDivisionError("division by zero"), 1)
    assert (type(raised), str(raised)) == (RunError, "ZeroDivisionError: division by zero")
    assert heard == [["RunError", "ZeroDivisionError: division by zero"]] * 2


def test_the_others_get_file_and_line_of_a_users_code_whoever_reports_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rule.py").write_text("def rule():\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    rule = outside.load("own_rule:rule", "rule")
    path = shared_file(2, 0)
    teams = [Shared(path, rank, 2) for rank in range(2)]
    path.unlink()
    with pytest.raises(ZeroDivisionError) as raised:
        rule()
    teams[1].fail(raised.value)  # as it comes from the walk: nothing has named the line before
    with pytest.raises(RunError, match=r"own_rule\.py, line 2, in rule: ZeroDivisionError"):
        teams[0].gather([b"x"])
    for team in teams:
        team.close()


def test_a_very_long_text_arrives_cut_but_readable(tmp_path: Path) -> None:
    # 'η' has two bytes, so that one of the two texts is cut in the middle of a letter
    for text in ("η" * 40_000, "x" + "η" * 40_000):
        raised, _ = failing(tmp_path, SettingError(text), 1)
        assert type(raised) is SettingError
        assert text.startswith(str(raised))
        assert len(str(raised)) > 10_000


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_killed_rank_is_noticed(tmp_path: Path, ranks: int) -> None:
    def body(team: Team) -> None:
        pass_together(team, tmp_path)
        if team.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            team.gather([b"after"])
        except RunError as heard:
            (tmp_path / str(team.rank)).write_text(str(heard))
            raise

    began = time.monotonic()
    with refused("rank-lost", PeerLostError):
        together(ranks, body)
    assert time.monotonic() - began < 10  # it looks every 0.1 s
    heard = [path for path in tmp_path.iterdir() if path.suffix != ".past"]
    assert {path.read_text() for path in heard} == {(tmp_path / "0").read_text()}
    assert len(heard) == ranks - 1


def waiting(look: Callable[[Shared], None], status: int = 1) -> BaseException:
    """Let the first of two ranks wait for ever, after ``look`` has prepared it, and return what it raises."""
    path = shared_file(2, 0)
    first = Shared(path, 0, 2)
    second = Shared(path, 1, 2)
    path.unlink()
    try:
        look(second)
        dead = os.fork()
        if not dead:
            os._exit(status)
        first.children = [dead]
        os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)  # it is dead now, and nobody has been told
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            first.gather([b"x"])
        return caught.value
    finally:
        first.close()
        second.close()


def test_who_said_why_before_it_died_is_believed() -> None:
    raised = waiting(lambda second: second.fail(SettingError("work.lr = −1.")))
    assert (type(raised), str(raised)) == (SettingError, "work.lr = −1.")


def test_a_rank_that_ends_without_an_error_is_dead_too() -> None:
    assert type(waiting(lambda second: None, status=0)) is PeerLostError


def test_a_rank_somebody_else_has_reaped_is_dead_too() -> None:
    def reaped(pid: int, options: int) -> tuple[int, int]:
        raise ChildProcessError(errno.ECHILD, "No child processes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "waitpid", reaped)
        assert type(waiting(lambda second: None)) is PeerLostError


def _lead_and_die(folder: str) -> None:
    def body(team: Team) -> None:
        (Path(folder) / f"{os.getpid()}").touch()
        team.gather([b"all wrote their number"])
        if team.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        team.gather([b"for ever"])

    together(3, body)


@pytest.mark.slow
def test_nobody_outlives_the_first_rank(tmp_path: Path) -> None:
    leader = get_context("fork").Process(target=_lead_and_die, args=(str(tmp_path),))
    leader.start()
    leader.join(20)
    assert leader.exitcode == -signal.SIGKILL
    others = {int(path.name) for path in tmp_path.iterdir()} - {leader.pid}
    assert len(others) == 2
    until = time.monotonic() + 10
    while time.monotonic() < until and any(_lives(pid) for pid in others):
        time.sleep(0.05)
    assert not any(_lives(pid) for pid in others)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- gloo --------------------------------------------------------------------------------------------------------------


def _gloo(rank: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    from fedfloor.runs.torchrun import Gloo

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    team = Gloo()
    assert (team.rank, team.size) == (rank, 2)
    sizes = [(), (0,), (5, 0, 7), (0, 0), (300_000, 1), (2, 3, 4, 5)]
    for turn in range(30):
        assert heard_all(team, turn, lambda r, t=turn: sizes[(t + r * (t // 6)) % 6])
    of = engine(park(), team=team)
    outcome = walk(of, Parallel(visits(range(5))))
    (Path(folder) / f"{rank}.model").write_bytes(bits(outcome.packet["w"]))
    (Path(folder) / f"{rank}.receipts").write_text(repr(outcome.receipts))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_gloo_hears_the_same_and_trains_to_the_same_bits(tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.start_processes(_gloo, args=(str(tmp_path),), nprocs=2, start_method="spawn")
    alone = walk(engine(park()), Parallel(visits(range(5))))
    for rank in range(2):
        assert (tmp_path / f"{rank}.model").read_bytes() == bits(alone.packet["w"])
        assert (tmp_path / f"{rank}.receipts").read_text() == repr(alone.receipts)

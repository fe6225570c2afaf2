"""Many machines: torchrun jobs on several hosts, ranks that die, and hosts that differ.

Hosts are network namespaces joined by a cable (veth), which only root may make.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from test_identity import figures, on_ranks

import warm
from commands import TINY, Command, lines
from fedfloor import config
from fedfloor.base.errors import RunError
from fedfloor.runs import torchrun
from fedfloor.runs.checks import _difference
from fedfloor.runs.torchrun import _sent_to_all

MANY = TINY.replace("rounds = 3", "rounds = 40").replace("devices = 4", "devices = 6")
HERE = """
import os, sys
from pathlib import Path
def first(number):  # the start of the job
    return os.environ["RANK"] == str(number) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
"""
# A rank that kills itself once the run has some rounds behind it, at its first start only.
DIES = """
import threading, time, signal
def watch():
    ledger = Path(sys.argv[sys.argv.index("--out") + 1]) / "ledger.jsonl"
    while not ledger.exists() or ledger.read_bytes().count(b"\\n") < 4:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
if first({rank}):
    threading.Thread(target=watch, daemon=True).start()
"""
CABLE = 'os.environ["GLOO_SOCKET_IFNAME"] = "fed0"\n'
OLDER = """
import fedfloor.runs.folder
if os.environ["RANK"] == "1":
    fedfloor.runs.folder.__version__ = "0.0.1"
"""


@pytest.mark.parametrize(("hosts", "ranks"), [(("a", "b"), 2), (("a", "a", "b"), 3), (("a",) * 200, 200)])
def test_ranks_on_several_hosts_or_more_than_share_memory_form_a_team_by_gloo(
    hosts: tuple[str, ...], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(into: list[str], mine: str) -> None:
        into[:] = hosts

    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    team = torchrun._team(1000)
    assert isinstance(team, torchrun.Gloo)
    assert (team.rank, team.size) == (1, ranks)


def job(folder: Path, script: str, *words: str, options: tuple[str, ...] = ()) -> warm.Done:
    (folder / "many.toml").write_text(MANY)
    made = warm.Job(("--standalone", *(options or ("--nproc-per-node", "2"))), HERE + script)
    return warm.fedfloor(("run", "many.toml", *words), folder, folder / "log", 150, made)


def calm(folder: Path) -> object:
    """The figures of a run that nobody disturbed."""
    (folder / "many.toml").write_text(MANY)
    return on_ranks(config.read(folder / "many.toml"), folder / "calm", (1,))[0]


# -- a rank dies -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_started_again_goes_on_from_the_checkpoint(tmp_path: Path, rank: int) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.2")
    done = job(tmp_path, DIES.format(rank=rank), "--out", "out", options=options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torchrun restarted this job") == 1, done.stderr
    assert figures(tmp_path / "out") == calm(tmp_path)


@pytest.mark.slow
def test_without_restarts_a_death_ends_the_job_and_the_run_can_go_on(tmp_path: Path) -> None:
    ended = job(tmp_path, DIES.format(rank=1), "--out", "out")
    assert ended.returncode != 0
    assert len(lines(tmp_path / "out")) < 40
    again = job(tmp_path, "", "--out", "out", "--resume")
    assert again.returncode == 0, again.stderr
    assert figures(tmp_path / "out") == calm(tmp_path)


@pytest.mark.slow
def test_a_job_started_again_does_not_go_on_with_another_jobs_run(tmp_path: Path) -> None:
    first = job(tmp_path, DIES.format(rank=1), "--out", "out")
    assert first.returncode != 0
    before = lines(tmp_path / "out")
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.2")
    other = job(tmp_path, "", "--out", "out", options=options)
    assert other.returncode != 0
    assert other.stderr.count("error: out already holds a run") == 4  # both ranks, twice
    assert lines(tmp_path / "out") == before


# -- hosts that differ -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_versions_of_fedfloor_are_refused(tmp_path: Path) -> None:
    done = job(tmp_path, OLDER, "--out", "out")
    assert done.returncode != 0
    from fedfloor import __version__

    assert f"rank 1 differs from rank 0 in its versions: fedfloor 0.0.1 instead of {__version__}. All" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_difference_names_both_and_only_what_differs() -> None:
    one = {"torch": "2.9", "numpy": "2.3", "a": {"b": 1}}
    other = {"torch": "2.8", "numpy": "2.3", "a": {"b": 1, "c": 2}}
    assert _difference(one, other) == "a.c not set instead of 2; torch 2.9 instead of 2.8"
    assert _difference(0, 2) == "0 instead of 2"


def test_what_stops_the_first_rank_is_told_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(dist, "broadcast_object_list", lambda sent, src: told.append(sent[0]))
    with pytest.raises(KeyError), _sent_to_all():
        raise KeyError("a bug")
    with _sent_to_all() as said:
        said.append(True)
    assert isinstance(told[0], RunError)
    assert str(told[0]) == "the first rank failed: KeyError: 'a bug'."
    assert told[1] is None


# -- more ranks than branches ------------------------------------------------------------------------------------------


def test_idle_ranks_change_nothing(command: Command) -> None:
    for ranks in ("1", "5"):
        change = ("--set", "methods.fedavg.fraction=0.5")  # two of four devices
        assert command("run", "tiny.toml", *change, "--ranks", ranks, "--out", f"on{ranks}").code == 0
    assert figures(command.folder / "on1") == figures(command.folder / "on5")


@pytest.mark.slow
def test_idle_ranks_of_a_job_change_nothing(tmp_path: Path) -> None:
    done = job(tmp_path, "", "--out", "out", options=("--nproc-per-node", "8"))  # six devices
    assert done.returncode == 0, done.stderr
    assert "8 ranks, but this plan has parallel work for 6" in done.stderr
    assert figures(tmp_path / "out") == calm(tmp_path)


# -- two hosts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and the command ip, to make two network namespaces")
    names = (f"fedfloor-a{os.getpid()}", f"fedfloor-b{os.getpid()}")
    if subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let root make network namespaces")
    try:
        a, b = names
        for line in (
            f"netns add {b}", f"link add name fed0 netns {a} type veth peer name fed0 netns {b}",
            *(f"-n {one} addr add 10.77.0.{i}/24 dev fed0" for i, one in enumerate(names, 1)),
            *(f"-n {one} link set {device} up" for one in names for device in ("lo", "fed0")),
        ):  # fmt: skip
            subprocess.run(["ip", *line.split()], check=True, capture_output=True)
        yield names
    finally:
        for one in names:
            subprocess.run(["ip", "netns", "del", one], check=False, capture_output=True)


def on_hosts(
    hosts: tuple[str, str], folder: Path, script: str, *words: str, options: tuple[str, ...] = ()
) -> list[warm.Started]:
    """Start a job with one rank on each of two hosts; what they say is in the files a.err and b.err."""
    (folder / "many.toml").write_text(MANY)
    meet = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400")
    begun = []
    for i, host in enumerate(hosts, 1):
        own = ("--rdzv-id", "halls", "--rdzv-conf", f"is_host={2 - i}", "--local-addr", f"10.77.0.{i}")
        made = warm.Job((*meet, *own, *options), HERE + CABLE + script, host)
        begun.append(warm.begin(("run", "many.toml", *words), folder, folder / "ab"[i - 1], job=made))
    return begun


def ended(jobs: list[warm.Started], folder: Path) -> str:
    """Wait for a job on two hosts and return what it said."""
    try:
        for one in jobs:
            one.wait(90)
    finally:
        for one in jobs:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait(10)
    return "".join((folder / f"{host}.err").read_text() for host in "ab")


@pytest.mark.slow
def test_two_hosts_with_a_rank_each_are_one_host(hosts: tuple[str, str], tmp_path: Path) -> None:
    for method in ("fedsr", "hierfavg"):
        changes = (f"method.name={method}", "faults.visit=0.1")
        words = (word for change in changes for word in ("--set", change))
        said = ended(on_hosts(hosts, tmp_path, "", *words, "--out", f"two-{method}"), tmp_path)
        (one,) = on_ranks(config.read(tmp_path / "many.toml", list(changes)), tmp_path / f"one-{method}", (1,))
        assert figures(tmp_path / f"two-{method}") == one, said


@pytest.mark.slow
def test_a_death_on_one_of_two_hosts_is_made_good(hosts: tuple[str, str], tmp_path: Path) -> None:
    options = ("--max-restarts", "2", "--monitor-interval", "0.2")
    said = ended(on_hosts(hosts, tmp_path, DIES.format(rank=1), "--out", "out", options=options), tmp_path)
    assert "torchrun restarted this job" in said, said
    assert figures(tmp_path / "out") == calm(tmp_path), said


@pytest.mark.slow
def test_hosts_without_restarts_say_what_became_of_the_other(hosts: tuple[str, str], tmp_path: Path) -> None:
    jobs = on_hosts(hosts, tmp_path, DIES.format(rank=1), "--out", "out")
    said = ended(jobs, tmp_path)
    assert all(one.poll() for one in jobs), said
    assert "error: a rank on this or another host died or is not reachable" in said, said
    assert 0 < len(lines(tmp_path / "out")) < 40

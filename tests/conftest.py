"""What several tests share."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import typer.main

import long
import refusals
from commands import Command, begin

if TYPE_CHECKING:
    from web import Server

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # as the command line does, and before NumPy and PyTorch start: ranks can then be copies
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)  # a busy machine is no failure
hypothesis.settings.load_profile("busy")
os.environ.pop("FEDFLOOR_MIRROR", None)  # downloads ask whom the test names
os.environ.pop("COLUMNS", None)  # workers have 80, where a test that says nothing means a file's width


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("FEDFLOOR_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEDFLOOR_DATA names no folder with the published data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def cases_root() -> Path:
    """The folder of inputs that failed once; a test that needs it is skipped where there is none."""
    folder = Path(os.environ.get("FEDFLOOR_CASES") or Path(__file__).parents[2] / "shared/cases")
    if not folder.is_dir():
        pytest.skip("neither ../shared/cases beside the repository nor FEDFLOOR_CASES holds the inputs that failed")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of these tests' own, for them and the processes they start."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFLOOR_CACHE", str(folder))
        yield
    shutil.rmtree(folder)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, with an empty cache beside it."""
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """A process at a prompt builds the command line once, and so do the thousands of commands of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task")) if Path("/proc/self/task").is_dir() else set()


@pytest.fixture(autouse=True)
def _ranks_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks start as a command's do: threads that are there before the test, all waiting, do not count.

    They are xdist's, which waits for messages, and those of parks that earlier tests had in this process. Copies are as
    safe as without them; ranks in fresh interpreters would each import PyTorch anew.
    """
    known = _threads() - {str(os.getpid())}
    torch = sys.modules.get("torch")
    if known and not (torch and torch.cuda.is_initialized()):  # which no copy could use
        from fedfloor.runs import launch

        monkeypatch.setattr(launch, "single_threaded", lambda: len(_threads() - known) == 1)


@pytest.fixture(scope="session")
def labels_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of logistic regression on rendered labels, 124 test samples; do not write in it."""
    import fedfloor
    from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings

    what = fedfloor.Experiment(
        rounds=1, data=DataSettings(samples_per_device=310, normalise="standard"), park=ParkSettings(devices=4),
        model=ModelSettings("logistic"),
    )  # fmt: skip
    return fedfloor.run(what, tmp_path_factory.mktemp("labels") / "run", ranks=1).folder


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command line, in a folder of its own that holds ``tiny.toml``."""
    yield from begin(tmp_path, capsys, monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server on this machine."""
    from web import serve

    with serve() as has:
        yield has


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that writes tests/messages.txt."""
    parser.addoption(
        "--approve-messages", action="store_true", help="write the messages of the tests that run to tests/messages.txt"
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[object]:
    """Compare the messages that a test met with the approved ones."""
    test = refusals.running()
    refusals.met.pop(test, None)
    result = yield
    pyfuncitem.user_properties.append(("messages", [test, refusals.met.get(test, [])]))
    if not pyfuncitem.config.getoption("--approve-messages") and (changes := refusals.difference(test)):
        pytest.fail(changes, pytrace=False)
    return result


_ran: dict[str, list[str]] = {}  # the messages of the tests that passed, of all processes


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the messages of tests that passed."""
    if report.when == "call" and report.passed:
        _ran.update(value for name, value in report.user_properties if name == "messages")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the approved messages anew."""
    if session.config.getoption("--approve-messages") and not hasattr(session.config, "workerinput"):
        refusals.approve({test: messages for test, messages in _ran.items() if messages}, _ran)


TESTS = Path(__file__).parent
_long = functools.cache(long.names)


# Those that take longest, longest first: one that starts last would keep a single core busy.
LONG = (
    "trains_as_its_simulation", "on_three_machines",
    "test_the_tutorial_runs", "in_the_docs_work[README.md]", "plain_twin_of_its_objective", "test_fedsr_mnist_is",
    "killed_ten_times", "in_the_docs_work[your-method.md]", "in_the_docs_work[reproduce.md]", "killed_twice",
    "test_disturbed_and_resumed", "in_the_docs_work", "test_torchrun", "is_its_plain_twin", "on_200_parks",
)  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files alone that hold none of the tests asked for: reading all of them takes longer than most tests."""
    asked = config.getoption("markexpr").split(" and ")[0]
    if collection_path.suffix != ".py":
        return None
    if asked == "long":
        files = {name.partition("::")[0] for name in _long()}
        return collection_path.relative_to(TESTS).as_posix() not in files or None
    if asked not in ("slow", "live"):
        return None
    return f"mark.{asked}" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of tests/long.txt, and begin with what takes longest."""
    for item in items:
        if item.nodeid.removeprefix("tests/").partition("[")[0] in _long():
            item.add_marker("long")
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if name in item.nodeid), len(LONG)))

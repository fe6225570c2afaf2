"""An edge that asks again as rows arrive, in runs that it makes up, learns no row: not two answers differ by a few."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_deploy_tasks import TASKS, folder_of, plant

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.answered import GROWN, Answers
from fedfloor.deploy.device import Agent
from fedfloor.deploy.message import Message, decode, encode
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.settings import DataSource
from fedfloor.park.survey import RowQuestion
from fedfloor.runs import checks
from fedfloor.runs.parks import build_park, load_data
from live_park import Broker, InMemory, device_settings, experiment
from refusals import refused

SECURE = 'method.travel = "secure-sum"\n'
NOISY = "methods.fedavg.work = { epochs = 1, sample_clip = 1.0, sample_noise = 50.0 }\n"
SENSOR = """
import numpy as np

def see(device, tick):
    seen = np.load({path!r})
    return seen["x"].astype(np.float32), seen["y"]
"""
FIRST = 30  # samples at first


class Asked:
    """A device with samples of its own, and an edge that asks for its holding in runs that it makes up."""

    def __init__(self, folder: Path, more: str, normalise: str = "standard", function: str = "") -> None:
        rng = np.random.default_rng(0)
        self.x = rng.normal(5, 3, (400, 3)).astype(np.float32)
        self.y = rng.integers(0, 2, 400)
        self.path = folder / "0.npz"
        classes = np.array(["good", "bad"])
        owner = np.arange(400) % 3
        tests = {"x_test": self.x[:9], "y_test": self.y[:9], "device_test": np.arange(9) % 3}
        np.savez(folder / "all.npz", x=self.x, y=self.y, device=owner, classes=classes, **tests)
        own = f"data.path = '{folder}/all.npz'\ndata.normalise = '{normalise}'\n"
        what = experiment(folder, "fedavg", devices=3, factories=1, more=own + more)
        self.read = config.read(what, [])
        self.facts = facts_of.of(self.read, load_data(self.read))
        source = DataSource("function", name=function) if function else DataSource("folder", self.path)
        self.settings = device_settings(folder, what, 0, 0, data=source)
        self.hold(range(FIRST))
        self.start()

    def hold(self, rows: Any) -> None:
        """Let the device hold these rows from now on."""
        np.savez(self.path, x=self.x[[*rows]], y=self.y[[*rows]], classes=np.array(["good", "bad"]))

    def start(self) -> None:
        """Start the device, again."""
        self.agent = Agent(self.settings, self.read, None, lambda will: InMemory(Broker(), will))

    def ask(self, run: str, question: RowQuestion | None = None) -> tuple[str, dict[str, Any]]:
        """Return the kind and content of the answer in a made-up run."""
        facts = replace(self.facts, question=None if question is None else question.to_dict())
        message = Message("facts", "e0", run=run, session=1, number=1, about={"facts": facts.to_dict()})
        kind, about, _ = self.agent.reply("e0", decode(encode(message)))
        return kind, about

    def sums(self, run: str) -> np.ndarray[Any, Any]:
        """Return the sums of each sensor, and the class counts, of the answer in a made-up run."""
        kind, about = self.ask(run)
        assert kind == "answer", about
        return np.array([*about["answer"]["sums"][1], *about["answer"]["counts"]])


@pytest.mark.parametrize("more", [SECURE, NOISY], ids=["masks", "noise"])
@pytest.mark.parametrize("restarts", [False, True])
def test_an_edge_that_invents_runs_as_rows_arrive_learns_no_row(more: str, restarts: bool, tmp_path: Path) -> None:
    """The difference of two answers was the row that arrived between them, with its label."""
    asked = Asked(tmp_path, more)
    answers = [asked.sums("invented 0")]
    for n in range(1, 60):
        asked.hold(range(FIRST + n))
        if restarts and not n % 7:
            asked.start()
        answers.append(asked.sums(f"invented {n}"))
    true = [np.array([*asked.x[:n].sum(0, dtype=np.float64), *np.bincount(asked.y[:n])]) for n in range(FIRST + 60)]
    held = [FIRST + GROWN * (n // GROWN) for n in range(60)]
    for told, n in zip(answers, held, strict=True):
        np.testing.assert_allclose(told, true[n], rtol=1e-6)
    assert len({tuple(told) for told in answers}) == 3


def test_the_others_in_a_sum_are_told_that_a_devices_samples_have_changed(tmp_path: Path) -> None:
    asked = Asked(tmp_path, SECURE)
    told = list[str]()
    for new in (0, GROWN - 1, GROWN):  # until 20 are new those of the last set are used
        asked.hold(range(FIRST + new))
        asked.sums(f"run {new}")
        worker = asked.agent.worker()
        assert worker._sum is not None
        told.append(worker._sum.reply("sum-keys", {"identity": "ab" * 32})["answer"][4])
    assert told[0] == told[1] != told[2]
    assert all(len(one) == 48 for one in told)
    assert len({one[:16] for one in told}) == 1


def test_where_updates_are_in_the_clear_all_rows_are_used_at_once(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "")
    before = asked.sums("a")
    asked.hold(range(FIRST + 1))
    np.testing.assert_allclose((asked.sums("b") - before)[:3], asked.x[FIRST], rtol=1e-4)


def test_a_device_trains_and_answers_with_the_same_samples(tmp_path: Path) -> None:
    asked = Asked(tmp_path, SECURE)
    asked.ask("a")
    asked.hold(range(FIRST + 5))
    kind, about = asked.ask("b")
    assert (kind, about["answer"]["samples"]) == ("answer", FIRST)
    assert int(asked.agent.own_park().holdings[0]) == FIRST
    asked.hold(range(FIRST + GROWN))
    assert asked.ask("c")[1]["answer"]["samples"] == FIRST + GROWN


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (range(1, FIRST), "0 of its 29 samples are new since its last exact answers, and 1 of those"),
        (range(1, FIRST + 1), "1 of its 30 samples are new since its last exact answers, and 1 of those"),
        ([*range(FIRST), *[0] * (GROWN - 1)], ""),  # copies of a row, which are not used
    ],
)
def test_rows_that_are_taken_away_or_replaced_reveal_nothing_either(rows: Any, why: str, tmp_path: Path) -> None:
    asked = Asked(tmp_path, SECURE)
    before = asked.sums("a")
    asked.hold(rows)
    kind, about = asked.ask("b")
    assert (kind == "refused") is bool(why)
    assert why in str(about)
    if not why:
        np.testing.assert_array_equal(asked.sums("c"), before)
    asked.hold(range(FIRST))
    np.testing.assert_array_equal(asked.sums("d"), before)  # put back


def test_a_device_with_few_samples_does_not_begin(tmp_path: Path) -> None:
    asked = Asked(tmp_path, SECURE)
    asked.hold(range(1))
    kind, about = asked.ask("a")
    assert (kind, about["reason"]) == ("refused", "data")
    assert f"for {GROWN} new ones or more" in about["text"]


def test_a_sensor_that_yields_a_few_new_samples_is_not_answered_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answered_sensor.py").write_text(SENSOR.format(path=str(tmp_path / "0.npz")))
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = Asked(tmp_path, SECURE, function="answered_sensor:see")
    before = asked.sums("a")
    asked.hold(range(1, FIRST + 1))
    assert asked.ask("b")[0] == "refused"
    asked.hold(range(FIRST))
    np.testing.assert_array_equal(asked.sums("c"), before)
    asked.hold(range(GROWN, FIRST + GROWN))
    assert asked.ask("d")[0] == "answer"


def test_the_questions_of_a_survey_are_limited_over_restarts_and_runs(tmp_path: Path) -> None:
    """Their number was that since the last start, and runs asked them of other rows."""
    asked = Asked(tmp_path, SECURE, "robust")
    most = 0
    for n in range(40):
        asked.start()
        kind, about = asked.ask(f"run {n}", RowQuestion("below", np.full((3, 2), float(n))))
        most += kind == "answer"
    assert most == 18
    assert "18 questions of the kind 'survey' about the same samples" in about["text"]
    assert asked.ask("again", RowQuestion("below", np.full((3, 2), 0.0)))[0] == "answer"


def test_with_noise_on_updates_there_are_no_questions_of_a_survey(tmp_path: Path) -> None:
    asked = Asked(tmp_path, NOISY, "robust")
    assert asked.ask("a", RowQuestion("below", np.zeros((3, 2))))[1]["reason"] == "question"
    with refused("data.normalise"):
        checks.method_fits(asked.read, asked.read.configured, build_park(asked.read), live=True)


def test_exact_class_counts_of_a_stream_are_refused_where_updates_have_noise(tmp_path: Path) -> None:
    more = """data.stream = { kind = "fifo", window = 10 }
methods.fedgs = { devices = 1, random = 0, work = { sample_clip = 1.0, sample_noise = 5.0, batch_size = 10 } }"""
    what = experiment(tmp_path, "fedgs", devices=3, factories=1, more=more)
    read = config.read(what, [])
    method = read.configured
    checks.method_fits(read, method, build_park(read), live=False)
    with refused("method"):
        checks.method_fits(read, method, build_park(read), live=True)
    noisy = replace(read, park=replace(read.park, census_epsilon=1.0))
    checks.method_fits(noisy, method, build_park(noisy), live=True)


def test_descriptions_of_a_sample_that_an_edge_makes_up_are_few(tmp_path: Path) -> None:
    asked = Asked(tmp_path, SECURE)
    kinds = list[str]()
    for n in range(9):
        asked.start()
        asked.facts = replace(asked.facts, name=f"another {n}")
        kinds.append(asked.ask(f"run {n}")[0])
    assert kinds == ["answer"] * 3 + ["refused"] * 6


Sets = st.lists(st.lists(st.integers(0, 60), max_size=70), max_size=12)


@given(Sets)
@settings(max_examples=200, deadline=None)
def test_no_two_sets_with_answers_differ_by_fewer_samples_than_documented(sets: list[list[int]]) -> None:
    answers = Answers(RevealRecord())
    answered = list[list[int]]()
    for some in sets:
        try:
            used = answers.settle(np.array(some, np.int64), np.arange(len(some)))
        except RefusedError:
            continue
        assert (np.diff(used) > 0).all()
        answered.append([some[place] for place in used])
    for n, after in enumerate(answered):
        for before in ([], *answered[:n]):
            new = sum(max(0, after.count(value) - before.count(value)) for value in {*after})
            assert sorted(after) == sorted(before) or new >= GROWN


def test_a_new_set_forgets_what_cannot_be_asked_again() -> None:
    record = RevealRecord()
    answers = Answers(record)

    def count(table: str) -> int:
        return int(record.rows(f"SELECT count(*) FROM {table}")[0][0])

    for forgets, left in ((False, 1), (True, 0)):
        with record.changing() as base:
            base.execute("INSERT OR IGNORE INTO sums VALUES (x'01', x'02')")
        answers.admit("scores", 1, 9)
        answers.settle(np.arange(100) + 1000 * forgets, np.arange(100), forgets=forgets)
        assert (count("answers"), count("sums"), count("samples")) == (0, left, 100 * (1 + forgets))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_sets_differ_by_as_many_samples_that_are_not_held_out(tmp_path: Path, share: float) -> None:
    """With 90 % held out of training, 20 new samples added two to the sums."""
    asked = Asked(tmp_path, f"{SECURE}evaluate.recent = {share}\n")
    answered = list[set[int]]()
    for n in range(FIRST, 400, 5):
        asked.hold(range(n))
        if asked.ask(f"invented {n}")[0] == "answer":
            now = set(asked.agent.own_park().indices[0].tolist())  # row k of the file is sample k
            assert now in answered or len(now - set[int]().union(*answered)) >= GROWN
            answered.append(now)
    assert len({*map(len, answered)}) >= 2


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("changes", [{"edges": 2000}, {"loss": "huber"}, {"bins": 9}, {}], ids=str)
def test_an_edge_cannot_ask_for_targets_by_ranges_as_narrow_as_it_likes(
    tmp_path: Path, task: str, changes: dict[str, Any]
) -> None:
    """With 5,000 ranges the class counts were the targets of all samples."""
    keys = "data.columns = { time = 'row', label = 'life' }\ndata.window = { length = 6, step = 2 }\n"
    more = f"data.path = '{plant(tmp_path)}'\n{keys}{TASKS[task]}\n{SECURE}"
    what = experiment(tmp_path, "fedavg", devices=4, factories=1, model="cnn-sensor", more=more)
    read = config.read(what, [])
    facts = facts_of.of(read, load_data(read))
    if "edges" in changes:
        changes = {"edges": tuple(float(edge) for edge in np.linspace(-60, 60, changes["edges"], dtype=np.float32))}
    asked = replace(facts.task, **changes)  # type: ignore[type-var]
    classes = tuple(f"range {number}" for number in range(len(asked.edges) + 1))
    settings = device_settings(tmp_path, what, 0, 0, data=folder_of(tmp_path / "plant")(0))
    agent = Agent(settings, read, None, lambda will: InMemory(Broker(), will))
    about = {"facts": replace(facts, classes=classes, task=asked).to_dict()}
    message = Message("facts", "e0", run="r", session=1, number=1, about=about)
    kind, about, _ = agent.reply("e0", decode(encode(message)))
    assert kind == ("refused" if changes else "answer"), about

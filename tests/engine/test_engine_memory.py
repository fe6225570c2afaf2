"""What devices keep between visits, and that any team walks any plan to the same bits."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfloor.api.run import Run, run
from fedfloor.base.errors import RunError
from fedfloor.config import from_table
from fedfloor.engine.memory import DeviceMemory, extractor_bytes
from fedfloor.engine.team import Team
from fedfloor.experiment import Experiment
from fedfloor.plan import text
from fedfloor.plan import walk as plans
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Select, Sequence, Train, device, edge
from fedfloor.runs import ledger
from fedfloor.runs.orders import Limits
from floor import COUNTING, WORK, bits, engine, everywhere, park, visits, walk
from refusals import refused

HERE = park()
C = visits(range(5), COUNTING)

# -- the store ---------------------------------------------------------------------------------------------------------


def entries(value: float) -> dict[str, torch.Tensor]:
    return {"model": torch.full((3,), value), "n": torch.tensor(value)}


def test_what_is_committed_is_loaded_again_also_by_another_rank(tmp_path: Path) -> None:
    memory = DeviceMemory(tmp_path)
    assert memory.load(4) == {}
    held = memory.commit(4, entries(1.5))
    assert memory.held == {4: held}
    got = DeviceMemory(tmp_path, {4: held}).load(4)
    assert {name: bits(value) for name, value in got.items()} == {k: bits(v) for k, v in entries(1.5).items()}


def test_a_file_is_named_after_its_content_and_written_once(tmp_path: Path) -> None:
    memory = DeviceMemory(tmp_path)
    held = memory.commit(4, entries(1.5))
    (path,) = tmp_path.iterdir()
    assert path.name == f"4-{held[:32]}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == held
    os.utime(path, (0, 0))
    assert memory.commit(4, entries(1.5)) == held
    assert path.stat().st_mtime == 0


def test_earlier_extractors_stay_at_hand_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfloor.engine.memory.LOADED", 2 * 12)  # two of three numbers each
    memory = DeviceMemory(tmp_path)
    names = []
    for value in range(3):
        numbers = torch.full((3,), float(value))
        names.append(hashlib.sha256(extractor_bytes(numbers)).hexdigest())
        memory.keep(numbers, names[-1])
    assert [memory.numbers(name)[0].item() for name in (*names, names[0])] == [0.0, 1.0, 2.0, 0.0]
    for path in tmp_path.glob("extractor-*"):
        path.unlink()
    assert [memory.numbers(name)[0].item() for name in (names[0], names[2])] == [0.0, 2.0]
    with refused("device-memory", RunError):
        memory.numbers(names[1])


def test_an_extractor_that_was_changed_is_refused(tmp_path: Path) -> None:
    numbers = torch.ones(3)
    name = hashlib.sha256(extractor_bytes(numbers)).hexdigest()
    DeviceMemory(tmp_path).keep(numbers, name)
    (path,) = tmp_path.iterdir()
    path.write_bytes(extractor_bytes(2 * numbers))
    with refused("device-memory", RunError):
        DeviceMemory(tmp_path).numbers(name)


def test_views_and_transposed_tensors_are_kept_by_value(tmp_path: Path) -> None:
    memory = DeviceMemory(tmp_path)
    matrix = torch.arange(6.0).view(2, 3)
    memory.commit(0, {"t": matrix.T, "row": matrix[1]})
    matrix.zero_()
    got = memory.load(0)
    assert got["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert got["row"].tolist() == [3, 4, 5]


def test_sweep_keeps_what_is_held_or_named_by_a_checkpoint(tmp_path: Path) -> None:
    memory = DeviceMemory(tmp_path)
    first, second, third = (memory.commit(4, entries(value)) for value in (1, 2, 3))
    other = memory.commit(5, entries(1))
    memory.sweep({first})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"4-{first[:32]}.safetensors", f"4-{third[:32]}.safetensors", f"5-{other[:32]}.safetensors"}
    with refused("device-memory", RunError):
        DeviceMemory(tmp_path, {4: second}).load(4)
    cloud = DeviceMemory(tmp_path / "cloud")  # its number is −1
    cloud.commit(-1, entries(1))
    cloud.sweep(set())
    assert cloud.load(-1).keys() == entries(1).keys()
    DeviceMemory(None).sweep(set())
    DeviceMemory(tmp_path / "never made").sweep(set())


def test_only_tidying_deletes_what_is_half_written(tmp_path: Path) -> None:
    # another rank may be writing while the first one sweeps
    memory = DeviceMemory(tmp_path)
    held = memory.commit(4, entries(1))
    half = tmp_path / "4-00.123.part"
    half.touch()
    memory.sweep({held})
    assert half.exists()
    memory.tidy()
    assert [path.name for path in tmp_path.iterdir()] == [f"4-{held[:32]}.safetensors"]
    DeviceMemory(None).tidy()
    DeviceMemory(tmp_path / "never made").tidy()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DeviceMemory(tmp_path)
    before = memory.commit(4, entries(1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with refused("disk-full", RunError):
            memory.commit(4, entries(2))
    assert memory.held == {4: before}
    assert [path.name for path in tmp_path.iterdir()] == [f"4-{before[:32]}.safetensors"]
    assert memory.commit(4, entries(2)) != before


def test_what_a_checkpoint_names_goes_to_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("os.fsync", lambda file: written.append(Path(f"/proc/self/fd/{file}").readlink().name[:2]))
    memory = DeviceMemory(tmp_path)
    for value in (1, 2):
        memory.commit(4, entries(value))  # the first one is replaced before anybody needs it
    DeviceMemory(tmp_path, {}).commit(5, entries(3))  # by another rank
    (other,) = (path for path in tmp_path.iterdir() if path.name.startswith("5-"))
    memory.held[5] = hashlib.sha256(other.read_bytes()).hexdigest()
    assert written == []
    memory.settle(memory.held)
    assert sorted(written) == ["4-", "5-"]
    memory.commit(5, entries(4))
    memory.settle(memory.held)
    assert sorted(written) == ["4-", "5-", "5-"]
    DeviceMemory(tmp_path, memory.held).settle(memory.held)  # after a resume they are there
    assert len(written) == 3
    memory.commit(4, entries(5))
    monkeypatch.setattr("os.fsync", full)
    with refused("disk-full", RunError):
        memory.settle(memory.held)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "memory").touch()
    with refused("unwritable", RunError):
        DeviceMemory(tmp_path / "memory").commit(4, entries(1))


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    memory = DeviceMemory(tmp_path)
    memory.commit(4, entries(1.5))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with refused("device-memory", RunError):
        memory.load(4)


def test_without_a_folder_nothing_can_be_kept() -> None:
    with refused("no-folder", RunError):
        walk(engine(HERE), C[0])


# -- in a walk ---------------------------------------------------------------------------------------------------------


def seen(memory: DeviceMemory) -> list[float]:
    """How often each device says that it was visited."""
    return [float(memory.load(k).get("seen", torch.zeros(()))) for k in range(5)]


def test_a_device_remembers_from_visit_to_visit(tmp_path: Path) -> None:
    of = engine(HERE, folder=tmp_path)
    outcome = walk(of, Repeat(3, Sequence((C[0], C[1])), tick=False))
    assert seen(of.memory) == [3, 3, 0, 0, 0]
    assert bits(of.memory.load(1)["last"]) == bits(outcome.packet["w"])
    assert [r.memory for r in outcome.receipts][-2:] == [of.memory.held[0], of.memory.held[1]]
    walk(of, C[0], number=2)
    assert seen(of.memory) == [4, 3, 0, 0, 0]


def test_the_memory_is_read(tmp_path: Path) -> None:
    # the second visit's loss, divided by 1 + 1, has half the gradient: the model moves, but not as in a first visit
    of = engine(HERE, folder=tmp_path)
    first = walk(of, Train(device(0), COUNTING))
    again = walk(of, Train(device(0), COUNTING), first.packet)
    fresh = walk(engine(HERE, folder=tmp_path / "other"), Train(device(0), COUNTING), first.packet)
    assert bits(again.packet["w"]) != bits(fresh.packet["w"])


def test_a_lost_visit_leaves_the_memory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = engine(HERE, folder=tmp_path)
    walk(of, Sequence(C[:2]))
    monkeypatch.setattr("fedfloor.plan.schedule.is_lost", lambda key, chance: key.device == 0)
    walk(of, Sequence(C[:2]), number=2)
    assert seen(of.memory) == [1, 2, 0, 0, 0]


def test_a_visit_sees_what_an_earlier_node_left_whichever_rank_was_there(tmp_path: Path) -> None:
    # turned round, the second node sends each rank to devices that the other one has visited in the first
    plan = Sequence((Parallel(C), Parallel(C[::-1]), Parallel((C[4], Sequence(C[:4])))))
    alone = engine(HERE, folder=tmp_path / "alone")
    expected = bits(walk(alone, plan).packet["w"])
    assert seen(alone.memory) == [3] * 5

    def body(team: Team) -> list[object]:
        of = engine(HERE, team=team, folder=tmp_path / f"{team.size}")
        same = bits(walk(of, plan).packet["w"]) == expected
        return [same, seen(of.memory), of.memory.held == alone.memory.held]

    for ranks in (2, 3):
        assert everywhere(ranks, body) == [[True, [3] * 5, True]] * ranks


def test_branches_do_not_see_each_others_traces_on_a_device(tmp_path: Path) -> None:
    # both visits are a first one; the device keeps what the later branch left
    alone = engine(HERE, folder=tmp_path / "1")
    outcome = walk(alone, Parallel((C[1], C[1])))
    assert seen(alone.memory) == [0, 1, 0, 0, 0]
    assert alone.memory.held == {1: outcome.receipts[1].memory}


# -- any plan, any team ------------------------------------------------------------------------------------------------


def random_plan(rng: np.random.Generator, depth: int) -> Node:
    """Any tree of the seven nodes over five devices and the cloud, with and without memory."""
    work = (WORK, COUNTING)[int(rng.integers(2))]
    some = tuple(rng.permutation(5)[: int(rng.integers(1, 6))].tolist())
    below = [lambda: random_plan(rng, depth - 1)] * int(rng.integers(1, 4))
    where = CLOUD if rng.random() < 0.5 else edge(int(rng.integers(2)))
    mix = ("by_samples", "equal")[int(rng.integers(2))]
    kind = int(rng.choice(9, p=np.array([2, 1, 1, 2, 1, 5, 8, 3, 3]) / 26)) if depth else int(rng.integers(4))
    if kind == 0:
        return Train(device(some[0]), work)
    if kind == 1:
        return Train(CLOUD, WORK)
    if kind == 2:
        return Probe(some, ("census", "loss")[int(rng.integers(2))], where)
    if kind == 3:
        return Select("uniform", some, int(rng.integers(1, len(some) + 1)), work, where, mix)
    if kind == 4:
        return Broadcast(some)
    if kind == 5:
        return Sequence(tuple(one() for one in below))
    if kind == 6:
        return Parallel(tuple(one() for one in below), where, mix)
    return Repeat(int(rng.integers(1, 4)), random_plan(rng, depth - 1), tick=kind == 7)


PLANS = [random_plan(np.random.default_rng(seed), 4) for seed in range(120)]


def account(team: Team | None, plan: Node, folder: Path) -> list[object]:
    """Everything a walk says, as JSON."""
    of = engine(HERE, team=team, folder=folder, loss_chance=0.15)
    outcome = walk(of, plan, tick=3)
    model = hashlib.sha256(bits(outcome.packet["w"])).hexdigest()
    receipts = [receipt.row() for receipt in outcome.receipts]
    answers = [[k, said] for k, said in outcome.answers.items()]
    held = [[k, of.memory.held[k]] for k in sorted(of.memory.held)]
    return [model, text.digest(outcome.resolved), receipts, answers, held, outcome.ticks]


def test_plans_drawn_at_random_have_everything_in_them() -> None:
    found = {type(node) for plan in PLANS for node in below(plan)}
    assert found == {Train, Sequence, Parallel, Repeat, Select, Broadcast, Probe}
    assert sum(len(below(plan)) > 10 for plan in PLANS) > 20


def below(node: Node) -> list[Node]:
    return [node, *(deeper for child in plans.children(node) for deeper in below(child))]


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_plan_has_the_same_outcome_on_any_team(tmp_path: Path, ranks: int) -> None:
    some = PLANS[ranks % 2 :: 2]  # each plan on a team of one size: the plans are drawn alike
    alone = [account(None, plan, tmp_path / f"alone-{i}") for i, plan in enumerate(some)]

    def body(team: Team) -> list[int]:
        return [i for i, plan in enumerate(some) if account(team, plan, tmp_path / f"{i}") != alone[i]]

    assert everywhere(ranks, body) == [[]] * ranks


def test_a_resolved_plan_names_every_visit_in_order(tmp_path: Path) -> None:
    for i, plan in enumerate(PLANS):
        of = engine(HERE, folder=tmp_path / f"{i}", loss_chance=0.15)
        outcome = walk(of, plan)
        assert not any(isinstance(node, Select) for node in below(outcome.resolved))
        assert plans.span(outcome.resolved) == plans.span(plan)
        assert [r.device for r in outcome.receipts] == unrolled(outcome.resolved)
        assert all(0 <= r.tick < outcome.ticks or r.tick == plans.span(plan) for r in outcome.receipts)


def unrolled(node: Node) -> list[int]:
    if isinstance(node, Train):
        return [node.site.index if node.site.kind == "device" else -1]
    once = [k for child in plans.children(node) for k in unrolled(child)]
    return once * node.times if isinstance(node, Repeat) else once


# -- in a run ----------------------------------------------------------------------------------------------------------


def remembering(rounds: int = 4) -> Experiment:
    return from_table(
        {
            "name": "remembering",
            "rounds": rounds,
            "data": {"samples_per_device": 12},
            "park": {"devices": 5},
            "model": {"name": "logistic"},
            "method": {"name": "floor:Rememberer"},
            "work": {"batch_size": 4},
        }
    )


def figures(done: Run) -> tuple[list[object], bytes]:
    lines = [{**vars(line), "wall_s": 0} for line in ledger.read(done.folder / "ledger.jsonl")]
    return list(lines), done.model_file.read_bytes()


def test_a_run_that_remembers_is_the_same_on_two_ranks_and_resumed(tmp_path: Path) -> None:
    whole = run(remembering(), tmp_path / "whole", ranks=1)
    assert len(list((tmp_path / "whole" / "memory").iterdir())) <= 5 * 2  # the last two checkpoints' at most
    expected = figures(whole)
    assert figures(run(remembering(), tmp_path / "two", ranks=2)) == expected
    for stop in (1, 2, 3):
        run(remembering(), tmp_path / "parts", ranks=1 + stop % 2, resume=stop > 1, limits=Limits(stop_after=stop))
    assert figures(run(remembering(), tmp_path / "parts", ranks=2, resume=True)) == expected

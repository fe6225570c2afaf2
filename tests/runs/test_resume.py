"""Resuming from damaged folders: damage is named and passed over, and a refused resume changes nothing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from commands import Command, Said, begin, lines
from fedfloor.runs import checkpoint, folder, ledger, loop

# checkpoints are those of rounds 2 and 3
ROUNDS = 4
STOPPED = 3
NEW, OLD = "checkpoint/round-00000003", "checkpoint/round-00000002"
WORDS = ("run", "tiny.toml", "--ranks", "1", "--set", "method.name=scaffold", "--set", f"rounds={ROUNDS}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an uninterrupted run, ``whole``, and one that was stopped, ``cut``; do not write in it."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_S", 0.0)
        command = next(begin(place, _Silent(), patch))  # type: ignore[arg-type]
        assert command(*WORDS, "--out", "whole").code == 0
        assert command(*WORDS, "--out", "cut", "--stop-after", str(STOPPED)).code == 0
    return place


class _Silent:
    """Stands for a test's capture, which a module's fixture has not."""

    def readouterr(self) -> tuple[str, str]:
        return "", ""


@pytest.fixture
def cut(command: Command, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that was stopped, which :func:`resumed` goes on with."""
    monkeypatch.setattr(loop, "CHECKPOINT_S", 0.0)
    shutil.copytree(runs / "cut", command.folder / "out")
    return command.folder / "out"


def resumed(command: Command, *words: str) -> Said:
    return command(*WORDS, "--out", "out", "--resume", *words)


def bits(out: Path) -> dict[str, object]:
    """Everything that a run computes."""
    names = ["model.safetensors", "evaluation.json", *(f"checkpoint/round-0000000{n}/{name}" for n in (3, 4)
             for name in ("state.safetensors", "state.json"))]  # fmt: skip
    files: dict[str, object] = {name: (out / name).read_bytes() for name in names if not name.endswith("json")}
    kept = {path.name: path.read_bytes() for path in (out / "memory").iterdir()}
    return files | {"ledger": lines(out), "memory": kept, "evaluation": (out / "evaluation.json").read_bytes()}


def snapshot(out: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def flip(path: Path, at: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0b100
    path.write_bytes(data)


def memory(out: Path, point: str, device: int) -> Path:
    held = json.loads((out / point / "state.json").read_text())["memory"][str(device)]
    return out / "memory" / f"{device}-{held[:32]}.safetensors"


# -- one bit -----------------------------------------------------------------------------------------------------------

FILES = ("state.safetensors", "state.json", "SHA256SUMS")


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0], ids=["first", "middle", "last"])
@pytest.mark.parametrize("point", [NEW, OLD])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_a_checkpoint_changes_no_bit_of_the_run(
    command: Command, cut: Path, runs: Path, name: str, point: str, at: float
) -> None:
    assert {path.name for path in (cut / point).iterdir()} == set(FILES)
    flip(cut / point / name, at)
    said = resumed(command)
    assert said.code == 0, said.err
    assert bits(cut) == bits(runs / "whole")
    assert (f"{Path(point).name}/" in said.err) == (point == NEW)
    if point == NEW:
        assert name in said.err
        assert "The run resumes from the checkpoint of round 2." in said.err


@pytest.mark.parametrize("device", range(4))
@pytest.mark.parametrize("point", [NEW, OLD])
def test_a_flipped_bit_in_a_devices_memory_changes_no_bit_of_the_run(
    command: Command, cut: Path, runs: Path, point: str, device: int
) -> None:
    path = memory(cut, point, device)
    flip(path)
    said = resumed(command)
    assert said.code == 0, said.err
    assert bits(cut) == bits(runs / "whole")
    assert (path.name in said.err) == ("resumes from the checkpoint of round 2" in said.err) == (point == NEW)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-3])])
def test_a_missing_or_truncated_file_changes_no_bit_of_the_run(
    command: Command, cut: Path, runs: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(cut / NEW / name)
    said = resumed(command)
    assert said.code == 0, said.err
    assert bits(cut) == bits(runs / "whole")
    assert name in said.err


def test_a_damaged_checkpoint_is_replaced_by_a_good_one(command: Command, cut: Path) -> None:
    flip(cut / NEW / "state.safetensors")
    assert resumed(command, "--stop-after", str(STOPPED)).code == 0  # the damaged one's own round, once more
    found = checkpoint.latest(cut / "checkpoint", cut / "memory", warn=False)
    assert found is not None
    assert found.round == STOPPED
    assert [path.name for path in sorted((cut / "checkpoint").iterdir())] == [Path(OLD).name, Path(NEW).name]


def test_a_checkpoint_of_an_earlier_release_has_no_digests_and_is_read(command: Command, cut: Path, runs: Path) -> None:
    for point in (NEW, OLD):
        (cut / point / "SHA256SUMS").unlink()
        about = json.loads((cut / point / "state.json").read_text())
        assert about.pop("format") == 2
        (cut / point / "state.json").write_text(json.dumps(about))
    said = resumed(command)
    assert said.code == 0
    assert "note:" not in said.err
    assert bits(cut) == bits(runs / "whole")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", "4"), ("tick", -1), ("tick", 10**400), ("clock_s", 10**400), ("visits", {"0": [[]]}),
        ("reports", {"0": 1.5}), ("receipts", [[0, 0, 0, "3", 30, 0.5, 0.5, 0.75, 400, False, None, 2.0]]),
        ("receipts", [[0, 0, 0, 10**400, 30, 0.5, 0.5, 0.75, 400, False, None, 2.0]]), ("notes", 3),
        ("line", {"round": "4"}), ("departures", [[math.inf, 0, 0, 0.0]]),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_checkpoint_of_other_types_is_damaged_whatever_its_digests(cut: Path, key: str, value: object) -> None:
    place = cut / NEW
    about = json.loads((place / "state.json").read_text())
    if isinstance(value, dict):
        value = {**(about[key] or {}), **value}
    (place / "state.json").write_text(json.dumps({**about, key: value}))
    listed = [f"{hashlib.sha256((place / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES[:2]]
    (place / "SHA256SUMS").write_text("".join(listed))
    found = checkpoint.latest(cut / "checkpoint", cut / "memory", warn=False)
    assert found is not None
    assert found.round < STOPPED


def test_the_digests_are_those_that_sha256sum_reads(cut: Path) -> None:
    listed = [line.split("  ") for line in (cut / NEW / "SHA256SUMS").read_text().splitlines()]
    found = {name: hashlib.sha256((cut / NEW / name).read_bytes()).hexdigest() for name in FILES[:2]}
    assert {name: digest for digest, name in listed} == found


@pytest.mark.parametrize("damage", [Path.unlink, flip, lambda path: path.write_text("{}")])
def test_the_first_rounds_plan_is_not_needed(
    command: Command, cut: Path, runs: Path, damage: Callable[[Path], object]
) -> None:
    damage(cut / "plan.json")
    said = resumed(command)
    assert said.code == 0, said.err
    assert bits(cut) == bits(runs / "whole")
    assert (cut / "report.html").exists()


# -- the ledger --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", [b'{"round": 4, "acc\xff', b'{"round": 4, "acc\xff\n', b"\0" * 50, b'{"round": 9}\n{"round": 4}\n']
)
def test_lines_after_the_checkpoint_are_cut_even_if_damaged(
    command: Command, cut: Path, runs: Path, tail: bytes
) -> None:
    with (cut / "ledger.jsonl").open("ab") as file:
        file.write(tail)
    assert resumed(command).code == 0
    assert bits(cut) == bits(runs / "whole")


@pytest.mark.parametrize("left", [0, 1, 40])
def test_the_checkpoints_own_line_is_restored_from_it(command: Command, cut: Path, runs: Path, left: int) -> None:
    first, second, third = (cut / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "ledger.jsonl").write_bytes(first + second + third[:left])
    assert resumed(command).code == 0
    assert bits(cut) == bits(runs / "whole")


def test_a_flipped_bit_in_the_checkpoints_line_is_repaired(command: Command, cut: Path, runs: Path) -> None:
    text = (cut / "ledger.jsonl").read_bytes()
    at = text.rindex(b'"accuracy": 0.') + len(b'"accuracy": 0.')
    (cut / "ledger.jsonl").write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
    assert resumed(command).code == 0
    assert bits(cut) == bits(runs / "whole")


def test_the_ledger_is_cut_to_the_checkpoint_before(command: Command, cut: Path, runs: Path) -> None:
    flip(cut / NEW / "state.json")
    path = cut / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-20] + b"\xff" * 20)  # of the damaged checkpoint's round: made anew
    assert resumed(command).code == 0
    assert bits(cut) == bits(runs / "whole")


# -- refused -----------------------------------------------------------------------------------------------------------


def both(out: Path) -> None:
    flip(out / NEW / "state.safetensors")
    flip(out / OLD / "state.json")


def line(number: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(out: Path) -> None:
        texts = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        texts[number - 1] = change(texts[number - 1])
        (out / "ledger.jsonl").write_bytes(b"".join(texts))

    return damage


def nothing(_out: Path) -> None:
    pass


REFUSED: dict[str, tuple[Callable[[Path], None], tuple[str, ...], int, str]] = {
    "another experiment": (nothing, ("--set", "work.lr=0.5"), 2, "work.lr: 0.01 → 0.5"),
    "a setting that is wrong": (nothing, ("--set", "work.lr=-1"), 2, "work.lr"),
    "forced, but another network": (nothing, ("--set", "model.name=mlp-2nn", "--force"), 2, "the checkpoint's model"),
    "forced, but another method": (nothing, ("--set", "method.name=fedfusion", "--force"), 2, "objective fusion"),
    "both checkpoints damaged": (both, (), 1, "round-00000002/state.json is damaged"),
    "one memory, of both": (
        lambda out: [flip(memory(out, point, 2)) for point in (NEW, OLD)] and None, (), 1, "device 2's memory 2-",
    ),
    "a bad byte": (line(1, lambda text: text[:9] + b"\xff" + text[10:]), (), 1, "line 1 is damaged"),
    "an empty line": (line(2, lambda _: b"\n"), (), 1, "line 2 is damaged"),
    "an unknown key": (line(2, lambda text: text.replace(b"accuracy", b"bccuracy", 1)), (), 1, "line 2 is damaged"),
    "a missing line": (line(2, lambda _: b""), (), 1, "line 2 is of round 3"),
    "a missing line break": (line(1, lambda text: text[:-1]), (), 1, "line 1 is damaged"),
    "no ledger": (lambda out: (out / "ledger.jsonl").unlink(), (), 1, "line 1 is missing"),
    "no experiment": (lambda out: (out / "experiment.toml").unlink(), (), 2, "holds no run"),
    "an experiment that is not TOML": (
        lambda out: (out / "experiment.toml").write_text("a = ") and None, (), 2,
        "holds no run to resume: experiment",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_resume_changes_nothing(command: Command, cut: Path, case: str) -> None:
    damage, words, code, why = REFUSED[case]
    (cut / "diverged.json").write_text('{"round": 4, "why": "an earlier attempt"}')
    damage(cut)
    before = snapshot(cut)
    said = resumed(command, *words)
    assert said.code == code
    assert said.err.splitlines()[-1].startswith("error: ")
    assert why in said.err
    assert snapshot(cut) == before


def test_a_resume_by_another_release_changes_nothing(
    command: Command, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "__version__", "0.0.0")
    before = snapshot(cut)
    said = resumed(command)
    assert (said.code, "provenance.fedfloor" in said.err) == (2, True)
    assert snapshot(cut) == before


def test_a_resume_of_a_locked_folder_changes_nothing(command: Command, cut: Path) -> None:
    before = snapshot(cut)
    with FileLock(cut / ".lock"):
        said = resumed(command)
    assert (said.code, "another process" in said.err) == (2, True)
    assert snapshot(cut) == before


def test_temporary_files_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    gone, here = tmp_path / ".park.json.99999999.part", tmp_path / f".park.json.{os.getpid()}.part"
    for path in (gone, here, tmp_path / ".mine.part"):
        path.touch()
    with folder.owned(tmp_path):
        assert not gone.exists()
    assert here.exists()  # another process may be writing
    assert (tmp_path / ".mine.part").exists()


def test_a_new_run_does_not_begin_over_checkpoints(command: Command, cut: Path) -> None:
    for name in ("experiment.toml", "ledger.jsonl"):
        (cut / name).unlink()
    before = snapshot(cut)
    said = command(*WORDS, "--out", "out")
    assert (said.code, "already holds a run" in said.err) == (2, True)
    assert snapshot(cut) == before


def test_a_resume_with_nothing_left_to_do_leaves_the_ledger_as_it_is(command: Command, cut: Path) -> None:
    before = (cut / "ledger.jsonl").read_bytes()
    assert resumed(command, "--stop-after", str(STOPPED)).code == 0
    assert (cut / "ledger.jsonl").read_bytes() == before


def test_a_ledger_without_a_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"round": 1}\n\xff')
    ledger.cut(path, None)
    assert path.read_bytes() == b""


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0.1, 0.5, 1.0], ids=["header", "middle", "last"])
def test_a_flipped_bit_in_the_model_is_refused_and_a_resume_writes_it_anew(
    command: Command, cut: Path, at: float
) -> None:
    model = (cut / "model.safetensors").read_bytes()
    flip(cut / "model.safetensors", at)
    for words in (("export", "out", "--out", "m.onnx"), ("predict", "out", "x.png")):
        (command.folder / "x.png").touch()
        command.refused(command(*words), "model.safetensors is damaged: its SHA-256 is not that in model.safe")
    said = command("run", "tiny.toml", "--out", "begun", "--set", "model.init_from=out")
    assert (said.code, "is damaged: its SHA-256" in said.err) == (2, True)
    assert resumed(command, "--stop-after", str(STOPPED)).code == 0
    assert (cut / "model.safetensors").read_bytes() == model
    assert command("export", "out", "--out", "m.onnx").code == 0

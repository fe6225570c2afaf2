"""What a device takes and what it refuses: statements, ONNX files, pieces; its two models on disk; rows of files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refusals
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import EscapedFormatter
from fedfloor.deploy import authority, broker
from fedfloor.deploy.authority import Authority
from fedfloor.inference.onnx import export
from fedfloor.inference.trained import load_model
from fedfloor.rollout import agent
from fedfloor.rollout import model as models
from fedfloor.rollout.agent import check_wheels
from fedfloor.rollout.rows import Batch, InputRows
from fedfloor.rollout.slots import Download, Slots
from fedfloor.rollout.statement import CHUNK_BYTES, PURPOSE, Statement, opened, sealed
from model_files import SENSORS, write_model
from rollouts import model

CA = authority.found("trial", authority.now())


def statement(data: bytes, number: int = 1, network: str = "logistic", **more: Any) -> Statement:
    return Statement("trial", "d0", number, number, network, hashlib.sha256(data).hexdigest(), len(data), **more)


def signed(body: object, by: Authority = CA) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    return json.dumps({"statement": text, "signature": authority.sign(by, PURPOSE, text)}).encode()


# -- statements --------------------------------------------------------------------------------------------------------

GOOD = statement(b"model")
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "form"),
    "no JSON": (b"\xff\xfe", "form"),
    "a list": (b"[]", "form"),
    "nested": (b"[" * 100_000, "form"),
    "too large": (b" " * (1 << 19), "oversized"),
    "no text": (json.dumps({"statement": 1, "signature": 2}).encode(), "form"),
    "unsigned": (json.dumps({"statement": json.dumps(asdict(GOOD)), "signature": ""}).encode(), "signature"),
    "signed by a stranger": (sealed(GOOD, authority.found("trial", authority.now())), "signature"),
    "signed for another purpose": (
        json.dumps({"statement": "{}", "signature": authority.sign(CA, "journal", "{}")}).encode(), "signature",
    ),
    "of another park": (sealed(replace(GOOD, park="other"), CA), "device"),
    "for another device": (sealed(replace(GOOD, device="d1"), CA), "device"),
    "a list inside": (signed([]), "range"),
    "another key": (signed(asdict(GOOD) | {"path": "/etc"}), "form"),
    "a digest that is a path": (signed(asdict(GOOD) | {"sha256": "../" * 21 + "x"}), "form"),
    "a name that is a topic": (signed(asdict(GOOD) | {"device": "d0/+"}), "form"),
    "a size without end": (signed(asdict(GOOD) | {"size": 1 << 60}), "range"),
    "a number that is true": (signed(asdict(GOOD) | {"number": True}), "range"),
    "a deviation of 0": (signed(asdict(GOOD) | {"scale": [[0.0], [0.0]]}), "form"),
    "scales of two lengths": (signed(asdict(GOOD) | {"scale": [[0.0], [1.0, 1.0]]}), "form"),
    "a network of two lines": (signed(asdict(GOOD) | {"network": "a\nb"}), "form"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_statement_that_is_not_the_authoritys_for_this_device_is_refused(name: str) -> None:
    data, reason = HOSTILE[name]
    with pytest.raises(RefusedError) as error:
        opened(data, CA.cert, "trial", "d0")
    assert error.value.reason == reason


def test_a_statement_comes_back_as_it_was_signed() -> None:
    whole = replace(GOOD, scale=((1.0, 2.0), (3.0, 4.0)))
    assert opened(sealed(whole, CA), CA.cert, "trial", "d0") == whole


# -- ONNX files --------------------------------------------------------------------------------------------------------


def _external(tensor: Any) -> None:
    from onnx import TensorProto

    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    tensor.ClearField("raw_data")


def _onnx(change: Callable[[Any], object]) -> bytes:
    import onnx

    made = onnx.load_from_string(model())
    change(made)
    data: bytes = made.SerializeToString()
    return data


def _inside(made: Any) -> None:
    """An external tensor deep in a branch of an operator."""
    from onnx import helper, numpy_helper

    tensor = numpy_helper.from_array(np.ones(1, np.float32), "t")
    _external(tensor)
    graph = helper.make_graph([helper.make_node("Constant", [], ["o"], value=tensor)], "g", [], [])
    made.graph.node.append(helper.make_node("If", ["c"], ["r"], then_branch=graph, else_branch=graph))


def _domain(made: Any) -> None:
    made.graph.node[0].domain = "com.example"


FILES: dict[str, tuple[bytes, str]] = {
    "external data": (_onnx(lambda made: _external(made.graph.initializer[0])), "external"),
    "external data in a branch": (_onnx(_inside), "external"),
    "foreign operators": (_onnx(_domain), "operator"),
    "a training graph": (_onnx(lambda made: made.training_info.add()), "form"),
    "cut short": (model()[:-40], "form"),
    "text": (b"import os; os.system('x')", "form"),
    "a pickle": (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94.", "form"),
    "groups": (b"\x0b" * 1000, "form"),
    "a number without end": (b"\x08" + b"\xff" * 40, "form"),
    "nothing": (b"", "model"),
    "another shape": (model(shape=[7]), "model"),
    "a shape without end": (model(shape=[1 << 40]), "model"),
    "no classes": (model(classes=[]), "model"),
    "metadata that are no JSON": (_onnx(lambda made: setattr(made.metadata_props[2], "value", "os")), "model"),
}


@pytest.mark.parametrize("name", FILES)
def test_an_onnx_file_that_reaches_beyond_itself_or_does_not_run_is_refused(name: str) -> None:
    data, reason = FILES[name]
    with pytest.raises(RefusedError) as error:
        models.load(data, statement(data))
    assert error.value.reason == reason


def test_damaged_files_are_refused_or_still_a_model() -> None:
    """2,000 files with a few bytes changed: the walk ends, with an error of its own."""
    rng = random.Random(0)
    whole = model()
    refused = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            models.check_file(bytes(data))
        except RefusedError:
            refused += 1
    assert 100 < refused < 2000


def test_another_network_than_the_statement_names_is_refused() -> None:
    data = model(network="lenet")
    with refusals.refused("network", RefusedError):
        models.load(data, statement(data))


@pytest.mark.parametrize("missing", ["refuse", "mean"])
def test_an_exported_model_of_sensors_is_taken(tmp_path: Path, missing: str) -> None:
    run = write_model(tmp_path, shape=(2,), inputs=SENSORS | {"missing": missing})
    data = export(load_model(run), tmp_path / "model.onnx").file.read_bytes()
    made = models.load(data, statement(data))
    assert made.about["missing"] == missing
    assert made.answers(np.zeros((1, 2), np.float32))[0]["class"] in ("ok", "worn")


def test_answers_are_those_of_the_weights() -> None:
    made = models.load(model(), statement(model()))
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    logits = x @ np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    for answer, row in zip(made.answers(x), logits, strict=True):
        best = int(row.argmax())
        assert answer["class"] == ("good", "bad")[best]
        assert answer["alarm"] == (best == 1)
        assert answer["probability"] == pytest.approx(1 / (1 + np.exp(-abs(row[1] - row[0]))), rel=1e-5)


# -- the two models on disk --------------------------------------------------------------------------------------------


def slots(folder: Path, network: str | None = "logistic") -> Slots:
    folder.mkdir(exist_ok=True)
    return Slots(folder, CA.cert, "trial", "d0", network)


def put(one: Slots, data: bytes, number: int = 1) -> Slots:
    """The slots after a model arrived and was switched to."""
    envelope = sealed(statement(data, number), CA)
    said = statement(data, number)
    download = Download(one, envelope, said)
    pieces = [(i // CHUNK_BYTES, data[i : i + CHUNK_BYTES]) for i in range(0, len(data), CHUNK_BYTES)]
    assert [download.add(str(i), piece) for i, piece in reversed(pieces)] == [False] * (len(pieces) - 1) + [True]
    one.model(said)
    return one.switched(envelope)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    one = slots(tmp_path)
    for number in (1, 2, 3):
        one = put(one, model(number), number)
    assert len([*tmp_path.glob("*.onnx")]) == 2
    again, used = slots(tmp_path).read()
    assert again == one
    assert used is not None
    assert used.statement.number == 3


def test_where_the_model_in_use_is_damaged_the_one_before_is_used(tmp_path: Path) -> None:
    put(put(slots(tmp_path), model(1), 1), model(2), 2)
    path = tmp_path / f"{statement(model(2)).sha256}.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    _, used = slots(tmp_path).read()
    assert used is not None
    assert used.statement.number == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'{"a": 1}', b"null", b"[" * 100_000, b'["{}"]'])
def test_a_damaged_record_is_no_model(tmp_path: Path, content: bytes) -> None:
    put(slots(tmp_path), model())
    (tmp_path / "serving.json").write_bytes(content)
    assert slots(tmp_path).read()[1] is None


def test_pieces_of_another_size_are_refused_and_foreign_ones_passed_over(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES + 10)
    download = Download(slots(tmp_path), b"", statement(data))
    for piece in ("2", "-1", "x", "", "99999999999999", "²"):
        assert not download.add(piece, b"x")
    with refusals.refused("hash", RefusedError):
        download.add("1", b"x" * 11)


def test_bytes_that_were_not_signed_are_refused_and_deleted(tmp_path: Path) -> None:
    one = slots(tmp_path)
    said = statement(model())
    download = Download(one, b"", said)
    assert download.add("0", b"x" * said.size)
    with refusals.refused("hash", RefusedError):
        one.model(said)
    assert not one.has(said)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from fedfloor.deploy import authority
    from fedfloor.rollout.slots import Download, Slots
    folder, data, envelope = (Path(one) for one in sys.argv[1:4])
    calls, at = 0, int(sys.argv[4])

    def killing(what):
        def call(*given, **more):
            global calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return what(*given, **more)
        return call

    one, _ = Slots(folder, authority.certificate(folder.parent / "ca.crt"), "trial", "d0", "logistic").read()
    os.replace, os.fsync, Path.unlink = map(killing, (os.replace, os.fsync, Path.unlink))
    said = one.opened(envelope.read_bytes())
    assert Download(one, envelope.read_bytes(), said).add("0", data.read_bytes())
    one.model(said)
    one.switched(envelope.read_bytes())
    print(calls)
"""


@pytest.mark.slow
def test_a_device_killed_at_any_step_of_a_switch_has_one_of_the_two(tmp_path: Path) -> None:
    """Killed before each call that changes the disk: the old model or the new one is in use, whole."""
    (tmp_path / "ca.crt").write_bytes(CA.pem()[0])
    files = [tmp_path / "data", tmp_path / "envelope"]
    for path, content in zip(files, (model(2), sealed(statement(model(2), 2), CA)), strict=True):
        path.write_bytes(content)
    seen = []
    for at in range(1, 12):
        folder = tmp_path / str(at)
        put(put(slots(folder), model(0), 1), model(1), 1)
        words = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), *map(str, files), str(at)]
        done = subprocess.run(words, capture_output=True, text=True)
        _, used = slots(folder).read()
        assert used is not None
        seen.append(used.statement.number)
        if done.returncode == 0:
            assert int(done.stdout) < at
            break
        assert done.returncode == -9, done.stderr
    assert seen == sorted(seen)
    assert set(seen) == {1, 2}
    assert len(seen) > 6


# -- rows --------------------------------------------------------------------------------------------------------------

WINDOWED = models.load(model(window=2), statement(model(window=2)))
SINGLE = models.load(model(), statement(model()))
HEADER = "time,speed,heat,load\n"


def rows_of(folder: Path) -> InputRows:
    return InputRows(folder, folder / "place.json")


def taken(rows: InputRows, made: models.Model = SINGLE) -> list[tuple[int, int]]:
    batches: list[Batch] = []
    while (batch := rows.next(made)) is not None:
        rows.commit(batch)
        batches.append(batch)
    return [place for batch in batches for place in batch.rows]


def test_positions_of_files_that_are_gone_are_forgotten_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfloor.rollout.rows.MOST_FILES", 4)
    rows = rows_of(tmp_path)
    for day in range(12):
        path = tmp_path / f"{day:02}.csv"
        path.write_text(HEADER + "0,1,2,3\n")
        assert taken(rows) == [(1, 1)]
        if day != 3:
            path.unlink()
        (tmp_path / f"{day:02}.npy").write_bytes(b"no array")
        assert taken(rows) == []
        (tmp_path / f"{day:02}.npy").unlink()
    assert [*rows._done] == ["03.csv", "09.csv", "10.csv", "11.csv"]
    assert taken(rows_of(tmp_path)) == []  # the file that is still in the folder is not predicted again
    assert len(rows._refused) <= 1


def test_windows_of_long_rows_are_read_whole(tmp_path: Path) -> None:
    rest = "," * 800_000
    (tmp_path / "a.csv").write_text(HEADER + "".join(f"{i},1,2,{i}{rest}\n" for i in range(4)))
    assert taken(rows_of(tmp_path), WINDOWED) == [(1, 2), (3, 4)]


def test_each_row_of_a_growing_table_is_given_once_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "".join(f"{i},1,2,{i}\n" for i in range(150)))
    assert taken(rows_of(tmp_path)) == [(i, i) for i in range(1, 151)]
    with path.open("a") as file:
        file.write("150,1,2,150\n151,1,2")  # a line is being written
    assert taken(rows_of(tmp_path)) == [(151, 151)]
    with path.open("a") as file:
        file.write(",151\n")
    batch = rows_of(tmp_path).next(SINGLE)
    assert batch is not None
    assert batch.x.tolist() == [[2, 151, 1]]  # as the model's columns stand


@pytest.mark.parametrize("text", ["x" * (1 << 21), HEADER + "0,1,2,3\n" + "9" * (1 << 21) + "\n0,1,2,3\n"])
def test_a_line_without_end_is_named_once(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv").write_text(HEADER + "0,1,2,3\n")
    rows = rows_of(tmp_path)
    assert taken(rows)[-1:] == [(1, 1)]
    assert rows.next(SINGLE) is None
    assert [one.message for one in caplog.records] == [
        f"{tmp_path / 'a.csv'} is not predicted by version 1: oversized: a line has more than 1048576 bytes."
    ]


def test_windows_are_cut_as_in_training(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = rows_of(tmp_path)
    path.write_text(HEADER + "0,1,2,3\n1,4,5,6\n2,7,8,9\n")
    batch = rows.next(WINDOWED)
    assert batch is not None
    assert batch.x.tolist() == [[[2, 5], [3, 6], [1, 4]]]
    assert taken(rows, WINDOWED) == [(1, 2)]
    with path.open("a") as file:
        file.write("3,1,1,1\n")
    assert taken(rows_of(tmp_path), WINDOWED) == [(3, 4)]


def test_a_table_without_a_column_is_named_once_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("heat,load\n1,2\n")
    (tmp_path / "b.csv").write_text(HEADER + "0,1,2,3\n")
    rows = rows_of(tmp_path)
    assert taken(rows) == [(1, 1)]
    assert rows.next(SINGLE) is None
    why = "columns: it has no column 'speed'; its columns are heat, load."
    assert [one.message for one in caplog.records] == [f"{tmp_path / 'a.csv'} is not predicted by version 1: {why}"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\x80\x04."])
def test_a_file_that_is_no_array_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    assert rows_of(tmp_path).next(SINGLE) is None


def test_pickled_arrays_are_never_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "a.npy", np.array([print], object), allow_pickle=True)
    assert rows_of(tmp_path).next(SINGLE) is None
    assert "is not predicted" in caplog.text


@pytest.mark.parametrize("wrong", [np.zeros((4, 2), np.float32), np.zeros((4, 3)), np.zeros((4, 3, 1), np.float32)])
def test_arrays_of_another_shape_or_of_other_numbers_are_named(
    tmp_path: Path, wrong: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "a.npy", wrong)
    assert rows_of(tmp_path).next(SINGLE) is None
    assert f"shape: it holds {wrong.dtype} {list(wrong.shape)}; the model requires float32 [n, 3]." in caplog.text


def test_arrays_are_given_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((100, 3), np.float32))
    assert taken(rows_of(tmp_path)) == [(i, i) for i in range(1, 101)]
    assert taken(rows_of(tmp_path)) == []


# -- the two wheels ----------------------------------------------------------------------------------------------------


def test_an_agent_writes_no_control_characters_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tmp_path / "a\x1b[2Jb.toml"
    hostile.write_text('park = "\\u001b[2J"\nfactory = "\\u202e"\n')
    assert agent.main([str(hostile)]) == 2
    assert broker.main([str(hostile)]) == 2  # what a unit starts before its broker
    told = capsys.readouterr().err
    assert told.count("\\x1b[2J") >= 2
    assert told.replace("\n", "").isprintable()
    note = logging.LogRecord("fedfloor", logging.INFO, "", 1, "drift: %s", ("\u202e\x1b[31m",), None)
    assert EscapedFormatter("note: %(message)s").format(note) == "note: drift: \\u202e\\x1b[31m"


@pytest.mark.parametrize("wheels", [(), ("fedfloor-1.0",), ("fedfloor-1.0", "fedfloor_agent-1.0", "fedfloor_own-2.0")])
def test_one_wheel_or_two_of_one_version_are_taken(tmp_path: Path, wheels: tuple[str, ...]) -> None:
    for wheel in wheels:
        (tmp_path / f"{wheel}.dist-info").mkdir()
    check_wheels(tmp_path)
    for wheel in ("fedfloor-2.0", "fedfloor_agent-3.0"):  # and is refused beside other versions
        (tmp_path / f"{wheel}.dist-info").mkdir()
    with refusals.refused("two-wheels"):
        check_wheels(tmp_path)


def test_two_wheels_of_different_versions_are_refused(tmp_path: Path) -> None:
    for wheel in ("fedfloor-1.1", "fedfloor_agent-1.0"):
        (tmp_path / f"{wheel}.dist-info").mkdir()
    with refusals.refused("two-wheels"):
        check_wheels(tmp_path)

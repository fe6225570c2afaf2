"""What travels between machines: whole, new, ours, or refused by name; whatever arrives, nothing crashes."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refusals
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import message, mqtt
from fedfloor.deploy.checks import MessageFilter
from fedfloor.deploy.message import MAGIC, MOST_ARRAYS, START, VERSION, Message, decode, encode, fits

NUMBERS = np.arange(6, dtype=np.float32)
SENT = Message(
    "update", "press-1", "run", 3, 17, 5, "classifier", "9-2", {"receipt": [1, None]}, {"w": NUMBERS, "c": NUMBERS[:2]}
)


def forged(header: dict[str, object] | bytes, body: bytes = b"") -> bytes:
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    return START.pack(MAGIC, VERSION, len(said), 0) + said + body


def header(body: bytes = b"", **changed: object) -> dict[str, object]:
    plain = {
        "kind": "update", "sender": "press-1", "run": "run", "round": 3, "session": 17, "number": 5, "scope": "all",
        "answers": "", "about": {}, "digest": hashlib.sha256(body).hexdigest(), "receiver": "",
    }  # fmt: skip
    return plain | changed


def tensors(entries: dict[str, object], data: bytes) -> bytes:
    said = json.dumps(entries).encode()
    return struct.pack("<Q", len(said)) + said + data


def test_a_message_arrives_as_it_was_sent() -> None:
    got = decode(encode(SENT))
    assert {name: one.tolist() for name, one in got.arrays.items()} == {"w": NUMBERS.tolist(), "c": [0.0, 1.0]}
    assert {k: v for k, v in vars(got).items() if k != "arrays"} == {
        k: v for k, v in vars(SENT).items() if k != "arrays"
    }
    assert got.identity == "17-5"


def reason(data: bytes, most: int = 1 << 20) -> str:
    with pytest.raises(RefusedError) as refused:
        decode(data, most)
    return refused.value.reason


LONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "truncated"),
        (b"FEDF", "truncated"),
        (b"\x80\x04\x95" + bytes(40), "foreign"),  # how a pickle begins
        (START.pack(MAGIC, VERSION - 1, 0, 0), "version"),
        (START.pack(MAGIC, VERSION, 1 << 31, 0), "oversized"),
        (START.pack(MAGIC, VERSION, 1 << 20, 0), "truncated"),
        (START.pack(MAGIC, VERSION, 0, 1), "truncated"),
        (forged(b"[1, 2"), "header"),
        (forged(b"[" * 100_000), "header"),
        (forged(b"[]"), "header"),
        (forged(header() | {"more": 1}), "header"),
        (forged(header(round="3")), "header"),
        (forged(header(number=True)), "header"),  # JSON's true is no number
        (forged(header(), b"other"), "digest"),
        (encode(SENT)[:-1], "digest"),
    ],
)
def test_what_is_no_message_is_refused_by_name(data: bytes, wanted: str) -> None:
    assert reason(data) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"\x80\x04K\x01.", "arrays"),
        (tensors({"w": LONE}, b"\0\0\0"), "arrays"),  # three bytes for a number of four
        (tensors({"w": LONE | {"shape": [1 << 40]}}, bytes(4)), "arrays"),
        (tensors({"w": LONE | {"dtype": "F16", "data_offsets": [0, 2]}}, bytes(2)), "type"),
        (tensors({"w": LONE}, struct.pack("<f", float("nan"))), "not finite"),
        (tensors({"w": LONE}, struct.pack("<f", float("inf"))), "not finite"),
    ],
)
def test_arrays_that_cannot_be_are_refused_though_their_digest_is_right(body: bytes, wanted: str) -> None:
    assert reason(forged(header(body), body)) == wanted


@pytest.mark.parametrize(
    ("entries", "most", "words"),
    [
        (1, 0, "its kind has none"),
        (17, 16, "17 arrays; at most 16"),
        (20_000, 16, "16 arrays need no more than"),  # refused by the length alone
        (20_000, MOST_ARRAYS, f"20000 arrays; at most {MOST_ARRAYS}"),
    ],
)
def test_more_arrays_than_a_kind_has_are_refused_before_any_is_made(
    monkeypatch: pytest.MonkeyPatch, entries: int, most: int, words: str
) -> None:
    monkeypatch.setattr(message, "load", None)
    body = tensors({f"a{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(entries)}, b"")
    with pytest.raises(RefusedError, match=words):
        decode(forged(header(body), body), arrays=most)


def test_as_many_arrays_as_a_kind_has_are_taken() -> None:
    arrays = {"a" * 60 + str(i): NUMBERS for i in range(16)}
    assert len(decode(encode(Message("visit", "e", arrays=arrays)), arrays=16).arrays) == 16
    many = {str(i): NUMBERS[:1] for i in range(MOST_ARRAYS)}
    assert len(decode(encode(Message("answers", "e", arrays=many))).arrays) == MOST_ARRAYS


def test_what_is_too_large_is_refused_before_it_is_read() -> None:
    data = encode(SENT)
    assert reason(data, most=len(data) - 1) == "oversized"
    assert decode(data, most=len(data)).number == 5


@pytest.mark.parametrize(
    ("arrays", "wanted"),
    [
        ({"w": NUMBERS[:5]}, "shape"),
        ({"w": NUMBERS.reshape(2, 3)}, "shape"),
        ({"w": NUMBERS.astype(np.float64)}, "shape"),
        ({"w": NUMBERS, "more": NUMBERS}, "names"),
        ({}, "names"),
    ],
)
def test_arrays_other_than_those_waited_for_are_refused(arrays: dict[str, np.ndarray], wanted: str) -> None:
    with pytest.raises(RefusedError) as refused:
        fits(arrays, {"w": ((6,), np.dtype(np.float32))})
    assert refused.value.reason == wanted


def test_a_gate_takes_each_message_once_and_in_order_and_counts_what_it_refuses() -> None:
    gate = MessageFilter()
    first, second = (encode(Message("update", "press-1", "run", session=2, number=n)) for n in (1, 2))
    later = encode(Message("update", "press-1", "run", session=3, number=1))
    assert gate.take(second, "press-1") is not None
    assert gate.take(second, "press-1") is None  # replayed
    assert gate.take(first, "press-1") is None  # out of order
    assert gate.take(later, "press-1") is not None  # started again
    assert gate.take(encode(Message("update", "press-1", "run", session=2, number=9)), "press-1") is None  # from before
    assert gate.take(encode(Message("update", "press-2", "run", session=4)), "press-1") is None
    assert gate.counts() == {"press-1": {"replayed": 3, "sender": 1}}


def test_what_was_taken_before_a_restart_is_not_taken_again(tmp_path: Path) -> None:
    sent = [encode(Message("walk", "cloud", "run", session=7, number=n)) for n in (1, 2, 3)]
    before = MessageFilter(seen=tmp_path / "state" / "seen.json")
    assert all(before.take(one, "cloud") for one in sent[:2])
    after = MessageFilter(seen=tmp_path / "state" / "seen.json")
    assert after.take(sent[1], "cloud") is None
    assert after.take(sent[2], "cloud") is not None  # its sender goes on counting
    assert after.counts() == {"cloud": {"replayed": 1}}
    (tmp_path / "state" / "seen.json").write_text("[")
    with refusals.refused("damaged-record"):
        MessageFilter(seen=tmp_path / "state" / "seen.json")


def mutated(seed: int, data: bytes) -> bytes:
    """Flip, cut, double or splice, and half of the time make the digest right again."""
    rng = random.Random(seed)
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(4)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[at : at + rng.randrange(40)]
        elif how == 2:
            changed[at:at] = rng.randbytes(rng.randrange(40))
        else:
            changed[at:at] = changed[: rng.randrange(40)]
    if rng.random() < 0.5:
        body = bytes(changed[-rng.randrange(1, 200) :])
        return forged(header(body), body)
    return bytes(changed)


@settings(max_examples=10_000, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.integers(0, 2**32).map(lambda seed: mutated(seed, encode(SENT)))))
def test_whatever_arrives_is_taken_whole_or_refused(data: bytes) -> None:
    try:
        got = decode(data, 1 << 20)
    except RefusedError:
        return
    assert all(np.isfinite(one).all() for one in got.arrays.values())


# -- messages in pieces ------------------------------------------------------------------------------------------------

LONG = random.Random(0).randbytes(3 * mqtt.PACKET_BYTES)


def piece(start: int, size: int, body: bytes, transmission: bytes = b"12345678") -> bytes:
    return mqtt.PIECE.pack(mqtt.PIECE_MAGIC, transmission, start, size) + body


def assembled(packets: list[bytes], most: int = len(LONG), topic: str = "t") -> list[bytes]:
    assembler = mqtt.Assembler()
    return [whole for packet in packets if (whole := assembler.add(topic, packet, most)) is not None]


@given(st.integers(0, 3 * mqtt.PACKET_BYTES))
@settings(max_examples=30, deadline=None)
def test_a_message_of_any_length_arrives_from_pieces_that_a_broker_takes(size: int) -> None:
    packets = list(mqtt.pieces(LONG[:size]))
    assert max(map(len, packets)) < mqtt.PACKET_BYTES
    assert assembled(packets) == [LONG[:size]]


def test_the_time_from_a_messages_first_piece_to_its_last_is_counted() -> None:
    assembler = mqtt.Assembler()
    first, *others = mqtt.pieces(LONG)
    assembler.add("t", first, len(LONG))
    time.sleep(0.05)
    assert assembler.took_s == 0
    assert [whole for packet in others if (whole := assembler.add("t", packet, len(LONG))) is not None] == [LONG]
    assert assembler.took_s >= 0.05
    assert assembler.add("t", b"short", len(LONG)) == b"short"
    assert assembler.took_s == 0


def test_pieces_that_come_twice_change_nothing_and_a_message_that_lacks_one_is_dropped() -> None:
    """As after a lost connection: what was not acknowledged comes again, and then the whole message."""
    first = list(mqtt.pieces(LONG))
    second = list(mqtt.pieces(LONG))
    assert assembled([*first[:3], *first[1:]]) == [LONG]
    assert assembled([first[0], first[2], first[3]]) == []
    assert assembled([*first[:2], *second, *first[2:]]) == [LONG]
    assert assembled(first[1:]) == []
    mixed = [packet for pair in zip(first, second, strict=True) for packet in pair]
    assert assembled(mixed) == [LONG]


def test_topics_are_joined_apart() -> None:
    assembler = mqtt.Assembler()
    sent = {topic: topic.encode() + LONG for topic in ("a", "b")}
    got = [
        (topic, assembler.add(topic, packet, 1 << 30))
        for pair in zip(*(mqtt.pieces(one) for one in sent.values()), strict=True)
        for topic, packet in zip(sent, pair, strict=True)
    ]
    assert {topic: whole for topic, whole in got if whole is not None} == sent


@pytest.mark.parametrize(
    ("packets", "reason"),
    [
        ([piece(0, len(LONG) + 1, b"x")], "oversized"),
        ([piece(0, 1 << 63, b"x")], "oversized"),
        ([piece(0, 10, b"x" * 11)], "oversized"),
        ([piece(0, 10, b"x" * 9), piece(9, 10, b"xx")], "oversized"),
        ([piece(0, 10, b"")], "truncated"),
        ([mqtt.PIECE_MAGIC], "truncated"),
    ],
)
def test_pieces_of_more_than_is_allowed_or_stated_are_refused(packets: list[bytes], reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        assembled(packets)
    assert refused.value.reason == reason


def test_pieces_hold_no_memory_before_they_arrive() -> None:
    assembler = mqtt.Assembler()
    for n in range(1000):
        assert assembler.add("t", piece(0, 1 << 30, b"x", n.to_bytes(8, "big")), 1 << 30) is None
    assert [len(one.data) for one in assembler._partial.values()] == [1]

"""Codecs: laws of their payloads, and settings that are refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.base.chance import generator
from fedfloor.base.ranges import RefusedError
from fedfloor.parts.travel.chains import Coding, chain, text
from fedfloor.parts.travel.packing import NumberLayout, pack_places, places_bytes, unpack_places
from refusals import refused

LAYOUT = NumberLayout(((24, 30), (1, 24), (10, 24), (1, 10)))
CHAINS: list[Any] = [
    "float16", "bfloat16", "int8", "int4", "int2", "top-k", "random-k", "low-rank", "sign",
    ["int8", {"kind": "top-k", "share": 0.01}], ["top-k", "int4"], ["random-k", "int2"], ["low-rank", "float16"],
    [{"kind": "top-k", "share": 0.6}, "sign"], ["low-rank", "top-k", "bfloat16"], {"kind": "quantise", "bucket": 7},
]  # fmt: skip


def coding(value: object, layout: NumberLayout = LAYOUT) -> Coding:
    return Coding(chain(text(value)), layout)


def draws(seed: int) -> Any:
    return lambda place: generator(seed, f"codec {place}")


def change(seed: int, numbers: int = LAYOUT.numbers) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(numbers).astype(np.float32)


@pytest.mark.parametrize("value", CHAINS, ids=str)
def test_a_payload_is_as_long_as_its_layout_states(value: object) -> None:
    one = coding(value)
    x = change(0)
    payload = one.leave(x, draws(0))
    assert payload.dtype == np.uint8
    assert payload.size == one.bytes < x.nbytes
    y = one.arrive(payload, draws(0))
    assert y.shape == x.shape
    assert np.array_equal(one.leave(x, draws(0)), payload)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(CHAINS), st.integers(0, 2**30), st.integers(2, 6))
def test_feedback_sums_to_what_was_coded(value: object, seed: int, rounds: int) -> None:
    """Σ decoded + e = Σ u, to the rounding of single precision."""
    one = coding(value)
    error = np.zeros(LAYOUT.numbers, np.float32)
    got = np.zeros(LAYOUT.numbers)
    updates = [change(seed + i) for i in range(rounds)]
    for i, update in enumerate(updates):
        x = update + error
        y = one.arrive(one.leave(x, draws(seed + i)), draws(seed + i))
        error = x - y
        got = got + y
    assert np.allclose(got + error, np.sum(updates, axis=0, dtype=np.float64), atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([8, 4, 2]), st.integers(0, 2**30))
def test_stochastic_rounding_is_unbiased_and_goes_to_a_neighbour(bits: int, seed: int) -> None:
    one = coding({"kind": "quantise", "bits": bits, "bucket": 16})
    x = change(seed)
    step = np.repeat(np.abs(np.pad(x, (0, -x.size % 16))).reshape(-1, 16).max(1), 16)[: x.size] / (2 ** (bits - 1) - 1)
    many = np.array([one.arrive(one.leave(x, draws(i)), draws(i)) for i in range(400)])
    assert bool((np.abs(many - x) <= step * (1 + 1e-4)).all())
    # the mean of 400 draws of deviation at most step/2, over 994 numbers: 6 standard errors hold but once in 5e5
    assert bool((np.abs(many.mean(0) - x) <= 6 * step / 2 / 20).all())


@pytest.mark.parametrize("value", ["float16", "bfloat16", "int8", "int4", "int2", {"kind": "quantise", "bucket": 3}])
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-4, 60.0]))
def test_an_error_is_no_longer_than_stated(value: object, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    (made,) = chain(text(value))
    x = (rng.standard_normal(700) ** 5 * size / 100).astype(np.float32)  # some numbers are far larger than most
    coding = Coding((made,), NumberLayout(((1, 700),)))
    decoded = coding.arrive(coding.leave(x, lambda _: rng), lambda _: rng)
    assert np.linalg.norm(decoded - x) <= (made.error + 1e-6) * np.linalg.norm(x) + 1e-6


def test_top_k_keeps_the_largest_and_random_k_places_that_are_not_sent() -> None:
    x = change(1)
    kept = coding({"kind": "top-k", "share": 0.1})
    y = kept.arrive(kept.leave(x, draws(0)), draws(0))
    largest = np.argsort(-np.abs(x))[:100]  # ⌈994 · 0.1⌉
    assert np.array_equal(np.flatnonzero(y), np.sort(largest))
    assert np.array_equal(y[largest], x[largest])
    assert kept.bytes == 100 * 4 + 100 * 10 // 8  # ⌈log₂ 994⌉ = 10 bits a place
    alike = np.array([1, -2, 2, -2, 0], np.float32)  # of numbers of one size the first are kept
    two = coding({"kind": "top-k", "share": 0.4}, NumberLayout(((1, 5),)))
    assert two.arrive(two.leave(alike, draws(0)), draws(0)).tolist() == [0, -2, 2, 0, 0]
    drawn = coding({"kind": "random-k", "share": 0.1})
    y = drawn.arrive(drawn.leave(x, draws(0)), draws(0))
    assert drawn.bytes == 400
    assert np.count_nonzero(y) == 100
    assert np.array_equal(y[y != 0], x[y != 0])


def test_low_rank_is_exact_for_a_matrix_of_that_rank() -> None:
    rng = np.random.default_rng(0)
    layout = NumberLayout(((40, 50), (1, 7)))
    x = np.concatenate([(rng.standard_normal((40, 2)) @ rng.standard_normal((2, 50))).ravel(), rng.standard_normal(7)])
    one = coding({"kind": "low-rank", "rank": 2}, layout)
    y = one.arrive(one.leave(x.astype(np.float32), draws(0)), draws(0))
    assert one.bytes == 4 * (2 * (40 + 50) + 7)
    assert np.allclose(y, x, atol=1e-4)


def test_sign_sends_the_mean_size_of_each_tensor() -> None:
    one = coding("sign")
    x = change(3)
    y = one.arrive(one.leave(x, draws(0)), draws(0))
    assert np.array_equal(np.sign(y), np.where(x < 0, -1, 1))
    assert np.allclose(np.abs(y[:720]), np.abs(x[:720]).mean(), rtol=1e-5)


@pytest.mark.parametrize("value", ["identity", {"kind": "top-k", "share": 1.0}, {"kind": "random-k", "share": 1.0}, []])
def test_codecs_that_lose_nothing_are_no_codecs(value: object) -> None:
    assert text(value) == ""
    assert text(["int8", value] if value else "int8") == "quantise bits=8 bucket=512"


@given(st.integers(1, 3000), st.data())
def test_places_come_back(numbers: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, numbers))
    places = np.sort(np.random.default_rng(kept).choice(numbers, kept, replace=False))
    packed = pack_places(places, numbers)
    assert packed.size == places_bytes(kept, numbers)
    assert np.array_equal(unpack_places(packed, kept, numbers), places)


@given(st.sampled_from(CHAINS), st.binary(max_size=2000))
@settings(deadline=None, max_examples=60)
def test_foreign_bytes_are_refused_or_decoded_never_worse(value: object, noise: bytes) -> None:
    one = coding(value)
    payload = np.frombuffer((noise * (one.bytes // max(1, len(noise)) + 1))[: one.bytes], np.uint8)
    with np.errstate(all="ignore"), suppress(RefusedError):
        assert one.arrive(payload, draws(0)).shape == (LAYOUT.numbers,)
    with refused("payload", RefusedError):
        one.arrive(np.zeros(one.bytes + 1, np.uint8), draws(0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("itn8", "unknown codec"),
        ("topk", "unknown codec"),
        ({"kind": "top-k", "share": 0.0}, "travel.top-k.share"),
        ({"kind": "random-k", "share": 1.5}, "travel.random-k.share"),
        ({"kind": "quantise", "bits": 3}, "travel.quantise.bits"),
        ({"kind": "int8", "bits": 4}, "travel"),
        ({"kind": "low-rank", "rank": 0}, "travel.low-rank.rank"),
        ({"kind": "top-k", "shar": 0.1}, "unknown setting of codec 'top-k'"),
        (["int8", "int4"], "travel"),
        (["sign", "low-rank"], "travel"),
        (5, "travel"),
        ("top-k share=abc", "travel"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(value: object, message: str) -> None:
    with refused(message):
        text(value)

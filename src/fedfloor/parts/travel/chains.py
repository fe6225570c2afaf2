"""Chains of codecs: from the text of a plan, or of an experiment, to what encodes and decodes a payload."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError, shown
from fedfloor.base.ranges import RefusedError
from fedfloor.parts import named
from fedfloor.parts.protection.masking import LEAST
from fedfloor.parts.travel import packing
from fedfloor.parts.travel.codec import Chance, Codec
from fedfloor.parts.travel.codecs import CODECS, OWN, SecureSum
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers

UNSUMMED = {  # codec → the reason why its payloads cannot be added up
    "top-k": "each device sends different numbers", "random-k": "each device draws its own places",
    "sign": "each device has its own scale", "quantise": "each device has its own scales",
    "low-rank": "the sum of factors is not the factors of the sum",
    "float16": "its numbers are floating-point", "bfloat16": "its numbers are floating-point",
}  # fmt: skip
SHORT: Mapping[str, Mapping[str, Any]] = {f"int{bits}": {"kind": "quantise", "bits": bits} for bits in (8, 4, 2)}


@lru_cache(maxsize=64)
def chain(text: str) -> tuple[Codec, ...]:
    """Return the codecs of a text in a plan, such as ``"top-k share=0.01, int8"``, without codecs that change nothing.

    Raises:
        SettingError: an unknown codec or setting, a setting out of its range, or an order in which codecs do not work.
    """
    made = [codec(_settings(part), {**CODECS, **OWN}) for part in text.split(",")] if text else []
    if len(made) > 1 and any(step.summed for step in made):
        other = next(step for step in made if not step.summed)
        name = named.to_spec(other, CODECS)[0]
        raise SettingError(
            f"travel: 'secure-sum' beside '{name}': {UNSUMMED.get(name, 'it does not code vectors of numbers')}, and "
            "only vectors of numbers that mean the same on every device can be added up while they are masked. Leave "
            f"'{name}' out; secure-sum has bits = 16 for half the bytes."
        )
    if noisy := next((step for step in made if step.privacy is not None), None):
        name = named.to_spec(noisy, CODECS)[0]
        if not noisy.changes:
            raise SettingError(
                f"codec '{name}' adds noise, which hides a change but no model: set changes = True in it."
            )
        if made[0] is not noisy:
            raise SettingError(
                f"travel: '{name}' must be the first codec: what others send beside their numbers, such as a scale, "
                "would have no noise."
            )
        if keeping := next((step for step in made if step.feedback), None):
            raise SettingError(
                f"travel: '{name}' beside '{named.to_spec(keeping, CODECS)[0]}': what the device keeps of a change "
                "would remove the noise in the next one. Leave one of the two out."
            )
    layout = NumberLayout(((64, 64),))
    for step in made:
        layout = step.after(layout)
    return tuple(step for step in made if not step.whole)


def summed(text: str) -> SecureSum | None:
    """Return the codec of a secure sum in the text of codecs in a plan; None without one."""
    return next((step for step in chain(text) if isinstance(step, SecureSum)), None)


def secure(text: str) -> bool:
    """Return whether the text of codecs in a plan is that of a secure sum."""
    return summed(text) is not None


def across(text: str) -> bool:
    """Return whether the text of codecs in a plan is that of one secure sum across factories."""
    return any(step.crosses for step in chain(text))


def together(text: str) -> bool:
    """Return whether the text of codecs in a plan is that of a secure sum of crews."""
    codec = summed(text)
    return codec is not None and codec.together


def check_sums(greatest: float, text: str) -> None:
    """Check that no secure sum cuts off a device's sums, as its neighbours could not tell.

    Args:
        greatest: the greatest of the sums' numbers per sample, by its size.
        text: the codecs of the way up.

    Raises:
        SettingError: it is larger than the bound of the sum's numbers.
    """
    codec = summed(text)
    if codec is None or greatest <= codec.widest:
        return
    wider = replace(codec, bits=64, bound=0.0).widest
    advice = f"Set bits = 64 without a bound: it is then {wider:g}" if codec.widest < wider else "Raise it"
    raise SettingError(
        f"a device's sum per sample is {greatest:.3g}, beyond travel.secure-sum.bound = {codec.widest:g}. {advice}; or "
        'set data.normalise = "standard".',
        key="travel.secure-sum.bound",
    )


def staged(text: str) -> Callable[[int], Sequence[tuple[int, int]]] | None:
    """Return the :meth:`Codec.stages` of the codec of a text in a plan that has any; None without such a codec."""
    return next((step.stages for step in chain(text) if step.stages(LEAST)), None)


def _settings(text: str) -> Mapping[str, Any]:
    name, *settings = text.split() or [""]
    pairs = [setting.partition("=") for setting in settings]
    try:
        return {"kind": name} | {key: json.loads(value) for key, _, value in pairs}
    except ValueError:
        raise SettingError(f"travel: {shown(text)}: must be written as 'top-k share=0.01, int8'.") from None


def codec(value: object, known: Mapping[str, Callable[..., Codec]] = CODECS) -> Codec:
    """Return a codec from its name, or a table of its ``kind`` and settings.

    Raises:
        SettingError: the value is neither, or a setting is out of its range.

    >>> codec("int4"), codec({"kind": "top-k", "share": 0.1})
    (Quantise(bits=4, bucket=512), TopK(share=0.1))
    """
    settings = {"kind": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping) or not isinstance(settings.get("kind"), str):
        raise SettingError(
            f'travel: {shown(value)}: must be the name of a codec, or a table such as {{ kind = "top-k" }}, or a list '
            "of codecs."
        )
    short = SHORT.get(settings["kind"], {})
    if "bits" in settings and short:
        raise SettingError(f"travel: '{settings['kind']}' has its bits in its name: leave bits out, or use 'quantise'.")
    settings = {**settings, **short}
    name = settings.pop("kind")
    names: Mapping[str, Any] = known if name in known or ":" in name else {**known, **SHORT}
    made: Codec = named.make("codec", name, settings, names, Codec)
    if made.summed and not isinstance(made, SecureSum):  # its updates would count as protected
        raise SettingError(f"codec '{name}': summed is for secure-sum alone, whose masks it lacks. Leave it out.")
    return made


def text(value: object) -> str:
    """Return the text of codecs in a plan, from a codec or a list of codecs as in an experiment file.

    >>> text(["int8", {"kind": "top-k", "share": 0.01}])
    'quantise bits=8 bucket=512, top-k share=0.01'
    """
    if isinstance(value, str) and (" " in value or "," in value):
        chain(value)
        value = [_settings(part) for part in value.split(",")]
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    words = []
    for made in map(codec, several):
        if made.whole:
            continue
        name, settings = named.to_spec(made, CODECS)
        words.append(" ".join([name, *(f"{key}={named.written(value)}" for key, value in settings.items())]))
    chain(", ".join(words))
    return ", ".join(words)


@dataclass(frozen=True)
class Coding:
    """A chain of codecs for numbers of a given layout.

    Args:
        codecs: the codecs in order; at least one.
        layout: the layout of the numbers.
    """

    codecs: tuple[Codec, ...]
    layout: NumberLayout

    @cached_property
    def steps(self) -> tuple[tuple[Codec, NumberLayout], ...]:
        """Each codec with the layout of its input, in order."""
        layout = self.layout
        steps = []
        for step in self.codecs:
            steps.append((step, layout))
            layout = step.after(layout)
        return tuple(steps)

    @cached_property
    def last(self) -> NumberLayout:
        """The layout of the numbers that are packed."""
        codec, layout = self.steps[-1]
        return codec.after(layout)

    @property
    def numbers(self) -> int:
        """The number of coded values."""
        return self.layout.numbers

    @cached_property
    def bytes(self) -> int:
        """The size of a payload in bytes."""
        return sum(step.side(layout) for step, layout in self.steps) + self.last.bytes

    @property
    def summed(self) -> SecureSum | None:
        """The secure-sum codec, whose payloads are decoded only as a sum; None without one."""
        return next((step for step in self.codecs if isinstance(step, SecureSum)), None)

    @property
    def memory(self) -> Codec | None:
        """The codec whose memory of earlier changes the device keeps: the first that has one; None without one."""
        return next((step for step in self.codecs if step.feedback), None)

    def leave(self, x: Numbers, chance: Chance) -> Bytes:
        """Return the payload, uint8 [bytes], of numbers [n]."""
        parts = []
        layouts = [*(layout for _, layout in self.steps[1:]), self.last]
        for place, ((step, layout), after) in enumerate(zip(self.steps, layouts, strict=True)):
            side, x = step.leave(x, layout, chance(place))
            announced = step.side(layout), after.numbers
            if (np.size(side), np.size(x)) != announced:
                raise SettingError(
                    f"codec {type(step).__name__}: leave returned {np.size(side)} bytes of side information and "
                    f"{np.size(x)} numbers, but its side and after announce {announced[0]} and {announced[1]}.",
                    key="own-codec",
                )
            parts.append(side)
        return np.concatenate([*parts, packing.pack_numbers(x, self.last)])

    def arrive(self, payload: Bytes, chance: Chance) -> Numbers:
        """Return the numbers [n] decoded from a payload.

        Raises:
            RefusedError: the bytes have the wrong length, or are no payload.
        """
        if payload.shape != (self.bytes,):
            raise RefusedError("payload", f"{payload.size} bytes arrived; {self.bytes} are expected.")
        ends = np.cumsum([step.side(layout) for step, layout in self.steps])
        *sides, packed = np.split(payload, ends)
        x = packing.unpack_numbers(packed, self.last)
        for place, (step, layout) in reversed(list(enumerate(self.steps))):
            x = step.arrive(sides[place], x, layout, chance(place))
            if np.shape(x) != (layout.numbers,):
                raise SettingError(
                    f"codec {type(step).__name__}: arrive must return {layout.numbers} numbers, as leave got; got "
                    f"{shown(x)}.",
                    key="own-codec",
                )
        return x

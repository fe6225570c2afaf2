"""What a method's ``init`` and ``absorb`` return, checked before a round is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedfloor.base.errors import SettingError, shown
from fedfloor.methods.contract import State

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "w"


def checked(after: Any, packet: Mapping[str, Tensor], name: str, hook: str) -> State:
    """Return a method's next state if its packet can travel: flat tensors as in ``packet``, with a model.

    Args:
        packet: the packet before: entries of the same name keep their length and type.
        name: the method's.
        hook: the function that returned the state.

    Raises:
        SettingError: it is no ``State``, has no model, or an entry cannot take the place of the one before.
    """
    if not isinstance(after, State):
        wanted = "a State, such as State(outcome.packet, state.notes)"
        raise _refused(name, hook, wanted if hook == "absorb" else "a State, such as State(view.start)", after)
    if MODEL in packet and MODEL not in after.packet:  # a preview's packet is empty
        raise _refused(name, hook, "a State whose packet has the model 'w'", sorted(after.packet))
    for key, value in after.packet.items():
        before = packet.get(key)
        if before is None or value is before:
            continue
        if not isinstance(value, type(before)) or (value.shape, value.dtype) != (before.shape, before.dtype):
            got = f"{type(value).__name__} {list(getattr(value, 'shape', []))} of {getattr(value, 'dtype', 'no type')}"
            raise _refused(name, hook, f"packet['{key}'] as a tensor {list(before.shape)} of {before.dtype}", got)
    return after


def _refused(name: str, hook: str, wanted: str, got: object) -> SettingError:
    return SettingError(f"method '{name}': {hook} must return {wanted}; got {shown(got)}.", key="state-of-method")

"""What each device holds now: windows and their class counts, worked out for several positions at once, and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Labels, Values
from fedfloor.errors import SettingError
from fedfloor.park.stream import Altering, Stream

BLOCK_BYTES = 1 << 16  # 64 KiB, some 90 windows of 32 samples and 62 classes
KEPT_BYTES = 1 << 27  # 128 MiB
OBJECT_BYTES = 1 << 10  # what a block takes beside its numbers
WHOLE = slice(None)


class Block(NamedTuple):
    """What a device holds at the positions ``first`` … ``end`` − 1, P of them.

    Args:
        windows: int64 [P, n], the local numbers of the samples; None: all of them, and P = 1.
        counts: int64 [P, F], of the classes.
        before: the block that was used up before this one.
    """

    first: int
    end: int
    windows: Indices | None
    counts: NDArray[np.int64]
    before: Block | None = None


class Windows:
    """The windows of a park's devices, of each device for some positions on from where it was last looked for.

    Passes are shuffled whole, so that the other windows in them cost next to nothing. Who has used up a block is given
    one of twice as many windows, up to ``BLOCK_BYTES``: of a device that is asked once little is worked out for
    nothing, and hardly any pass is shuffled twice for one that is asked at position after position. The block that was
    used up is kept beside it, for who chooses some ticks ahead and trains afterwards. When they come to
    more than ``KEPT_BYTES``, the oldest blocks go.

    Args:
        stream: what is held when.
        seed: of the stream.
        labels: training indices [n] → their classes, int64 [n].
        indices: for each device its training samples.
        classes: F.
    """

    def __init__(
        self, stream: Stream, seed: int, labels: Callable[[Indices], Labels], indices: Sequence[Indices], classes: int
    ) -> None:
        self.stream, self.seed, self.labels, self.indices, self.classes = stream, seed, labels, indices, classes
        self._altering = stream if isinstance(stream, Altering) else None
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._bytes = 0

    def check(self, devices: Sequence[int], visits: Sequence[int]) -> None:
        """Refuse visits that are not one number per device.

        Raises:
            SettingError: they are not.
        """
        if len(visits) != len(devices):
            raise SettingError(f"{len(visits)} visits for {len(devices)} devices. Give one number per device.")

    def at(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> list[tuple[Block, int]]:
        """Return for each device a block with what it holds now, and its position.

        Args:
            devices: whose.
            tick: the park's clock.
            visits: for each of ``devices``, how often it was trained so far in the run.

        Raises:
            SettingError: ``visits`` has not one number per device.
        """
        self.check(devices, visits)
        position_of, blocks, found = self.stream.position, self._blocks, []
        for device, seen in zip(devices, visits, strict=True):
            position = position_of(tick, seen)
            block = blocks.get(device)
            if block is None or not block.first <= position < block.end:
                before = None if block is None else block.before
                back = before is not None and before.first <= position < before.end
                block = before if before is not None and back else self._next(device, position)
            found.append((block, position))
        return found

    def held(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> list[Indices | slice]:
        """Return for each device the local numbers of the samples that it holds now, as :meth:`at` is asked."""
        if self.stream.kind == "static":
            self.check(devices, visits)
            return [WHOLE] * len(devices)
        now = self.at(devices, tick, visits)
        return [WHOLE if one.windows is None else one.windows[position - one.first] for one, position in now]

    def shown(self, x: Values, devices: Sequence[int], tick: int, visits: Sequence[int]) -> Values:
        """Return what the samples that devices hold now look like: most streams show them as they are stored.

        Args:
            x: the stored ones, of one device after the other.
            devices, tick, visits: as :meth:`at` takes them.
        """
        if self._altering is None:
            return x
        parts, end = [], 0
        for device, seen in zip(devices, visits, strict=True):
            begin, end = end, end + self.stream.holds(len(self.indices[device]))
            place = self.stream.position(tick, seen)
            parts.append(self._altering.shown(x[begin:end], self.seed, device, place))
        return np.concatenate(parts)  # type: ignore[return-value]  # of one type, as the parts are

    def _next(self, device: int, position: int) -> Block:
        """Work out a device's block from a position on, and keep it in the place of the one it had."""
        last = self._blocks.pop(device, None)
        used_up = last is not None and position == last.end
        block = self._made(device, position, 2 * (last.end - last.first) if last is not None and used_up else 1)
        if last is not None and used_up:
            block = block._replace(before=last._replace(before=None))
        self._blocks[device] = block
        self._bytes += _bytes(block) - (0 if last is None else _bytes(last))
        while self._bytes > KEPT_BYTES and len(self._blocks) > 1:
            self._bytes -= _bytes(self._blocks.popitem(last=False)[1])
        return block

    def _made(self, device: int, first: int, least: int) -> Block:
        indices, classes = self.indices[device], self.classes
        most = max(1, BLOCK_BYTES // (8 * (self.stream.holds(len(indices)) + classes)))
        labels = self.labels(indices)
        windows = self.stream.held(labels, self.seed, device, first, min(least, most))
        if windows is None:
            return Block(first, first + 1, None, np.bincount(labels, minlength=classes)[None])
        windows = windows[:most].copy()  # a view would keep whole passes
        several = len(windows)
        place = labels[windows] + classes * np.arange(several)[:, None]
        counts = np.bincount(place.ravel(), minlength=several * classes).reshape(several, classes)
        return Block(first, first + several, windows, counts)


def _bytes(block: Block) -> int:
    own = OBJECT_BYTES + block.counts.nbytes + (0 if block.windows is None else block.windows.nbytes)
    return own + (0 if block.before is None else _bytes(block.before))

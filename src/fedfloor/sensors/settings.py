"""The settings of a device's sensors, the file of ``fedfloor park sense SOURCE.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedfloor.base import checking
from fedfloor.base.errors import SettingError, require, require_once
from fedfloor.data.files.layout import LARGEST
from fedfloor.sensors.folder import FolderSource
from fedfloor.sensors.mqtt import MqttSource
from fedfloor.sensors.opcua import OpcUaSource
from fedfloor.sensors.query import QuerySource
from fedfloor.sensors.sparkplug import SparkplugSource

COLUMN = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
MOST_TAGS = 10_000


@dataclass(frozen=True)
class BufferSettings:
    """The bounds of the ring buffer.

    Args:
        max_mb: the maximum size of its file, in MB (10^6 bytes).
        max_age_h: the maximum age of a row, in hours.
    """

    max_mb: float = 64.0
    max_age_h: float = 168.0

    def __post_init__(self) -> None:
        require(0.1 <= self.max_mb <= 1e6, "buffer.max_mb", self.max_mb, "from 0.1 to 1,000,000")
        require(0 < self.max_age_h <= 1e6, "buffer.max_age_h", self.max_age_h, "above 0, at most 1,000,000")


@dataclass(frozen=True)
class LabelSettings:
    """The source of labels.

    Args:
        address: the address of a sensor whose value is the label of its time.
        file: the path of a CSV file, which may grow, with the columns ``since``, ``until`` and ``label``.
        topic: a topic of an MQTT source with messages ``{"since": …, "until": …, "label": …}`` in JSON.
    """

    address: str | None = None
    file: Path | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        odd = self.topic is not None and (not self.topic or set(self.topic) & set("+#"))
        require(not odd, "labels.topic", self.topic, "one topic, without the wildcards + and #")


@dataclass(frozen=True)
class SenseSettings:
    """The settings of a device's sensors.

    Args:
        source: the source of the values.
        tags: a sensor's name in tables → its address at the source; by default all addresses in the first update.
        offsets: a sensor's name → a number subtracted from its values, which keeps the variation of large ones.
        quality: a sensor's name → the address of its quality; values whose quality is not good are missing.
        good: the good qualities, in any case; by default those of OPC.
        missing_texts: texts and numbers that stand for missing values of all sensors, such as ``-999.9``.
        period_s: the time between rows, in s; 0: each update is a row, as for tables.
        clock: the clock of the rows' times: that of the source, or this machine's at the arrival of values.
        wait_s: the time for which a row waits for late values, in s.
        gap_s: the pause, in s, beyond which a new recording begins; by default five periods, or 60 s if updates are
            rows.
        hold_s: the age, in s, above which a value counts as missing; by default a value is valid until the next one.
        ahead_s: the limit of times in the future, in s by this machine's clock; later times are refused.
        buffer, labels: the bounds of the buffer, and the source of labels.
    """

    source: FolderSource | MqttSource | SparkplugSource | OpcUaSource | QuerySource
    tags: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[str, int | float] = field(default_factory=dict)
    quality: Mapping[str, str] = field(default_factory=dict)
    good: tuple[str, ...] = ()
    missing_texts: tuple[str, ...] = ()
    period_s: float = 0.0
    clock: Literal["source", "arrival"] = "source"
    wait_s: float = 2.0
    gap_s: float | None = None
    hold_s: float | None = None
    ahead_s: float = 300.0
    buffer: BufferSettings = field(default_factory=BufferSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)

    def __post_init__(self) -> None:
        require(0 <= self.period_s <= 86400, "period_s", self.period_s, "from 0 to 86,400")
        require(0 <= self.wait_s <= 3600, "wait_s", self.wait_s, "from 0 to 3,600")
        require(self.gap_s is None or self.gap_s >= self.period_s, "gap_s", self.gap_s, "no less than period_s")
        require(self.hold_s is None or self.hold_s > 0, "hold_s", self.hold_s, "above 0")
        require(self.ahead_s >= 0, "ahead_s", self.ahead_s, "at least 0")
        require(len(self.tags) <= MOST_TAGS, "tags", len(self.tags), f"at most {MOST_TAGS:,}")
        for name in self.tags:
            require(bool(COLUMN.fullmatch(name)), "a name in tags", name, "1 to 200 characters on one line")
        for name, offset in self.offsets.items():
            require(not self.tags or name in self.tags, "a name in offsets", name, "a name in tags")
            require(-LARGEST <= offset <= LARGEST, f"offsets.{name}", offset, "a finite number")
        for name in self.quality:
            require(not self.tags or name in self.tags, "a name in quality", name, "a name in tags")
        require(not self.good or bool(self.quality), "good", list(self.good), "beside [quality]")
        addresses = [*self.tags.values(), *([self.labels.address] if self.labels.address else [])]
        require_once("tags", addresses, "an address once")
        for name, address in self.quality.items():
            require(address not in (name, *addresses), f"quality.{name}", address, "an address that is no sensor's")
        if self.labels.topic is not None and not isinstance(self.source, MqttSource):
            raise SettingError("labels.topic requires source.kind = 'mqtt'. Give labels.file instead.")

    @property
    def gap(self) -> float:
        """The pause, in s, beyond which a new recording begins."""
        return self.gap_s if self.gap_s is not None else 5 * self.period_s or 60.0


def read(path: Path) -> SenseSettings:
    """Read the settings of a device's sensors; paths in the file are relative to its folder.

    Raises:
        SettingError: the file does not exist, or has an unknown key or a wrong value.
    """
    settings = checking.read(SenseSettings, path, "source file")
    if isinstance(settings.source, OpcUaSource | QuerySource):  # they have paths within a text
        return replace(settings, source=settings.source.below(path.parent))
    return settings

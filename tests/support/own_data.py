"""Made-up data of one's own: a folder per device, of pictures or of tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, value: int = 0, shape: tuple[int, ...] = (4, 5), **how: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value % 256, np.uint8)).save(path, **how)
    return path


def park_of(root: Path, devices: tuple[str, ...] = ("press 10", "press 2"), each: int = 5) -> Path:
    """Pictures whose grey value is 100·device + 50·label + number."""
    for k, device in enumerate(devices):
        for c, label in enumerate(("bad", "ok")):
            for i in range(each):
                picture(root / device / label / f"{i}.png", 100 * k + 50 * c + i)
    return root


def table(path: Path, rows: int = 20, start: float = 0, head: str = "time,a,b,label") -> Path:
    """Rows of (start + r, r, 2r, even or odd), as far as the head asks for them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = head.split(",")
    lines = [head]
    for r in range(rows):
        cells = {"time": start + r, "a": r, "b": 2 * r, "label": "odd" if r % 2 else "even"}
        lines.append(",".join(str(cells.get(name, "?")) for name in wanted))
    path.write_text("\n".join(lines) + "\n")
    return path

"""Names of the package."""

import re
from collections import Counter
from pathlib import Path

import fedfloor

SOURCE = Path(fedfloor.__file__).parent


def test_every_class_name_stands_once() -> None:
    classes = Counter(
        name for path in SOURCE.rglob("*.py") for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.M)
    )
    assert [name for name, count in classes.items() if count > 1] == []

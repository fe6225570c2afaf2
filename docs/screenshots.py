"""Makes the pictures of the report and of the live page in docs/pictures: ``make screenshots``.

Trains the demonstration of remaining life once, opens its report and its live page in Chromium in light and dark, and
writes the first screens as PNG files of few colours.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parent / "pictures"
SIZE = {"width": 1180, "height": 760}  # px
COLOURS = 64  # of a picture's palette
MOST_BYTES = 300_000
COMMAND = (sys.executable, "-m", "fedfloor")


def taken(browser: Any, url: str, ready: str, name: str) -> None:
    """Write the first screen of a page in light and dark."""
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport=SIZE, color_scheme=scheme)
        page.goto(url)
        page.wait_for_selector(ready)
        page.wait_for_timeout(500)  # until the charts are drawn
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS)
        out = PICTURES / f"{name}-{scheme}.png"
        picture.save(out, optimize=True)
        if out.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{out} has {out.stat().st_size:,} bytes, more than {MOST_BYTES:,}.")
        page.close()


def main() -> None:
    """Train, open both pages, and write the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed.")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as tool:
        subprocess.run([*COMMAND, "demo", "--task", "life", "--out", "runs/demo-life"], cwd=place, check=True)
        browser = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        runs = Path(place) / "runs" / "demo-life"
        taken(browser, (runs / "report.html").as_uri(), "html[data-drawn]", "report")
        watching = [*COMMAND, "watch", str(runs), "--port", "0"]
        with subprocess.Popen(watching, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            found = re.search(r"http://\S+/", process.stderr.readline())
            if found is None:
                raise SystemExit("the live page has no address")
            taken(browser, found[0], "html[data-round]", "live")
            process.terminate()
        browser.close()


if __name__ == "__main__":
    main()

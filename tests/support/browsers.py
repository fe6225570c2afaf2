"""A real browser for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# what sticks out of the page to the right, but for what lies in a box that scrolls
STICKS_OUT = """
(limit) => [...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  const scrolls = getComputedStyle(one.closest(".scroll") ?? one).overflowX === "auto";
  const inner = one.closest(".scroll, pre, details:not([open])");
  return box.width > 0 && box.right > limit + 1 && !(inner && inner !== one && (scrolls || inner.tagName === "PRE"));
}).map((one) => one.tagName + "." + one.className)
"""


def chromium() -> Iterator[Any]:
    """Yield a browser; the test is skipped where Playwright is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()

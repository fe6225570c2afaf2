"""The report in a real browser: charts are there, nothing fails, nothing is loaded, nothing overflows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfloor.report.page import write
from run_folders import make_run

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for seed in range(2):
        make_run(folder / "runs" / f"fedsr-seed{seed}", [0.5, 0.7 + seed / 50, 0.9], seed=seed)
        make_run(folder / "runs" / f"fedavg-seed{seed}", [0.2, 0.4 + seed / 50, 0.6], method="fedavg", seed=seed)
    return write([folder / "runs"], folder / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_report_in_chromium(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    troubles: list[str] = []

    def record(route: Any) -> None:
        requests.append(route.request.url)
        route.continue_()

    page.route("**/*", record)
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-drawn='5']")

    assert page.locator(".js-plotly-plot").count() == 5
    assert page.locator("#accuracy .scatterlayer .trace").count() == 2 * 4  # band, two seeds, mean
    assert page.locator("#classes .barlayer .trace").count() == 2
    assert page.locator("#holdings-0 .scatterlayer .point").count() == 15
    assert page.locator("svg.ff-plan").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink = page.evaluate("getComputedStyle(document.querySelector('#accuracy .xtitle')).fill")
    assert ink == ("rgb(29, 39, 51)" if scheme == "light" else "rgb(230, 237, 243)")
    assert troubles == []
    # the page's own address, and data: addresses, which are part of it
    assert {url for url in requests if not url.startswith("data:")} == {page_file.as_uri()}
    page.close()


def test_charts_follow_a_change_of_scheme(browser: Any, page_file: Path) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-drawn='5']")
    page.emulate_media(color_scheme="dark")
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(page.locator("#loss .xtitle")).to_have_css("fill", "rgb(230, 237, 243)")
    page.close()


def test_configuration_opens(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.locator("summary", has_text="fedsr, seed 1").click()
    assert page.locator("details[open] pre", has_text='hardware = "machine 1"').is_visible()
    page.close()

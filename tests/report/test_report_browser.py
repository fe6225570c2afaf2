"""The report in a real browser: charts are there, nothing fails, nothing is loaded, nothing overflows, it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browsers import STICKS_OUT, chromium, needs_chromium
from fedfloor.report.page import write
from fedfloor.report.table import Budget
from run_folders import diverge, evaluate, make_run, price

pytestmark = [pytest.mark.slow, needs_chromium]
PAPER_PX = 718  # 190 mm, the writing of an A4 sheet, at 96 dots an inch


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods and two seeds, with everything that a run's folder can hold."""
    folder = tmp_path_factory.mktemp("report")
    for seed in range(2):
        for method, base in (("fedsr", 0.5), ("fedavg", 0.2)):
            curve = [base, base + 0.2 + seed / 50, base + 0.4]
            run = make_run(folder / "runs" / f"{method}-seed{seed}", curve, method=method, seed=seed)
            evaluate(run, accuracy=base + 0.4)
    return write([folder / "runs"], folder / "report.html")


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a seed beside it: 62 classes and 100 devices in 10 factories."""
    folder = tmp_path_factory.mktemp("long")
    run = make_run(folder / "run", [0.5, 0.7], classes=62, devices=100, factories=10)
    return write([evaluate(run)], folder / "report.html")


@pytest.fixture(scope="module")
def priced_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with a price, one of which diverged with a seed, compared when a budget is used."""
    folder = tmp_path_factory.mktemp("priced")
    for seed in range(2):
        for method, seconds in (("fedsr", 1800.0), ("fedavg", 300.0)):
            run = make_run(folder / "runs" / f"{method}-{seed}", [0.5, 0.7, 0.8], method=method, seed=seed, rounds=4)
            price(run, [seconds] * 3, [{"device_edge_up": 4_000_000, "edge_cloud_up": 1_000_000}] * 3, [60.0] * 3)
    diverge(folder / "runs" / "fedsr-1")
    return write([folder / "runs"], folder / "report.html", None, Budget("seconds", 3600))


browser = pytest.fixture(scope="module")(chromium)


def open_page(browser: Any, file: Path, **settings: Any) -> Any:
    page = browser.new_page(**settings)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]")
    return page


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
    page.wait_for_selector("html[data-drawn='6']")

    assert page.locator(".js-plotly-plot").count() == 6
    page.locator("summary", has_text="Loss against rounds").click()
    sizes = [box.bounding_box() for box in page.locator(".js-plotly-plot").all()]
    assert all(size["width"] > 200 and size["height"] > 100 for size in sizes)
    assert page.locator("#accuracy .scatterlayer .trace").count() == 2 * 4  # band, two seeds, mean
    assert page.locator("#classes .scatterlayer .trace").count() == 2
    assert page.locator("#factories .barlayer .trace").count() == 2
    assert page.locator("#holdings-0 .scatterlayer .point").count() == 15
    assert page.locator("svg.ff-plan").count() == 2
    assert page.locator("svg.ff-confusion .cell").count() == 2 * 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(STICKS_OUT, width) == []
    ink = page.evaluate("getComputedStyle(document.querySelector('#accuracy .xtitle')).fill")
    assert ink == ("rgb(29, 39, 51)" if scheme == "light" else "rgb(230, 237, 243)")
    captions = page.locator("figure").evaluate_all("all => all.map(one => one.querySelector('figcaption')?.innerText)")
    assert len([one for one in captions if one is not None]) == 6 + 2 + 2
    assert all(captions)
    assert troubles == []
    # the page's own address, and data: addresses, which are part of it
    assert {url for url in requests if not url.startswith("data:")} == {page_file.as_uri()}
    page.close()


@pytest.mark.parametrize("width", [340, 801, 960])
def test_windows_of_other_widths_fit(browser: Any, page_file: Path, width: int) -> None:
    page = open_page(browser, page_file, viewport={"width": width, "height": 900})
    assert page.evaluate(STICKS_OUT, width) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 960, 1400])
def test_prices_fit_and_are_drawn(browser: Any, priced_file: Path, width: int, scheme: str) -> None:
    page = open_page(browser, priced_file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    for kind in ("seconds", "bytes", "joules"):
        box = page.locator(f"#cost-{kind}").bounding_box()
        assert box["width"] > 200
        assert page.locator(f"#cost-{kind} .scatterlayer .trace").count() == 4 + 3  # FedSR has a mean of one: no band
        ink = page.evaluate(f"getComputedStyle(document.querySelector('#cost-{kind} .xtitle')).fill")
        assert ink == ("rgb(29, 39, 51)" if scheme == "light" else "rgb(230, 237, 243)")
    assert page.locator("#s-cost tbody tr").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(STICKS_OUT, width) == []
    page.close()


@pytest.mark.parametrize("width", [390, 1400])
def test_many_classes_and_devices_fit(browser: Any, long_file: Path, width: int) -> None:
    page = open_page(browser, long_file, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    fold = page.locator("details.figure:has(#classes)")
    assert not fold.evaluate("one => one.open")
    fold.locator("summary").click()
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(page.locator("#classes .xtitle")).to_be_visible()
    assert page.locator("#classes .scatterlayer .point").count() == 2  # the classes with test samples
    assert page.evaluate(STICKS_OUT, width) == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_prints(browser: Any, page_file: Path, long_file: Path, priced_file: Path, scheme: str) -> None:
    for file in (page_file, long_file, priced_file):
        page = open_page(browser, file, viewport={"width": PAPER_PX, "height": 1000}, color_scheme=scheme)
        assert page.pdf(format="A4").startswith(b"%PDF")  # before and after it, the browser says so to the page
        assert page.locator("details.figure:not([open])").count() == (3 if file == long_file else 1)  # folded again
        if file == page_file:  # the words beside a matrix lie in its picture
            inside = "one => [...one.querySelectorAll('text')].every(t => t.getBoundingClientRect().right <= %s)"
            edge = "one.getBoundingClientRect().right + 1"
            assert page.locator("svg.ff-confusion").first.evaluate(inside % edge)
        page.emulate_media(media="print", color_scheme=scheme)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details.figure:not([open])").count() == 0
        assert page.evaluate(STICKS_OUT, PAPER_PX) == []
        tall = page.locator("figure").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
        assert max(tall) < 850  # px: a sheet of A4 holds 1030, and headings and words stand before a figure
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ink = page.evaluate("getComputedStyle(document.querySelector('#accuracy .xtitle')).fill")
        assert ink == "rgb(0, 0, 0)"
        page.close()


def test_charts_follow_a_change_of_scheme(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file, color_scheme="light")
    page.emulate_media(color_scheme="dark")
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(page.locator("#accuracy .xtitle")).to_have_css("fill", "rgb(230, 237, 243)")
    page.close()


def test_a_click_sorts_the_devices(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file)
    first = page.locator(".sorts tbody tr").first
    head = page.locator(".sorts thead button").first
    head.click()
    assert page.locator(".sorts th[aria-sort=ascending]").count() == 1
    assert first.locator("th").inner_text() == "press-0"
    head.click()
    assert first.locator("th").inner_text() == "press-7"
    page.locator(".sorts thead button", has_text="FedSR").click()  # a device without test samples stays last
    assert page.locator(".sorts tbody tr").last.locator("th").inner_text() == "press-3"
    page.close()


def test_configuration_opens(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file)
    page.locator("summary", has_text="FedSR: seeds 0 and 1").click()
    page.locator("summary", has_text="fedsr, seed 1").click()
    assert page.locator("details[open] pre", has_text='hardware = "machine 1"').is_visible()
    page.close()


@pytest.mark.parametrize(("width", "hints"), [(390, True), (1400, False)])
def test_what_is_wider_than_the_screen_says_so(browser: Any, page_file: Path, width: int, hints: bool) -> None:
    page = open_page(browser, page_file, viewport={"width": width, "height": 900})
    boxes = page.locator("#s-plan .scroll").all()
    wide = [box.evaluate("one => one.scrollWidth > one.clientWidth + 1") for box in boxes]
    hinted = [box.evaluate("one => getComputedStyle(one, '::before').content.includes('scroll')") for box in boxes]
    assert hinted == wide
    assert any(hinted) == hints
    page.close()

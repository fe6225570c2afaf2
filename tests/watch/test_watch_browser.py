"""The page in a real browser, while a run trains: it follows, fits, loads nothing else, and takes names as text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsers import STICKS_OUT, chromium, needs_chromium
from run_folders import line, make_run

pytestmark = [pytest.mark.slow, needs_chromium]
pytest.importorskip("starlette", reason="the extra 'watch' is not installed")
TRAINS = """
name = "watched"
rounds = 400
[data]
name = "labels"
samples_per_device = 60
[park]
devices = 6
factories = 2
[model]
name = "mlp-2nn"
[method]
name = "fedsr"
[network]
profile = "lte-cat-m2"
[faults]
visit = 0.1
"""
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


def address(process: subprocess.Popen[str]) -> str:
    """The URL that a command prints on standard error."""
    assert process.stderr is not None
    for text in process.stderr:
        if match := re.search(r"http://\S+/", text):
            return match[0]
    raise AssertionError("the command ended without an address")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A run that trains, and its page."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "watched.toml").write_text(TRAINS)
    words = [sys.executable, "-m", "fedfloor", "run", "watched.toml", "--watch", "--ranks", "1", "--out", "run"]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    url = address(process)
    yield folder / "run", url
    process.kill()
    process.communicate()


browser = pytest.fixture(scope="module")(chromium)


def opened(browser: Any, url: str, **settings: Any) -> tuple[Any, list[str], list[str]]:
    """A page, the addresses that it asked for, and its errors."""
    page = browser.new_page(**settings)
    requests: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda told: troubles.append(told.text) if told.type in ("error", "warning") else None)
    page.goto(url)
    page.wait_for_selector("html[data-round]")
    return page, requests, troubles


def reached(page: Any, number: int) -> int:
    """Wait until the page shows a round; return the round that it shows. Its policy forbids ``wait_for_function``."""
    until = time.monotonic() + 60
    while (shown := int(page.evaluate("document.documentElement.dataset.round"))) < number:
        assert time.monotonic() < until
        page.wait_for_timeout(20)
    return shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_it_follows_a_run(browser: Any, training: tuple[Path, str], width: int, scheme: str) -> None:
    _, url = training
    page, requests, troubles = opened(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)
    before = reached(page, 2)
    reached(page, before + 1)
    assert re.search(r"^Round \d+ of 400 is under way", page.locator("#now").inner_text())
    assert page.locator("svg.curve polyline").count() == 3
    assert page.locator("svg.ff-plan").is_visible()
    assert page.locator("#devices tbody tr").count() == 6
    assert page.locator("#costs tbody tr").count() == 5  # seconds, and four links
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(STICKS_OUT, width) == []
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == ("rgb(29, 39, 51)" if scheme == "light" else "rgb(230, 237, 243)")
    assert troubles == []
    assert {one for one in requests if not one.startswith("data:")} == {
        url, f"{url}watch.css", f"{url}watch.js", f"{url}events",
    }  # fmt: skip
    page.close()


def test_a_round_is_shown_within_a_second(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25], rounds=9)
    with served(run) as url:
        page, _, _ = opened(browser, url)
        waited = []
        for number in range(2, 7):
            time.sleep(0.41)
            began = time.time()
            with (run / "ledger.jsonl").open("a") as file:
                file.write(line(number, 0.5))
            reached(page, number)
            waited.append(page.evaluate("Number(document.documentElement.dataset.seen)") / 1000 - began)
        page.close()
    assert max(waited) < 1.0


def test_what_a_round_waits_for_is_shown(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25], rounds=9)
    with (run / ".lock").open("w"), served(run) as url:
        page, _, troubles = opened(browser, url)
        about = {"round": 2, "why": "1 of 8 devices <b>are</b> connected.", "since": 1.8e9, "until": 1.8e9 + 60}
        (run / "waiting.json").write_text(json.dumps(about))
        for _ in range(300):
            if "waits" in page.locator("#now").inner_text():
                break
            page.wait_for_timeout(100)
        shown = page.locator("#now").inner_text()
        place = page.locator("#place").text_content()
        page.close()
    assert re.match(r"Round 2 of 9 waits since .*:00, until .*:00 at most: 1 of 8 devices <b>are</b> conn", shown)
    assert place == "Round 2 waits for devices."
    assert troubles == []


def test_a_comparison_is_overlaid_and_the_pointer_reads_values(browser: Any, tmp_path: Path) -> None:
    for method, base in (("fedavg", 0.2), ("fedsr", 0.5)):
        make_run(tmp_path / "both" / f"{method}-seed0", [base, base + 0.1, base + 0.25], method=method)
    with served(tmp_path / "both") as url:
        page, _, troubles = opened(browser, url, viewport={"width": 1400, "height": 900})
        assert page.locator("#runs tbody tr").count() == 2
        assert page.locator("#curve-value polyline").count() == 2
        legend = page.locator("#curve-value figcaption")
        assert legend.inner_text().replace("\n", " ") == "accuracy, last round:  fedavg-seed0 0.45  fedsr-seed0 0.75"
        ticks = page.locator("#curve-value text[text-anchor=end]").all_text_contents()
        assert ticks == ["0.2", "0.4", "0.6", "0.8"]
        box = page.locator("#curve-value svg.curve").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
        assert "round 2:  fedavg-seed0 0.3  fedsr-seed0 0.6" in legend.inner_text().replace("\n", " ")
        page.locator("#devices a").nth(3).click()
        assert page.locator("#device-name").inner_text() == "device 3"
        assert page.url.endswith("#device-3")
        page.close()
    assert troubles == []


class served:  # noqa: N801
    """``with served(run) as url``: a page of a process of its own."""

    def __init__(self, run: Path) -> None:
        words = [sys.executable, "-m", "fedfloor", "watch", str(run), "--port", "0"]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        return address(self.process)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


def test_names_are_text(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "park" / "run", [0.25], rounds=9, name="<script>alert(1)</script>")
    about = json.loads((run / "park.json").read_text())
    about["devices"] = [{**one, "name": f"{HOSTILE}{k}"} for k, one in enumerate(about["devices"])]
    about["factory_names"] = [HOSTILE, "</script><b>south</b>"]
    (run / "park.json").write_text(json.dumps(about))
    members = [{"name": "device-0", "kind": "device", "pid": os.getpid(), "log": ""}]
    (run.parent / "live.json").write_text(json.dumps(members))
    (run.parent / "logs").mkdir()
    (run.parent / "logs" / "device-0.log").write_text(f"note: {HOSTILE}\n")
    body = json.loads(line(2, 0.5)) | {"info": {"refused": {"0": HOSTILE}}}
    with (run / "ledger.jsonl").open("a") as file:
        file.write(json.dumps(body) + "\n")
    with served(run.parent) as url:
        page, _, troubles = opened(browser, url, viewport={"width": 390, "height": 900})
        page.wait_for_selector("#log li")
        assert page.title() == "<script>alert(1)</script> – fedfloor"
        assert page.locator("img, b:text('south'), main script").count() == 0
        assert page.locator("#log li").inner_text().endswith(f"note: {HOSTILE}")
        assert page.locator("#troubles tbody").inner_text().count(HOSTILE) == 2  # who, and why
        assert page.evaluate(STICKS_OUT, 390) == []
        assert troubles == []
        page.close()


def test_it_works_by_keyboard_and_tells_when_it_is_cut_off(browser: Any, tmp_path: Path) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    run = make_run(tmp_path / "run", [0.25, 0.5], rounds=9)
    with served(run) as url:
        page, _, _ = opened(browser, url)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the metrics"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        page.keyboard.press("Enter")
        expect(page.locator("#rounds tbody tr").first).to_be_visible()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "The last rounds"
        expect(page.locator("#link")).to_have_text("connected")
    expect(page.locator("#link")).to_contain_text("no connection since", timeout=10_000)
    assert page.locator("#rounds tbody tr").count() == 2  # what is known stays
    page.close()


def test_a_run_and_its_page_end_together(tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text(TRAINS.replace("400", "2"))
    words = [sys.executable, "-m", "fedfloor", "run", "short.toml", "--watch", "--ranks", "1", "--out", "run"]
    plain = [word for word in words if word != "--watch"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    url = address(process)
    assert process.communicate(timeout=120) is not None
    assert process.returncode == 0
    curl = subprocess.run(
        [sys.executable, "-c", f"import urllib.request as u; u.urlopen({url!r})"], capture_output=True
    )
    assert curl.returncode != 0
    subprocess.run([*plain[:-1], "plain"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    lines = [(tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in ("run", "plain")]
    rows = [[json.loads(text) | {"wall_s": 0} for text in one] for one in lines]
    assert rows[0] == rows[1]  # the same bits, watched or not

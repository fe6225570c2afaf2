"""Makes the gallery: ``python docs/gallery.py`` trains twelve runs, and writes docs/gallery.md with their pictures.

With names (``life trees``) only these are trained and photographed; the page is written anew in every case. With a
folder in $FEDFLOOR_GALLERY the runs are kept there, and those that are there are not trained again. A picture is a
section of the run's report, opened in Chromium; the sentence below it is the report's first answer.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
PICTURES = HERE / "pictures" / "gallery"
KEPT = PICTURES / "answers.json"  # of the reports
PAGE = HERE / "gallery.md"
WIDTH_PX = 940
MOST_PX = 600
COLOURS = 32  # of a picture's palette
MOST_BYTES = 60_000
HEAD = """---
kind: how-to
---

# Gallery

Each run has a picture from its report, the commands that made it, and the report's first answer. Most take about a
minute on two idle cores. `python docs/gallery.py` trains all of them again and makes this page; `fedfloor list
experiments NAME` prints an experiment that a command names.
"""


@dataclass(frozen=True)
class Run:
    """A run of the gallery.

    Args:
        name: of the picture, and of the folder in ``runs``.
        title: the heading.
        about: what the run shows.
        commands: the commands after ``fedfloor``.
        section: the CSS selector of the report's part that the picture shows.
        more: a link for readers who want to do the same.
        file: the experiment file, where none of the bundled ones is meant.
    """

    name: str
    title: str
    about: str
    commands: tuple[str, ...]
    section: str
    more: str
    file: str = ""

    @property
    def folder(self) -> str:
        """The run's folder."""
        return f"runs/{self.name}"


TASKS = "[Tasks](tasks.md)"
PRIVATE = """\
name = "private-sums"
rounds = 20

[data]
name = "mnist"
partition = { kind = "iid" }

[park]
factories = 4
devices = 1000

[model]
name = "logistic"

[method]
name = "fedavg"
mix = { kind = "private", clip = 1.0, noise = 4.0, delta = 1e-4, distributed = true }
travel = { kind = "secure-sum", across = true }
"""
RUNS = (
    Run("life", "Remaining life",
        "How many rows of measurements until a machine fails, on twelve machines of a made plant.",
        ("compare demo-life --methods fedavg,fedsr --references --out runs/life",), "#s-predicted figure", TASKS),
    Run("faults", "Anomalies with labels",
        "Which windows of twelve machines show a fault; one in six does.",
        ("compare demo-faults --methods fedavg,fedsr --references --out runs/faults",), "#s-confusion figure", TASKS),
    Run("anomaly", "Anomalies without labels",
        "A network learns what normal operation looks like, and alarms where it reconstructs rows badly.",
        ("compare demo-anomaly --methods fedavg,fedsr --out runs/anomaly",), "#s-devices", TASKS),
    Run("forecast", "Forecasts",
        "The next five rows of three sensors, beside a forecast that repeats the last row.",
        ("compare demo-forecast --methods fedavg --references --out runs/forecast",), "#s-accuracy figure", TASKS),
    Run("trees", "Boosted trees",
        "The faults again, with trees that are grown across the machines without moving rows.",
        ("compare demo-faults --methods boosting --set rounds=154 --set methods.boosting.trees=25 --references "
         "--out runs/trees",), "#s-devices", "[Boosted trees](trees.md)"),
    Run("personal", "A model per device",
        "Each machine keeps a part of the model for itself, or trains a whole model beside the shared one.",
        ("compare demo-faults --methods fedavg,fedper,ditto,local-only --out runs/personal",), "#s-personal figure",
        "[One model per device](personal.md)"),
    Run("hierarchy", "A hierarchy on a slow network",
        "Edges average several times before they call the cloud over LTE Cat-M2.",
        ("compare demo-faults --methods fedavg,hierfavg --set network.profile=lte-cat-m2 --out runs/hierarchy",),
        "#s-cost figure", "[Costs on a network](network.md)"),
    Run("ring", "Along a ring of devices",
        "FedSR hands the model on from device to device inside each hall, and the cloud averages the halls' models.",
        ("compare demo-faults --methods fedsr,ring --set rounds=6 --out runs/ring",),
        "#s-plan figure:has-text('of FedSR')",
        "[Which method](choose.md)"),
    Run("waiting", "Asynchronous",
        "Devices differ in speed, and a new model is made with every fourth result.",
        ("compare demo-faults --methods fedavg,fedbuff --set network.profile=5g-edge "
         "--set 'network.devices.seconds_per_sample={ median = 0.01, factor = 3 }' --set rounds=30 "
         "--set methods.fedbuff.buffer=4 --out runs/waiting",), "#s-timeline", "[When waiting costs](waiting.md)"),
    Run("private", "Secure sums with noise",
        "Neither edges nor cloud see an update, and the models of twenty rounds reveal little about any of the 1,000 "
        "devices.",
        ("run private-sums.toml --out runs/private",), "#s-accuracy figure", "[Differential privacy](private.md)",
        file=PRIVATE),
    Run("skew", "Classes with skewed labels",
        "Handwritten characters of thirty writers (FEMNIST), each with a hand and a choice of characters of its own.",
        ("compare femnist-methods --methods fedavg,fedsr --set park.devices=30 --set park.factories=3 "
         "--set method.selection.share=0.2 --set rounds=10 --set evaluate.every=1 --out runs/skew",),
        "#s-accuracy figure", "[Which method](choose.md)"),
    Run("live", "Real machines, trained again",
        "Eight devices, two edges and a cloud are processes with MQTT over TLS; then a simulation trains the same "
        "rounds again, to the same bits.",
        ("park live up demo-live --out park", "run --replay park/run --out runs/live"), "#s-plan figure",
        "[Real machines](deploy.md)"),
)  # fmt: skip


def trained(run: Run, place: Path) -> None:
    """Carry out a run's commands in a folder, unless its report is there."""
    if (place / run.folder / "report.html").exists():
        return
    if run.file:
        (place / f"{tomllib.loads(run.file)['name']}.toml").write_text(run.file)
    for command in run.commands:
        print(f"fedfloor {command}", flush=True)
        words = [sys.executable, "-m", "fedfloor", *shlex.split(command)]
        subprocess.run(words, cwd=place, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-m", "fedfloor", "report", run.folder], cwd=place, check=True)


def photographed(browser: Any, run: Run, report: Path) -> dict[str, str]:
    """Write the picture of a report's section; return the report's first answer."""
    page = browser.new_page(viewport={"width": WIDTH_PX, "height": 900}, color_scheme="light")
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-drawn]")
    page.wait_for_timeout(600)  # until the charts are drawn
    picture = Image.open(io.BytesIO(page.locator(run.section).first.screenshot())).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, MOST_PX))).quantize(COLOURS)
    out = PICTURES / f"{run.name}.png"
    picture.save(out, optimize=True)
    if out.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{out.name} has {out.stat().st_size:,} bytes, more than {MOST_BYTES:,}.")
    verdict = page.locator("#verdict")
    told = page.locator("#s-words p").first
    answer = {"answer": (told if "none" in str(verdict.get_attribute("class")) else verdict).inner_text()}
    page.close()
    return answer


def wrapped(text: str) -> str:
    """Return a paragraph in lines of the pages' width."""
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def written(answers: dict[str, Any]) -> str:
    """Return the page."""
    parts = [HEAD]
    for run in RUNS:
        if run.name not in answers:
            continue
        commands = "\n".join(f"fedfloor {command}" for command in run.commands)
        answer = " ".join(answers[run.name]["answer"].split())
        file = f"```toml\n{run.file}```\n\n" if run.file else ""
        picture = f"![{run.title}: a part of the report](pictures/gallery/{run.name}.png)"
        report = wrapped(f"The report, `{run.folder}/report.html`, begins: *{answer}* {run.more} has more.") + "\n"
        parts.append(
            f"## {run.title}\n\n{wrapped(run.about)}\n\n{picture}\n\n{file}```text\n{commands}\n```\n\n{report}"
        )
    return "\n".join(parts)


def main() -> None:
    """Train the named runs, or all, and write the page."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed.")
    wanted = sys.argv[1:] or [run.name for run in RUNS]
    PICTURES.mkdir(parents=True, exist_ok=True)
    answers = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    place = Path(os.environ.get("FEDFLOOR_GALLERY") or tempfile.mkdtemp(prefix="fedfloor-gallery-"))
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for run in RUNS:
            if run.name in wanted:
                trained(run, place)
                answers[run.name] = photographed(browser, run, place / run.folder / "report.html")
                KEPT.write_text(json.dumps(answers, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        browser.close()
    PAGE.write_text(written(answers))


if __name__ == "__main__":
    main()

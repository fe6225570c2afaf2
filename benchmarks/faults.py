"""Made faults of tables, each named or not, and no alarm without one: ``results/faults.md``.

    python -m benchmarks.faults                      # results/faults.json, then: python -m benchmarks.pages
    python -m benchmarks.faults --only clocks        # prints the cases whose name or kind holds this

Each case of :mod:`benchmarks.fault_cases` is a plant of six machines with four sensors and 720 rows. Its table is
drafted by ``fedfloor new``, trained for a round by ``fedfloor run`` and, where it comes with later rows, these are
predicted by ``fedfloor predict``; an error ends a case. A fault is named if a sentence of these commands states it. A
case without a fault has an alarm if any sentence that would name one of the faults appears.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.fault_cases import CASES, Case
from fedfloor.runs.folder import write
from papers import documents

OUT = Path("results/faults.json")
NONE = "none"
COLUMNS = ("kind", "case", "named by", "sentence")
LONGEST = 160  # characters of a sentence


class Outcome(NamedTuple):
    """The command whose output states a fault (for a case without one: an alarm), and the sentence; empty: none."""

    command: str
    sentence: str


def judged(case: Case) -> Outcome:
    """Return the first command that names a case's fault, or raises an alarm."""
    patterns = [each.named for each in CASES if each.named] if case.kind == NONE else [case.named]
    for command, code, text in outputs(case):
        if code and case.kind == NONE:
            return Outcome(command, _around(text, max(text.find("error: "), 0)))
        for pattern in patterns:
            if match := re.search(pattern, text):
                return Outcome(command, _around(text, match.start()))
    return Outcome("", "")


def outputs(case: Case) -> Iterator[tuple[str, int, str]]:
    """Yield each command, its exit code and its messages, until one fails."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        table = case.make(Path(name))
        file = f"{Path(table).stem}.toml"
        steps = [("new", [table, *case.words]), ("run", [file, "--ranks", "1", "--out", "out"])]
        steps += [("predict", ["out", "u.csv"])] if Path("u.csv").exists() else []
        for command, words in steps:
            code, text = called(command, *words)
            yield command, code, text
            if code:
                return


def called(*words: str) -> tuple[int, str]:
    """Call ``fedfloor`` in this process; return its exit code and its messages."""
    from fedfloor import cli

    out, err = io.StringIO(), io.StringIO()
    where = {"FEDFLOOR_CACHE": os.environ.get("FEDFLOOR_CACHE", str(Path.cwd() / "cache"))}
    with (
        mock.patch.object(sys, "argv", ["fedfloor", *words]),
        mock.patch.dict(os.environ, where),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), err.getvalue() + out.getvalue()
    return 0, err.getvalue() + out.getvalue()


def _around(text: str, place: int) -> str:
    """Return the line of a text at a place, shortened."""
    begin, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    line = re.sub(r"^(note|warning|error): (t\.csv: )?", "", text[begin : None if end < 0 else end].strip())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def page(found: dict[str, Any]) -> str:
    """Return the page."""
    rows = found["rows"]
    faults = [row for row in rows if row["kind"] != NONE]
    free = [row for row in rows if row["kind"] == NONE]
    named = sum(bool(row["named by"]) for row in faults)
    alarms = sum(bool(row["named by"]) for row in free)
    unnamed = [row["case"] for row in faults if not row["named by"]]
    about = " ".join((__doc__ or "").split("\n\n")[2].replace("``", "`").split())
    about = re.sub(r":mod:`([\w.]+)`", r"`\1`", about)
    count = (
        f"{named} of {len(faults)} faults are named, and {alarms} of {len(free)} cases without a fault have an alarm."
    )
    left = f"Not named: {'; '.join(unnamed)}." if unnamed else ""
    cells = [[str(row[key]).replace("|", "\\|") or "**not named**" for key in COLUMNS[:3]] for row in faults]
    sentences = [[*row, _quoted(fault["sentence"])] for row, fault in zip(cells, faults, strict=True)]
    quiet = [[row["case"], _quoted(row["sentence"]) if row["named by"] else "none"] for row in free]
    parts = ["# Faults that are named", about, "```bash\npython -m benchmarks.faults\n```", count, left]
    parts += [documents.table(COLUMNS, sentences), "## Without a fault", documents.table(("case", "alarm"), quiet)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _quoted(sentence: str) -> str:
    return f"`{sentence.replace('|', chr(0x2223)).replace('`', chr(39))}`" if sentence else ""


def main(words: Sequence[str] | None = None) -> None:
    """Judge every case; write the JSON, unless only some cases are judged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name or kind holds this")
    only = parser.parse_args(words).only
    rows = []
    for case in CASES:
        if only in case.name or only in case.kind:
            outcome = judged(case)
            rows.append(
                {"kind": case.kind, "case": case.name, "named by": outcome.command, "sentence": outcome.sentence}
            )
            print(case.kind, "|", case.name, "|", outcome.command or "-", "|", outcome.sentence, flush=True)
    if not only:
        write(OUT, json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

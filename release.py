"""Builds the wheels twice, compares them, and lists what they contain: ``python release.py dist`` (``make release``).

A wheel's bytes depend on the sources alone: the times in it are those of the last commit (SOURCE_DATE_EPOCH). Beside
the wheels, the folder holds ``SHA256SUMS`` and, for each, a bill of materials in CycloneDX 1.6 as JSON: the package,
everything that it needs at the versions of this environment, with licences, and the JavaScript that it carries.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parent
WHEELS = {"fedfloor": ROOT, "fedfloor-agent": ROOT / "agent"}
CARRIED = {"fedfloor": ("plotly.js-basic-dist-min", "4.1.1", "MIT")}  # inside the wheel, for reports
Json = dict[str, Any]


def epoch() -> int:
    """Return the time of a build in s since 1970: SOURCE_DATE_EPOCH, or that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    words = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def built(place: Path, out: Path, at: int) -> Path:
    """Build a wheel into a folder, and return its path."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(place)]
    subprocess.run(words, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(at)})
    (wheel,) = out.glob("*.whl")
    return wheel


def sha256(path: Path) -> str:
    """Return a file's digest."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def needs(name: str) -> list[str]:
    """Return the names of the distributions that one needs in this environment, without extras."""
    found = [Requirement(text) for text in metadata.requires(name) or ()]
    return sorted({canonical(each.name) for each in found if not each.marker or each.marker.evaluate({"extra": ""})})


def canonical(name: str) -> str:
    """Return a distribution's name in its normal form.

    >>> canonical("typing_extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(direct: list[str]) -> dict[str, list[str]]:
    """Return every needed distribution with its own needs."""
    found = dict[str, list[str]]()
    left = list(direct)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = needs(name)
            left += found[name]
    return dict(sorted(found.items()))


def component(name: str) -> Json:
    """Return the entry of an installed distribution."""
    about = metadata.metadata(name)
    licence = about.get("License-Expression") or about.get("License") or ""
    entry: Json = {"type": "library", "bom-ref": name, "name": about["Name"], "version": about["Version"]}
    return entry | ({"licenses": [{"license": {"name": licence.splitlines()[0]}}]} if licence.strip() else {})


def bill(name: str, wheel: Path, direct: list[str], at: int) -> Json:
    """Return the bill of materials of a wheel.

    Args:
        direct: the normal names of the distributions that it needs.
    """
    digest, version = sha256(wheel), wheel.name.split("-")[1]
    every = closure(direct)
    own: Json = {"type": "library", "bom-ref": name, "name": name, "version": version,
                 "licenses": [{"license": {"id": "Apache-2.0"}}],
                 "hashes": [{"alg": "SHA-256", "content": digest}]}  # fmt: skip
    inside = []
    if name in CARRIED:
        title, number, licence = CARRIED[name]
        inside = [{"type": "library", "bom-ref": title, "name": title, "version": number,
                   "licenses": [{"license": {"id": licence}}]}]  # fmt: skip
    links = {name: [*direct, *(each["bom-ref"] for each in inside)], **every}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "metadata": {"timestamp": f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
                     "component": own},
        "components": [*map(component, every), *inside],
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in links.items()],
    }  # fmt: skip


def required(wheel: Path) -> list[str]:
    """Return the normal names of the distributions that a wheel needs, without extras."""
    (about,) = metadata.distributions(path=[str(wheel)])
    found = [Requirement(text) for text in about.requires or ()]
    return sorted({canonical(each.name) for each in found if not each.marker or each.marker.evaluate({"extra": ""})})


def main(out: Path) -> None:
    """Build, compare, and write sums and bills into a folder."""
    at = epoch()
    out.mkdir(parents=True, exist_ok=True)
    sums = []
    for name, place in WHEELS.items():
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            first, second = (built(place, Path(folder), at) for folder in (one, other))
            digest = sha256(first)
            if digest != sha256(second):
                raise SystemExit(f"{first.name} is not built to the same bytes twice: {digest}, {sha256(second)}.")
            wheel = out / first.name
            wheel.write_bytes(first.read_bytes())
        sums.append(f"{digest}  {wheel.name}")
        text = json.dumps(bill(name, wheel, required(wheel), at), indent=1, ensure_ascii=False)
        (out / f"{wheel.name.removesuffix('.whl')}.cdx.json").write_text(f"{text}\n", encoding="utf-8")
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    print("\n".join(sums))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""``fedfloor bench cohort --json`` for machines that have no more than what trains: no command line is needed."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
from benchmarks import cohort


def main() -> None:
    """Measure, and print one JSON document."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--only", default="")
    words.add_argument("--repeats", type=int, default=7)
    words.add_argument("--precision", default="float32")
    words.add_argument("--device", default="cuda")
    words.add_argument("--quick", action="store_true")
    given = words.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    chosen = [one for one in cohort.cases(quick=given.quick) if given.only in one.name]
    rows = cohort.measure(
        chosen, given.device, given.precision, given.repeats, lambda text: print(text, file=sys.stderr)
    )
    where = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    print(
        json.dumps({"device": where, "torch": torch.__version__, "precision": given.precision, "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()

"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="An experiment file, or the name of a bundled one.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as work.lr=0.05.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder to write; default: in runs/, by its name."),
]
Ranks = Annotated[int | None, typer.Option("--ranks", metavar="N", help="Processes; default: one per core.")]
Stop = Annotated[int | None, typer.Option("--stop-after", metavar="N", help="Stop after round N; schedules stay.")]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="WHAT=X",
        help="Stop once reached: accuracy=0.8 (or another figure), seconds=3600, bytes=1e9 or joules=500; "
        "several with commas.",
    ),
]  # fmt: skip
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="WHAT=X", help="Also compare at a budget: seconds=3600, bytes=1e9, joules=500 or rounds=50."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Force = Annotated[bool, typer.Option("--force", help="Resume although experiment, version or CPU changed.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="WHERE", help="Follow in tensorboard or mlflow; repeatable."),
]
References = Annotated[bool, typer.Option("--references", help="Beside local, pooled and scikit-learn.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]

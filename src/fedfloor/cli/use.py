"""Commands that use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfloor.cli.options import Json

Model = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its model.safetensors.")]
OwnCode = Annotated[
    bool, typer.Option("--own-code", help="The file names module:Name; load it only if you trust the file.")
]

Which = Annotated[
    str,
    typer.Option("--which", metavar="last|best", help="The last round's model, or the best one's by validation data."),
]


def predict(
    run: Model,
    files: Annotated[list[Path], typer.Argument(metavar="FILES…", help="Pictures, tables, .npz, or folders of them.")],
    top: Annotated[int, typer.Option("--top", metavar="K", help="Tell the K likeliest classes.")] = 1,
    resize: Annotated[bool, typer.Option("--resize", help="Scale pictures of another size.")] = False,
    invert: Annotated[bool, typer.Option("--invert", help="Exchange light and dark in pictures.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every sample, not the first 20 only.")] = False,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write every sample to this file.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The device that one file is of, and whose model answers.")
    ] = "",
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Say what a trained model sees in pictures or sensor data."""
    from fedfloor.inference import shown

    shown.predict(run, files, shown.How(top, resize, invert, every, table, own, which, device), as_json=as_json)


def export(
    run: Model,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: RUN/model.onnx.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="The device whose model it is.")] = "",
    own: OwnCode = False,
    which: Which = "last",
    as_json: Json = False,
) -> None:
    """Write a trained model as ONNX, for devices without PyTorch."""
    from fedfloor.inference import shown

    shown.export(run, out, as_json=as_json, own=own, which=which, device=device)

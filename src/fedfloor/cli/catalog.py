"""Commands that list methods, parts, models, data sets and experiments, and commands that make tables."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedfloor.api.source import bundled
from fedfloor.base import regular
from fedfloor.base.errors import SettingError, unknown
from fedfloor.base.names import count
from fedfloor.cli import shared
from fedfloor.cli.options import Json, Overwrite
from fedfloor.runs.terminal import downloads, say, show

Zone = Annotated[
    str | None, typer.Option("--zone", metavar="ZONE", help="Time zone of times without one: Europe/Berlin.")
]
TimeFormat = Annotated[
    str | None,
    typer.Option("--time-format", metavar="FORMAT", help="Format of the times in both tables, as data.time_format."),
]


def _meant(name: str, known: Iterable[str]) -> str:
    """Return the known name that is equal but for capitals and signs, as papers write it; otherwise the name.

    >>> _meant("FLDG-L", ["fldg", "fldgl"]), _meant("fedrs", ["fedsr"])
    ('fldgl', 'fedrs')
    """
    plain = {"".join(filter(str.isalnum, each)).casefold(): each for each in known}
    return plain.get("".join(filter(str.isalnum, name)).casefold(), name)


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this method's card.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one method's card and its settings."""
    import inspect

    from fedfloor.methods.catalog import EXACT, METHODS, card
    from fedfloor.parts.named import written

    known = {**METHODS, **EXACT}
    if name is None:
        rows = [{"method": key, "what": (inspect.getdoc(kind) or "").split("\n")[0]} for key, kind in known.items()]
        show(rows, as_json=as_json)
        return
    name = _meant(name, known)
    text, settings = card(name)
    if as_json:
        show(settings, as_json=True, method=name, card=text)
    else:
        say(f"{name}\n\n{text}\n")
        rows = [row if row["default"] is None else row | {"default": written(row["default"])} for row in settings]
        show(rows, as_json=False, title=f"settings, in [methods.{name}]")


def parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help="Such as objective, mix, server, selection, choice, grouping, partition or metric."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the parts that methods combine with, and how samples are dealt and streamed."""
    from fedfloor.methods.chosen import PARTS
    from fedfloor.park.augment import Augmented
    from fedfloor.park.partition import Partition
    from fedfloor.park.stream import Fifo, Recycle, Static
    from fedfloor.parts.attacks import ATTACKS
    from fedfloor.parts.named import rows
    from fedfloor.parts.objectives.extractors import EXTRACTORS
    from fedfloor.parts.travel.codecs import CODECS
    from fedfloor.parts.travel.limits import LIMITS
    from fedfloor.solvers.allocation.solve import WHAT as ALLOCATED
    from fedfloor.solvers.grouping.solve import WHAT as GROUPED
    from fedfloor.solvers.selection.solve import WHAT as CHOSEN
    from fedfloor.tasks.figures import METRICS

    makers = {**PARTS, "travel": CODECS, "limit": LIMITS, "extractor": EXTRACTORS, "attack": ATTACKS}
    makers |= {"partition": _by_kind(Partition), "stream": _by_kind(Static | Fifo | Recycle | Augmented)}
    solvers = {"choice": CHOSEN, "grouping": GROUPED, "allocation": ALLOCATED, "metric": METRICS}
    every = {part: rows(known) for part, known in makers.items()}
    every |= {part: [{"name": name, "settings": "", "what": what} for name, what in known.items()]
              for part, known in solvers.items()}  # fmt: skip
    if kind is not None and kind not in every:
        raise unknown("kind of part", kind, every)
    listed = [{"part": part, **row} for part, found in every.items() if kind in (None, part) for row in found]
    show(listed, as_json=as_json)


def _by_kind(union: Any) -> dict[str, Any]:
    """Return the classes of a union by their ``kind``."""
    return {one.kind: one for one in get_args(union)}


def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this model's card and layers.")] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="C,H,W", help="Shape of a sample; C,L or C for sensors.")
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", metavar="N", help="Number of classes.")] = None,
    as_json: Json = False,
) -> None:
    """List the models, or show and check one of them."""
    from fedfloor.models import listing
    from fedfloor.models.zoo import NETWORKS

    if name is None:
        if shape is not None or classes is not None:
            raise SettingError(
                "--shape and --classes need the name of a model: fedfloor list models NAME --shape C,H,W."
            )
        show(listing.rows(), as_json=as_json)
        return
    name = _meant(name, NETWORKS)
    sides = None if shape is None else tuple(shared.numbers("shape", shape))
    card, facts, layers = listing.card(name, sides, classes)
    if as_json:
        show(layers, as_json=True, model=name, card=card, **facts)
        return
    say(f"{name}\n\n{card}".rstrip())
    show([facts], as_json=False)
    show(layers, as_json=False, title="layers with trained parameters")


def datasets(as_json: Json = False) -> None:
    """List the data sets and their folders."""
    from fedfloor.data.sources import looked_in

    rows = looked_in()
    short = [row | {"how": str(row["how"]).partition(" By hand:")[0]} for row in rows]
    show(rows if as_json else short, as_json=as_json)


def experiments(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this experiment file.")] = None,
    as_json: Json = False,
) -> None:
    """List the bundled experiments and radio cells, or print one."""
    kinds = {"experiment": bundled(), "cell": bundled("experiments/cells")}
    if name is None:
        rows = [
            {"name": key, "kind": kind, "what": _first_comment(path)}
            for kind, files in kinds.items()
            for key, path in files.items()
        ]
        show(rows, as_json=as_json)
        return
    files = {key: path for known in kinds.values() for key, path in known.items()}
    if name not in files:
        raise unknown("experiment", name, files)
    text = regular.read_text(files[name])
    if as_json:
        show([], as_json=True, name=name, text=text)
    else:
        print(text, end="")


def _first_comment(path: Path) -> str:
    """Return the first sentence of the comment at the head of a file."""
    lines = regular.read_text(path).splitlines()
    head = " ".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"(?<=[.?])\s", head)[0]


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set.")],
    root: Annotated[Path | None, typer.Option("--root", metavar="DIR", help="Folder; default: $FEDFLOOR_DATA.")] = None,
    mirror: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Mirror: download URL/NAME/FILE instead.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ from the published ones.")] = False,
    as_json: Json = False,
) -> None:
    """Download a published data set and verify its checksums."""
    from fedfloor.data import download

    try:
        with downloads() as follow:
            rows = download.get(name, root, mirror=mirror, force=force, follow=follow)
    except KeyboardInterrupt:
        say("stopped: complete files are kept; the same command downloads the rest.", aside=True)
        raise typer.Exit(130) from None
    short = [{key: row[key] for key in ("file", "bytes", "state")} for row in rows]
    show(rows if as_json else short, as_json=as_json, after=[f"folder: {Path(str(rows[0]['where'])).parent}"])


def query(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the database, with $NAME for environment variables.")
    ],
    text: Annotated[
        str, typer.Argument(metavar="QUERY", help="SQL, or Flux for InfluxDB; @FILE reads the query from a file.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The table to write, .parquet.")],
    plain: Annotated[
        bool, typer.Option("--plain", help="Accept that a password or token travels without verified TLS.")
    ] = False,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the result of a database query to a Parquet file."""
    from fedfloor.data.query import fetch

    facts = fetch(url, text, out, force=force, plain=plain)
    rows = [{"column": name, "type": kind} for name, kind in facts["columns"].items()]
    after = (
        f"{count(facts['rows'], 'row')}, SHA-256 {facts['sha256']}",
        f"table: {out} (now: fedfloor new {shlex.quote(str(out))}); facts: {out}.json",
    )
    show(rows, as_json=as_json, after=after, facts=facts)


def label(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Measurements: a table with device, time and sensors.")],
    events: Annotated[
        Path, typer.Argument(metavar="EVENTS", help="Events such as failures: device, time and kind of each.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The table to write, .csv.")],
    within: Annotated[
        str, typer.Option("--within", metavar="SPAN", help="Label the rows this long before an event: 24h, 30min, 7d.")
    ] = "",
    remaining: Annotated[
        bool, typer.Option("--remaining", help="Write the time until the next event instead of labels.")
    ] = False,
    kind: Annotated[str, typer.Option("--kind", metavar="NAME", help="Column of EVENTS with the kind of event.")] = "",
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Column of the device, in both tables.")] = "",
    time: Annotated[str, typer.Option("--time", metavar="NAME", help="Column of the time, in both tables.")] = "",
    event_device: Annotated[
        str, typer.Option("--event-device", metavar="NAME", help="Column of EVENTS with the device, if it differs.")
    ] = "",
    event_time: Annotated[
        str, typer.Option("--event-time", metavar="NAME", help="Column of EVENTS with the time, if it differs.")
    ] = "",
    end: Annotated[str, typer.Option("--end", metavar="NAME", help="Column of EVENTS with the end of each.")] = "",
    zone: Zone = None,
    time_format: TimeFormat = None,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Label measurements by events, such as failures.

    The events are a table, such as that of a maintenance system.
    """
    from fedfloor.data.events import label_rows

    columns = {
        "device": device, "time": time, "event-device": event_device, "event-time": event_time, "end": end,
    }  # fmt: skip
    facts = label_rows(
        data, events, out, within=within, remaining=remaining, kind=kind, columns=columns, time_format=time_format,
        zone=zone, force=force,
    )  # fmt: skip
    rows = [{"label": name, "rows": number} for name, number in facts.get("labels", {}).items()]
    left = f", {count(facts['left out'], 'row')} without a later event left out" if remaining else ""
    how = " --task regression --set data.columns.label=remaining" if remaining else ""
    how += " --set 'data.window={length=20,step=1}'"
    after = (
        f"{count(facts['rows'], 'row')}, {count(facts['events'], 'event')}{left}",
        f"table: {out} (now: fedfloor new {shlex.quote(str(out))}{how})",
    )
    show(rows, as_json=as_json, after=after, facts=facts)


def matrices(
    sensors: Annotated[
        list[Path],
        typer.Argument(metavar="SENSORS", help="A matrix file per sensor, or a folder of them."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The arrays to write, .npz.")],
    label: Annotated[
        str, typer.Option("--label", metavar="FILE[:COLUMN]", help="Label of each row; columns are counted from 1.")
    ] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="FILE[:COLUMN]", help="Device, or subject, of each row.")
    ] = "",
    length: Annotated[
        int | None,
        typer.Option("--length", metavar="N", help="Values of a sensor in a sample; default: the fewest in a file."),
    ] = None,
    force: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Combine matrices, one file per sensor with samples as rows, into arrays."""
    from fedfloor.data.matrices import convert

    facts = convert(sensors, out, label=label, device=device, length=length, force=force)
    rows = [{"sensor": name, "values in a row": many} for name, many in facts["sensors"].items()]
    dealt = "" if device else " --set park.devices=10 --set 'data.partition={kind=\"iid\"}'"
    file = shlex.quote(str(out))
    after = (
        f"{count(facts['samples'], 'sample')} of {facts['length']} values of each sensor",
        f"arrays: {out} (now: {f'fedfloor new {file}{dealt}' if label else f'fedfloor predict RUN {file}'})",
    )
    show(rows, as_json=as_json, after=after, facts=facts)

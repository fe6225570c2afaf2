"""Commands that say what training will cost on a network, without training."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.cli import budgets, shared
from fedfloor.cli.options import At, File, Json, Set
from fedfloor.errors import SettingError
from fedfloor.names import NUMBERED, Names

if TYPE_CHECKING:
    from fedfloor.experiment import Experiment
    from fedfloor.network.price import Critical
    from fedfloor.network.profile import Link, Network
    from fedfloor.park.park import Park
    from fedfloor.runs.forecast import Round

Row = dict[str, Any]
WIDTH = 110  # of printed sources
Rounds = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Price only the first N rounds.")]


def price(
    experiment: File,
    methods: Annotated[str | None, typer.Option("--methods", metavar="A,B", help="Methods to compare.")] = None,
    rounds: Rounds = None, changes: Set = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Say what rounds will cost: seconds, bytes, joules."""
    from fedfloor.runs.compare import each_once
    from fedfloor.runs.parks import build_park
    from fedfloor.terminal import show

    what = shared.experiment(experiment, changes)
    last = what.rounds if rounds is None else rounds
    if not 1 <= last <= what.rounds:
        raise SettingError(f"--rounds {last}: the experiment has rounds 1 to {what.rounds}.")
    names = [what.method.name] if methods is None else [name.strip() for name in methods.split(",")]
    each_once("methods", names)
    park, rows, links = build_park(what), [], []
    for name in names:
        row, more = _priced(replace(what, method=replace(what.method, name=name)), park, last)
        rows.append(row)
        links += more
    if as_json:
        show(rows, as_json=True, links=links, network=what.network.profile, names=park.called.table())
        return
    title = f"{what.name}: rounds 1 to {last} on {what.network.profile or 'its network'}"
    show([_round_costs(row) for row in rows], as_json=False, title=title)
    before = [{"method": row["method"], **{k: v for k, v in row.items() if k.startswith("setup")}} for row in rows]
    if any(row["setup_seconds"] or row["setup_MB"] for row in before):
        show(before, as_json=False, title="of this, what the method asks before round 1")
    if rows[0]["normalise_MB"]:
        before = [
            {"method": row["method"], **{k: v for k, v in row.items() if k.startswith("normalise")}} for row in rows
        ]
        show(before, as_json=False, title="of this, what normalisation asks before round 1")
    show(links, as_json=False, title="bytes on each link")


def _priced(what: Experiment, park: Park, last: int) -> tuple[Row, list[Row]]:
    """Return a method's row, and one for each link and direction that it sends over; set-up is in both."""
    from fedfloor.runs import forecast
    from fedfloor.terminal import counted

    sums: Counter[str] = Counter()
    seconds = joules = setup_s = setup_bytes = asked_s = asked_bytes = 0.0
    longest: Round | None = None
    with counted(what.method.name, last) as step:
        for one in forecast.rounds(what, park, last):
            for price in (one.price, one.normalised):
                if price is not None:
                    seconds, joules = seconds + price.seconds, joules + price.joules
                    sums.update(price.bytes)
            if one.normalised is not None:
                asked_s, asked_bytes = one.normalised.seconds, sum(one.normalised.bytes.values())
            if one.number == 0:
                setup_s, setup_bytes = one.price.seconds, sum(one.price.bytes.values())
            elif longest is None or one.price.seconds > longest.price.seconds:
                longest = one
            step(one.number)
    name, total = what.method.name, sum(sums.values())
    row = {
        "method": name, "rounds": last, "seconds_per_round": seconds / last, "hours": seconds / 3600,
        "MB_per_round": total / last / 1e6, "GB": total / 1e9, "joules_per_round": joules / last, "joules": joules,
        "waits_for": None if longest is None else waits_for(longest.price.critical, park.called),
        "setup_seconds": setup_s, "setup_MB": setup_bytes / 1e6,
        "setup_share_of_seconds": share(setup_s, seconds), "setup_share_of_bytes": share(setup_bytes, total),
        "normalise_seconds": asked_s, "normalise_MB": asked_bytes / 1e6,
        "normalise_share_of_seconds": share(asked_s, seconds), "normalise_share_of_bytes": share(asked_bytes, total),
    }  # fmt: skip
    links = [
        {"method": name, "link": link, "MB_per_round": sent / last / 1e6, "GB": sent / 1e9}
        for link, sent in sorted(sums.items())
    ]
    return row, links


def _round_costs(row: Row) -> Row:
    return {key: value for key, value in row.items() if not key.startswith(("setup", "normalise"))}


def share(part: float, whole: float) -> str:
    """Say a part of a whole in percent, with two digits.

    >>> share(0.0412, 100), share(0, 0)
    ('0.041 %', '0 %')
    """
    return f"{100 * part / whole:.2g} %" if part else "0 %"


def waits_for(critical: Critical, names: Names = NUMBERED) -> str:
    """Return which branch ends last, by its sites' names, and what its seconds go into.

    >>> from fedfloor.network.price import Critical
    >>> waits_for(Critical((3, 7), compute_s=1.0, transfer_s=3.0, wait_s=4.0))
    'devices 3, 7: 12 % computing, 38 % sending, 50 % waiting'
    >>> waits_for(Critical((-1,), compute_s=2.0))
    'the cloud: 100 % computing'
    """
    total = critical.compute_s + critical.transfer_s + critical.wait_s
    if not total:
        return "nothing takes time"
    visited = [k for k in dict.fromkeys(critical.visits) if k >= 0]
    shown = [names.short("device", k) for k in visited]
    who = ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
    shares = (("computing", critical.compute_s), ("sending", critical.transfer_s), ("waiting", critical.wait_s))
    told = ", ".join(f"{100 * part / total:.0f} % {word}" for word, part in shares if part)
    kind = "" if all(names.own("device", k) for k in visited) else "device " if len(shown) == 1 else "devices "
    parties = [f"{kind}{who}"] if shown else []
    parties += ["the cloud"] if -1 in critical.visits else []
    return f"{' and '.join(parties)}: {told}" if parties else told


def reprice(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run folders, or folders of runs.")],
    network: Annotated[str, typer.Option("--network", metavar="NAME", help="A profile, or a TOML file of your own.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the copies.")],
    target: Annotated[float | None, typer.Option("--target", help="Accuracy to count time and bytes to.")] = None,
    at: At = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Put finished runs on another network: other seconds, bytes and joules, without training again."""
    from fedfloor.network.settings import NetworkSettings
    from fedfloor.report import ledger
    from fedfloor.runs import reprice as work

    runs, budget = [run.folder for run in ledger.collect(folders)], budgets.budget(at)
    copies = work.reprice(runs, NetworkSettings(network), out, lambda copy: print(copy, file=sys.stderr))
    shared.summary(copies, out / "report.html", target, as_json=as_json, at=budget)


def networks(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this profile, with its sources.")] = None,
    as_json: Json = False,
) -> None:
    """List the networks that runs can be priced on, or show one."""
    from fedfloor.network import settings
    from fedfloor.terminal import show

    if name is None:
        built = {key: settings.built(settings.read(key)) for key in settings.profiles()}
        show([_line(key, network, as_json=as_json) for key, network in built.items()], as_json=as_json)
        return
    settings.network(settings.NetworkSettings(name))
    table = settings.read(name)
    parts = {key: part for key, part in table.items() if isinstance(part, dict)}
    plain = {key: value for key, value in table.items() if key not in parts}
    rows = {key: [{"key": one, "value": value} for one, value in part.items() if one != "source"]
            for key, part in parts.items()}  # fmt: skip
    if as_json:
        flat = [{"table": key, **row} for key, found in rows.items() for row in found]
        show(flat, as_json=True, **plain, sources={key: part.get("source", "") for key, part in parts.items()})
        return
    print(f"{plain.pop('name')}: {plain.pop('about', '')}".rstrip(": "))
    for key, value in plain.items():
        print(f"{key} = {value}")
    for key, part in parts.items():
        print(f"\n[network.{key}]")
        if rows[key]:
            show([{"key": row["key"], "value": str(row["value"])} for row in rows[key]], as_json=False)
        print(textwrap.fill(part.get("source") or "not given", WIDTH, initial_indent="  source: ",
                            subsequent_indent="    "))  # fmt: skip
    print("\nChange any of them with --set network.TABLE.KEY=VALUE.")


def _line(name: str, network: Network, *, as_json: bool) -> Row:
    """Return a profile's row in the list: of the link that devices send on, what most depends on."""
    link = network.uplink
    row: Row = {"network": name, "route": network.route, "up": link.up_bps, "down": link.down_bps}
    if not as_json:
        row |= {"up": "by interference" if link.sharing == "sinr" else rate(link.up_bps), "down": rate(link.down_bps)}
    return row | {"sharing": shared_by(link), "what": network.about}


def shared_by(link: Link) -> str:
    """Say who waits for whom on a link.

    >>> from fedfloor.network.profile import Link
    >>> shared_by(Link(up_bps=4e6, sharing="serial", over="park")), shared_by(Link())
    ('serial over the park, half duplex', 'dedicated')
    """
    if link.sharing != "serial":
        return link.sharing
    return f"serial over {'the park' if link.over == 'park' else 'each cell'}, {link.duplex} duplex"


def rate(bps: float | None) -> str:
    """Return a rate as people read it.

    >>> rate(62500), rate(4e6), rate(2.5e9), rate(None)
    ('62.5 kbit/s', '4 Mbit/s', '2.5 Gbit/s', 'no limit')
    """
    if bps is None:
        return "no limit"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= size:
            return f"{bps / size:g} {unit}"
    return f"{bps:g} bit/s"

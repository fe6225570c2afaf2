"""A text description of one round: a line per node, and a tree of lines for the terminal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields
from itertools import groupby

from fedfloor.base.names import NUMBERED, Names, count
from fedfloor.plan.nodes import (
    ARRIVED,
    KEEP,
    MODEL,
    WHOLE,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Radio,
    Repeat,
    Select,
    Sequence,
    Since,
    Site,
    Train,
    Work,
    factors_of,
)
from fedfloor.plan.walk import children, devices

MIXES = {
    "by_samples": "mean by samples", "equal": "plain mean", "inverse_distance": "mean by inverse distance",
    "q_fair": "q-fair mean", "median": "coordinate median", "trimmed_mean": "trimmed mean", "krum": "Krum",
    "multi_krum": "Multi-Krum", KEEP: "a model per branch",
}  # fmt: skip

ADAMS = {"adam": "Adam", "adamw": "AdamW"}


def work_words(work: Work) -> str:
    """Return a description of the work of a visit.

    >>> work_words(Work(epochs=1, rate=0.01, momentum=0.5))
    '1 epoch, b 32, η 0.01, momentum 0.5'
    >>> work_words(Work(epochs=1, optimizer="adam", beta2=0.99, moments="device", clip_norm=1.0))
    '1 epoch, b 32, η 0.01, Adam (β₂ 0.99), moments kept, gradients up to 1'
    >>> work_words(Work(epochs=1, travel="sign"))
    '1 epoch, b 32, η 0.01, up coded by sign'
    >>> work_words(Work(epochs=1, factors="all but head 0.1; head 2.0"))
    '1 epoch, b 32, η 0.01 (all but head × 0.1, head × 2)'
    """
    length = count(work.steps, "step") if work.steps is not None else count(work.epochs or 0, "epoch")
    batch = "all samples at once" if work.batch_size == WHOLE else f"b {work.batch_size}"
    factors = ", ".join(f"{name} × {factor:.4g}" for name, factor in factors_of(work.factors).items())
    parts = [length, batch, f"η {work.rate:.4g}" + (f" ({factors})" if factors else "")]
    if work.optimizer != "sgd":
        own = [f"{name} {value:.4g}" for name, value in _adam_numbers(work)]
        parts.append(ADAMS[work.optimizer] + (f" ({', '.join(own)})" if own else ""))
    if work.momentum:
        parts.append(f"momentum {work.momentum:.4g}")
    if work.keeps_moments:
        parts.append("moments kept")
    if work.weight_decay:
        parts.append(f"weight decay {work.weight_decay:.4g}")
    if work.clip_norm is not None:
        parts.append(f"gradients up to {work.clip_norm:.4g}")
    if work.sample_clip is not None:
        parts.append(f"samples' gradients up to {work.sample_clip:.4g}, noise {work.sample_noise:.4g}")
    if work.objective != "plain" or work.settings:
        settings = ", ".join(_settings(work.settings))
        parts.append(work.objective + (f" ({settings})" if settings else ""))
    if work.trains != "all":
        parts.append(f"only {work.trains}")
    if work.sends:
        kept = {"nothing": "sends nothing", ARRIVED: "a model of its own beside"}
        parts.append(kept.get(work.sends, f"keeps {work.own}"))
    return ", ".join(parts + coded_words(work))


def coded_words(at: Work | Parallel) -> list[str]:
    """Return the codecs of a visit, or of models between a node and edges, as texts."""
    return [f"{way} coded by {text}" for way, text in (("up", at.travel), ("down", at.travel_down)) if text]


def _adam_numbers(work: Work) -> list[tuple[str, float]]:
    """Return symbol and value of each setting of Adam that is not its default."""
    plain = Work(epochs=1)
    signs = {"beta1": "β₁", "beta2": "β₂", "eps": "ε"}
    return [(sign, getattr(work, name)) for name, sign in signs.items() if getattr(work, name) != getattr(plain, name)]


def mix_words(node: Parallel | Select) -> str:
    """Return a mixing rule as text.

    >>> mix_words(Parallel(())), mix_words(Parallel((), mix="krum", settings={"outliers": 2}))
    ('mean by samples', 'Krum, outliers 2')
    """
    model = [] if node.model == MODEL else [f"model {node.model}"]
    return ", ".join([MIXES.get(node.mix, node.mix), *_settings(node.settings), *model])


def choice_words(node: Select) -> str:
    """Return a selection as text.

    >>> choice_words(Select("exact", (1, 2, 3), 2, Work(steps=1), random=1))
    'choose 2 of 3, 1 at random, 1 by exact'
    """
    start = f"choose {node.how_many} of {len(node.candidates)}"
    if node.random:
        return f"{start}, {node.random} at random, {node.how_many - node.random} by {node.policy}"
    return f"{start} by {node.policy}"


def radio_words(radio: Radio) -> str:
    """Return a description of a visit's upload channel.

    >>> radio_words(Radio(2, 20.0))
    'channel 2, 20 dBm'
    """
    return f"channel {radio.channel}, {radio.power_dbm:.4g} dBm"


def is_chain(node: Node) -> bool:
    """Return whether the node is a ``Sequence`` of at least two visits to devices."""
    if not isinstance(node, Sequence) or len(node.children) < 2:
        return False
    return all(isinstance(child, Train) and child.site.kind == "device" for child in node.children)


def times_words(node: Repeat) -> str:
    """Return the number of times of a ``Repeat`` as text.

    >>> times_words(Repeat(50, Train(Site("device", 1), Work(steps=1))))
    '50 times, one tick each'
    """
    if node.tick:
        return f"{count(node.times, 'time')}, one tick each"
    return count(node.times, "lap" if is_chain(node.child) else "time")


def heading(node: Node, names: Names = NUMBERED) -> str:
    """Return a description of a node in one line, without its children; ``names`` are those of sites.

    >>> heading(Parallel((Train(Site("device", 1), Work(epochs=1)),)))
    'in parallel: 1 branch, meets at the cloud (mean by samples)'
    """
    match node:
        case Train():
            radio = f" [{radio_words(node.radio)}]" if node.radio else ""
            return f"{names.site(node.site.kind, node.site.index)}: {work_words(node.work)}{radio}"
        case Sequence():
            return f"one after another: {len(node.children)}"
        case Parallel():
            branches = f"in parallel: {count(len(node.children), 'branch', 'branches')}, {_meeting(node, names)}"
            return ", ".join([branches, *coded_words(node)])
        case Repeat():
            return times_words(node)
        case Since():
            how = "its change" if node.counts == "change" else "its result"
            return f"from the model of round {node.version}, {how} counts {node.weight:.3g}"
        case Select():
            return f"{choice_words(node)}, {_meeting(node, names)}, each: {work_words(node.work)}"
        case Broadcast():
            return f"hand {node.scope!r} to {_devices(node.devices, names)} to keep"
        case Probe():
            how = f" ({', '.join(_settings(node.settings))})" if node.settings else ""
            return f"ask {_devices(node.devices, names)} for {node.what}{how}, answers to {_the(node.at, names)}"
        case _:
            return f"{type(node).__name__.lower()}: {', '.join(_settings(_own(node)))}"


def _own(node: Node) -> dict[str, object]:
    """Return the fields of a node except its children."""
    values = {field.name: getattr(node, field.name) for field in fields(node) if "child" not in field.name}
    return {name: work_words(value) if isinstance(value, Work) else value for name, value in values.items()}


def _settings(settings: Mapping[str, object]) -> list[str]:
    """Return texts of settings with their values, in the notation of an experiment file."""
    return [f"{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()]


def _devices(numbers: tuple[int, ...], names: Names) -> str:
    return f"{count(len(numbers), 'device')} ({names.many(numbers)})"


def _meeting(node: Parallel | Select, names: Names) -> str:
    return f"meets at {_the(node.at, names)} ({mix_words(node)})"


def _the(site: Site, names: Names) -> str:
    return "the cloud" if site.kind == "cloud" else names.site(site.kind, site.index)


def shape(node: Node) -> Hashable:
    """Return the properties by which nodes count as alike: all except the numbers of sites and candidates."""
    own = {name: value for name, value in _own(node).items() if name not in ("candidates", "devices")}
    own |= {name: value.kind for name, value in own.items() if isinstance(value, Site)}
    own |= {name: "radio" for name, value in own.items() if isinstance(value, Radio)}
    return type(node), str(own), tuple(map(shape, children(node)))


ALIKE = 4  # most alike neighbours that are all drawn


def tree(node: Node, names: Names = NUMBERED) -> str:
    """Return a plan as a tree of lines; of more than four similar neighbours only the first two are drawn.

    ``names`` are those of sites.

    >>> from fedfloor.plan.nodes import Parallel, Repeat, Sequence, Train, Work, device
    >>> work = Work(epochs=1, rate=0.01)
    >>> ring = Repeat(5, Sequence(tuple(Train(device(k), work) for k in range(8))), tick=False)
    >>> print(tree(Parallel((ring, Train(device(9), work)))))
    in parallel: 2 branches, meets at the cloud (mean by samples)
    ├─ 5 laps
    │  └─ one after another: 8
    │     ├─ device 0: 1 epoch, b 32, η 0.01
    │     ├─ device 1: 1 epoch, b 32, η 0.01
    │     └─ … 6 more like this (devices 2–7)
    └─ device 9: 1 epoch, b 32, η 0.01
    """
    return "\n".join([heading(node, names), *_below(node, "", names)])


def _below(node: Node, indent: str, names: Names) -> Iterator[str]:
    entries = list(_entries(children(node), names))
    for i, entry in enumerate(entries):
        last = i == len(entries) - 1
        branch, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(entry, str):
            yield indent + branch + entry
        else:
            yield indent + branch + heading(entry, names)
            yield from _below(entry, indent + deeper, names)


def _entries(siblings: tuple[Node, ...], names: Names) -> Iterator[Node | str]:
    for _, run in groupby(siblings, key=shape):
        alike = list(run)
        if len(alike) <= ALIKE:
            yield from alike
            continue
        yield from alike[:2]
        hidden = set().union(*(devices(node) for node in alike[2:]))
        listed = f" (devices {names.many(hidden)})" if hidden else ""
        yield f"… {len(alike) - 2} more like this{listed}"

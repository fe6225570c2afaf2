"""Plans for tests: the eight of the design's first section written out, and a hypothesis strategy for any plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Radio,
    Repeat,
    Select,
    Sequence,
    Site,
    Train,
    Work,
    device,
    edge,
)

FACTORIES = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
SIZES = [32 * (k + 1) for k in range(12)]  # device k takes k + 1 mini-batches of 32 per epoch
EPOCH = Work(epochs=1, batch_size=32)


def star(devices: tuple[int, ...], work: Work = EPOCH, at: Site = CLOUD, mix: str = "by_samples") -> Parallel:
    """Visits in parallel."""
    return Parallel(tuple(Train(device(k), work) for k in devices), at, mix)


def chain(devices: tuple[int, ...], work: Work = EPOCH) -> Sequence:
    """Visits one after the other."""
    return Sequence(tuple(Train(device(k), work) for k in devices))


@dataclass(frozen=True)
class Case:
    """A plan and what follows from it by hand."""

    plan: Node
    span: int
    visits: dict[int, int]
    batches: int
    meets: bool
    devices: set[int]
    nodes: int
    depth: int
    widest: int = field(default=3)


ALL = set(range(12))
SELECTS = tuple(
    Repeat(50, Select("gbp_cs", members, 2, Work(steps=1, batch_size=32), at=edge(m)))
    for m, members in enumerate(FACTORIES)
)
RADIOS = (Train(device(2), EPOCH, Radio(0, 10.0)), Train(device(9), EPOCH, Radio(1, 17.5)))
GROUPS = Parallel((chain((0, 1, 2)), chain((5, 6))), mix="equal")

# Of 1 + … + 12 = 78 mini-batches per epoch over all devices; a node counts itself, a leaf has depth 1.
CASES = {
    # devices 0, 3, 7 train 5 epochs of 1, 4, 8 mini-batches: 5·13 = 65
    "FedAvg": Case(
        plan=star((0, 3, 7), Work(epochs=5, batch_size=32)),
        span=0, visits={0: 1, 3: 1, 7: 1}, batches=65, meets=True, devices={0, 3, 7}, nodes=4, depth=2,
    ),
    # 5 laps over all devices: 5·78 = 390; 1 + 3·(repeat + sequence + 4 visits) = 19 nodes; laps of a ring take no tick
    "FedSR": Case(
        plan=Parallel(tuple(Repeat(5, chain(ring), tick=False) for ring in FACTORIES)),
        span=0, visits=dict.fromkeys(range(12), 5), batches=390, meets=True, devices=ALL, nodes=19, depth=4,
    ),
    # 50 turns of one tick each in parallel: 50 ticks; 3 factories · 50 turns · 2 devices · 1 step = 300
    "FedGS": Case(
        plan=Parallel(SELECTS, mix="equal"),
        span=50, visits={}, batches=300, meets=True, devices=ALL, nodes=7, depth=3,
    ),
    # 1 + 2 + 3 and 6 + 7 mini-batches; the broadcast trains nobody
    "HFedMS": Case(
        plan=Sequence((GROUPS, Broadcast((0, 1, 2, 5, 6), "classifier"))),
        span=0, visits=dict.fromkeys((0, 1, 2, 5, 6), 1), batches=19, meets=True, devices={0, 1, 2, 5, 6},
        nodes=10, depth=4, widest=2,
    ),
    # one device of each group: 2 + 7 + 10
    "FLDG": Case(
        plan=star((1, 6, 9)),
        span=0, visits={1: 1, 6: 1, 9: 1}, batches=19, meets=True, devices={1, 6, 9}, nodes=4, depth=2,
    ),
    "FLDG's set-up": Case(
        plan=Probe(tuple(range(12)), "features"),
        span=0, visits={}, batches=0, meets=False, devices=ALL, nodes=1, depth=1, widest=1,
    ),
    # 3 + 10
    "RaFed": Case(
        plan=Parallel(RADIOS),
        span=0, visits={2: 1, 9: 1}, batches=13, meets=True, devices={2, 9}, nodes=3, depth=2, widest=2,
    ),
    # κ2 = 2 edge rounds over all: 2·78 = 156
    "HierFAVG": Case(
        plan=Parallel(tuple(Repeat(2, star(ring, at=edge(m)), tick=False) for m, ring in enumerate(FACTORIES))),
        span=0, visits=dict.fromkeys(range(12), 2), batches=156, meets=True, devices=ALL, nodes=19, depth=4,
    ),
    # 3 + 12
    "K-Center": Case(
        plan=star((2, 11)),
        span=0, visits={2: 1, 11: 1}, batches=15, meets=True, devices={2, 11}, nodes=3, depth=2, widest=2,
    ),
    "K-Center's set-up": Case(
        plan=Probe(tuple(range(12)), "local training"),
        span=0, visits={}, batches=0, meets=False, devices=ALL, nodes=1, depth=1, widest=1,
    ),
}  # fmt: skip

# 0.0 and −0.0, 1 and 1.0 and true are equal in Python but not in JSON: each field keeps to one kind of number.
_positive = st.floats(min_value=2**-20, max_value=2**20)
_words = st.text(max_size=4)
_numbers = st.integers(0, 11)
_devices = st.lists(_numbers, max_size=4).map(tuple)
_settings = st.fixed_dictionaries(
    {}, optional={"mu": _positive, "kind": _words | st.none(), "on": st.booleans(), "depth": st.integers()}
)


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Any work with either epochs or steps."""
    count = draw(st.integers(1, 3))
    passes = {"epochs": count} if draw(st.booleans()) else {"steps": count}
    return Work(
        objective=draw(_words),
        **passes,
        batch_size=draw(st.integers(1, 64)),
        rate=draw(_positive),
        momentum=draw(st.sampled_from([0.0, 0.5])),
        weight_decay=draw(st.sampled_from([0.0, 1e-4])),
        trains=draw(st.sampled_from(["all", "classifier"])),
        settings=draw(_settings),
    )


sites = st.just(CLOUD) | _numbers.map(edge) | _numbers.map(device)
_meetings = st.just(CLOUD) | _numbers.map(edge)
_radios = st.none() | st.builds(Radio, st.integers(0, 8), _positive)
leaves = (
    st.builds(Train, st.just(CLOUD) | _numbers.map(device), works(), _radios)
    | st.builds(
        Select,
        _words,
        st.lists(_numbers, min_size=1, max_size=4).map(tuple),
        st.just(1),
        works(),
        _meetings,
        _words,
        _settings,
        st.integers(0, 1),
        st.lists(_positive, max_size=3).map(tuple),
        st.booleans(),
    )
    | st.builds(Broadcast, _devices, _words)
    | st.builds(Probe, _devices, _words, _meetings)
)


def _branches(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(below, max_size=3).map(tuple)
    return (
        st.builds(Sequence, several)
        | st.builds(Parallel, several, _meetings, _words, _settings)
        | st.builds(Repeat, st.integers(1, 4), below, st.booleans())
    )


plans = st.recursive(leaves, _branches, max_leaves=8)

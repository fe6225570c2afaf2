"""HFedMS's semantic memory as an objective: by hand on two classes and three features, with a linear extractor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfloor.base.errors import RunError
from fedfloor.parts.objectives.objective import Visit
from fedfloor.parts.objectives.replay import Replay
from refusals import refused

Memory = Mapping[str, Tensor]


@dataclass
class Linear:
    """An extractor z = x·Φ with a name, and those of before by theirs."""

    x: Tensor
    labels: Tensor
    name: str
    before: str = ""
    known: Mapping[str, Tensor] = field(default_factory=dict)

    def stored(self) -> Tensor:
        return self.x

    def window(self, name: str = "") -> Tensor:
        return self.x @ self.known[name or self.name]

    def of(self, stored: Tensor) -> Tensor:
        return stored @ self.known[self.name]

    def chance(self) -> np.random.Generator:
        return np.random.default_rng(0)


OLD = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
NEW = torch.tensor([[2.0, 0, 1], [0, 1, 0], [0, -1, 1]])
PHI = {"old": OLD, "new": NEW}
X = torch.tensor([[1.0, 2, 3], [3.0, 0, 1], [0.0, 1, 1]])
Y = torch.tensor([0, 0, 1])
NONE = torch.zeros(0)


def visit(memory: Memory, name: str = "new", before: str = "old", x: Tensor = X, y: Tensor = Y) -> Visit:
    return Visit(None, memory, extractor=Linear(x, y, name, before if memory else "", PHI))


def kept(z: Tensor, y: Tensor, new: tuple[Tensor, Tensor] | None = None) -> Memory:
    fresh = new or (z[:0], y[:0])
    return {"z": z, "y": y, "new.z": fresh[0], "new.y": fresh[1]}


def after(goal: Replay, about: Visit) -> Memory:
    return goal.remember(NONE, about)


# -- compensation ------------------------------------------------------------------------------------------------------


def test_what_is_kept_moves_with_its_class() -> None:
    # x·OLD = x. x·NEW: (1, 2, 3) → (2, −1, 4); (3, 0, 1) → (6, −1, 4); (0, 1, 1) → (0, 0, 1).
    # Δ_0 = mean{(1, −3, 1), (3, −1, 3)} = (2, −2, 2); Δ_1 = (0, −1, 0)
    z = torch.tensor([[1.0, 1, 1], [5.0, 5, 5]])
    y = torch.tensor([1, 0])
    got, labels = Replay().features(visit(kept(z, y)))
    window = [[2.0, -1, 4], [6, -1, 4], [0, 0, 1]]
    assert got.tolist() == [*window, [1, 0, 1], [7, 3, 7]]
    assert labels.tolist() == [0, 0, 1, 1, 0]


def test_without_compensation_it_stays_where_it_was() -> None:
    z = torch.tensor([[1.0, 1, 1]])
    y = torch.tensor([1])
    got, _ = Replay(compensate=False).features(visit(kept(z, y)))
    assert got[3:].tolist() == [[1, 1, 1]]


def test_a_class_that_the_window_lacks_is_not_moved() -> None:
    z = torch.tensor([[1.0, 1, 1], [4.0, 4, 4]])
    y = torch.tensor([1, 2])
    got, labels = Replay().features(visit(kept(z, y)))
    assert got[3:].tolist() == [[1, 0, 1], [4, 4, 4]]
    assert labels[3:].tolist() == [1, 2]


def test_nothing_moves_while_the_extractor_is_the_same() -> None:
    z = torch.tensor([[1.0, 1, 1]])
    y = torch.tensor([1])
    got, _ = Replay().features(visit(kept(z, y), before="new"))
    assert got[3:].tolist() == z.tolist()


def test_of_identical_windows_with_a_linear_extractor_the_class_means_are_exact() -> None:
    # z_i = x_i·Φ_old for the same x as in the window now:
    # mean_c(z) + mean_c(x·Φ_new) − mean_c(x·Φ_old) = mean_c(x·Φ_new)
    got, labels = Replay().features(visit(kept(X @ OLD, Y)))
    for c in (0, 1):
        was = got[3:][labels[3:] == c].mean(0)
        now = got[:3][labels[:3] == c].mean(0)
        assert was.tolist() == now.tolist()
    assert got[5].tolist() == got[2].tolist()  # a class of one sample: that sample


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_device_that_comes_for_the_first_time_trains_on_its_window() -> None:
    got, labels = Replay().features(visit({}))
    assert got.tolist() == (X @ NEW).tolist()
    assert labels.tolist() == Y.tolist()
    memory = after(Replay(), visit({}))
    assert memory["z"].shape == (0, 3)
    assert memory["new.z"].tolist() == (X @ NEW).tolist()


def test_windows_of_a_period_wait_for_its_last_visit() -> None:
    one = after(Replay(), visit({}))
    two = after(Replay(), visit(one, before="new", x=X + 1))
    assert two["new.z"].tolist() == torch.cat([X @ NEW, (X + 1) @ NEW]).tolist()
    got, _ = Replay().features(visit(two, before="new"))
    assert len(got) == len(X)  # Eq. (16): the window and Z*, which is still empty


def test_after_the_last_visit_those_nearest_to_their_class_mean_stay() -> None:
    # candidates: Z* = (3, 3, 3) of class 0, from the memory by the same extractor; the window (2, −1, 4), (6, −1, 4)
    # of 0 and (0, 0, 1) of 1. μ_0 = (11/3, 1/3, 11/3): squared distances 4/9 + 64/9 + 4/9 = 8,
    # 25/9 + 16/9 + 1/9 = 4.67, 49/9 + 16/9 + 1/9 = 7.33; class 1 is its own mean
    memory = kept(torch.tensor([[3.0, 3, 3]]), torch.tensor([0]))
    now = after(Replay(keep=3, last=True), visit(memory, before="new"))
    assert now["z"].tolist() == [[2, -1, 4], [6, -1, 4], [0, 0, 1]]
    assert now["y"].tolist() == [0, 0, 1]
    assert len(now["new.y"]) == 0


def test_who_missed_the_last_visit_keeps_and_moves_them_when_back() -> None:
    # by "old" x·Φ = x: candidates (1, 2, 3), (3, 0, 1) of 0 and (0, 1, 1) of 1; Q = 2 keeps the first of the equally
    # near ones of class 0 and the one of class 1; then Δ_0 = (2, −2, 2), Δ_1 = (0, −1, 0) as above
    waiting = kept(X[:0], Y[:0], (X, Y))
    got, labels = Replay(keep=2).features(visit(waiting))
    assert got[3:].tolist() == [[3, 0, 5], [0, 0, 1]]
    assert labels[3:].tolist() == [0, 1]
    now = after(Replay(keep=2), visit(waiting))
    assert now["z"].tolist() == [[3, 0, 5], [0, 0, 1]]
    assert now["new.z"].tolist() == (X @ NEW).tolist()  # those of this period alone


@given(st.integers(1, 6), st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 4)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_of_past_periods_is_never_more_than_q(keep: int, course: list[tuple[bool, bool, int]]) -> None:
    rng = torch.Generator().manual_seed(0)
    memory = {}
    before = ""
    name = "old"
    for last, trained, samples in course:
        name = ("new" if name == "old" else "old") if trained else name
        x = torch.rand(samples, 3, generator=rng)
        y = torch.randint(0, 2, (samples,), generator=rng)
        about = Visit(None, memory, extractor=Linear(x, y, name, before, PHI))
        goal = Replay(keep=keep, last=last)
        on, _ = goal.features(about)
        memory = dict(after(goal, about))
        before = name
        assert samples <= len(on) <= samples + keep
        assert len(memory["z"]) == len(memory["y"]) <= keep
        assert not (last and len(memory["new.y"]))


def test_raw_samples_are_all_kept_and_seen_anew() -> None:
    one = after(Replay(raw=True), visit({}, name="old"))
    assert one["x"].tolist() == X.tolist()
    about = visit(one, x=X + 1)
    got, labels = Replay(raw=True).features(about)
    assert got.tolist() == torch.cat([(X + 1) @ NEW, X @ NEW]).tolist()  # as the extractor of now sees them
    assert labels.tolist() == [*Y.tolist(), *Y.tolist()]
    assert len(after(Replay(raw=True, last=True, keep=1), about)["x"]) == 6


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_settings_out_of_range_are_refused() -> None:
    with refused("objective replay: keep"):
        Replay(keep=0)
    with refused("unknown objective replay: rule"):
        Replay(rule="nearest")  # type: ignore[arg-type]


def test_a_visit_without_an_extractor_is_refused() -> None:
    with refused("visit-lacks", RunError):
        Replay().features(Visit(None, {}))

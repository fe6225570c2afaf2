"""Parts of one's own in an experiment file: what is checked before a run, and what is said about it."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.config import brief, from_table, resolved
from floor import bits, park
from refusals import refused
from rounds import Job, method

OWN = """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.selection.selection import Selection
from fedfloor.parts.mixing.mix import Mix
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.objectives.proximal import Represented
from fedfloor.parts.server import Server

if TYPE_CHECKING:
    from nowhere import Name


@dataclass(frozen=True)
class First(Mix):
    place: int = 0
    tone: Literal["high", "low"] = "low"
    kind: Literal["first"] = "first"
    whole: ClassVar[bool] = True

    def mixed(self, met):
        return met.models[self.place].clone()


@dataclass(frozen=True)
class Open(Mix):
    whole: ClassVar[bool] = True


@dataclass(frozen=True)
class Few(Mix):
    whole: ClassVar[bool] = True

    def mixed(self, models, rate):
        return models[0]


@dataclass(frozen=True)
class Short(Mix):
    whole: ClassVar[bool] = True

    def mixed(self, met):
        return met.start[1:]


@dataclass(frozen=True)
class Nothing(Mix):
    whole: ClassVar[bool] = True

    def mixed(self, met):
        met.models[0].clone()


@dataclass(frozen=True)
class Loose:
    size: float = 1.0


class Bare(Plain):
    size: float = 1.0


@dataclass(frozen=True)
class Wordless(Represented):
    pass


@dataclass(frozen=True)
class Unsaid(Objective):
    size: float


@dataclass(frozen=True)
class Named(Plain):
    name: Name | None = None


@dataclass(frozen=True)
class Still(Server):
    pass


@dataclass(frozen=True)
class Model(Server):
    def step(self, model, mean, moments, rng):
        return mean


@dataclass(frozen=True)
class Blind(Selection):
    def draw(self, devices):
        return devices


@dataclass(frozen=True)
class Says(Selection):
    what: str

    def draw(self, devices, sizes, rng):
        return eval(self.what)


def function(size=1.0):
    raise AssertionError("called")


class Undecorated(FedAvg):
    size: float = 1.0


NUMBER = 7
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


def said(text: str) -> str:
    with pytest.raises(SettingError) as error:
        from_table(tomllib.loads(text))
    return str(error.value)


REFUSED = {
    "method.mix = 'odd:Frist'": "mixing rule 'odd:Frist': module 'odd' has no 'Frist'. Did you mean",
    "method.mix = 'own_part:First'": "mixing rule 'own_part:First': no module 'own_part' in the current folder",
    "method.mix = 'odd:NUMBER'": "mixing rule 'odd:NUMBER' is 7: must be the name of a dataclass.",
    "method.mix = 'odd:Loose'": "mixing rule 'odd:Loose' is not a subclass of fedfloor.Mix",
    "method.mix = 'odd:function'": "mixing rule 'odd:function' is <function function at",
    "method.mix = { kind = 'os:system', command = 'touch called' }": "must be the name of a dataclass.",
    "method.server = { kind = 'odd:function', size = 2.0 }": "must be the name of a dataclass.",
    "method.selection = 'odd:function'": "must be the name of a dataclass.",
    "method.objective = { kind = 'subprocess:Popen', args = 'touch called', shell = true }": "subclass of fedfloor.Obj",
    "method.objective = 'odd:function'": "must be the name of a dataclass.",
    "method.mix = 'odd:Open'": "'odd:Open' has no 'mixed': a class derived from fedfloor.Mix must define",
    "method.mix = 'odd:Few'": "'odd:Few': mixed must take (self, met): missing a required argument: 'rate'.",
    "method.mix = { kind = 'odd:First', plaec = 1 }": "'odd:First' 'plaec'. Did you mean 'place'? Known: pl",
    "method.mix = { kind = 'odd:First', place = 1.5 }": "'odd:First': place = 1.5: must be a whole number.",
    "method.mix = { kind = 'odd:First', tone = 'mid' }": "tone = 'mid': must be 'high' or 'low'.",
    "method.mix = { kind = 'odd:First', place = [1] }": "place = [1]: must be a number, a text, true or false.",
    "method.mix = { place = 1 }": "= {'place': 1}: must be a name, or a table such as { kind = \"by_samples\" }.",
    "method.server = 'odd:Loose'": "server 'odd:Loose' is not a subclass of fedfloor.S",
    "method.server = 'odd:Still'": "server 'odd:Still' has no 'step': a class derived from fedfloor.Serv",
    "method.server = 'adm'": "unknown server 'adm'. Did you mean 'adam'? Known: adagrad, adam, sgd, yogi.",
    "method.selection = 'odd:Loose'": "'odd:Loose' is not a subclass of fedfloor.Sel",
    "method.selection = 'odd:Blind'": "draw must take (self, devices, sizes, rng): too many positional arguments.",
    "method.selection = 'odd:Says'": "selection 'odd:Says' needs the setting 'what': it has no default.",
    "method.objective = 'odd:Loose'": "'odd:Loose' is not a subclass of fedfloor.Obj",
    "method.objective = { kind = 'odd:Bare', size = 2.0 }": "is not a dataclass: put @dataclass(frozen=True) before",
    "method.objective = { kind = 'odd:Unsaid', size = 1 }": "'odd:Unsaid' has no 'loss': a class derived from fed",
    "method.objective = 'odd:Wordless'": "'odd:Wordless' has no 'term': a class derived from fedfloor.Repr",
    "method.objective = { kind = 'odd:Unsaid' }": "objective 'odd:Unsaid' needs the setting 'size'",
    "method.name = 'odd:Undecorated'": "'odd:Undecorated' has settings of its own: write @dataclass(frozen=True)",
    "methods.fedavg.mix = 'odd:Loose'": "'odd:Loose' is not a subclass of fedfloor.Mix",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED)
def test_a_part_of_your_own_that_is_incomplete_says_what_to_do(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in said(text)
    assert not (tmp_path / "called").exists()  # nothing runs before it is known to be a part


@pytest.mark.parametrize("value", [{"kind": "odd:First", "place": 1}, "odd:First"], ids=str)
def test_a_part_of_your_own_survives_being_written_down(value: Any) -> None:
    experiment = from_table({"method": {"mix": value}})
    for written in (resolved(experiment), brief(experiment)):
        again = from_table(tomllib.loads(written))
        assert again.configured.parts == experiment.configured.parts
    job = Job(experiment.configured, park((64, 64, 64)))
    (place,) = {node.settings["place"] for node in [job.plan(job.begin(), 1)]}  # type: ignore[union-attr]
    assert place == (1 if isinstance(value, dict) else 0)


def test_a_rule_of_your_own_mixes() -> None:
    first, second = (
        Job(method("fedavg", {"mix": {"kind": "odd:First", "place": one}}), park((6, 6, 6))) for one in (0, 1)
    )
    assert bits(first.run().packet["w"]) != bits(second.run().packet["w"])


def test_names_that_only_a_type_checker_knows_will_do() -> None:
    plain, own = (Job(method("fedavg", {"objective": one}), park((6, 6))) for one in ("plain", "odd:Named"))
    assert bits(plain.run().packet["w"]) == bits(own.run().packet["w"])


RETURNED = {
    "Short": ({"mix": "odd:Short"}, "mix"),
    "Nothing": ({"mix": "odd:Nothing"}, "mix"),
    "Model": ({"server": "odd:Model"}, "own-server"),
}


@pytest.mark.parametrize(("parts", "message"), RETURNED.values(), ids=RETURNED)
def test_what_a_part_of_your_own_returns_is_looked_at(parts: dict[str, Any], message: str) -> None:
    with refused(message):
        Job(method("fedavg", parts), park((6, 6, 6))).run()


DRAWN = {
    "[]": "draw must return a list of one or more device numbers, 0 to 2, got []",
    "None": "0 to 2, got None",
    "[0, 3]": "got [0, 3]",
    "[-1]": "got [-1]",
    "['0']": "got ['0']",
    "[[0]]": "got [[0]]",
    "[1, 1]": "draw returned a device twice: [1, 1]",
}


@pytest.mark.parametrize(("what", "message"), DRAWN.items(), ids=DRAWN)
def test_whom_a_selection_of_your_own_draws_is_looked_at(what: str, message: str) -> None:
    job = Job(method("fedavg", {"selection": {"kind": "odd:Says", "what": what}}), park((6, 6, 6)))
    with pytest.raises(SettingError) as error:
        job.run()
    assert message in str(error.value)


@pytest.mark.parametrize("what", ["[2, 0]", "sizes.argsort()[:2]", "(k for k in devices if k)"])
def test_order_and_kind_of_what_is_drawn_do_not_matter(what: str) -> None:
    job = Job(method("fedavg", {"selection": {"kind": "odd:Says", "what": what}}), park((6, 6, 6)))
    job.run()
    visited = [one.device for one in job.outcomes[0].receipts]
    assert len(visited) == 2
    assert visited == sorted(visited)

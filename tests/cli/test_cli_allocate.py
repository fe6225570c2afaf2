"""``fedfloor allocate``: the allocation of a park as a table, a document and a picture."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from allocation_parks import RAFED
from commands import Command
from fedfloor.report.charts import COLOURS, colour
from fedfloor.report.floor import Drawing, Spot, radius, svg

SVG = "{http://www.w3.org/2000/svg}"
PARK = "devices = 12\nseed = 2\n" + RAFED


@pytest.fixture
def floor(command: Command) -> Command:
    """The command line, with a park."""
    (command.folder / "hall.toml").write_text(PARK, encoding="utf-8")
    return command


def test_allocate_prints_who_takes_part(floor: Command) -> None:
    said = floor("allocate", "hall.toml")
    document = floor("allocate", "hall.toml", "--json").document
    assert said.code == 0
    last = said.out.splitlines()[-1]
    assert f"training {document['training_s']:.2f} s = {document['iterations']:.2f} iterations" in last
    assert f"{document['active']} of 12 devices take part, {12 - document['active']} silent" in last
    assert said.new == frozenset()


@pytest.mark.parametrize("solver", ["search", "rafed"])
def test_the_document_adds_up(floor: Command, solver: str) -> None:
    document = floor("allocate", "hall.toml", "--solver", solver, "--json").document
    rows = document["rows"]
    assert len(rows) == document["active"]
    assert len({row["device"] for row in rows} | set(document["silent"])) == 12
    for row in rows:
        assert row["latency_s"] == pytest.approx(row["computing_s"] + row["sending_s"])
        assert 0 < row["reception"] <= 1
        assert 0 <= row["channel"] < 4
        assert 0 <= row["power_dbm"] <= 20
    k = len(rows)
    assert document["iterations"] == pytest.approx(89.154 * (0.00934 + 1 / k))  # Eq. 12
    slowest = max(rows, key=lambda row: row["latency_s"])
    assert (document["slowest"], document["slowest_s"]) == (slowest["device"], slowest["latency_s"])
    assert document["training_s"] == pytest.approx(document["iterations"] * slowest["latency_s"])
    assert 0 < document["bound_s"] <= document["training_s"]
    assert document["gap"] == pytest.approx(document["training_s"] / document["bound_s"] - 1)


def test_one_channel_alone_by_hand(floor: Command) -> None:
    """A device alone at 10 m: a = v/(4π·868 MHz·10^3.76) = 4.776e-6, so 20 dBm arrive as 4.776e-7 W, 4.798e8 times the
    noise of 9.953e-16 W: ln(1 + that) = 19.989, 25000/(250 kHz · 19.989) = 5.003 ms; y·D/f = 20·4e7/1e9 = 0.8 s;
    89.154·1.00934 = 89.987 iterations of 0.805003 s are 72.44 s."""
    here = "[[device]]\ndistance_m = 10\ncycles_per_bit = 20\nclock_hz = 1e9\ndata_bits = 4e7\n" + RAFED
    (floor.folder / "one.toml").write_text(here, encoding="utf-8")
    document = floor("allocate", "one.toml", "--json").document
    (row,) = document["rows"]
    assert row["computing_s"] == pytest.approx(0.8)
    assert row["power_dbm"] in range(21)
    assert document["training_s"] == pytest.approx(72.44, abs=0.1)  # a lower power may do as well, within its rounding
    assert document["training_s"] >= 72.43
    assert document["status"] == "optimal"


def test_a_bundled_park_by_name(command: Command) -> None:
    document = command("allocate", "rafed-0", "--json").document
    assert (document["cell"], document["devices"], document["channels"]) == ("rafed-0", 40, 4)


def test_the_written_park_is_allocated_alike(floor: Command) -> None:
    said = floor("allocate", "hall.toml", "--write", "whole.toml")
    assert said.out.splitlines()[-1] == "cell: whole.toml"
    whole, drawn = (floor("allocate", name, "--json").document for name in ("whole.toml", "hall.toml"))
    assert whole["training_s"] == pytest.approx(drawn["training_s"], rel=0.01)  # written in cm, MHz and kbit
    assert whole["devices"] == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rafed-9",), "unknown cell 'rafed-9'. Known: "),
        (("hal.toml",), "cell file hal.toml: No such file or directory. Did you mean 'hall.toml'?"),
        (("hall.toml", "--solver", "serach"), "unknown --solver 'serach'. Did you mean 'search'?"),
        (("hall.toml", "--seed", "-1"), "--seed = -1: must be a whole number of at least 0."),
        (("hall.toml", "--time-limit", "5"), "other solvers have no time limit"),
        (("hall.toml", "--solver", "exact", "--time-limit", "0"), "--time-limit = 0.0: must be seconds, above 0."),
        (("hall.toml", "--svg", "no/floor.svg"), "--svg no/floor.svg: No such file or directory."),
        (("hall.toml", "--write", "."), "--write .: Is a directory."),
    ],
)
def test_allocate_refuses(floor: Command, words: tuple[str, ...], message: str) -> None:
    floor.refused(floor("allocate", *words), message)


def test_a_park_that_nobody_can_send_from(floor: Command) -> None:
    """At 10⁶ m the signal of 20 dBm is 60 − 37.6·4.3 = −101.7 dB of the noise: exp(−10^10.17) is 0."""
    (floor.folder / "far.toml").write_text("[[device]]\ndistance_m = 1e6\n" + RAFED, encoding="utf-8")
    floor.refused(floor("allocate", "far.toml"), "no device reaches the base station")


# -- the picture -------------------------------------------------------------------------------------------------------


def test_the_picture_has_every_device(floor: Command) -> None:
    document = floor("allocate", "hall.toml", "--svg", "hall.svg", "--json").document
    root = ElementTree.parse(floor.folder / "hall.svg").getroot()
    circles = root.findall(f".//{SVG}circle")
    assert len(circles) == 12
    on = {circle[0].text: circle for circle in circles if circle.get("class") == "on device"}
    assert len(on) == document["active"]
    for row in document["rows"]:
        (circle,) = (circle for words, circle in on.items() if (words or "").startswith(f"device {row['device']},"))
        assert circle.get("fill") == colour(row["channel"])
        assert float(circle.get("r", "nan")) == pytest.approx(radius(row["power_dbm"], (0, 20)), abs=0.06)
        # x grows to the right and y upwards, on one scale
        x = float(circle.get("cx", "nan")) - 200
        y = float(circle.get("cy", "nan"))
        if abs(row["x_m"]) > 1:
            assert x * row["x_m"] > 0
        assert math.isfinite(y)


def test_names_are_text_in_the_picture() -> None:
    spots = (Spot("<a & b>", 3.0, 4.0, 9, 20.0, 1.5), Spot("c", -1.0, 0.0))
    root = ElementTree.fromstring(svg(Drawing('"p" <1>', ("words",), spots, "<a & b>", 10, (0.0, 20.0))))
    sends, silent = sorted(root.findall(f".//{SVG}circle"), key=lambda one: str(one.get("class")))
    assert sends[0].text == "device <a & b>, 5.0 m: channel 9, 20 dBm, 1.500 s"
    assert silent[0].text == "device c, 1.0 m: silent"
    assert sends.get("fill") == COLOURS[1]  # colours come round after eight; the number says which
    written = [one.text for one in root.findall(f".//{SVG}text")]
    assert {'"p" <1>', "words", "9", "channel 9: 1 device", "silent: 1", "last: device <a & b>"} <= set(written)

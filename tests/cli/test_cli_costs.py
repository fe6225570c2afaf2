"""``fedfloor list links``: the list, and one profile with its sources."""

from __future__ import annotations

import pytest

from commands import Command
from fedfloor.network import profile

NAMES = sorted(profile.profiles())


def test_the_list_says_how_fast_each_is(command: Command) -> None:
    said = command("list", "links")
    assert (said.code, said.err, said.new) == (0, "", frozenset())
    rows = {name: next(line for line in said.out.splitlines() if line.split()[:1] == [name]) for name in NAMES}
    assert "4 Mbit/s" in rows["lte-cat-m2"]
    assert "7 Mbit/s" in rows["lte-cat-m2"]
    assert "62.5 kbit/s" in rows["nb-iot"]
    assert "by interference" in rows["rafed"]
    assert "no limit" in rows["rafed"]


def test_the_list_as_json_has_numbers(command: Command) -> None:
    rows = {row["network"]: row for row in command("list", "links", "--json").document["rows"]}
    assert sorted(rows) == NAMES
    assert (rows["wifi"]["up"], rows["wifi"]["down"]) == (80e6, 80e6)
    assert (rows["rafed"]["up"], rows["rafed"]["down"], rows["rafed"]["sharing"]) == (None, None, "sinr")
    shared = {name: rows[name]["sharing"] for name in ("lte-cat-m2", "5g-edge", "ethernet")}
    assert shared == {
        "lte-cat-m2": "serial over the park, half duplex",
        "5g-edge": "serial over each cell, full duplex",
        "ethernet": "dedicated",
    }
    assert rows["wifi"]["what"] == profile.from_table(profile.read_tables("wifi")).about


@pytest.mark.parametrize("name", NAMES)
def test_each_source_is_told_once(name: str, command: Command) -> None:
    said = command("list", "links", name)
    tables = {key: part for key, part in profile.read_tables(name).items() if isinstance(part, dict)}
    words = " ".join(said.out.split())
    for key, part in tables.items():
        assert f"[network.{key}]" in said.out
        for one, value in part.items():
            assert one == "source" or f"{one} {value}" in words
    assert said.out.count("source: ") == len(tables)
    for source in {part["source"] for part in tables.values()}:
        assert " ".join(source.split()) in words
    assert max(map(len, said.out.splitlines())) <= 160


def test_one_profile_as_json(command: Command) -> None:
    document = command("list", "links", "nb-iot", "--json").document
    table = profile.read_tables("nb-iot")
    assert (document["name"], document["about"], document["route"]) == ("nb-iot", table["about"], "via_edge")
    assert document["sources"]["devices"] == table["devices"]["source"]
    assert {"table": "device_edge", "key": "up_bps", "value": 62500.0} in document["rows"]
    assert all(row["key"] != "source" for row in document["rows"])


def test_a_profile_of_ones_own(command: Command) -> None:
    (command.folder / "hall.toml").write_text("route = 'via_edge'\n[device_edge]\nup_bps = 1e6\n")
    said = command("list", "links", "hall.toml")
    assert said.code == 0
    assert said.out.startswith("hall\nroute = via_edge\n")
    assert "source: not given" in said.out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "rafd",
            "unknown network profile 'rafd'. Did you mean 'rafed'? Known: 5g-edge, ethernet, lte-cat-m2, nb-iot, ",
        ),
        ("missing.toml", "network.profile: missing.toml: No such file or directory."),
        ("tiny.toml", "[network] unknown key 'rounds'."),
    ],
)
def test_what_is_refused(name: str, message: str, command: Command) -> None:
    command.refused(command("list", "links", name), message)


# -- price -------------------------------------------------------------------------------------------------------------


def test_a_round_of_fedavg_on_hfedms_network(command: Command) -> None:
    """Four downloads and four uploads of the model one after the other; the devices' power for as long.

    The model has (784 + 1)·62 numbers of 4 bytes. A device trains twice on 40 pictures of 784 bytes, 20 cycles a bit.
    """
    bits = 785 * 62 * 4 * 8
    down = bits / 7e6
    up = bits / 4e6
    train = 2 * 20 * (40 * 784 * 8) / 1.5e9
    seconds = 4 * down + 4 * up  # training is over before the link is free again
    assert train < 3 * down
    busy_j = up * 3.33 + down * 3.11 + train * 3.79e-27 / 2 * 1.5e9**3
    joules = 4 * (busy_j + (seconds - up - down - train) * 2.74)
    changes = ("--set", "network.profile=lte-cat-m2", "--set", "methods.fedavg.work.epochs=2")
    document = command("price", "tiny.toml", "--rounds", "1", *changes, "--json").document
    (row,) = document["rows"]
    assert document["network"] == "lte-cat-m2"
    assert row["seconds_per_round"] == pytest.approx(seconds, rel=1e-9)
    assert row["joules"] == pytest.approx(joules, rel=1e-9)
    assert row["MB_per_round"] == pytest.approx(4 * 4 * bits / 8 / 1e6, rel=1e-9)  # two links, two ways
    assert {link["link"] for link in document["links"]} == {
        "device_edge_down", "device_edge_up", "edge_cloud_down", "edge_cloud_up",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_has_a_price(name: str, command: Command) -> None:
    said = command("price", "tiny.toml", "--rounds", "1", "--set", f"network.profile={name}", "--json")
    (row,) = said.document["rows"]
    assert row["seconds_per_round"] > 0
    assert row["joules_per_round"] > 0
    assert said.new == frozenset()


def test_what_is_asked_before_the_first_round_is_told_apart(command: Command) -> None:
    # 12 devices get the model and send a profile, a model, too; then 4 rounds of 3 devices: 12 of 24 transfers each way
    asked = ["demo", "--methods", "kcenter,fedavg", "--rounds", "4", "--set", "network.profile=lte-cat-m2"]
    park = ["--set", "park.devices=12", "--set", "park.factories=1", "--set", "methods.kcenter.centers=3"]
    other = ["--set", "methods.fedavg.fraction=0.25", "--set", "rounds=4"]
    ours, theirs = command("price", *asked, *park, *other, "--json").document["rows"]
    assert ours["setup_share_of_bytes"] == pytest.approx(1 / 2, rel=0.01)
    assert ours["setup_MB"] / (1000 * ours["GB"]) == pytest.approx(1 / 2, rel=0.01)
    assert (theirs["setup_MB"], theirs["setup_share_of_seconds"]) == (0, 0)
    out = command("price", *asked, *park, *other).out
    assert "before round 1" in out
    assert "50 %" in out


def test_a_runs_file_is_priced_on_the_network_that_is_named(command: Command) -> None:
    """Its own network's values, all of which the file states, stood in the place of the new one's."""
    assert command.set("rounds=1", "network.profile=5g-edge").code == 0
    changes = ("--set", "network.devices.idle_w=0.0", "--set", "network.profile=nb-iot")
    prices = [
        command("price", file, "--rounds", "1", "--json", *changes).document["rows"][0]
        for file in ("tiny.toml", "out/experiment.toml")
    ]
    assert prices[0] == prices[1]


def test_rounds_that_a_model_does_not_take_cost_nothing(command: Command) -> None:
    asked = ["price", "tiny.toml", "--set", "method.name=bayes", "--set", "network.profile=lte-cat-m2"]
    one, hundred = (command(*asked, "--set", f"rounds={many}", "--json") for many in (1, 100))
    assert hundred.document["rows"] == one.document["rows"]
    assert hundred.document["rows"][0]["rounds"] == 1
    assert "bayes ends by itself: 1 round counted, of 100 at most" in hundred.err


def test_prices_that_no_report_could_read_are_refused(command: Command) -> None:
    (command.folder / "hall.toml").write_text("[devices]\ncycles_per_bit = 20.0\ncapacitance = 1e38\n")
    said = command("price", "tiny.toml", "--set", "network.profile=hall.toml")
    command.refused(said, "network 'hall': round 1 takes ", " J, but must take at most 1e+20 of either.")


def test_the_file_that_is_wrong_is_named_and_a_change_is_not_the_files(command: Command) -> None:
    command.refused(command("price", "tiny.toml", "--set", "rounds=-1"), "error: rounds = -1: must be")
    (command.folder / "tiny.toml").write_text("rounds = -1\n")
    for changes in ((), ("--set", "work.lr=0.1")):
        command.refused(command("price", "tiny.toml", *changes), "error: tiny.toml: rounds = -1: must be")

"""Park files: what is read from them, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.base.errors import SettingError
from fedfloor.deploy import authority, park_file, settings
from fedfloor.deploy.machines import certified
from fedfloor.deploy.park_file import DeviceTable, ParkFile
from parks import PARK
from refusals import refused


def test_a_park_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "hall.toml").write_text(PARK)
    park = park_file.read(tmp_path / "hall.toml")
    assert park.name == "hall"
    assert park.experiment == tmp_path / "tiny.toml"
    assert [(d.name, d.number) for d in park.device] == [("camera", 0), ("robot", 1)]
    assert park.device[1].data.path == Path("/srv/robot")
    assert [one.name for one in park.devices_of(park.factory[1])] == ["robot"]


TOP = 'experiment = "tiny.toml"'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "robot"', 'name = "camera"', ["the name of both", "'camera'", "factory 'north'", "factory 'south'"]),
        ('name = "robot"', 'name = "broker-north"', ["the name of both", "the broker of factory 'north'"]),
        ('name = "robot"', 'name = "South"', ["the name of both", "the edge of factory 'south'"]),
        ('name = "robot"', 'name = "cloud"', ["the name of both", "the cloud"]),
        ('"cloud.example"', '"cloud.example"\ntransport = "http"', ["cloud.transport = 'http'", "'mqtt' or 'flower'"]),
        ('factory = "south"', 'factory = "soth"', ["device 'robot'", "unknown factory 'soth'", "Did you mean 'south'"]),
        ('name = "robot"', 'name = "a/+"', ["device name = 'a/+'", "letters"]),
        ('name = "robot"', f'name = "{56 * "r"}"', ["device name", "1 to 55"]),
        ('"10.0.0.3"', '"fe80::1%\\nallow_anonymous true"', ["address", "without a zone"]),
        ('"10.0.0.3"', '"10.0.0.3"\nbind = "0.0.0.0\\nallow_anonymous true"', ["bind", "a host name or an IP"]),
        ('name = "robot"', 'name = "robot"\nnumber = 0', ["'camera' and 'robot'", "number 0"]),
        ('"10.0.0.3"', '"10.0.0.2"', ["broker of factory 'north'", "factory 'south'", "port 8883 of 10.0.0.2"]),
        ('"cloud.example"', '"10.0.0.2"\nport = 8883', ["the cloud's broker", "factory 'north'", "port 8883"]),
        ('"10.0.0.3"', '"10.42.0.300"', ["address = '10.42.0.300'", "a host name or an IP address"]),
        ('"10.0.0.3"', '"10.0.0.3:8883"', ["address = '10.0.0.3:8883'", "without a port"]),
        ('"10.0.0.3"', '"10.0.0.3"\nport = 70000', ["factory 2 'south': port = 70000", "65535"]),
        ('"10.0.0.3"', '"10.0.0.3"\nprt = 1', ["factory 2 'south'", "unknown key 'prt'", "'port'"]),
        ('kind = "folder", path = "/srv/robot"', 'kind = "foldr"', ["device 2 'robot': data.kind = 'foldr'", "folder"]),
        ('kind = "folder", path', 'kind = "folder", pth', ["device 2 'robot': [data] unknown key 'pth'", "'path'"]),
        ('name = "robot"', 'name = "robot"\nx_m = 1.0', ["device 2 'robot': (x_m, y_m) = ", "both given"]),
        ('name = "robot"', "", ["device 2: name is missing"]),
        ("[[device]]", "[device]", ["valid TOML"]),
        ('experiment = "tiny.toml"', "", ["experiment", "missing"]),
        *(
            (TOP, f"{TOP}\n{key} = {value}", [f"{key} = ", "an absolute path without blanks"])
            for key in ("folder", "programs")
            for value in (r'"/srv/x\nExecStartPre=+/bin/sh -c id"', '"/srv/x /bin/sh"', "'/srv/\"x'", '"/srv/%h"',
                          '"/opt/$(id)"', '"srv"', '"../../etc"', r'"/srv/\u001b"', r'"/srv/\u0085x"', r'"/srv/\\x"')
        ),
        *(
            (TOP, f"{TOP}\nuser = {value}", ["user = ", "1 to 32 of a-z"])
            for value in (r'"root\nExecStartPre=/bin/sh -c id"', '"root /bin/sh"', '"%u"', '""', r'"root\n"', '"-x"')
        ),
    ],
)  # fmt: skip
def test_a_wrong_park_file_is_refused(tmp_path: Path, old: str, new: str, said: list[str]) -> None:
    assert old in PARK
    (tmp_path / "hall.toml").write_text(
        PARK.replace(old, new, 1) if old != 'name = "robot"' else PARK.replace(old, new)
    )
    with pytest.raises(SettingError) as error:
        park_file.read(tmp_path / "hall.toml")
    for words in said:
        assert words in str(error.value)


def test_an_experiment_is_not_taken_for_a_park_file(tmp_path: Path) -> None:
    (tmp_path / "plant.toml").write_text('name = "plant"\nrounds = 3\n[data]\npath = "plant.csv"\n')
    with refused("kind-of-file") as error:
        park_file.read(tmp_path / "plant.toml")
    (tmp_path / "park.toml").write_text(str(error.value).split("\n\n", 1)[1])  # its example is a park file
    park = park_file.read(tmp_path / "park.toml")
    assert (park.experiment, park.device[0].factory) == (tmp_path / "plant.toml", "north")


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), min_size=2, max_size=12, unique=True)


def test_the_longest_names_have_certificates(tmp_path: Path) -> None:
    """X.509 ends a common name at 64 characters, of which "broker-", "bridge-" and "fedfloor " take up to nine."""
    longest = park_file.LONGEST
    (tmp_path / "e.toml").write_text("")
    park = park_file.ParkFile(
        longest * "p", tmp_path / "e.toml", park_file.CloudTable("127.0.0.2"),
        (park_file.FactoryTable(longest * "f", "127.0.0.1"),), (park_file.DeviceTable(longest * "d", longest * "f"),),
    )  # fmt: skip
    for one in certified(park):
        made, _ = authority.issue(authority.found(park.name, authority.now()), one.holder, 1, authority.now())
        said = x509.load_pem_x509_certificate(made).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert [name.value for name in said] == [one.holder.name]


@given(NAMES, st.data())
def test_a_park_file_survives_being_written(names: list[str], data: st.DataObject) -> None:
    reserved = {"cloud"}
    names = [name for name in names if name not in reserved] or ["a", "b"]
    factories = tuple(
        park_file.FactoryTable(name, f"10.0.0.{i + 1}") for i, name in enumerate(names[: max(1, len(names) // 3)])
    )
    rest = names[len(factories) :] or ["z-device"]
    devices = tuple(DeviceTable(name, data.draw(st.sampled_from(factories)).name) for name in rest)
    park = ParkFile("hall", Path("/x.toml"), park_file.CloudTable("cloud"), factories, devices)
    assert park_file.from_document(tomllib.loads(settings.to_toml(park)), Path("/hall.toml")) == park

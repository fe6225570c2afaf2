"""docs/deploy.md, executed: a cloud and two factories in network namespaces, each with a /srv of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath

import pytest
import yaml

from fedfloor.deploy import machines
from fedfloor.deploy.park_file import read
from fedfloor.deploy.processes import MARK, Crew
from parks import needs_mosquitto, until

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
ADDRESSES = {"cloud": "10.42.0.1", "north": "10.42.0.2", "south": "10.42.0.3"}
MACHINES = {"cloud": "cloud", "north": "factories/north", "south": "factories/south",
            "camera-1": "devices/camera-1", "robot-1": "devices/robot-1"}  # fmt: skip
STANDS = {"camera-1": "north", "robot-1": "south"}
START_S = 240


def blocks() -> list[tuple[str, str]]:
    """What the page has somebody type, and where."""
    return re.findall(r'```sh title="(.*?)"\n(.*?)```', PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def write_files(folder: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r'```toml title="(.*?)"\n(.*?)```', text, flags=re.DOTALL):
        (folder / name).write_text(content)


def stated() -> str:
    """The accuracy that the page states for its example."""
    (figure,) = re.findall(r"accuracy after round 4 is (0\.\d+)", PAGE.read_text(encoding="utf-8"))
    return str(figure)


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    return {**os.environ, "PATH": path, MARK: str(folder), "TMPDIR": str(folder)}


def can_have_namespaces() -> bool:
    if os.getuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode == 0


@pytest.fixture
def network() -> Iterator[dict[str, str]]:
    """A network namespace for each machine, joined by a bridge in a namespace of its own; machine → namespace."""
    names = {one: f"ff{os.getpid()}-{one}" for one in (*ADDRESSES, "hub")}

    def ip(*words: str, at: str | None = None) -> None:
        inside = [] if at is None else ["-n", names[at]]
        subprocess.run(["ip", *inside, *words], check=True, capture_output=True)

    with ExitStack() as stack:
        for one in names.values():
            subprocess.run(["ip", "netns", "add", one], check=True, capture_output=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", one], capture_output=True)
        ip("link", "add", "hub", "type", "bridge", at="hub")
        ip("link", "set", "hub", "up", at="hub")
        for one, address in ADDRESSES.items():
            ip("link", "add", one, "type", "veth", "peer", "name", "eth0", "netns", names[one], at="hub")
            ip("link", "set", one, "master", "hub", "up", at="hub")
            ip("addr", "add", f"{address}/24", "dev", "eth0", at=one)
            ip("link", "set", "eth0", "up", at=one)
            ip("link", "set", "lo", "up", at=one)
        yield names


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
@pytest.mark.skipif(not can_have_namespaces(), reason="network namespaces need root, and the command ip")
def test_the_pages_commands_train_a_model_on_three_machines(tmp_path: Path, network: dict[str, str]) -> None:
    write_files(tmp_path)
    machines = {one: tmp_path / "machines" / one for one in MACHINES}
    done = dict.fromkeys(("office", *MACHINES), 0)

    def carry(where: str, text: str) -> None:
        folder, log = (
            (tmp_path, tmp_path / "office.log") if where == "office" else (machines[where], machines[where] / "log")
        )
        inside = (
            [] if where == "office" else ["ip", "netns", "exec", network[STANDS.get(where, where)], "unshare", "-m"]
        )
        mount = "" if where == "office" else f"mount --bind {folder} /srv\n"
        with log.open("ab") as file:
            code = subprocess.run(
                [*inside, "bash", "-ec", mount + text], cwd=tmp_path, env=environment(tmp_path),
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=600,
            ).returncode  # fmt: skip
        assert code == 0, f"{where}:\n{text}\n" + "\n".join(p.read_text() for p in tmp_path.rglob("log"))

    try:
        for where, text in blocks():
            if where == "office" and done["office"] == 0:
                carry(where, text)
                for one, source in MACHINES.items():
                    shutil.copytree(tmp_path / "plant" / source, machines[one] / "fedfloor")
            else:
                if "fedfloor park cloud" in text:
                    log = machines["cloud"] / "log"  # which the broker writes to
                    assert until(lambda: all(f" as {one} " in log.read_text() for one in STANDS.values()), START_S)  # noqa: B023
                if "--replay run" in text:  # which the page has copied from the cloud
                    shutil.copytree(machines["cloud"] / "fedfloor" / "state" / "run", tmp_path / "run")
                carry(where, text)
            done[where] += 1
        assert min(done.values()) > 0
        run = machines["cloud"] / "fedfloor" / "state" / "run"
        lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        assert [(line["round"], line["participants"], line["lost"]) for line in lines] == [
            (k, 2, 0) for k in (1, 2, 3, 4)
        ]
        assert f"{lines[-1]['accuracy']:.2f}" == stated()
        assert (run / "model.safetensors").exists()
        assert not (tmp_path / "plant" / "devices" / "camera-1" / "device.key").exists()  # revoked
        assert (tmp_path / "plant" / "devices" / "press-1" / "device.key").exists()  # added
    finally:
        Crew(tmp_path).stop()


def test_the_pages_commands_are_those_of_the_units(tmp_path: Path) -> None:
    """What is started by hand is what systemd starts."""
    write_files(tmp_path)
    park = read(tmp_path / "park.toml")
    text = "\n".join(block for _, block in blocks())
    services = [*machines.cloud_services(park),
                *(s for one in park.factory for s in machines.factory_services(one)),
                *(s for one in park.device for s in machines.device_services(one))]  # fmt: skip
    for service in services:
        assert " ".join(service.words) in text, service


def test_units_hold_water(tmp_path: Path) -> None:
    write_files(tmp_path)
    park = read(tmp_path / "park.toml")
    for service in machines.factory_services(park.factory[0]):
        unit = machines.unit(service, park)
        (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        assert start.startswith("/")
        assert start.split()[1:] == list(service.words[1:])
        assert "User=fedfloor\n" in unit
        check = "ExecStartPre=/opt/fedfloor/bin/python -m fedfloor.deploy.broker /usr/sbin/mosquitto\n"
        assert (check in unit) == (service.name == "fedfloor-broker")
        assert ("LimitNOFILE=65536\n" in unit) == (service.name == "fedfloor-broker")
        assert "WorkingDirectory=/srv/fedfloor\n" in unit
        more = " /srv/fedfloor/acl" if service.name == "fedfloor-edge" else ""
        assert re.findall("^ReadWritePaths=(.*)$", unit, re.MULTILINE) == [
            f"/srv/fedfloor/state /srv/fedfloor/state-begun{more}"
        ]
        assert (
            "ExecStartPre=+/usr/bin/install -d -m 0700 -o fedfloor /srv/fedfloor/state /srv/fedfloor/state-begun\n"
            in unit
        )


def test_compose_starts_what_systemd_starts(tmp_path: Path) -> None:
    """The same commands in the same order with the same environment, but for the folder."""
    write_files(tmp_path)
    park = read(tmp_path / "park.toml")
    places = [machines.cloud_services(park), *(machines.factory_services(one) for one in park.factory),
                *(machines.device_services(one) for one in park.device)]  # fmt: skip
    for services in places:
        read_back = yaml.safe_load(machines.compose(services, park))
        assert read_back["name"] == "plant"
        assert set(read_back["services"]) == {one.name.removeprefix("fedfloor-") for one in services}
        for one in services:
            told = read_back["services"][one.name.removeprefix("fedfloor-")]
            unit = machines.unit(one, park)
            (start,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
            shell, flag, line = told["command"]
            assert (shell, flag) == ("sh", "-c")
            made, _, command = line.partition(" && exec ")
            assert made == f"mkdir -p {machines.STATE}"
            assert [PurePath(shlex.split(start)[0]).name, *shlex.split(start)[1:]] == shlex.split(command)
            given = dict(one.split("=", 1) for one in re.findall('^Environment="(.*)"$', unit, re.MULTILINE))
            here = {name: value.replace("/srv/fedfloor", "/park") for name, value in given.items()}
            assert told.get("environment", {}) == here
            after = re.findall(r"fedfloor-(\w+)\.service", next(x for x in unit.splitlines() if x.startswith("After=")))
            assert told.get("depends_on", []) == after
            assert set(after) <= set(read_back["services"])
            assert (told.get("ulimits") == {"nofile": 65_536}) == ("LimitNOFILE=65536\n" in unit)
            assert told["volumes"] == [".:/park"]
            assert told["working_dir"] == "/park"
            assert told["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
            assert (told["restart"] == "on-failure") == ("Restart=on-failure\n" in unit)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    write_files(tmp_path)
    park = read(tmp_path / "park.toml")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("fedfloor", "python"):
        (programs / name).symlink_to("/bin/true")
    here = dataclasses.replace(park, programs=programs, folder=tmp_path, user="root")
    files = []
    for service in (
        *machines.cloud_services(here),
        *machines.factory_services(here.factory[0]),
        *machines.device_services(here.device[0]),
    ):
        files.append(tmp_path / f"{service.name}.service")
        files[-1].write_text(machines.unit(service, here))
    done = subprocess.run(["systemd-analyze", "verify", *map(str, files)], capture_output=True, text=True)
    assert "Unknown" not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_pages_experiment_learns_what_the_page_states(tmp_path: Path) -> None:
    write_files(tmp_path)
    words = [sys.executable, "-m", "fedfloor", "run", "plant.toml", "--out", "run", "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{json.loads(done.stdout)['rows'][0]['accuracy']:.2f}" == stated()

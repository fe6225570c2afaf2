"""Devices with samples of their own, as what was provisioned starts them: TLS, and nothing writable but their state."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_deploy_data import DEVICES, pictures, told

from fedfloor import config
from fedfloor.deploy import cloud, machines, provision
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile
from fedfloor.deploy.settings import CloudSettings, DataSource, Deadlines, read
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park
from live_park import experiment, simulated
from parks import MOSQUITTO, free_port, needs_mosquitto

__all__ = ["pictures"]
HERE = "127.0.0.1"
SENSOR = """
import numpy as np

def see(device, tick):
    seen = np.load("seen.npz")
    return seen["x"], seen["y"]
"""
SHUT_IN = """
for path in {written}; do mount --bind $path $path; done
mount -o remount,ro,bind /
cd {folder}
exec {command}
"""


def can_shut_in() -> bool:
    return os.getuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@contextmanager
def service(unit: str, folder: Path) -> Iterator[None]:
    """Run a unit's command in its environment; where we may, in a mount namespace as its ReadWritePaths say."""
    (written,) = re.findall("^ReadWritePaths=(.*)$", unit, re.MULTILINE)
    assert written.split()[:2] == [str(folder / "state"), str(folder / "state-begun")]
    for place in written.split()[:2]:
        Path(place).mkdir(exist_ok=True)  # broker and edge have one machine
    (start,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    name, *words = shlex.split(start)
    program = [str(MOSQUITTO)] if name.endswith("mosquitto") else [sys.executable, "-m", "fedfloor"]
    line = shlex.join([*program, *words])
    script = SHUT_IN.format(written=written, folder=folder, command=line) if can_shut_in() else f"exec {line}"
    inside = ["unshare", "-m", "sh", "-ec", script] if can_shut_in() else ["sh", "-c", script]
    given = dict(one.split("=", 1) for one in re.findall('^Environment="(.*)"$', unit, re.MULTILINE))
    environment = {**os.environ, **given, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nowhere"}
    with (folder.parent / f"{folder.name}-{words[1]}.log").open("wb") as log:
        process = subprocess.Popen(inside, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        yield
        assert process.poll() is None, logs(folder.parent)
    finally:
        process.terminate()
        process.wait(20)


def logs(folder: Path) -> str:
    return "\n".join(f"--- {one.name}\n{one.read_text()[-2000:]}" for one in sorted(folder.rglob("*.log")))


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
def test_folders_and_functions_behind_tls_are_the_simulations_bits(tmp_path: Path, pictures: Path) -> None:
    more = f"data.path = '{pictures}'\ndata.normalise = 'standard'"
    what = experiment(tmp_path, "hierfavg", rounds=2, devices=DEVICES, more=more)
    what.write_text(what.read_text().replace("factories = 2", "factories = 1"))
    _, wanted = simulated(what, tmp_path / "simulated")
    whole = build_park(config.read(what, []))
    out = tmp_path / "out"
    sources = [
        DataSource("folder", pictures / "train" / f"d{k}") if k % 2 else
        DataSource("function", name="sensor:see") for k in range(DEVICES)
    ]  # fmt: skip
    park = ParkFile(
        "trial", what, CloudTable(HERE, free_port(), HERE), (FactoryTable("e0", HERE, free_port(), HERE),),
        tuple(DeviceTable(f"d{k}", "e0", data=one) for k, one in enumerate(sources)), folder=tmp_path,
    )  # fmt: skip
    provision.provision(park, out, user=getpass.getuser())
    broker, edge = machines.factory_services(park.factory[0])
    place = out / "factories/e0"
    with ExitStack() as stack:

        def start(one: machines.Service, folder: Path) -> None:
            unit = machines.unit(one, park).replace(str(park.folder), str(folder))
            stack.enter_context(service(unit, folder))

        for k, device in enumerate(park.device):
            if k % 2 == 0:
                x, y = whole.samples(k)
                np.savez(out / f"devices/d{k}/seen.npz", x=x, y=y)
                (out / f"devices/d{k}/sensor.py").write_text(SENSOR)
            start(*machines.device_services(device), out / f"devices/d{k}")
        start(broker, out / "cloud")
        start(broker, place)
        start(edge, place)
        given = read(CloudSettings, out / "cloud/cloud.toml")
        settings = replace(given, out=tmp_path / "live", deadlines=Deadlines(round_s=120, join_s=120))
        assert cloud.run(settings) == "finished", logs(out)
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [told(one) for one in ledger.read(tmp_path / "live/ledger.jsonl")] == [told(line) for line in wanted]

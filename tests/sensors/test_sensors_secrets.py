"""Passwords of sources travel only to verified servers unless accepted, and paths begin at the file's folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.sensors import sense
from fedfloor.sensors.opcua import OpcUaSource
from fedfloor.sensors.query import QuerySource
from fedfloor.sensors.settings import SenseSettings, read
from plant_sources import free_port
from refusals import refused

SECURE = "Basic256Sha256,SignAndEncrypt,own.der,own.pem,server.der"


def settings(folder: Path, source: str) -> SenseSettings:
    path = folder / "source.toml"
    path.write_text(f'[source]\n{source}\n[tags]\na = "a"\n')
    return read(path)


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ('kind = "mqtt"\nbroker = { host = "h", user = "u", password = "$P" %s }', ', ca = "ca.crt"'),
        (
            'kind = "sparkplug"\ngroup = "g"\nnode = "n"\nbroker = { host = "h", user = "u", password = "$P" %s }',
            ', ca = "ca.crt"',
        ),
        ('kind = "opcua"\nurl = "opc.tcp://h"\nuser = "u"\npassword = "$P"\n%s', f'security = "{SECURE}"'),
    ],
)
def test_a_password_needs_a_verified_server_or_is_accepted(tmp_path: Path, source: str, private: str) -> None:
    with pytest.raises(SettingError, match="plain = true"):
        settings(tmp_path, source % "")
    settings(tmp_path, source % private)
    settings(tmp_path, source % (", plain = true" if "broker" in source else "plain = true"))


@pytest.mark.parametrize("url", ["influxdb+http://:$P@h:1/o", "postgresql://u:$P@h/x"])
def test_so_does_that_of_a_database(tmp_path: Path, url: str) -> None:
    source = f'kind = "query"\nurl = "{url}"\nquery = "SELECT :since"\nstart = 0\n'
    with pytest.raises(SettingError, match="plain = true"):
        settings(tmp_path, source)
    settings(tmp_path, f"{source}plain = true")


@pytest.mark.parametrize(
    "source",
    [
        'kind = "mqtt"\nbroker = { host = "h", password = "$P", ca = "ca.crt" }',  # no user
        'kind = "mqtt"\nbroker = { host = "h", cert = "c", key = "k" }',  # which would not be used without ca
        'kind = "opcua"\nurl = "opc.tcp://h"\nsecurity = "Basic256Sha256,SignAndEncrypt,own.der,own.pem"',
        'kind = "opcua"\nurl = "opc.tcp://h"\nsecurity = "Basic256Sha256,None,own.der,own.pem,server.der"',
        'kind = "opcua"\nurl = "opc.tcp://h"\nsecurity = "None,SignAndEncrypt,own.der,own.pem,server.der"',
    ],
)
def test_security_that_would_not_hold_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(SettingError):
        settings(tmp_path, source)


def test_the_password_of_a_key_is_neither_in_a_file_nor_in_a_message(tmp_path: Path) -> None:
    source = 'kind = "opcua"\nurl = "opc.tcp://h"\nsecurity = "Basic256Sha256,Sign,own.der,own.pem::{},server.der"'
    with refused("source.security") as error:
        settings(tmp_path, source.format("geheim"))
    assert "geheim" not in str(error.value)
    settings(tmp_path, source.format("$KEY"))


def test_every_path_begins_at_the_folder_of_the_file(tmp_path: Path) -> None:
    broker = settings(
        tmp_path, 'kind = "mqtt"\nbroker = { host = "h", ca = "ca.crt", cert = "c.crt", key = "/etc/c.key" }'
    ).source.broker  # type: ignore[union-attr]
    assert (broker.ca, broker.cert, broker.key) == (tmp_path / "ca.crt", tmp_path / "c.crt", Path("/etc/c.key"))
    opcua = settings(tmp_path, f'kind = "opcua"\nurl = "opc.tcp://h"\nsecurity = "{SECURE}"').source
    assert isinstance(opcua, OpcUaSource)
    assert opcua.security == SECURE.replace("own", f"{tmp_path}/own").replace("server", f"{tmp_path}/server")
    query = 'kind = "query"\nurl = "{}"\nquery = "SELECT :since"\nstart = 0'
    for url, wanted in (
        ("sqlite:///plant.db", f"sqlite:///{tmp_path}/plant.db"),
        ("sqlite:////plant.db", "sqlite:////plant.db"),
        (
            "postgresql://u:$P@h/x?sslmode=verify-ca&sslrootcert=ca.pem",
            f"postgresql://u:$P@h/x?sslmode=verify-ca&sslrootcert={tmp_path}/ca.pem",
        ),
    ):
        source = settings(tmp_path, query.format(url)).source
        assert isinstance(source, QuerySource)
        assert source.url == wanted


def test_a_missing_certificate_is_named_with_its_path(tmp_path: Path) -> None:
    with refused("source.broker"):
        sense.check(settings(tmp_path, 'kind = "mqtt"\nbroker = { host = "h", ca = "ca.crt" }'), 1)


SERVER = """
import asyncio, sys
from pathlib import Path
from asyncua import Server, ua
from asyncua.crypto.cert_gen import setup_self_signed_certificate
from asyncua.server.user_managers import User, UserRole
from cryptography.x509.oid import ExtendedKeyUsageOID as Use

class Users:
    def get_user(self, server, username=None, password=None, certificate=None):
        print("login", username, password, flush=True)
        return User(role=UserRole.User) if password == "geheim" else None

async def serve(port, folder):
    for name, use in (("server", Use.SERVER_AUTH), ("other", Use.SERVER_AUTH), ("own", Use.CLIENT_AUTH)):
        uri = "urn:freeopcua:python:server" if use is Use.SERVER_AUTH else "urn:example.org:FreeOpcUa:opcua-asyncio"
        await setup_self_signed_certificate(
            folder / f"{name}.pem", folder / f"{name}.der", uri, "localhost", [use], {"commonName": name}
        )
    server = Server(user_manager=Users())
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}")
    server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
    await server.load_certificate(folder / "server.der")
    await server.load_private_key(folder / "server.pem")
    index = await server.register_namespace("plant")
    await server.nodes.objects.add_variable(ua.NodeId("a", index), "a", 1.5)
    async with server:
        print("up", flush=True)
        await asyncio.sleep(60)

asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
"""


@contextmanager
def secure_server(folder: Path) -> Iterator[tuple[int, list[str]]]:
    port = free_port()
    log = folder / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), str(folder)], stdout=subprocess.PIPE, stderr=file, text=True
        )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n", log.read_text()
        yield port, lines
    finally:
        process.kill()
        lines += process.stdout.read().splitlines() if process.stdout else []
        process.wait(20)


@pytest.mark.slow
def test_a_server_of_opc_ua_gets_the_password_only_if_its_certificate_is_the_pinned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    monkeypatch.setenv("PRESS", "geheim")
    source = tmp_path / "source.toml"
    text = (
        '[source]\nkind = "opcua"\nurl = "opc.tcp://127.0.0.1:{port}"\nuser = "press"\npassword = "$PRESS"\n'
        'security = "Basic256Sha256,SignAndEncrypt,own.der,own.pem,{server}.der"\n[tags]\na = "ns=2;s=a"\n'
    )
    with secure_server(tmp_path) as (port, lines):
        source.write_text(text.format(port=port, server="other"))
        assert [row["kind"] for row in sense.check(read(source), 4)] == ["no value"]
        source.write_text(text.format(port=port, server="server"))
        assert [row["value"] for row in sense.check(read(source), 20)] == [1.5]
    assert [line for line in lines if line.startswith("login")] == ["login press geheim"]

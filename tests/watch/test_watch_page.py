"""The page's server: who may read it, what it sends, and a thousand clients that never read."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from fedfloor.deploy import authority
from fedfloor.deploy.processes import resident_mb
from parks import until
from run_folders import line, make_run

for _package in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(_package, reason="the extra 'watch' is not installed")

from fedfloor.watch.serve import HANDSHAKE_S, MOST_HANDSHAKES  # noqa: E402

PASSWORD = "correct horse battery"


@contextmanager
def page(run: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A page about a run in a process of its own, and its port."""
    line = [sys.executable, "-m", "fedfloor", "watch", str(run), "--port", "0", *words]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = process.stderr.readline()
    try:
        assert " shows " in told, told + process.stderr.read()
        yield process, int(told.split(" shows ")[0].rstrip("/").rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    run = make_run(tmp_path_factory.mktemp("served") / "run", [0.25, 0.5], rounds=9)
    with page(run) as (_, port):
        yield run, port


def get(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read()


def events(port: int) -> Iterator[tuple[str, Any]]:
    """The events of a stream."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    kind = ""
    while text := answer.readline().decode():
        if text.startswith("event: "):
            kind = text[7:].strip()
        elif text.startswith("data: "):
            yield kind, json.loads(text[6:])


def test_what_is_served(served: tuple[Path, int]) -> None:
    _, port = served
    for path, kind in (("/", "text/html"), ("/watch.js", "text/javascript"), ("/watch.css", "text/css")):
        answer, body = get(port, path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        assert b"http://" not in body.replace(b"http://www.w3.org", b"")  # nothing is loaded from elsewhere
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["connection"] == "close"
    assert json.loads(get(port, "/state")[1])["run"]["round"] == 2
    assert json.loads(get(port, "/device/1")[1]) == {"device": 1, "rounds": [], "tested": []}
    for number in ("99", "9" * 5000, "-1", "0x1", "%D9%A1"):
        assert get(port, f"/device/{number}")[0].status == 404
    assert json.loads(get(port, "/health")[1]) == {"status": "ok"}
    assert get(port, "/", "HEAD")[0].status == 200


def test_metrics_are_openmetrics(served: tuple[Path, int]) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    answer, body = get(served[1], "/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = {family.name: family.samples for family in parser.text_string_to_metric_families(body.decode())}
    assert families["fedfloor_round"][0].value == 2
    assert families["fedfloor_figure"][0].labels == {"name": "accuracy"}
    assert families["fedfloor_figure"][0].value == 0.5


@pytest.mark.parametrize(
    "path", ["/../experiment.toml", "/%2e%2e/experiment.toml", "/ledger.jsonl", "//events", "/watch.html", "/static/x"]
)
def test_other_paths_are_not_there(served: tuple[Path, int], path: str) -> None:
    assert get(served[1], path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_there_is_nothing_to_write(served: tuple[Path, int], method: str) -> None:
    assert get(served[1], "/state", method)[0].status == 405


@pytest.mark.parametrize(("host", "status"), [
    ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("evil.example", 421), ("localhost.evil.example", 421),
    ("", 421), ("127.0.0.1@evil.example", 421), ("0x7f.1", 421),
])  # fmt: skip
def test_a_name_that_was_made_to_point_here_is_refused(served: tuple[Path, int], host: str, status: int) -> None:
    assert get(served[1], "/state", Host=host)[0].status == status


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\xa5",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"GET " + b"/x" * 9_000, b"\0" * 50_000,
])  # fmt: skip
def test_what_is_no_request(served: tuple[Path, int], sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served[1]), timeout=20) as client:
        client.sendall(sent)
        answer = client.recv(100)
    assert answer.split()[1] in (b"400", b"421", b"431")
    assert get(served[1], "/health")[0].status == 200


def test_an_event_comes_within_a_second(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25], rounds=9)
    with page(run) as (_, port):
        stream = events(port)
        kind, state = next(stream)
        assert (kind, state["run"]["round"]) == ("state", 1)
        waited = []
        for number in range(2, 6):
            time.sleep(0.37)
            began = time.monotonic()
            with (run / "ledger.jsonl").open("a") as file:
                file.write(line(number, 0.5))
            while "rounds" not in (got := next(stream)[1]).get("append", {}):
                pass
            waited.append(time.monotonic() - began)
            assert got["append"]["rounds"][0]["round"] == number
    assert max(waited) < 1.0


@pytest.mark.slow
def test_a_thousand_clients_that_never_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25], rounds=5000)
    serve = pytest.importorskip("fedfloor.watch.serve")
    with page(run) as (process, port):
        get(port)
        before = resident_mb(process.pid)
        clients = []
        for k in range(1000):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port))
            # half of them streams that are never read, the others never end their requests
            client.sendall(
                b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n" if k % 2 else b"GET /events HTTP/1.1\r\nHost: lo"
            )
            clients.append(client)
        stream = events(port)
        assert next(stream)[0] == "state"
        for number in range(2, 40):
            began = time.monotonic()
            with (run / "ledger.jsonl").open("a") as file:
                file.write(line(number, 0.5))
            while not any(row["round"] == number for row in next(stream)[1].get("append", {}).get("rounds", ())):
                pass
            assert time.monotonic() - began < 1.0
        assert get(port, "/health")[0].status == 200
        after = resident_mb(process.pid)
        held = len(os.listdir(f"/proc/{process.pid}/fd"))
        assert before is not None
        assert after is not None
        assert after - before < 40
        assert held < serve.MOST_REQUESTS + serve.MOST_STREAMS + 40
        for client in clients:
            client.close()


def test_a_client_that_stops_reading_is_dropped(tmp_path: Path) -> None:
    """Its stream's events fill its buffers; it is cut off, and memory does not grow with what it leaves unread."""
    run = make_run(tmp_path / "run", [0.25], rounds=10**6)
    program = "from fedfloor.watch import serve; serve.UNREAD_S = 1.0; from fedfloor.cli import main; main()"
    words = [sys.executable, "-c", program, "watch", str(run), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    port = int(process.stderr.readline().split(" shows ")[0].rstrip("/").rpartition(":")[2])
    get(port)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    end = time.monotonic() + 100
    number = 1
    try:
        assert until(lambda: bool(established(process.pid)))
        while time.monotonic() < end and established(process.pid):
            with (run / "ledger.jsonl").open("a") as file:
                file.write("".join(line(number := number + 1, 0.5) for _ in range(300)))
            time.sleep(0.25)
        assert not established(process.pid)
    finally:
        client.close()
        process.terminate()
        process.communicate(timeout=20)


def established(pid: int) -> list[str]:
    """The sockets of a process that are connected."""
    ours = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            ours.add(os.readlink(one))
    rows = [text.split() for text in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in ours]


@contextmanager
def tls_page(folder: Path) -> Iterator[tuple[int, int, ssl.SSLContext]]:
    """A page with TLS and a password: its process, its port, and a context that trusts it."""
    run = make_run(folder / "run", [0.25])
    founded = authority.found("trial", authority.now())
    cert, key = authority.issue(founded, authority.Holder("page", ("127.0.0.1",)), 30, authority.now())
    for name, data in (("cert", cert), ("key", key), ("root", founded.pem()[0]), ("password", PASSWORD.encode())):
        (folder / name).write_bytes(data)
    words = ["--host", "0.0.0.0", "--cert", str(folder / "cert"), "--key", str(folder / "key")]
    with page(run, *words, "--password-file", str(folder / "password"), "--name", "plant.example") as (process, port):
        trusting = ssl.create_default_context(cafile=str(folder / "root"))
        trusting.check_hostname = False
        yield process.pid, port, trusting


@contextmanager
def connected(port: int, many: int, first: bytes = b"") -> Iterator[None]:
    """Connections that begin a handshake with some bytes, or with none."""
    with ExitStack() as stack:
        for _ in range(many):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):  # replaced by a newer one already
                client.sendall(first)
        yield


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02"], ids=["silent", "begun"])
def test_handshakes_are_counted_from_their_acceptance(tmp_path: Path, first: bytes) -> None:
    with tls_page(tmp_path) as (pid, port, trusting):

        def status() -> int:
            connection = HTTPSConnection("127.0.0.1", port, timeout=20, context=trusting)
            connection.request("GET", "/health")
            return connection.getresponse().status

        assert status() == 200
        before = resident_mb(pid)
        with connected(port, 3 * MOST_HANDSHAKES, first):
            assert until(lambda: len(established(pid)) <= MOST_HANDSHAKES, 4)
            assert status() == 200
            assert until(lambda: not established(pid), 4 * HANDSHAKE_S)  # though none was closed by its client
        assert status() == 200
        assert resident_mb(pid) < before + 0.5 * MOST_HANDSHAKES  # 256 KiB of buffers each, and OpenSSL's part


def test_tls_before_1_3_is_refused(tmp_path: Path) -> None:
    with tls_page(tmp_path) as (_, port, trusting):
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            trusting.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20))


def test_beyond_this_machine_tls_and_a_password(tmp_path: Path) -> None:
    with tls_page(tmp_path) as (_, port, trusting):

        def status(path: str, **headers: str) -> int:
            connection = HTTPSConnection("127.0.0.1", port, timeout=20, context=trusting)
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status

        basic = "Basic " + base64.b64encode(f"any:{PASSWORD}".encode()).decode()
        assert status("/state") == 401
        assert status("/health") == 200
        assert status("/state", Authorization=basic) == 200
        assert status("/metrics", Authorization=f"Bearer {PASSWORD}") == 200
        assert status("/state", Authorization=basic, Host="plant.example") == 200
        assert status("/state", Authorization=basic, Host="other.example") == 421
        for wrong in ("Basic !", "Basic " + base64.b64encode(b"any:\xff").decode(), "Bearer x", f"Digest {PASSWORD}"):
            assert status("/events", Authorization=wrong) == 401
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]  # they never begin the handshake
        assert status("/state", Authorization=basic) == 200
        for client in silent:
            client.close()
        with pytest.raises((ConnectionError, OSError)):
            get(port)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25])
    program = (
        "import sys, time; from pathlib import Path; from fedfloor.watch.serve import serving\n"
        "with serving(Path(sys.argv[1])) as (url, _): print(url, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(run)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    assert json.loads(get(port, "/state")[1])["run"]["round"] == 1
    parent.kill()
    parent.communicate()
    assert until(lambda: not accepts(port), 10)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.25])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = [sys.executable, "-m", "fedfloor", "watch", str(run), "--port", str(taken.getsockname()[1])]
        got = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert got.returncode == 1
    assert "is in use: choose another with --port, or any with --port 0" in got.stderr

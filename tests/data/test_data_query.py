"""Queries: SQL on SQLite, Flux on a small server that answers with annotated CSV as InfluxDB does."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from commands import Command
from fedfloor import config
from fedfloor.base.errors import RunError, SettingError
from fedfloor.data import query
from fedfloor.runs.parks import load_data
from refusals import refused

SECRET = "s3cr/et"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    pytest.importorskip("sqlalchemy")
    path = tmp_path / "plant.db"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE readings (device, time, heat, note, label)")
        rows = [
            (f"press {n % 4}", f"2026-01-20T{n // 4 % 24:02}:{n // 96:02}:00", n if n < 90 else n + 0.5,
             None if n < 100 else "hot", ("ok", "worn")[n // 4 % 2])
            for n in range(240)
        ]  # fmt: skip
        base.executemany("INSERT INTO readings VALUES (?, ?, ?, ?, ?)", rows)
    return path


def test_a_query_becomes_a_table_with_its_hash(
    command: Command, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "ROWS", 32)  # types are known after several blocks: whole numbers, then fractions
    text = "SELECT device, time, heat, label FROM readings ORDER BY device, time"
    (command.folder / "q.sql").write_text(text + "\n")
    said = command("datasets", "query", "sqlite:///plant.db", "@q.sql", "--out", "t.parquet")
    assert said.code == 0, said
    assert said.new == {"t.parquet", "t.parquet.json"}
    facts = json.loads((command.folder / "t.parquet.json").read_text())
    digest = hashlib.sha256((command.folder / "t.parquet").read_bytes()).hexdigest()
    assert (facts["sha256"], facts["rows"], facts["query"]) == (digest, 240, text)
    assert digest in said.out
    assert facts["columns"] == {"device": "string", "time": "string", "heat": "double", "label": "string"}
    table = parquet.read_table(command.folder / "t.parquet")
    with sqlite3.connect(database) as base:
        assert (
            list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == base.execute(text).fetchall()
        )
    assert command("new", "t.parquet").code == 0
    data = load_data(config.read(command.folder / "t.toml"))
    assert (len(data.y) + len(data.y_test), data.inputs.columns) == (240, ("heat",))
    command.refused(
        command("datasets", "query", "sqlite:///plant.db", "@q.sql", "--out", "t.parquet"), "exists already"
    )
    assert command("datasets", "query", "sqlite:///plant.db", "@q.sql", "--out", "t.parquet", "--force").code == 0


@pytest.mark.parametrize(
    ("url", "text", "told"),
    [
        ("plant.db", "SELECT 1", "no address of a database"),
        ("sqlite:///none.db", "SELECT 1", "the file 'none.db' does not exist"),
        ("sqlite:///plant.db", "SELECT * FROM reading", "no such table: reading"),
        (
            "sqlite:///plant.db",
            "SELECT * FROM readings WHERE heat < 0",
            "the result of the query is empty: no file is written",
        ),
        (
            "sqlite:///plant.db",
            "SELECT heat, heat FROM readings",
            "two columns are called 'heat'. Name columns with AS",
        ),
        ("sqlite:///plant.db", "SELECT x'00' AS b, 1 AS a", "row 1, column 'b': a value of type bytes"),
        ("sqlite:///plant.db", "SELECT CASE WHEN heat < 9 THEN 1 ELSE 'a' END AS c FROM readings", "column 'c'"),
        ("sqlite:///plant.db", "DELETE FROM readings", "returns no rows"),
        ("sqlite:///plant.db", "@no.sql", "no.sql: the query cannot be read"),
        ("sqlite:///plant.db", " ", "the query is empty"),
        ("nosuch://host/x", "SELECT 1", "no address of a database"),
        ("postgresql://me:geheim@host/x", "SELECT 1", "Put it into an environment variable"),
        ("postgresql://me:$NO_SUCH_VARIABLE@host/x", "SELECT 1", "this environment variable is not set"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(
    command: Command, database: Path, url: str, text: str, told: str
) -> None:
    said = command("datasets", "query", url, text, "--out", "t.parquet")
    command.refused(said, told)
    assert "geheim" not in said.err
    with sqlite3.connect(database) as base:
        assert base.execute("SELECT count(*) FROM readings").fetchone() == (240,)


def test_another_ending_and_another_folder_are_refused(command: Command, database: Path) -> None:
    for out, told in (("t.csv", "ends in .parquet"), ("no/t.parquet", "folder no does not exist")):
        command.refused(command("datasets", "query", "sqlite:///plant.db", "SELECT 1 AS a", "--out", out), told)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("sqlite:///plant.db", "sqlalchemy", "sql"), ("influxdb+http://:$T@h:1/o", "influxdb_client", "influx")],
)
def test_a_missing_package_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("T", SECRET)
    with pytest.raises(SettingError, match=rf"pip install 'fedfloor\[{extra}\]'"):
        query.fetch(url, "SELECT 1", tmp_path / "t.parquet", plain=True)


def test_secrets_are_in_no_message_and_no_file() -> None:
    where = query.address("postgresql://me:$PW@db/x?sslpassword=other", {"PW": SECRET})
    assert where.url == "postgresql://me:s3cr%2Fet@db/x?sslpassword=other"
    assert where.shown == "postgresql://db/x"
    assert where.clean(f"no login with {SECRET} or s3cr%2Fet or other\nmore") == "no login with *** or *** or ***"
    assert SECRET not in repr(where)


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("influxdb+https://:$T@h:1/o", True),
        ("influxdb+http://:$T@h:1/o", False),
        ("postgresql+psycopg://me:$T@h/x", False),
        ("postgresql+psycopg://me:$T@h/x?sslmode=require", False),  # TLS, but with any server
        ("postgresql+psycopg://me:$T@h/x?sslmode=verify-full", True),
        ("postgresql+pg8000://me:$T@h/x?sslmode=verify-full", False),  # a driver without this parameter
        ("postgresql://h/x?user=me&password=$T", False),
        ("mysql+pymysql://me:$T@h/x", False),
        ("mysql+pymysql://me:$T@h/x?ssl_ca=ca.pem", True),
        ("oracle+oracledb://me:$T@h/x", False),
        ("postgresql://me@h/x", True),
        ("sqlite:///plant.db", True),
    ],
)
def test_a_password_travels_only_to_a_verified_server_unless_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, private: bool
) -> None:
    monkeypatch.setenv("T", SECRET)
    asked = []

    @contextmanager
    def answer(where: query.DatabaseAddress, *_: object) -> Iterator[Iterator[query.Record]]:
        asked.append(where)
        yield iter([{"a": 1}])

    monkeypatch.setattr(query, "answer", answer)
    if not private:
        with pytest.raises(SettingError, match="--plain") as error:
            query.fetch(url, "SELECT 1", tmp_path / "t.parquet")
        assert SECRET not in str(error.value)
        assert not asked
    query.fetch(url, "SELECT 1", tmp_path / "t.parquet", plain=not private)
    assert len(asked) == 1


# -- InfluxDB ----------------------------------------------------------------------------------------------------------

ANSWER = """#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,string,double,long,string
#group,false,false,true,true,false,true,false,false,true
#default,_result,,,,,,,,
,result,table,_start,_stop,_time,device,heat,count,label
"""


def points(rows: int = 48) -> str:
    lines = [
        f",,{n % 4},2026-01-20T00:00:00Z,2026-01-21T00:00:00Z,2026-01-20T{n // 4:02}:00:00.5Z,press {n % 4},"
        f"{n * 0.25},{n},{('ok', 'worn')[n // 4 % 2]}"
        for n in sorted(range(rows), key=lambda n: n % 4)
    ]
    return ANSWER + "\n".join(lines) + "\n\n"


@pytest.fixture
def influx() -> Iterator[dict[str, Any]]:
    """A server for POST /api/v2/query; ``answer`` and ``code`` may be changed, ``asked`` and ``token`` are noted."""
    pytest.importorskip("influxdb_client")
    has: dict[str, Any] = {"answer": points(), "code": 200, "asked": []}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            has["asked"].append((self.path, self.headers["Authorization"], body["query"]))
            content = has["answer"].replace("\n", "\r\n").encode()
            self.send_response(has["code"])
            kind = "text/csv; charset=utf-8" if has["code"] == 200 else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    has["url"] = f"influxdb+http://:$INFLUX_TOKEN@127.0.0.1:{server.server_address[1]}/plant"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield has
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_flux_becomes_a_table(command: Command, influx: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLUX_TOKEN", SECRET)
    flux = 'from(bucket: "b") |> range(start: -1d)'
    said = command("datasets", "query", influx["url"], flux, "--out", "t.parquet", "--plain", "--json")
    assert said.code == 0, said
    assert influx["asked"] == [("/api/v2/query?org=plant", f"Token {SECRET}", flux)]
    facts = said.document["facts"]
    assert facts["columns"] == {
        "_time": "timestamp[us, tz=UTC]", "device": "string", "heat": "double", "count": "int64", "label": "string"
    }  # fmt: skip
    table = parquet.read_table(command.folder / "t.parquet").to_pydict()
    assert table["count"] == sorted(range(48), key=lambda n: n % 4)
    assert table["_time"][0].isoformat() == "2026-01-20T00:00:00.500000+00:00"
    assert SECRET not in (command.folder / "t.parquet.json").read_text() + said.out + said.err
    made = command("new", "t.parquet")
    assert made.code == 0, made.err
    assert "'_time' is taken for the time" in made.err or "time is '_time'" in made.err


@pytest.mark.parametrize(
    ("code", "answer", "told"),
    [
        (401, '{"code":"unauthorized","message":"unauthorized access"}', "query"),
        (400, f'{{"code":"invalid","message":"error {SECRET} @1:1"}}', "query"),
        (200, "\n", "empty-result"),
        (200, ANSWER.replace(",count,", ",_field,").replace("double,long", "double,string")
         + ",,0,,,2026-01-20T00:00:00Z,p,1,heat,ok\n,,0,,,2026-01-20T00:00:00Z,p,1,flow,ok\n", "query"),
    ],
)  # fmt: skip
def test_refusals_of_influx_are_named(
    tmp_path: Path, influx: dict[str, Any], monkeypatch: pytest.MonkeyPatch, code: int, answer: str, told: str
) -> None:
    monkeypatch.setenv("INFLUX_TOKEN", SECRET)
    influx |= {"code": code, "answer": answer}
    with refused(told):
        query.fetch(influx["url"], "from(bucket: b)", tmp_path / "t.parquet", plain=True)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("influxdb_client")
    monkeypatch.setenv("INFLUX_TOKEN", SECRET)
    with refused("unreachable", RunError):
        query.fetch(
            "influxdb+http://:$INFLUX_TOKEN@127.0.0.1:9/plant", "from(bucket: b)", tmp_path / "t.parquet", plain=True
        )
    with refused("address"):
        query.fetch("influxdb+http://127.0.0.1:9/plant", "from(bucket: b)", tmp_path / "t.parquet")

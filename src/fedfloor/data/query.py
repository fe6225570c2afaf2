"""Queries to a database or to InfluxDB, with the result in a Parquet file and its SHA-256."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from uuid import UUID

from fedfloor.base import regular
from fedfloor.base.errors import RunError, SettingError, require_private
from fedfloor.base.strict import json_text
from fedfloor.base.version import __version__
from fedfloor.data.cache import content_hash
from fedfloor.data.files import check_new, expanded, new_file
from fedfloor.data.files.columnar import PARQUET

ROWS = 1 << 16  # rows in memory at a time
INFLUX = ("influxdb+http", "influxdb+https")
LEFT_OUT = ("result", "table", "_start", "_stop")  # columns of InfluxDB's responses that are no measurements
TIMEOUT = timedelta(minutes=5)  # between two parts of InfluxDB's response
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
VERIFIED = {  # scheme → the parameter by which its driver verifies the server's certificate, and sufficient values
    **dict.fromkeys(
        ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"), ("sslmode", re.compile("verify-(ca|full)"))
    ),
    **dict.fromkeys(("mysql+pymysql", "mariadb+pymysql"), ("ssl_ca", re.compile(".+"))),
}
FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "ssl_ca", "ssl_cert", "ssl_key")  # parameters with a path
URLS = "'postgresql://reader:$PASSWORD@host/plant?sslmode=verify-full', 'sqlite:///plant.db', 'influxdb+https://:$TOKEN@host:8086/ORG'"

Record = Mapping[str, object]


@dataclass(frozen=True)
class DatabaseAddress:
    """The address of a database, with its secrets kept apart.

    Args:
        url: the URL, with environment variables replaced by their values.
        shown: the URL without user, password and parameters, for messages.
        secrets: texts that must not occur in files or messages.
    """

    url: str = field(repr=False)
    shown: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, error: object) -> str:
        """Return the first line of an error without any secret."""
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def address(url: str, environment: Mapping[str, str] = os.environ) -> DatabaseAddress:
    """Parse an address, in which ``$NAME`` and ``${NAME}`` are replaced by environment variables.

    Raises:
        SettingError: the text is no address, names a variable that is not set, or contains a password.

    >>> address("postgresql://me:$PW@db.plant/halls?sslmode=require", {"PW": "s3cret/"}).shown
    'postgresql://db.plant/halls'
    """
    if "://" not in url:
        raise SettingError(f"'{url.partition('@')[2] or url}' is no address of a database. Give one such as {URLS}.")
    parts = urlsplit(url)
    if parts.password and not VARIABLE.fullmatch(parts.password):
        raise SettingError(
            "the address holds a password, which other users here can read. Put it into an environment variable "
            "and write the variable's name, in single quotes: 'postgresql://reader:$PASSWORD@host/plant'."
        )
    missing = [name for names in VARIABLE.findall(url) for name in names if name and name not in environment]
    if missing:
        raise SettingError(f"the address names ${missing[0]}, but this environment variable is not set. Set it first.")

    def value(match: re.Match[str]) -> str:
        return environment[match[1] or match[2]]

    values = [value(match) for match in VARIABLE.finditer(url)]
    values += [text for _, text in parse_qsl(parts.query)]
    whole = VARIABLE.sub(lambda match: quote(value(match), safe=""), url)
    public_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return DatabaseAddress(
        whole, VARIABLE.sub("…", public_url), tuple({*values, *(quote(text, safe="") for text in values)} - {""})
    )


def check_private(url: str, remedy: str) -> None:
    """Refuse an address whose password or token would cross the network readably, or reach an unverified server.

    Args:
        remedy: how to state that the password may.

    Raises:
        SettingError: the address has a password, but no TLS with a verified certificate.

    >>> check_private("influxdb+https://:$TOKEN@host:8086/plant", "")
    >>> check_private("postgresql://me:$PW@host/plant?sslmode=verify-full", "")
    >>> check_private("postgresql://me@host/plant", "")  # without a password
    """
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query))
    secret = parts.password or any(VARIABLE.search(value) or "password" in name for name, value in parameters.items())
    name, values = VERIFIED.get(parts.scheme, ("", None))
    verified = parts.scheme == "influxdb+https" or (values is not None and values.fullmatch(parameters.get(name, "")))
    with_tls = "such as influxdb+https://, ?sslmode=verify-full (PostgreSQL) or ?ssl_ca=ca.pem (mysql+pymysql)"
    require_private(
        "the password in the address",
        f"Give an address with verified TLS, {with_tls}; or {remedy}.",
        private=not secret or bool(verified),
    )


def within(url: str, folder: Path) -> str:
    """Return an address whose relative paths, of an SQLite file or of certificates, are paths in a folder.

    >>> within("sqlite:///plant.db", Path("hall")), within("sqlite:////plant.db", Path("hall"))
    ('sqlite:///hall/plant.db', 'sqlite:////plant.db')
    >>> within("postgresql://me:$PW@host/plant?sslmode=verify-ca&sslrootcert=ca.pem", Path("/hall"))
    'postgresql://me:$PW@host/plant?sslmode=verify-ca&sslrootcert=/hall/ca.pem'
    """
    parts = urlsplit(url)
    path = parts.path
    if parts.scheme.partition("+")[0] == "sqlite" and not path.startswith(("//", "/:", "/file:")) and len(path) > 1:
        path = f"/{folder / path[1:]}"
    parameters = [
        f"{name}={folder / value}" if name in FILES and value != "system" else entry
        for entry in parts.query.split("&")
        for name, _, value in [entry.partition("=")]
    ]
    return f"{parts.scheme}://{parts.netloc}{path}" + (f"?{'&'.join(parameters)}" if parts.query else "")


def statement(text: str) -> str:
    """Return a query: the text itself, or the content of the file in ``@FILE``."""
    if text.startswith("@"):
        path = expanded(text[1:])
        try:
            text = regular.read_text(path, encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(
                f"{path}: the query cannot be read from this file ({error}). Check its path and permissions."
            ) from error
    if not text.strip():
        raise SettingError(
            'the query is empty. Give one such as "SELECT * FROM readings ORDER BY time", or @query.sql.'
        )
    return text.strip()


def fetch(url: str, query: str, out: Path, *, force: bool = False, plain: bool = False) -> dict[str, Any]:
    """Execute a query and write its result to a Parquet file, and facts about it to a JSON file beside it.

    Rows are written as they arrive, :data:`ROWS` at a time. Changes made by a query are not committed.

    Args:
        url: the URL of a database (SQLAlchemy's form), or ``influxdb+http(s)://:TOKEN@HOST:PORT/ORGANISATION``;
            ``$NAME`` is replaced by an environment variable.
        query: SQL or Flux, or ``@FILE``.
        out: the Parquet file; the name of the JSON file is the same with ``.json`` appended.
        force: overwrite existing files.
        plain: accept that a password or token travels without verified TLS.

    Returns:
        The facts: file, sha256 (of the Parquet file), rows, columns (name → type), query, address, time, version.

    Raises:
        SettingError: a wrong address or query, a missing package, an empty result, a value that no column can hold, or
            an existing file.
        RunError: the server cannot be reached, or the file cannot be written.
    """
    where = address(url)
    text = statement(query)
    out = expanded(out)
    if not plain:
        check_private(url, "accept it with --plain")
    check_new(out, PARQUET, force=force)
    with new_file(out) as part:
        with answer(where, text) as records:
            rows, columns = _write(records, part)
        if not rows:
            raise SettingError(
                "the result of the query is empty: no file is written. Check its conditions and its time span.",
                key="empty-result",
            )
        facts = {
            "file": out.name, "sha256": content_hash(part), "rows": rows, "columns": columns, "query": text,
            "address": where.shown, "time": datetime.now(UTC).isoformat(timespec="seconds"), "fedfloor": __version__,
        }  # fmt: skip
    with new_file(out.with_name(f"{out.name}.json")) as part:
        part.write_text(json_text(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return facts


# -- the rows of a result ----------------------------------------------------------------------------------------------


@contextmanager
def answer(where: DatabaseAddress, text: str, since: object = None) -> Iterator[Iterator[Record]]:
    """Yield the rows of a query.

    Args:
        where: the database.
        text: SQL or Flux.
        since: the value of ``:since`` in the query: bound in SQL, a time in RFC 3339 in Flux; None: not replaced.

    Raises:
        SettingError: a wrong query, or a missing package.
        RunError: the server cannot be reached.
    """
    if urlsplit(where.url).scheme in INFLUX:
        with _influx(where, text if since is None else text.replace(":since", _rfc3339(since))) as records:
            yield records
    else:
        with _sql(where, text, since) as records:
            yield records


def _rfc3339(value: object) -> str:
    """Return a time in Flux's notation."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise SettingError(f"{value}: no time of Flux. Give one such as 2026-03-01T06:30:00Z.", key="no-time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


@contextmanager
def _sql(where: DatabaseAddress, text: str, since: object) -> Iterator[Iterator[Record]]:
    """Yield the rows of a query in SQL."""
    try:
        import sqlalchemy
        from sqlalchemy import exc
    except ModuleNotFoundError as error:
        raise SettingError(
            "queries to databases need SQLAlchemy: pip install 'fedfloor[sql]'.", key="sql-package"
        ) from error
    try:
        url = sqlalchemy.make_url(where.url)
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    except (exc.ArgumentError, ValueError) as error:
        raise SettingError(
            f"{where.shown}: no address of a database ({where.clean(error)}). Give one such as {URLS}."
        ) from None
    except ModuleNotFoundError as error:
        raise SettingError(
            f"{where.shown}: the package '{error.name}' is not installed. Install it, or choose another driver in the "
            "address, such as postgresql+psycopg://."
        ) from None
    database = url.database or ""
    if url.get_backend_name() == "sqlite" and not database.startswith("file:") and not Path(database).is_file():
        # SQLite would create it
        raise SettingError(f"{where.shown}: the file '{database}' does not exist. Check the path in the address.")
    try:
        connection = engine.connect()
    except exc.SQLAlchemyError as error:
        raise RunError(f"{where.shown} cannot be reached: {where.clean(getattr(error, 'orig', error))}.") from None
    try:
        with connection:  # no commit at the end
            connection = connection.execution_options(stream_results=True, yield_per=ROWS)
            if since is None:
                found = connection.exec_driver_sql(text)
            else:
                found = connection.execute(sqlalchemy.text(text), {"since": since})
            if not found.returns_rows:
                raise SettingError("the query is no SELECT and returns no rows. Give a SELECT.")
            names = list(found.keys())
            odd = next((name for name in names if names.count(name) > 1 or not name), None)
            if odd is not None:
                problem = f"two columns are called '{odd}'" if odd else "a column has no name"
                raise SettingError(f"the query's result: {problem}. Name columns with AS.")
            yield (dict(zip(names, row, strict=True)) for row in found)
    except exc.SQLAlchemyError as error:
        raise SettingError(f"{where.shown}: {where.clean(getattr(error, 'orig', None) or error)}.") from None


@contextmanager
def _influx(where: DatabaseAddress, text: str) -> Iterator[Iterator[Record]]:
    """Yield the rows of a query in Flux."""
    try:
        from influxdb_client.client.influxdb_client import InfluxDBClient
        from influxdb_client.rest import ApiException
        from urllib3.exceptions import HTTPError
    except ModuleNotFoundError as error:
        raise SettingError(
            "queries to InfluxDB need its client: pip install 'fedfloor[influx]'.", key="influx-package"
        ) from error
    parts = urlsplit(where.url)
    organisation = unquote(parts.path.strip("/"))
    if not organisation or not parts.hostname or not parts.password:
        raise SettingError(
            f"{where.shown}: the address of InfluxDB is influxdb+https://:$TOKEN@HOST:8086/ORGANISATION.",
            key="address",
        )
    server = f"{parts.scheme.removeprefix('influxdb+')}://{parts.netloc.rpartition('@')[2]}"
    client = InfluxDBClient(
        server, unquote(parts.password), org=organisation, timeout=int(TIMEOUT.total_seconds() * 1000)
    )  # fmt: skip
    try:
        with client:
            yield _points(client.query_api().query_stream(text))
    except ApiException as error:
        with suppress(ValueError, TypeError, AttributeError):
            error = json.loads(error.body)["message"]
        raise SettingError(f"{where.shown}: {where.clean(error)}.", key="query") from None
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise RunError(f"{where.shown} cannot be reached: {where.clean(error)}.", key="unreachable") from None


def _points(answer: Iterator[Any]) -> Iterator[Record]:
    """Yield the rows of InfluxDB's response; refuse a response with several measurements."""
    fields = set()
    for point in answer:
        values = {name: value for name, value in point.values.items() if name not in LEFT_OUT}
        fields.add(values.get("_field"))
        if len(fields) > 1:
            raise SettingError(
                f"the query gives a row per field ({', '.join(sorted(map(str, fields)))}, …), but a table needs a "
                'column per field: add |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value").',
                key="query",
            )
        yield values


# -- the file ----------------------------------------------------------------------------------------------------------


def _write(records: Iterator[Record], path: Path) -> tuple[int, dict[str, str]]:
    """Write rows to a Parquet file; return their number, and the columns' types.

    Blocks are stored temporarily, because the types of the columns are only known after the last row.
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows = 0
    schema = pa.schema([])
    blocks: list[Path] = []
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as aside:
        while block := list(islice(records, ROWS)):
            table = _table(block, rows)
            try:  # each column gets the narrowest type that holds all its values
                schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
            except pa.ArrowException as error:
                raise SettingError(
                    f"the query's result: from row {rows + 1} on, a column holds values of another type ({error}). "
                    "CAST the column to one type in the query."
                ) from error
            blocks.append(Path(aside, f"{len(blocks)}.parquet"))
            parquet.write_table(table, blocks[-1])
            rows += len(block)
        with parquet.ParquetWriter(path, schema) as writer:
            for block_path in blocks:
                tables = [schema.empty_table(), parquet.read_table(block_path)]
                writer.write_table(pa.concat_tables(tables, promote_options="permissive"))
                block_path.unlink()
    return rows, {column.name: str(column.type) for column in schema}


def _table(block: Sequence[Record], before: int) -> Any:
    """Return rows as an Arrow table; ``before`` is the number of preceding rows."""
    import pyarrow as pa

    names = dict.fromkeys(name for record in block for name in record)
    columns = {}
    for name in names:
        values = [plain(record.get(name), name, before + row) for row, record in enumerate(block, start=1)]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise SettingError(
                f"the query's result, rows {before + 1} to {before + len(block)}, column '{name}': values of several "
                f"types, or too large ({error}). CAST the column to one type in the query."
            ) from error
    return pa.table(columns)


def plain(value: object, name: str, row: int) -> object:
    """Return a value from a database as a number, text or time.

    Raises:
        SettingError: the value has another type.
    """
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, time | UUID):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str | datetime | date):
        return value
    raise SettingError(
        f"the query's result, row {row}, column '{name}': a value of type {type(value).__name__} is no number, text or "
        "time. CAST it in the query, or leave the column out."
    )

"""The contents of a store as text: tables, rows, keys, nodes and their values."""

from __future__ import annotations

import base64
import contextlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from holdfast.url import parse
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.nats import shared as nats
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.redis.servers import Server as RedisServer
from tests.support.zookeeper import shared as zookeeper
from tests.support.zookeeper.servers import kazoo

LayoutLines = Iterator[str]


def layout(url: str) -> LayoutLines:
    """The lines in any order. Each describes a key, a row, or a part of the schema."""
    address = parse(url)
    match address.scheme:
        case "sqlite":
            return _sqlite(address.path)
        case "redis":
            return _redis(redis.server(), address.options["prefix"])
        case "redlock":
            nodes = redis._redlock().servers
            return itertools.chain.from_iterable(_redis(node, address.options["prefix"]) for node in nodes)
        case "postgresql":
            return _postgresql(address.options["schema"])
        case "mysql":
            return _mysql(address.path.removeprefix("/"))
        case "etcd":
            return _etcd(address.options["prefix"])
        case "zookeeper":
            return _zookeeper(address.path)
        case "memcached":
            return _memcached(address.options["prefix"])
        case "nats":
            return _nats(address.options["bucket"])
        case _:
            raise AssertionError(url)


def _rows(table: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> LayoutLines:
    names = list(columns)
    for row in rows:
        values = [value.hex() if isinstance(value, bytes) else value for value in row]
        yield f"row of {table}: " + ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))


def _sqlite(path: str) -> LayoutLines:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        yield f"user_version {database.execute('PRAGMA user_version').fetchone()[0]}"
        for kind, table, sql in database.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"):
            yield sql
            if kind == "table":
                cursor = database.execute(f'SELECT * FROM "{table}"')  # noqa: S608 (our own tables)
                yield from _rows(table, (column[0] for column in cursor.description), cursor)


def _redis(server: RedisServer, prefix: str) -> LayoutLines:
    for key in server.call("KEYS", f"{prefix}*"):
        match kind := server.call("TYPE", key):
            case "string":
                value = server.call("GET", key)
            case "list":
                value = server.call("LRANGE", key, 0, -1)
            case "hash":
                value = _pairs(server.call("HGETALL", key))
            case "zset":
                value = _pairs(server.call("ZRANGE", key, 0, -1, "WITHSCORES"))
            case _:
                value = server.call("XRANGE", key, "-", "+")
        yield f"{kind} {key}: {value!r}"


def _pairs(flat: list[str]) -> list[tuple[str, ...]]:
    """Fields and their values in order. Nonces are first, because their order differs between runs."""
    return sorted(zip(flat[::2], flat[1::2], strict=True), key=lambda pair: (not _is_nonce(pair[0]), pair))


def _is_nonce(field: str) -> bool:
    return len(field) >= 15 and set(field) <= set("0123456789abcdef")


def _postgresql(schema: str) -> LayoutLines:
    server = postgresql.server()
    values = {"schema": schema}
    for table, column, kind in server.rows(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = %(schema)s",
        values,
    ):
        yield f"column {table}.{column} {kind}"
    for (index,) in server.rows("SELECT indexdef FROM pg_indexes WHERE schemaname = %(schema)s", values):
        yield index
    for name, arguments in server.rows(
        "SELECT proname, pg_get_function_arguments(oid) FROM pg_proc"
        " WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s)",
        values,
    ):
        yield f"function {name}({arguments})"
    for (table,) in server.rows("SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s", values):
        with server.connect() as connection:
            cursor = connection.execute(f'SELECT * FROM {schema}."{table}"'.encode())  # noqa: S608
            yield from _rows(table, (column.name for column in cursor.description or ()), cursor.fetchall())


def _mysql(database: str) -> LayoutLines:
    rows = mysql.server().rows
    schema = "information_schema"
    for table, column, kind in rows(
        "SELECT table_name, column_name, column_type FROM columns WHERE table_schema = %s", [database], database=schema
    ):
        yield f"column {table}.{column} {kind}"
    for table, index, columns in rows(
        "SELECT table_name, index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM statistics"
        " WHERE table_schema = %s GROUP BY 1, 2",
        [database],
        database=schema,
    ):
        yield f"index {table}.{index} ({columns})"
    for (name,) in rows("SELECT routine_name FROM routines WHERE routine_schema = %s", [database], database=schema):
        yield f"procedure {name}"
    for (table,) in rows(
        "SELECT table_name FROM tables WHERE table_schema = %s AND table_type = 'BASE TABLE'",
        [database],
        database=schema,
    ):
        names = [name for name, *_ in rows(f"SHOW COLUMNS FROM {table}", database=database)]
        yield from _rows(table, names, rows(f"SELECT * FROM {table}", database=database))  # noqa: S608


def _etcd(prefix: str) -> LayoutLines:
    server = etcd.server()
    for key in server.keys(prefix):
        answer = server.call("kv/range", key=base64.b64encode(key.encode()).decode())
        (pair,) = answer["kvs"]
        leased = "under a lease" if pair.get("lease", "0") != "0" else "without a lease"
        yield f"{key} {leased}: {base64.b64decode(pair.get('value', '')).decode()!r}"


def _zookeeper(root: str) -> LayoutLines:
    with kazoo(zookeeper.server().address) as client:
        paths = [root]
        for path in paths:
            data, stat = client.get(path)
            kind = "ephemeral" if stat.ephemeralOwner > 0 else "persistent"  # a container has a negative number
            yield f"{'container' if stat.ephemeralOwner < 0 else kind} {path}: {data!r}"
            paths += [f"{path}/{child}" for child in client.get_children(path)]


def _memcached(prefix: str) -> LayoutLines:
    server = memcached._servers()[0]
    for line in server.call(b"lru_crawler metadump hash\r\n").lines:
        if line.startswith(b"key="):
            key = unquote(line.split()[0].removeprefix(b"key=").decode())
            if key.startswith(prefix):
                value = server.call(b"mg %b v\r\n" % key.encode()).value
                yield f"{key}: {value!r}"


def _nats(bucket: str) -> LayoutLines:
    server = nats.server()
    for subject in server.stream(bucket)["state"]["subjects"]:
        key = subject.removeprefix(f"$KV.{bucket}.")
        entry = server.entry(bucket, key)
        data = entry["data"].decode().replace('\\"', '"')  # a JSON text inside of another
        yield f"{key} {entry['headers']!r}: {data}"

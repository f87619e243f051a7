"""The servers of benchmarks.capacity, with what is read from each: its processor time, its data and its connections."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers import HOST, Etcd, Mariadb, Memcached, Nats, Postgresql, Redis, Server, Zookeeper
from benchmarks.servers.base import connect, pid_on
from tests.support.nats.servers import RawConnection

_TICKS = os.sysconf("SC_CLK_TCK")
_CONNECTED = "01"  # as in /proc/net/tcp


@dataclass(frozen=True)
class Store:
    """A server, and how to read the size of its data."""

    server: Server
    size_of: Callable[[str], float]  # bytes of all data, from the server's own figures
    options: str = ""  # of the URL
    shows_waiters: bool = True
    carries_fleet: bool = False  # 10,000 connections

    def version(self) -> str | None:
        return f"{self.server.name} {self.server.version()}"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        """Run it on these cores during the block, and return its URL."""
        with self.server.run(folder, cores) as url:
            yield url + self.options

    def size(self, url: str) -> float:
        return self.size_of(url.removesuffix(self.options))

    def cpu(self, url: str) -> float:
        """Seconds of processor time of the server and of its child processes, ended ones included."""
        root = _root(urlsplit(url).port or 0)
        return sum(_cpu_of(pid, with_ended=pid == root) for pid in _tree(root))

    def connections(self, url: str) -> int:
        """The number of open connections to the server."""
        end = f":{urlsplit(url).port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(end) and row[3] == _CONNECTED for row in rows)


class _LargeRedis(Redis):
    """Redis that accepts more than its default of 10,000 clients."""

    def command(self, folder: Path, port: int) -> list[str]:
        return [*super().command(folder, port), "--maxclients", "15000"]


@functools.cache  # it reads all descriptors of all processes, of which a fleet has many
def _root(port: int) -> int:
    return pid_on(port)


def _tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(name)] = int(_stat(int(name))[1])
    pids = [root]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _cpu_of(pid: int, *, with_ended: bool) -> float:
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0  # it has ended: its parent counts it
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / _TICKS


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# ── the size of the data ─────────────────────────────────────────────────────────────────────────────────────────────


def _lines(url: str, request: bytes, end: bytes) -> Iterator[list[str]]:
    with connect(urlsplit(url).port or 0, 10.0) as connection, connection.makefile("rb") as stream:
        connection.sendall(request)
        for line in stream:
            if line.startswith(end):
                return
            yield line.decode().replace(":", " ").replace("\t", " ").split()


def _redis(url: str) -> float:
    facts = _lines(url, b"INFO memory\r\nPING\r\n", b"+PONG")
    return float(next(words[1] for words in facts if words and words[0] == "used_memory"))


def _memcached(url: str) -> float:
    return float(next(words[2] for words in _lines(url, b"stats\r\n", b"END") if words[1] == "bytes"))


def _etcd(url: str) -> float:
    wanted = "etcd_mvcc_db_total_size_in_use_in_bytes"
    lines = _lines(url, b"GET /metrics HTTP/1.0\r\n\r\n", b"\0")
    return float(next(words[1] for words in lines if words and words[0] == wanted))


def _zookeeper(url: str) -> float:
    lines = _lines(url, b"mntr\n", b"\0")
    return float(next(words[1] for words in lines if words and words[0] == "zk_approximate_data_size"))


def _postgresql(url: str) -> float:
    import psycopg

    statement = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()
    return float(row[0] or 0) if row else 0.0


def _mariadb(url: str) -> float:
    import pymysql

    parts = urlsplit(url)
    statement = "SELECT sum(FILE_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE 'benchmark/%'"
    with pymysql.connect(host=parts.hostname, port=parts.port or 0, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        row = cursor.fetchone()
    return float(row[0] or 0) if row else 0.0


def _nats(url: str) -> float:
    with RawConnection(HOST, urlsplit(url).port or 0, {}, 10.0) as connection:
        reply = json.loads(connection.request("$JS.API.STREAM.INFO.KV_holdfast").data)
    return float(reply["state"]["bytes"])


_AT_SERVER = "?local_handover=no"  # each waiter has a ticket in the store
STORES = {
    "redis": Store(_LargeRedis(), _redis, _AT_SERVER, carries_fleet=True),
    "postgresql": Store(Postgresql(), _postgresql, _AT_SERVER),
    "mysql": Store(Mariadb(), _mariadb, _AT_SERVER),
    "etcd": Store(Etcd(), _etcd),
    "zookeeper": Store(Zookeeper(), _zookeeper),
    "memcached": Store(Memcached(), _memcached, shows_waiters=False),
    "nats": Store(Nats(), _nats, shows_waiters=False, carries_fleet=True),
}

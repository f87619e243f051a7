"""The stores of a soak: private servers, their faults, and their numbers of rows and connections."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.etcd import servers as etcd
from tests.support.memcached import servers as memcached
from tests.support.mysql import servers as mysql
from tests.support.postgresql import servers as postgresql
from tests.support.redis import servers as redis
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import RedlockServers
from tests.support.server_process import running
from tests.support.zookeeper import ensembles as zookeeper

_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")  # a kill loses no confirmed write


class Fault(NamedTuple):
    """A fault of a server, with functions to begin and end it."""

    name: str
    begin: Callable[[], object]
    end: Callable[[], object]


class Store(NamedTuple):
    """A running store."""

    url: str
    ports: tuple[int, ...] = ()  # of its servers, to count connections
    faults: Callable[[], list[Fault]] = list  # faults that are possible now
    rows: Callable[[], int] = int
    processes: int = 3  # processes that use it


def _nothing() -> None:
    """End a fault that has already ended."""


def _faults_of(server: Any, name: str = "server") -> list[Fault]:
    return [
        Fault(f"{name} stopped (SIGSTOP)", server.stop, server.resume),
        Fault(f"{name} killed (SIGKILL)", server.kill, server.start),
    ]


@contextlib.contextmanager
def _memory(folder: Path) -> Iterator[Store]:
    yield Store(f"memory://{folder.name}", processes=1)


@contextlib.contextmanager
def _sqlite(folder: Path) -> Iterator[Store]:
    path = folder / "locks.db"

    def rows() -> int:
        with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
            return int(connection.execute("SELECT count(*) FROM tickets").fetchone()[0])

    yield Store(f"sqlite://{path}", rows=rows)


def _redis(method: str) -> Callable[[Path], contextlib.AbstractContextManager[Store]]:
    @contextlib.contextmanager
    def store(folder: Path) -> Iterator[Store]:
        with running(redis.Server(main_binary(), folder / "redis", options=_DURABLE)) as server:

            def cut() -> None:
                server.call("CLIENT", "KILL", "TYPE", "normal")
                server.call("CLIENT", "KILL", "TYPE", "pubsub")

            faults = [*_faults_of(server), Fault("connections closed", cut, _nothing)]
            yield Store(
                f"{server.url}?method={method}",
                ports=(server.port,),
                faults=lambda: faults,
                rows=lambda: int(server.call("DBSIZE")),
            )

    return store


@contextlib.contextmanager
def _redlock(folder: Path) -> Iterator[Store]:
    with RedlockServers(main_binary(), folder / "redlock", _DURABLE) as redlock:
        nodes = redlock.servers
        yield Store(
            redlock.url(quarantine="no"),
            ports=tuple(node.port for node in nodes),
            faults=lambda: [fault for number, node in enumerate(nodes) for fault in _faults_of(node, f"node {number}")],
            rows=lambda: sum(int(node.call("DBSIZE")) for node in nodes),
        )


def _mysql(method: str) -> Callable[[Path], contextlib.AbstractContextManager[Store]]:
    @contextlib.contextmanager
    def store(folder: Path) -> Iterator[Store]:
        with running(mysql.Server(folder / "mysql")) as server:

            def rows() -> int:
                tables = server.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
                return sum(int(server.value(f"SELECT count(*) FROM `{table}`")) for (table,) in tables)  # noqa: S608

            faults = [
                *_faults_of(server),
                Fault("connections ended", lambda: server.terminate(mysql.DATABASE), _nothing),
            ]
            yield Store(
                server.url_of(method=method),
                ports=(server.port,),
                faults=lambda: faults,
                rows=rows,
            )

    return store


def _postgresql(method: str) -> Callable[[Path], contextlib.AbstractContextManager[Store]]:
    @contextlib.contextmanager
    def store(folder: Path) -> Iterator[Store]:
        with running(postgresql.Server(folder / "postgresql", settings=("autovacuum=on",))) as server:

            def rows() -> int:
                tables = server.rows(
                    "SELECT quote_ident(schemaname) || '.' || quote_ident(relname) FROM pg_stat_user_tables"
                )
                return sum(int(server.value(f"SELECT count(*) FROM {table}")) for (table,) in tables)  # noqa: S608

            yield Store(
                server.url_of("postgres", method=method),
                ports=(server.port,),
                faults=lambda: [
                    Fault("server crashed (SIGQUIT)", server.crash, server.start),
                    Fault("server killed (SIGKILL)", server.kill, server.start),
                    Fault("connections ended", server.terminate, _nothing),
                ],
                rows=rows,
            )

    return store


@contextlib.contextmanager
def _zookeeper(folder: Path) -> Iterator[Store]:
    with running(zookeeper.Ensemble(folder / "zookeeper")) as ensemble:
        members = ensemble.servers
        yield Store(
            ensemble.url(),
            ports=tuple(member.port for member in members),
            faults=lambda: [
                fault
                for number, member in enumerate(members)
                for fault in (
                    Fault(f"member {number} stopped (SIGSTOP)", member.stop, member.resume),
                    Fault(f"member {number} killed (SIGKILL)", member.kill, member.spawn),
                )
            ],
            rows=lambda: members[0].counted("zk_znode_count"),
        )


def _etcd(method: str) -> Callable[[Path], contextlib.AbstractContextManager[Store]]:
    @contextlib.contextmanager
    def store(folder: Path) -> Iterator[Store]:
        with running(etcd.Trio(folder / "etcd")) as trio:
            members = trio.servers
            url = trio.url + (f"?method={method}" if method else "")
            yield Store(
                url,
                ports=tuple(member.port for member in members),
                faults=lambda: [
                    fault for number, member in enumerate(members) for fault in _faults_of(member, f"member {number}")
                ],
                rows=lambda: len(members[0].keys()) + len(members[0].leases()),
            )

    return store


@contextlib.contextmanager
def _memcached(folder: Path) -> Iterator[Store]:
    with running(memcached.Server()) as server:
        yield Store(
            server.url,
            ports=(server.port,),
            # A kill loses all leases, which this store does not promise to survive.
            faults=lambda: [Fault("server stopped (SIGSTOP)", server.stop, server.resume)],
            rows=lambda: int(server.stats()["curr_items"]),
        )


# The default method of each backend first; the others by name.
DEFAULT = ("memory", "sqlite", "redis", "redlock", "postgresql", "mysql", "etcd", "zookeeper", "memcached")
STORES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Store]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis("queue"),
    "redlock": _redlock,
    "postgresql": _postgresql("queue"),
    "mysql": _mysql("unique"),
    "etcd": _etcd(""),
    "zookeeper": _zookeeper,
    "memcached": _memcached,
    "redis-strict": _redis("queue&local_handover=no"),
    "redis-setnx": _redis("setnx"),
    "redis-getset": _redis("getset"),
    "postgresql-advisory": _postgresql("advisory"),
    "mysql-row": _mysql("row"),
    "mysql-version": _mysql("version"),
    "etcd-key": _etcd("key"),
}


def connections(store: Store) -> int:
    """Open TCP connections to its servers, as the kernel lists them on the servers' side."""
    established = "01"
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                count += port in store.ports and fields[3] == established
    return count

"""A contender: a lock that is measured, and its properties.

A family is a module in `contenders/` with a list CONTENDERS. To add one, write that module, a new Arena if it cannot be
compared with the others, and its server, if it needs one. Peers are imported when they are opened, in the process that
measures, so that a missing peer is only a line in the table.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from benchmarks.servers import Server

# Packages whose module has the same name as that of another package are installed in this folder.
APART = os.path.join(sys.prefix, "apart")


class Arena(StrEnum):
    """The scope of the lock. Only contenders of one arena are compared with each other."""

    THREADS = "threads of one process"
    TASKS = "tasks of one event loop"
    MACHINE = "processes of one machine"
    REDIS = "clients of one Redis"
    REDLOCK = "clients of five Redis nodes"
    POSTGRESQL = "clients of one PostgreSQL"
    MEMCACHED = "clients of one memcached"
    ZOOKEEPER = "clients of one ZooKeeper"
    ETCD = "clients of one etcd"
    MYSQL = "clients of one MariaDB"
    NATS = "clients of one NATS"

    @property
    def slug(self) -> str:
        return self.name.lower()

    @property
    def has_processes(self) -> bool:
        """Whether it excludes other processes, not only threads or tasks of one."""
        return self not in {Arena.THREADS, Arena.TASKS}


class Locks(Protocol):
    """An opened contender for threads: one per process."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        """Return a lock for the calling thread, to be used many times; `ttl` only if the contender `has_ttl`."""

    def close(self) -> None: ...


class AsyncLocks(Protocol):
    """An opened contender for asyncio: one per event loop."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        """Return a lock for the calling task, to be used many times; `ttl` only if the contender `has_ttl`."""

    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One row of the tables. Exactly one of `threads` and `tasks` is given."""

    name: str
    arena: Arena
    # Opens it with the URL of its server, or with a folder for its files.
    threads: Callable[[str], Locks] | None = None
    tasks: Callable[[str], AsyncLocks] | None = None
    server: Server | None = None  # started for each case
    ours: bool = False
    package: str | None = None  # required package; None: part of Python
    driver: str | None = None  # another required package
    imports: str  # the import statement of a program that uses it
    # The rest of that program: it acquires the lock once, with the URL or folder `sys.argv[1]`. None: same as another.
    first_use: str | None
    waits: str | None  # how it waits; None: it cannot wait
    order: str = "none"  # order of waiters
    writes: str = "nothing"  # data written to disk, and whether it is synced
    has_ttl: bool = False  # its leases expire and are renewed
    has_fence: bool = False
    threads_exclude: bool = True  # excludes threads (or tasks) of one process too
    connection_each: bool = False  # each waiter needs a connection
    at_server: str = ""  # the end of the URL with which all waiters of a client wait at the server
    is_floor: bool = False  # not a lock: the bare calls that a lock needs, or a lock without the features of the others
    only_in: tuple[str, ...] = ()  # its measures; (): all
    baseline_of: tuple[str, ...] = ()  # measures for which it is the baseline of its arena
    source: str | None = None  # the folder with the sources of another version of holdfast

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")

    @property
    def version(self) -> str | None:
        """The version of its package; None if it is not installed, "" if it needs no package."""
        if self.package is None:
            return ""
        return _version(self.package) if self.driver is None or _version(self.driver) else None

    def load(self) -> None:
        """Import its modules before processes are forked."""
        exec(self.imports, {"sys": sys})  # noqa: S102  our own text
        if self.driver is not None:
            importlib.import_module(self.driver)


BEFORE = ", before"  # the end of the name of a contender with another version of holdfast


def versions_before(contenders: Sequence[Contender], source: str) -> list[Contender]:
    """Return our contenders as they are in another folder of sources, to be measured in the same rounds."""
    return [
        replace(contender, name=f"{contender.name}{BEFORE}", source=source, at_server="")
        for contender in contenders
        if contender.ours
    ]


def peer(module: str, *, apart: bool = False) -> Any:
    """Import an optional module, typed as Any."""
    if apart and APART not in sys.path:
        sys.path.insert(0, APART)
    return importlib.import_module(module)


def all_contenders() -> list[Contender]:
    """Return the contenders of all families: ours first, then by family name and in the order of the list."""
    contenders = [contender for family in _families() for contender in importlib.import_module(family).CONTENDERS]
    return sorted(contenders, key=lambda contender: not contender.ours)


def contender_named(name: str) -> Contender:
    """Return one contender. Another version of holdfast may lack what other families import."""
    not_imported = []
    for family in _families():
        try:
            contenders: list[Contender] = importlib.import_module(family).CONTENDERS
        except ImportError as error:
            not_imported.append(f"{family}: {error}")
            continue
        for contender in contenders:
            if contender.name == name:
                return contender
    raise LookupError("; ".join([f"no family that can be imported has a contender {name!r}", *not_imported]))


def _families() -> list[str]:
    package = importlib.import_module("benchmarks.contenders")
    return sorted(f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__))


@functools.cache
def _version(package: str) -> str | None:
    import importlib.metadata  # takes 20 ms, and the process of a case does not need it

    distributions = importlib.metadata.distributions(name=package, path=[*sys.path, APART])
    return next((distribution.version for distribution in distributions), None)

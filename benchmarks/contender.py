"""What a contender is: a lock that takes part, and what a measure has to know about it.

A family is a module in `contenders/` with a list CONTENDERS. To add one, write that module; nothing else has to know of
it, but for an arena of its own if it cannot be compared with the others, and its server, if it needs one. Peers are
imported when they are opened, in the process that measures, so that a peer that is not installed is a line in the table
and no more.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from benchmarks.servers import Server

# Packages whose modules have the same name as another's cannot be installed beside it: they lie here.
APART = os.path.join(sys.prefix, "apart")


class Arena(StrEnum):
    """Whom the lock keeps out. Only contenders of one arena are compared with each other."""

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

    @property
    def slug(self) -> str:
        return self.name.lower()

    @property
    def has_processes(self) -> bool:
        """It keeps processes out, not only threads or tasks of one."""
        return self not in {Arena.THREADS, Arena.TASKS}


class Locks(Protocol):
    """A contender for threads, opened: once in each process, as a program would."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        """A lock for the thread that asks, to be entered many times; `ttl` only if the contender `has_ttl`."""

    def close(self) -> None: ...


class AsyncLocks(Protocol):
    """A contender for asyncio, opened: once in each event loop."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        """A lock for the task that asks, to be entered many times; `ttl` only if the contender `has_ttl`."""

    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One row of the tables. Exactly one of `threads` and `tasks` is given."""

    name: str
    arena: Arena
    # Opens it at the place that it is given: the URL of its server, or a folder, into which all goes that it writes.
    threads: Callable[[str], Locks] | None = None
    tasks: Callable[[str], AsyncLocks] | None = None
    server: Server | None = None  # what has to run, in each case anew
    ours: bool = False
    package: str | None = None  # what has to be installed; None: it comes with Python
    driver: str | None = None  # what has to be installed too
    imports: str  # the import statement of a program that uses it
    # Such a program, after that statement: it takes the lock once, at the place `sys.argv[1]`. None: as another does.
    first_use: str | None
    waits: str | None  # how it waits for its turn; None: it cannot, so it is not asked to
    order: str = "none"  # in which order those who wait are served
    writes: str = "nothing"  # what reaches the disk, and whether it is synced
    has_ttl: bool = False  # it has leases that end by themselves and are renewed
    has_fence: bool = False
    threads_exclude: bool = True  # two threads (or tasks) of one process keep each other out too
    connection_each: bool = False  # whoever waits takes up a connection of the server's
    only_in: tuple[str, ...] = ()  # the measures that it goes through; (): all
    baseline_of: tuple[str, ...] = ()  # the measures in which the others of its arena are compared with it

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")

    @property
    def version(self) -> str | None:
        """Of its package; None if that is not installed, "" if there is none to install."""
        if self.package is None:
            return ""
        return _version(self.package) if self.driver is None or _version(self.driver) else None

    def load(self) -> None:
        """Import what it needs: before processes are forked, or each of them would have to."""
        exec(self.imports, {"sys": sys})  # noqa: S102  our own text
        if self.driver is not None:
            importlib.import_module(self.driver)


def peer(module: str, *, apart: bool = False) -> Any:
    """A module that need not be there where this code is checked: typed as anything, imported when used."""
    if apart and APART not in sys.path:
        sys.path.insert(0, APART)
    return importlib.import_module(module)


def all_contenders() -> list[Contender]:
    """Of all families: ours first, otherwise in the order of the families' names, and in a family as listed."""
    package = importlib.import_module("benchmarks.contenders")
    found: list[Contender] = []
    for family in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        found += importlib.import_module(f"{package.__name__}.{family}").CONTENDERS
    return sorted(found, key=lambda one: not one.ours)


def _version(package: str) -> str | None:
    found = importlib.metadata.distributions(name=package, path=[*sys.path, APART])
    return next((one.version for one in found), None)

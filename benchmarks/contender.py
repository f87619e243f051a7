"""What a contender is: a lock that takes part, and what a measure has to know about it.

A family is a module in `contenders/` with a list CONTENDERS. To add one (a server, say) write that module; nothing
else has to know of it. Peers are imported when they are opened, in the process that measures, so that a peer that is
not installed is a line in the table and no more.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class Arena(StrEnum):
    """Whom the lock keeps out. Only contenders of one arena are compared with each other."""

    THREADS = "threads of one process"
    TASKS = "tasks of one event loop"
    MACHINE = "processes of one machine"

    @property
    def slug(self) -> str:
        return self.name.lower()


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
    threads: Callable[[str], Locks] | None = None  # opens it; all that it writes goes into the folder it is given
    tasks: Callable[[str], AsyncLocks] | None = None
    ours: bool = False
    package: str | None = None  # what has to be installed; None: it comes with Python
    imports: str  # the import statement of a program that uses it
    first_use: str  # such a program, after that statement: it takes the lock once, in the folder `sys.argv[1]`
    waits: str | None  # how it waits for its turn; None: it cannot, so it is not asked to
    order: str = "none"  # in which order those who wait are served
    writes: str = "nothing"  # what reaches the disk, and whether it is synced
    has_ttl: bool = False  # it has leases that end by themselves and are renewed
    has_fence: bool = False
    threads_exclude: bool = True  # two threads (or tasks) of one process keep each other out too
    baseline_of: tuple[str, ...] = ()  # the measures in which the others of its arena are compared with it

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")

    @property
    def version(self) -> str | None:
        """Of its package; None if that is not installed, "" if there is none to install."""
        if self.package is None:
            return ""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def peer(module: str) -> Any:
    """A module that need not be there where this code is checked: typed as anything, imported when used."""
    return importlib.import_module(module)


def all_contenders() -> list[Contender]:
    """Of all families: ours first, otherwise in the order of the families' names, and in a family as listed."""
    package = importlib.import_module("benchmarks.contenders")
    found: list[Contender] = []
    for family in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        found += importlib.import_module(f"{package.__name__}.{family}").CONTENDERS
    return sorted(found, key=lambda one: not one.ours)

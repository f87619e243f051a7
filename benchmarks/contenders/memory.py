"""Locks of one process: holdfast's memory backend beside those of the standard library."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from benchmarks.adapters import Holdfast, HoldfastAsync
from benchmarks.contender import Arena, Contender


class ThreadingLock:
    """threading.Lock has no name: all names share one lock here."""

    def __init__(self, folder: str) -> None:
        self._lock = threading.Lock()

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return self._lock

    def close(self) -> None:
        pass


class AsyncioLock:
    """asyncio.Lock has no name: here each name has a lock."""

    def __init__(self, folder: str) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return self._locks.setdefault(name, asyncio.Lock())

    async def close(self) -> None:
        pass


CONTENDERS = [
    Contender(
        name="holdfast memory",
        arena=Arena.THREADS,
        threads=lambda _: Holdfast("memory://"),
        ours=True,
        package="holdfast",
        imports="import holdfast",
        first_use="client = holdfast.Client('memory://')\nwith client.lock('a'): pass\nclient.close()",
        waits="is woken",
        order="FIFO",
        has_ttl=True,
        has_fence=True,
    ),
    Contender(
        name="threading.Lock",
        is_floor=True,
        arena=Arena.THREADS,
        threads=ThreadingLock,
        imports="import threading",
        first_use="lock = threading.Lock()\nwith lock: pass",
        waits="is woken",
        baseline_of=("uncontended", "contended", "waiters"),
    ),
    Contender(
        name="holdfast memory asyncio",
        arena=Arena.TASKS,
        tasks=lambda _: HoldfastAsync("memory://"),
        ours=True,
        package="holdfast",
        imports="import asyncio, holdfast",
        first_use="""
async def main():
    async with holdfast.AsyncClient('memory://') as client:
        async with client.lock('a'): pass
asyncio.run(main())
""",
        waits="is woken",
        order="FIFO",
        has_ttl=True,
        has_fence=True,
    ),
    Contender(
        name="asyncio.Lock",
        is_floor=True,
        arena=Arena.TASKS,
        tasks=AsyncioLock,
        imports="import asyncio",
        first_use="""
async def main():
    async with asyncio.Lock(): pass
asyncio.run(main())
""",
        waits="is woken",
        order="FIFO",
        baseline_of=("uncontended", "many", "contended", "waiters"),
    ),
]

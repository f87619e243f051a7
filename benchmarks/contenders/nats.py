"""Locks on one NATS server: holdfast beside nats-kv-lock, and the two bare calls of the recipe on nats-py.

No other lock for Python is known that runs with a current nats-py and can wait. Both peers are for asyncio only.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from benchmarks.adapters import Holdfast, HoldfastAsync
from benchmarks.contender import Arena, Contender, peer
from benchmarks.servers import Nats

BUCKET = "benchmark"
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_MARKER = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}


class _NatsPy:
    """One connection of nats-py in the process, and a bucket. Both are opened at the first use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    async def open(self) -> Any:
        """Return the JetStream context."""
        if self._client is None:
            self._client = await peer("nats").connect(self._url)
        return self._client.jetstream()

    async def bucket(self) -> Any:
        return await (await self.open()).create_key_value(bucket=BUCKET)  # which succeeds if it exists

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class NatsKvLock(_NatsPy):
    """nats_kv_lock.NatsKvLock."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return _Opened(self, name)


class _Opened:
    def __init__(self, locks: NatsKvLock, name: str) -> None:
        self._locks, self._name = locks, name
        self._lock: Any = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            self._lock = peer("nats_kv_lock").NatsKvLock(await self._locks.bucket(), self._name)
        await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(kind, error, trace)


class TwoCalls(_NatsPy):
    """The least that the recipe needs: an entry and a marker, each stored if the last entry is the known one."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return _Calls(self, f"$KV.{BUCKET}.{name}")


class _Calls:
    def __init__(self, calls: TwoCalls, subject: str) -> None:
        self._calls, self._subject, self._last = calls, subject, 0
        self._stream: Any = None

    async def __aenter__(self) -> None:
        if self._stream is None:
            await self._calls.bucket()
            self._stream = await self._calls.open()
        await self._publish(b"held", {})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._publish(b"", _MARKER)

    async def _publish(self, data: bytes, headers: dict[str, str]) -> None:
        stored = await self._stream.publish(self._subject, data, headers={**headers, _EXPECTED: str(self._last)})
        self._last = stored.seq


_FAMILY: dict[str, Any] = {
    "arena": Arena.NATS,
    "server": Nats(),
    "first_use": None,
    "only_in": ("uncontended", "contended", "waiters"),
}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "has_ttl": True, "has_fence": True}
_WRITES = "a file, not synced"

CONTENDERS = [
    Contender(
        name="holdfast nats",
        threads=Holdfast,
        imports="import holdfast",
        waits="all are woken",
        writes=_WRITES,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast nats asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        waits="all are woken",
        writes=_WRITES,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="nats-kv-lock asyncio",
        tasks=NatsKvLock,
        package="nats-kv-lock",
        imports="import asyncio, nats, nats_kv_lock",
        waits="all are woken",
        writes=_WRITES,
        baseline_of=("contended", "waiters"),
        **_FAMILY,
    ),
    Contender(
        name="two nats-py calls asyncio",
        tasks=TwoCalls,
        package="nats-py",
        imports="import asyncio, nats",
        waits=None,
        writes=_WRITES,
        is_floor=True,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
]

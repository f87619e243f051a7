"""The adapters of holdfast itself: any URL, with the client for threads and the client for asyncio."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.core.events import Event
from holdfast.guarantees import Guarantees

from .adapter import Adapter, AsyncAdapter

_RECORDED = ("acquiring", "acquired", "not acquired", "lost", "released")  # those that begin or end something


class _Ours:
    """The parts that are equal for both clients: a lease is read without I/O in both."""

    renews = True
    reports_losses = True
    reports_events = True

    on_lost: Any
    on_event: Any
    client: holdfast.Client | holdfast.AsyncClient

    @classmethod
    def uses_network(cls, url: str) -> bool:
        return not url.startswith(("sqlite:", "memory:"))

    def fence(self, held: Any) -> int | None:
        return int(held.fence)

    def remaining(self, held: Any) -> float | None:
        return float(held.remaining)

    def guarantees(self) -> Guarantees | None:
        return self.client.guarantees

    def _lost(self, lease: Any) -> None:
        if self.on_lost is not None:
            self.on_lost(lease.name, lease.fence)

    def _event(self, event: Event) -> None:
        if self.on_event is not None and event.kind in _RECORDED:
            self.on_event(event.attempt, event.lock, event.kind, event.outcome)


class Threads(_Ours, Adapter):
    """holdfast.Client."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.client: holdfast.Client = holdfast.Client(url)
        self.client.subscribe(self._event)

    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        return self.client.lock(name, ttl=ttl, on_lost=self._lost).acquire(timeout=timeout)

    def release(self, held: Any) -> bool:
        try:
            held.release()
        except holdfast.LockLost:
            return False
        return True

    def is_held(self, held: Any) -> bool:
        return bool(held.held)

    def extend(self, held: Any) -> bool:
        try:
            held.renew()
        except holdfast.LockLost:
            return False
        return True

    def queue(self, name: str) -> int | None:
        return len(self.client.inspect(name).waiters)

    def close(self) -> None:
        self.client.close()


class Tasks(_Ours, AsyncAdapter):
    """holdfast.AsyncClient."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.client: holdfast.AsyncClient = holdfast.AsyncClient(url)
        self.client.subscribe(self._event)

    async def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        return await self.client.lock(name, ttl=ttl, on_lost=self._lost).acquire(timeout=timeout)

    async def release(self, held: Any) -> bool:
        try:
            await held.release()
        except holdfast.LockLost:
            return False
        return True

    async def is_held(self, held: Any) -> bool:
        return bool(held.held)

    async def extend(self, held: Any) -> bool:
        try:
            await held.renew()
        except holdfast.LockLost:
            return False
        return True

    async def close(self) -> None:
        await self.client.close()

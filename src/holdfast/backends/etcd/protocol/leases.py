"""etcd's leases of one client: one for each ttl, shared by all granted tickets with that ttl, and one for its waiters.

A ticket lives as long as its key, and its key at most as long as the lease. So a holder's deadline is counted from the
last *answered* grant or keep-alive of the lease, from the moment before it was sent:

    granted ──keep-alive answered──▶ counted again from before it was sent
       │                └─ "no such lease" ─▶ expired: all of its keys are deleted, and all tickets have ended
       └── no longer used ─▶ it expires on the server by itself

All waiting tickets of a client are under one short lease. If the process dies, its waiters leave the queue after
WAITER_TTL, not after their ttl. A grant moves the ticket's key to the lease of its ttl.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from typing import NamedTuple

from holdfast.backends.etcd.port import EtcdPort, LeaseNotFound
from holdfast.core.clock import lease_deadline
from holdfast.core.ports import Event, Runtime
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError

GRANULARITY = 0.0  # seconds: etcd ends a lease up to half a second after its ttl, and never before
# A lease is fresh enough for a new ticket if at most this share of its ttl, without the lock's delay, has passed.
FRESH_SHARE = 0.2
LEASE_EXPIRED = "its etcd lease has ended: it expired or was revoked"
KEEP_ALIVE_REUSE = 0.02  # seconds: a keep-alive this recent serves for another caller too
WAITER_TTL = 2  # seconds: the shortest that a server with the default election timeout grants
_WAITER_KEY = 0  # the key of the waiter lease in the table; the key of another lease is its ttl


def table_key(ttl: float) -> int:
    """The key of the lease for this ttl in a client's table: whole seconds, as etcd counts."""
    return max(1, math.ceil(ttl))


class Lease:
    """One lease on the server."""

    __slots__ = ("deadline", "has_expired", "id", "key", "sent", "ttl")

    def __init__(self, lease_id: int, key: int) -> None:
        self.id = lease_id
        self.key = key  # in the client's table
        self.ttl = 0  # seconds; the server may grant more than was requested
        self.has_expired = False
        self.sent = self.deadline = 0.0

    def renewed(self, ttl: int, sent: float) -> None:
        """The server has granted or renewed it, by a request that was sent at `sent`."""
        if sent > self.sent:
            self.ttl, self.sent = ttl, sent
            self.deadline = lease_deadline(sent, ttl, GRANULARITY)


class Unanswered(NamedTuple):
    """A create under this lease that had no answer and may still arrive. It does nothing if the tombstone exists."""

    lease: Lease
    tombstone: bytes  # a key


class Leases:
    """The leases of one client. If several callers need the same lease at the same time, one of them requests it."""

    waiter_ttl = WAITER_TTL  # seconds

    def __init__(self, url: str, port: EtcdPort, runtime: Runtime) -> None:
        self._url, self._port, self._runtime = url, port, runtime
        self._mutex = runtime.mutex()
        self._current: dict[int, Lease] = {}  # by the requested ttl, or _WAITER_KEY
        self._in_flight: dict[int, Event] = {}  # by the same key: set when the request that is in flight has ended

    async def fresh(self, ttl: float, deadline: float, *, delay: float = 0.0) -> Lease:
        """The lease for tickets with this ttl, with most of its time left; the lock's delay does not count."""
        seconds = table_key(ttl)
        lease = self._current.get(seconds)
        if lease is not None and self._is_fresh(lease, delay):
            return lease
        return await self._lease_that(seconds, lambda lease: self._is_fresh(lease, delay), deadline)

    async def renewed_since(self, since: float, ttl: float, deadline: float) -> Lease:
        """The lease for tickets with this ttl, granted or kept alive by a request after `since`."""
        return await self._lease_that(table_key(ttl), lambda lease: lease.sent >= since, deadline)

    async def separate(self, ttl: float, deadline: float) -> Lease:
        """A lease that no other ticket shares and that is never kept alive."""
        return await grant(self._port, table_key(ttl), table_key(ttl), deadline)

    async def waiter_lease(self, deadline: float) -> Lease:
        """The waiter lease, kept alive less than a quarter of its ttl ago."""
        now = self._runtime.now
        return await self._lease_that(_WAITER_KEY, lambda lease: now() - lease.sent <= lease.ttl / 4, deadline)

    def next_waiter_keep_alive(self) -> float:
        """When a waiter has to keep the waiter lease alive.

        Each waiter has its own moment. So one of them sends the keep-alive, and the others find that it was sent.
        """
        lease = self._current.get(_WAITER_KEY)
        return 0.0 if lease is None else lease.sent + lease.ttl * (1 + self._runtime.jitter() / 2) / 5

    async def keep_waiters_alive(self, deadline: float) -> bool:
        """Keep the waiter lease alive; False if it has expired."""
        lease = self._current.get(_WAITER_KEY)
        return lease is not None and await self.keep_alive(lease, deadline)

    async def keep_alive(self, lease: Lease, deadline: float) -> bool:
        """Keep a lease alive; False if it has expired."""
        since = self._runtime.now() - KEEP_ALIVE_REUSE
        while not lease.has_expired and lease.sent < since:
            await self._request_lease(
                lease.key, lambda current: current is not lease or current.sent >= since, deadline
            )
        return not lease.has_expired

    def mark_expired(self, lease: Lease) -> None:
        """The lease does not exist on the server any more."""
        lease.has_expired = True
        with self._mutex:
            if self._current.get(lease.key) is lease:
                del self._current[lease.key]

    async def remaining(self, lease_id: int, deadline: float) -> float:
        """How many seconds are left of a lease of any client."""
        if not lease_id:
            return math.inf  # a key that was put without a lease
        answer = await self._port.call("lease/timetolive", {"ID": str(lease_id)}, deadline=deadline)
        return float(answer.message.get("TTL", 0))

    async def close(self, deadline: float, *, keeping: Collection[Lease] = ()) -> None:
        """Revoke the leases, which deletes all keys under them. If that fails, they expire by themselves.

        Leases in `keeping` expire by themselves too, because a key under them has to block its lock until then.
        """
        with self._mutex:
            leases = list(self._current.values())
            self._current.clear()
        for lease in leases:
            lease.has_expired = True
            if lease in keeping:
                continue
            with contextlib.suppress(BackendError, ConfigurationError, LeaseNotFound):
                await self._port.call("lease/revoke", {"ID": str(lease.id)}, deadline=deadline, once=True)

    async def _lease_that(self, key: int, is_enough: Callable[[Lease], bool], deadline: float) -> Lease:
        """The current lease, granted or kept alive until it is enough."""
        while True:
            lease = await self._request_lease(key, is_enough, deadline)
            if lease is not None:
                return lease

    async def _request_lease(self, key: int, is_enough: Callable[[Lease], bool], deadline: float) -> Lease | None:
        """The current lease if it is enough, else after one request to the server; None: call again.

        If another caller's request is in flight, wait until it has ended.
        """
        own_event = self._runtime.event()
        try:
            with self._mutex:
                lease = self._current.get(key)
                if lease is not None and is_enough(lease):
                    return lease
                event = self._in_flight.setdefault(key, own_event)
            if event is not own_event:
                if not await event.wait(deadline):
                    raise BackendUnavailable(
                        backend=self._url, problem="requests of other callers for the lease did not end"
                    )
                return None
            if lease is not None:
                return lease if await self._send_keep_alive(lease, deadline) else None
            lease = await grant(self._port, key or self.waiter_ttl, key, deadline)
            with self._mutex:
                self._current[key] = lease
            return lease
        finally:
            with self._mutex:
                if self._in_flight.get(key) is own_event:
                    del self._in_flight[key]
            own_event.set()

    async def _send_keep_alive(self, lease: Lease, deadline: float) -> bool:
        answer = await self._port.call("lease/keepalive", {"ID": str(lease.id)}, deadline=deadline)
        ttl = int(answer.message["result"].get("TTL", 0))
        if ttl <= 0:
            self.mark_expired(lease)
            return False
        lease.renewed(ttl, answer.sent)
        return True

    def _is_fresh(self, lease: Lease, delay: float) -> bool:
        return self._runtime.now() - lease.sent <= FRESH_SHARE * (lease.ttl - delay)


async def grant(port: EtcdPort, ttl: int, key: int, deadline: float) -> Lease:
    """A new lease of `ttl` seconds."""
    # If the answer is lost, the lease expires by itself, without a key under it.
    answer = await port.call("lease/grant", {"TTL": str(ttl)}, deadline=deadline)
    lease = Lease(int(answer.message["ID"]), key)
    lease.renewed(int(answer.message["TTL"]), answer.sent)
    return lease

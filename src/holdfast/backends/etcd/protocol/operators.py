"""The verbs of operators for `method=queue`: list the tickets of locks, and break a lease."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from holdfast.backends.etcd.protocol.acquire_all import AcquireAll
from holdfast.backends.etcd.protocol.keys import QueueEntry, parse_key
from holdfast.backends.etcd.protocol.messages import KeyValue, created_at, delete, succeeded, txn
from holdfast.backends.etcd.protocol.ticket_values import ticket_info
from holdfast.core.tickets import LockInfo, TicketInfo, first_blocker


class QueueOperators(AcquireAll):
    """`inspect`, `locks` and `break_lock`."""

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        tickets = await self._list([self._keys.folder_range(name)], deadline)
        return await self._lock_info(name, tickets, {}, deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        by_name: dict[str, list[KeyValue]] = {}
        for kv in await self._list(self._keys.ranges(prefix), deadline):
            name = self._keys.lock_name(kv.key)
            if name and name.startswith(prefix):
                by_name.setdefault(name, []).append(kv)
        remaining: dict[int, float] = {}
        return [
            await self._lock_info(name, tickets, remaining, deadline)
            for name, tickets in sorted(by_name.items())
            if self._keys.has_prefix or any(parse_key(kv.key, 0).is_ours for kv in tickets)
        ]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        tickets = await self._list([self._keys.folder_range(name)], deadline)
        granted = granted_flags(queue_entries(tickets))
        held = [kv.key for kv, is_granted in zip(tickets, granted, strict=True) if is_granted and kv.created == fence]
        if not held:
            return False
        request = txn([created_at(held[0], fence)], [delete(held[0])])
        return succeeded((await self._port.call("kv/txn", request, deadline=deadline, once=True)).message)

    async def _lock_info(
        self, name: str, tickets: Sequence[KeyValue], remaining: dict[int, float], deadline: float
    ) -> LockInfo:
        """The holders and waiters; `remaining` keeps the remaining seconds by lease, to request each only once."""
        holders: list[TicketInfo] = []
        waiters: list[TicketInfo] = []
        entries = queue_entries(tickets)
        for kv, entry, is_granted in zip(tickets, entries, granted_flags(entries), strict=True):
            if kv.lease not in remaining:
                remaining[kv.lease] = await self._leases.remaining(kv.lease, deadline)
            (holders if is_granted else waiters).append(ticket_info(kv, entry, remaining[kv.lease], granted=is_granted))
        return LockInfo(name, tuple(holders), tuple(waiters))


def queue_entries(tickets: Sequence[KeyValue]) -> list[QueueEntry]:
    return [parse_key(kv.key, kv.created) for kv in tickets]


def granted_flags(entries: Sequence[QueueEntry]) -> list[bool]:
    """For each ticket of a lock, in order, whether the rule grants it."""
    return [first_blocker(entry.limit, islice(entries, number)) is None for number, entry in enumerate(entries)]

"""Watch the locks of a store: the data of `holdfast top`, `holdfast watch` and the dashboard.

A monitor polls a client and returns snapshots. It needs the standard library only, and draws nothing.

    with holdfast.Client(url) as client, Monitor(client, "order:") as monitor:
        for snapshot in monitor.snapshots(interval=0.5):  # until the caller stops
            print(len(snapshot.locks), "locks,", len(snapshot.changes), "changes")

    async with holdfast.AsyncClient(url) as client, AsyncMonitor(client) as monitor:
        async for snapshot in monitor.snapshots(interval=0.5): ...

- `Snapshot.locks` has a `LockStatus` for each lock in use, the longest wait first: its kind, holders, waiters, the time
  that it has been held, the ttl left, the longest wait. `Snapshot.infos` are the plain LockInfo objects.
- `Snapshot.changes` has what changed since the snapshot before it. The first snapshot reports all holders and waiters.
- `Snapshot.graph` is the wait-for graph. Its cycles are deadlocks that two successive reads found.
- `monitor.history(name)` has the holders of a lock since the monitor was made, for a timeline. It is bounded.
- An error of the store does not end a monitor: `Snapshot.error` is set, `Snapshot.locks` are those of the last read,
  and the next poll tries again. The change `unavailable` is reported once for each outage.
- `Snapshot.poll_seconds` is the time that the poll took; `guarantees` and `warnings` are those of the store.

Redlock, and Redis with method=setnx or getset, have no index of their locks. There the first poll searches all keys,
for at most `first_search` seconds, and `wait` continues the search between two polls: call `wait`, not `sleep`. The
search uses a small share of the server's time. `Snapshot.searched` is the share of the keys that were searched.

Snapshots are immutable. A monitor is used by one thread or task at a time; its client may be shared.

status    the state of one lock, derived from its tickets, and its JSON object
changes   the differences between two reads
tracker   the state between reads: changes, largest ttl, history. Pure: no store, no clock
monitors  the monitors for threads and asyncio
"""

from __future__ import annotations

from holdfast.monitor.changes import Change, ChangeKind
from holdfast.monitor.monitors import AsyncMonitor, LockReader, Monitor, Snapshot
from holdfast.monitor.status import Holding, LockStatus
from holdfast.monitor.tracker import Tracker

__all__ = [
    "AsyncMonitor",
    "Change",
    "ChangeKind",
    "Holding",
    "LockReader",
    "LockStatus",
    "Monitor",
    "Snapshot",
    "Tracker",
]

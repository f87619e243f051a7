"""The monitors: they poll a client, and a tracker derives the rest.

The code is written once, as coroutines over the ports of the client: the monitor for threads runs them without a loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from holdfast.core.names import check_prefix
from holdfast.core.tickets import LockInfo
from holdfast.core.wait_graph import WaitGraph
from holdfast.errors import BackendError
from holdfast.guarantees import Guarantees
from holdfast.monitor.changes import Change
from holdfast.monitor.status import Holding, LockStatus
from holdfast.monitor.tracker import HISTORY_MAX, Tracker
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient
    from holdfast.core.ports import Listing
    from holdfast.threads.client import Client

    OnStep = Callable[[Listing], object]

INTERVAL = 0.5  # seconds between two polls, by default


class Snapshot(NamedTuple):
    """The locks of a store at one time."""

    at: float  # Unix time of the poll
    read_at: float  # Unix time of the read that found `locks`: earlier if the store is unavailable; 0 before the first
    locks: tuple[LockStatus, ...]  # the longest wait first, then the longest hold
    changes: tuple[Change, ...]  # since the previous snapshot, ends first
    graph: WaitGraph  # waiters and their blockers; its cycles, the deadlocks, are those that two successive reads found
    error: BackendError | None  # the store is unavailable, and `locks` are those of the last read
    searched: float  # share of the keys that the first search has covered; 1 if the store has an index
    poll_seconds: float  # the time that this poll took, with the pauses that protect the server
    guarantees: Guarantees
    warnings: tuple[str, ...]

    def next_poll_in(self, interval: float) -> float:
        """Seconds to wait, so that polls begin every `interval` seconds if each of them takes less time than that."""
        return max(interval / 5, interval - self.poll_seconds)

    @property
    def infos(self) -> list[LockInfo]:
        """The holders and waiters of each lock."""
        return [status.info for status in self.locks]


class LockReader:
    """The locks in use whose names begin with `prefix`, read repeatedly.

    A store without an index of its locks is searched: `read` returns the locks that `search` has found so far.
    """

    def __init__(
        self, client: Client | AsyncClient, prefix: str, *, follows: bool, on_step: OnStep | None = None
    ) -> None:
        """`follows`: also use the change notifications of the store, if it has them, to find new locks."""
        self._operators = client._engine.operators  # noqa: SLF001 - a listing is not public
        self._prefix = check_prefix(prefix)
        self._listing = listing = self._operators.listing(self._prefix)
        if listing is not None:
            listing.follows = follows
            listing.on_step = lambda: on_step and on_step(listing)
        self.is_complete = listing is None  # all keys were searched once

    @property
    def searched(self) -> float:
        """The share of the keys that were searched until the search reached the last one for the first time."""
        if self.is_complete or self._listing is None:
            return 1.0
        return min(1.0, self._listing.keys_searched / max(1, self._listing.keys_total))

    async def search(self, seconds: float) -> None:
        """Search for new locks, for this many seconds or to the last key. Returns at once if there is an index."""
        if self._listing is not None and await self._listing.search(seconds):
            self.is_complete = True

    async def read(self) -> list[LockInfo]:
        return await self._operators.locks(self._prefix) if self._listing is None else await self._listing.read()

    def close(self) -> None:
        """End the search and its subscriptions. The client stays open."""
        if self._listing is not None:
            self._listing.close()


ClientT = TypeVar("ClientT", bound="Client | AsyncClient")


class _BaseMonitor(Generic[ClientT]):
    """The parts that both monitors share."""

    def __init__(
        self,
        client: ClientT,
        prefix: str = "",
        *,
        first_search: float = math.inf,
        history_max: int = HISTORY_MAX,
        on_step: OnStep | None = None,
    ) -> None:
        self._client = client
        self._runtime = client._engine.runtime  # noqa: SLF001 - the client's own way to sleep
        self._reader = LockReader(client, prefix, follows=True, on_step=on_step)
        self._first_search = first_search
        self._tracker = Tracker(history_max=history_max)
        self._search_error: BackendError | None = None  # for the next poll to report

    def history(self, name: str) -> tuple[Holding, ...]:
        """The leases of a lock since this monitor was made, the oldest first, then the present ones.

        It has each lease that at least one read has found. The number of past leases is limited.
        """
        return self._tracker.history(name)

    def close(self) -> None:
        """End the search and its subscriptions. The client stays open."""
        self._reader.close()

    async def _poll(self) -> Snapshot:
        tracker, began = self._tracker, time.monotonic()
        try:
            if not tracker.read_at:
                await self._search(self._first_search)
            if self._search_error is not None:
                raise self._search_error
            locks = await self._reader.read()
        except BackendError as error:
            self._search_error = None
            changes = tracker.fail(error, at := time.time())
        else:
            changes = tracker.update(locks, at := time.time(), is_complete=self._reader.is_complete)
        return Snapshot(
            at=at,
            read_at=tracker.read_at,
            locks=tracker.locks,
            changes=tuple(changes),
            graph=tracker.graph,
            error=tracker.error,
            searched=self._reader.searched,
            poll_seconds=time.monotonic() - began,
            guarantees=self._client.guarantees,
            warnings=self._client.warnings,
        )

    async def _search(self, seconds: float) -> None:
        try:
            await self._reader.search(seconds)
        except BackendError as error:
            self._search_error = error

    async def _wait(self, seconds: float) -> None:
        until = self._runtime.now() + seconds
        await self._search(seconds)
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))


class Monitor(_BaseMonitor["Client"]):
    """Watch the locks of a client for threads.

    Args:
        client: The store. It stays open.
        prefix: Only locks whose names begin with it.
        first_search: Seconds that the first poll may search a store without an index. Locks that are found later are
            in later snapshots.
        history_max: Past leases that are kept for each lock.
        on_step: A function to call after each request of a search, with its progress. An exception that it raises
            ends the search.
    """

    def poll(self) -> Snapshot:
        """Read the locks. An error of the store is in the snapshot; it is not raised."""
        return run_sync(self._poll())

    def search(self, seconds: float) -> None:
        """Search for new locks, for this long at most: at once if the store has an index."""
        run_sync(self._search(seconds))

    def wait(self, seconds: float) -> None:
        """Wait between two polls. Search for new locks during this time, if the store has no index."""
        run_sync(self._wait(seconds))

    def snapshots(self, interval: float = INTERVAL) -> Iterator[Snapshot]:
        """Poll now and every `interval` seconds, without an end."""
        while True:
            yield (snapshot := self.poll())
            self.wait(snapshot.next_poll_in(interval))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncMonitor(_BaseMonitor["AsyncClient"]):
    """Watch the locks of a client for asyncio. The arguments are those of Monitor."""

    async def poll(self) -> Snapshot:
        """Read the locks. An error of the store is in the snapshot; it is not raised."""
        return await self._poll()

    async def wait(self, seconds: float) -> None:
        """Wait between two polls. Search for new locks during this time, if the store has no index."""
        await self._wait(seconds)

    async def snapshots(self, interval: float = INTERVAL) -> AsyncIterator[Snapshot]:
        """Poll now and every `interval` seconds, without an end."""
        while True:
            yield (snapshot := await self.poll())
            await self.wait(snapshot.next_poll_in(interval))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

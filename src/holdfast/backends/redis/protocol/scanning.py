"""Listing locks, at a small share of the servers' time: from an index, or without one by SCAN of all keys.

All requests that read the whole keyspace or many locks go through one `Pacer` for each client. Redis runs one command
at a time, so each request is small, and a pause follows it: 19 times as long as the server needs for the request, or 9
times if a live view reads the locks that it has found.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from holdfast.backends.redis.protocol.keys import name_of, pattern_of
from holdfast.errors import HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import LockInfo

    Parse = Callable[[], list[LockInfo]]  # a step of its own, because it takes time in this process, not on the server

S = TypeVar("S")  # identifies one server
T = TypeVar("T")

SHARE = 0.05  # largest share of a server's time
LIVE_SHARE = 0.1  # the same for a live view, which reads the same locks again and again, and has to show changes soon
SCAN_COUNT = 200  # keys in one request: about 0.3 ms of the server, for which other clients wait
READ_COUNT = 10  # locks in one request, which takes as long
PAUSE_MIN = 0.002  # shortest pause in seconds between two requests: clocks may be coarse
# Seconds. A reply may take long because of the network or other clients' commands, so the pause is limited: reading one
# key or one ticket takes a server less than a twentieth of this.
PAUSE_PER_ITEM = 0.0005
# Most keyspace notifications per second from one server. Each costs it some microseconds, and they cannot be paced.
NOTIFICATIONS_MAX = 1000
REPLIES_KEPT = 20  # of this many replies, the shortest time per item shows how long the server needs
FREE_NAMES = 1000  # locks that were in use before and are read again, in case they are acquired again
FREE_COUNT = 50  # of these, each read includes the latest 50, and 50 of the others in turn


class Work(Generic[T]):
    """A kind of request, and how many keys and tickets the server reads for a reply."""

    def __init__(self, items_in: Callable[[T], int]) -> None:
        self.items_in = items_in
        self._durations: deque[float] = deque(maxlen=REPLIES_KEPT)  # seconds per item

    def server_time(self, seconds: float, reply: T) -> float:
        """The time that a reply has taken the server, which is not more than the time until it arrived.

        A reply may have waited for the network, for other commands or for this process. The shortest of the last
        replies has waited least.
        """
        items = max(1, self.items_in(reply))
        self._durations.append(seconds / items)
        return min(self._durations) * items


class Pacer:
    """Runs requests one after the other, with a pause after each, for all threads or tasks of one client."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._last_pause = PAUSE_MIN
        self.free_at = 0.0  # when the next request may be sent

    async def run(self, request: Callable[[], Awaitable[T]], work: Work[T], share: float = SHARE) -> T:
        """Run the request after the pause. The next pause limits the requests to this share of the server's time."""
        with self._mutex:
            start = max(self._runtime.now(), self.free_at)
            self.free_at = start + self._last_pause  # for other threads, until this reply has arrived
        await self._runtime.sleep(max(0.0, start - self._runtime.now()))
        sent = self._runtime.now()
        reply = await request()
        received = self._runtime.now()
        with self._mutex:
            server_time = work.server_time(received - sent, reply)
            pause = min(server_time * (1 / share - 1), PAUSE_PER_ITEM * work.items_in(reply))
            self._last_pause = max(PAUSE_MIN, pause)
            self.free_at = max(self.free_at, received + self._last_pause)
        return reply


class KeySource(Protocol[S]):
    """The servers that store keys: the primaries of a deployment, or independent nodes. Or the indexes of locks."""

    async def servers(self, *, deadline: float) -> Sequence[S]: ...

    async def key_count(self, server: S, *, deadline: float) -> int: ...

    async def scan(self, server: S, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, Sequence[str]]:
        """The next cursor, b"0" at the end, and the keys that match among the next SCAN_COUNT."""

    async def subscribe_keyspace(self, server: S, pattern: str, *, deadline: float) -> KeyspaceSubscription | None:
        """Subscribe to changes of the keys that match.

        Returns None if that is not possible; then the next search finds new locks.
        """
        return None


class KeyspaceSubscription(Protocol):
    """A subscription to the keyspace notifications of one server. It sends none unless it is configured to."""

    async def keys(self) -> Sequence[str]:
        """The keys that changed since the last call. Does not wait.

        Raises:
            OutcomeUnknown: the connection has ended.
            HoldfastError: the subscription was refused.
        """

    def close(self) -> None: ...


class Lister(Generic[S]):
    """How a backend lists its locks. All listings of a client share one."""

    def __init__(
        self,
        source: KeySource[S],
        runtime: Runtime,
        prefix: str,
        read: Callable[[Sequence[str], float], Awaitable[Parse]],
        *,
        name_in: Callable[[str], str | None] | None = None,
        pacer: Pacer | None = None,
    ) -> None:
        """`read` reads the locks with these names. Its result returns those that are in use.

        `name_in` is the name of the lock that a key of the source stands for.
        """
        self.source = source
        self.runtime = runtime
        self.prefix = prefix
        self.read = read
        self.name_in = name_in or functools.partial(name_of, prefix)
        self.pacer = pacer or Pacer(runtime)
        self.counting = Work[int](lambda _: SCAN_COUNT)
        self.searching = Work[tuple[bytes, Sequence[str]]](lambda _: SCAN_COUNT)
        self.reading = Work(_items_in)


class ListsLocks(Generic[S]):
    """A mixin for a backend that lists locks with a Lister."""

    _lister: Lister[S]

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        listing = self.listing(prefix, io_timeout=deadline - self._lister.runtime.now())
        await listing.search(math.inf)
        return await listing.read()

    def listing(self, prefix: str, *, io_timeout: float) -> Listing[S]:
        """The locks whose names begin with `prefix`. Each request may take `io_timeout`; all together may take long."""
        return Listing(self._lister, prefix, io_timeout)


class Listing(Generic[S]):
    """The locks of one backend, searched and read repeatedly.

    `search` reads keys for a given time, and starts again after the last one. `read` returns the state of the locks
    that were found.
    """

    def __init__(self, lister: Lister[S], prefix: str, io_timeout: float) -> None:
        self._lister = lister
        self._source = lister.source
        self._runtime = lister.runtime
        self._pacer = lister.pacer
        self._prefix = prefix
        self._io_timeout = io_timeout
        self._pattern = pattern_of(lister.prefix + prefix)
        self._servers: list[S] = []  # not yet searched in this pass, the current one last
        self._cursor = b"0"
        self._unread: set[str] = set()  # names that have not been read yet
        self._in_use: set[str] = set()  # at the last read
        self._free: dict[str, None] = {}  # in use before, the latest last
        self._free_turn = 0
        self.keys_total = self.keys_searched = 0  # keys_searched is an estimate
        self.locks_total = self.locks_read = 0
        self.on_step: Callable[[], object] = lambda: None
        self.follows = False  # a live view: subscribe to keyspace notifications too
        self._subscribed: dict[S, KeyspaceSubscription | None] = {}  # None: refused, or too many
        self._received_at = 0.0

    async def search(self, seconds: float) -> bool:
        """Search for this many seconds or to the last key. Returns whether the last key was reached."""
        until = self._runtime.now() + seconds
        if not self._servers:
            await self._begin()
        while self._servers:
            if self._pacer.free_at >= until:
                await self._runtime.sleep(max(0.0, until - self._runtime.now()))
                return False
            await self._search_on(self._servers[-1])
        return True

    async def read(self) -> list[LockInfo]:
        """The locks in use among those found so far."""
        await self._receive()
        names = sorted(self._unread | self._in_use | self._free_to_read())
        infos: list[LockInfo] = []
        self.locks_total = len(names)
        try:
            for self.locks_read in range(0, len(names), READ_COUNT):
                infos += await self._read_some(names[self.locks_read : self.locks_read + READ_COUNT])
                self.on_step()
        finally:
            self.locks_total = self.locks_read = 0
        used_before, self._in_use = self._in_use, {info.name for info in infos}
        self._unread.clear()
        self._free |= dict.fromkeys(sorted(used_before - self._in_use))
        for name in [*(self._in_use & self._free.keys()), *list(self._free)[:-FREE_NAMES]]:
            self._free.pop(name, None)
        return infos

    def _free_to_read(self) -> set[str]:
        names = list(self._free)
        latest, others = names[-FREE_COUNT:], names[:-FREE_COUNT]
        start = self._free_turn % max(1, len(others))
        self._free_turn = start + FREE_COUNT
        return {*latest, *(others[start:] + others[:start])[:FREE_COUNT]}

    async def _begin(self) -> None:
        servers = await self._source.servers(deadline=self._limit())
        self.keys_total = self.keys_searched = 0
        for server in servers:
            self.keys_total += await self._count_keys(server)
            if self.follows and server not in self._subscribed:
                await self._subscribe(server)
        self._servers, self._cursor = list(reversed(servers)), b"0"

    async def _search_on(self, server: S) -> None:
        try:
            self._cursor, keys = await self._pacer.run(
                lambda: self._source.scan(server, self._cursor, self._pattern, deadline=self._limit()),
                self._lister.searching,
            )
        except BaseException:
            self._servers = []  # the next attempt may use another server, where this cursor is not valid
            raise
        self.keys_searched = min(self.keys_searched + SCAN_COUNT, self.keys_total)
        self._note(keys)
        if self._cursor == b"0":
            self._servers.pop()
        self.on_step()

    def _note(self, keys: Sequence[str]) -> None:
        for key in keys:
            name = self._lister.name_in(key)
            if name and name.startswith(self._prefix) and name not in self._in_use:
                self._unread.add(name)

    async def _subscribe(self, server: S) -> None:
        # Called before the keys are searched, so that no new lock is missed in between.
        with contextlib.suppress(HoldfastError):  # the search finds new locks too, but later
            subscription = await self._source.subscribe_keyspace(server, self._pattern, deadline=self._limit())
            self._received_at, self._subscribed[server] = self._runtime.now(), subscription

    async def _receive(self) -> None:
        now = self._runtime.now()
        limit = NOTIFICATIONS_MAX * max(1.0, now - self._received_at)
        self._received_at = now
        for server, subscription in list(self._subscribed.items()):
            if subscription is None:
                continue
            try:
                keys = await subscription.keys()
            except OutcomeUnknown:  # the connection has ended
                subscription.close()
                del self._subscribed[server]  # the next search subscribes again
            except HoldfastError:  # forbidden by an ACL, for example
                subscription.close()
                self._subscribed[server] = None
            else:
                self._note(keys)
                if len(keys) > limit:
                    subscription.close()
                    self._subscribed[server] = None

    def close(self) -> None:
        """End the subscriptions."""
        for subscription in self._subscribed.values():
            if subscription is not None:
                subscription.close()

    async def _count_keys(self, server: S) -> int:
        return await self._pacer.run(
            lambda: self._source.key_count(server, deadline=self._limit()), self._lister.counting
        )

    async def _read_some(self, names: Sequence[str]) -> list[LockInfo]:
        async def read() -> Parse:
            return functools.cache(await self._lister.read(names, self._limit()))

        return (await self._pacer.run(read, self._lister.reading, LIVE_SHARE if self.follows else SHARE))()

    def _limit(self) -> float:
        return self._runtime.now() + self._io_timeout


def _items_in(parse: Parse) -> int:
    # The script for a lock without tickets takes no longer than SCAN for twenty keys.
    return 20 * READ_COUNT + sum(len(info.holders) + len(info.waiters) for info in parse())

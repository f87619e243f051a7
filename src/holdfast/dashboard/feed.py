"""One monitor for all open pages: it polls the store while a page is connected, and every page gets the same states.

The monitor runs in a thread, so that a slow store does not delay the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

from holdfast.core.events import logger
from holdfast.dashboard.states import State, StateMaker, Watched
from holdfast.errors import HoldfastError
from holdfast.monitor import Monitor, Snapshot
from holdfast.threads.client import Client

INTERVAL = 0.4  # seconds between two polls
LINGER = 10.0  # seconds that the monitor runs without a page, because a page that is reloaded connects again
FIRST_SEARCH = 1.0  # seconds; pages show the locks that a search has found so far
_PAUSE_MAX = 5.0  # seconds between two polls of a slow store, at most


class Feed:
    """The states of a store, for any number of connections of one event loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.connections = 0
        self.state: State | None = None
        self.watched: dict[str, int] = {}  # connections by the name of a lock that has a page of its own
        self._changed = asyncio.Event()
        self._poller: _Poller | None = None
        self._stop_timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def connect(self, lock: str | None = None) -> AsyncIterator[None]:
        """Keep the monitor running. With `lock`, the states have the text of the page of this lock."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        self.connections += 1
        if lock is not None:
            self.watched[lock] = self.watched.get(lock, 0) + 1
        if self._poller is None:
            self._poller = _Poller(self, asyncio.get_running_loop())
        elif lock is not None:
            self._poller.wake.set()
        try:
            yield
        finally:
            self.connections -= 1
            if lock is not None:
                self.watched[lock] -= 1
                if not self.watched[lock]:
                    del self.watched[lock]
            if not self.connections:
                self._stop_timer = asyncio.get_running_loop().call_later(LINGER, self.stop)

    async def newer(self, than: State | None, timeout: float) -> State | None:
        """The newest state, as soon as it is not `than`; after the timeout the newest in any case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.state is None or self.state is than:
                    await self._changed.wait()
        return self.state

    def stop(self) -> None:
        """Stop the monitor. The next connection starts it again."""
        if self._poller is not None:
            self._poller.stop()
            self._poller = self.state = None

    def publish(self, poller: _Poller, state: State) -> None:
        """In the event loop: wake all connections."""
        if poller is self._poller:
            self.state = state
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()


class _Poller:
    """The thread of a monitor."""

    def __init__(self, feed: Feed, loop: asyncio.AbstractEventLoop) -> None:
        self.wake = threading.Event()  # poll now
        self._feed = feed
        self._loop = loop
        self._stopping = False
        threading.Thread(target=self._run, name="holdfast dashboard", daemon=True).start()

    def stop(self) -> None:
        self._stopping = True
        self.wake.set()

    def _run(self) -> None:
        feed, states = self._feed, StateMaker()
        with Monitor(feed.client, first_search=FIRST_SEARCH) as monitor:
            while not self._stopping:
                self.wake.clear()
                began = time.monotonic()
                try:
                    snapshot = monitor.poll()
                    names = list(feed.watched)  # a copy, because the event loop changes it
                    state = states.next(snapshot, [self._watched(monitor, snapshot, name) for name in names])
                except Exception as error:
                    # A page that shows the reason is more useful than a page that does not change any more.
                    logger().exception("the dashboard cannot read the store")
                    state = states.failed(str(error) or type(error).__name__)
                try:
                    self._loop.call_soon_threadsafe(feed.publish, self, state)
                except RuntimeError:
                    return  # the loop has ended
                # A search paces itself, so that the server has time for its clients. Other stores get a short pause.
                seconds = time.monotonic() - began
                self._wait(monitor, max(INTERVAL - seconds, min(seconds / 8, _PAUSE_MAX)))

    def _watched(self, monitor: Monitor, snapshot: Snapshot, name: str) -> Watched:
        status = next((status for status in snapshot.locks if status.name == name), None)
        info = None
        if status is None and snapshot.error is None:
            # A search finds a new lock late, and the page of a lock must not show it as free.
            with contextlib.suppress(HoldfastError):
                info = self._feed.client.inspect(name)
        return Watched(name, status, info, monitor.history(name))

    def _wait(self, monitor: Monitor, seconds: float) -> None:
        until = time.monotonic() + seconds
        monitor.search(seconds)
        self.wake.wait(max(0.0, until - time.monotonic()))

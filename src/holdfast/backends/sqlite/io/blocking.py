"""The lock file for threads: transactions run on the calling thread, wake-ups arrive on one listening thread."""

from __future__ import annotations

import contextlib
import selectors
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.backends.sqlite.config import SqliteConfig, config_of
from holdfast.backends.sqlite.io.lock_file import Busy, LockFilePort
from holdfast.backends.sqlite.io.sessions import SessionWatcher
from holdfast.backends.sqlite.port import Transaction
from holdfast.backends.sqlite.protocol.queue import SqliteBackend
from holdfast.core.events import logger
from holdfast.errors import ThreadStartError
from holdfast.runtimes.threads import ThreadRuntime, start_thread
from holdfast.url import Address

T = TypeVar("T")

IDLE_MAX = 5.0  # seconds without a waiter after which the listening thread ends


class BlockingPort(LockFilePort):
    """One lock file, used by the threads of one client."""

    def __init__(self, config: SqliteConfig, runtime: ThreadRuntime) -> None:
        super().__init__(config, runtime)
        self._mutex = runtime.mutex()  # guards the watcher, which callers and the listening thread share
        # Descriptors may be added and removed while another thread waits on the selector.
        self._selector = selectors.DefaultSelector()
        self._watcher = SessionWatcher(
            self._file.sessions_folder, self.wakeups.wake, self._add_reader, self._selector.unregister
        )
        self._thread: threading.Thread | None = None

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        async def attempt() -> T:
            return self._file.attempt(step, durable=durable, creates=creates)

        try:
            return self._file.attempt(step, durable=durable, creates=creates)  # nearly always succeeds
        except Busy:
            return await self._retry_while_busy(attempt, deadline)

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        with self._mutex:
            if not self._closed:
                self._watcher.subscribe(nonce, sessions, self._file.session)
                self._ensure_listener()

    def unsubscribe(self, nonce: str) -> None:
        with self._mutex:
            self._watcher.unsubscribe(nonce)

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._watcher.close()
            thread = self._thread
            if thread is not None and self._file.session is not None:
                self._file.session.wake_self()
        if thread is not None:
            thread.join(IDLE_MAX)
        self._selector.close()
        self._file.close()

    def abandon(self) -> None:
        self._watcher.abandon()
        self._selector.close()
        self._file.abandon()

    def _add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)  # in case other code has closed a registered file that had this number
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _ensure_listener(self) -> None:
        if self._thread is None:
            try:
                self._thread = start_thread(self._run, "listener")
            except ThreadStartError as error:  # waiters poll until one of them can start the thread
                logger().warning("waiters have to poll: %s", error)

    def _run(self) -> None:
        """Pass on wake-ups and deaths. Ends after a while without a waiter."""
        while True:
            try:
                ready = self._selector.select(IDLE_MAX)
            except (OSError, ValueError):
                if self._closed:  # an interrupted close() did not wait for this thread
                    return
                raise
            with self._mutex:
                for key, _ in ready:
                    key.data()
                if self._closed or (not ready and self._watcher.is_idle):
                    self._thread = None
                    return


def open_backend(address: Address, runtime: ThreadRuntime) -> SqliteBackend:
    config = config_of(address)
    return SqliteBackend(config.url, BlockingPort(config, runtime), runtime)

"""The lock file for threads: transactions on the caller's own thread, rings on one listening thread."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.sqlite.io.file import Busy, LockFile, patiently
from holdfast.backends.sqlite.io.sessions import Session, Watch
from holdfast.backends.sqlite.protocol.queue import SqliteBackend
from holdfast.core.events import logger
from holdfast.errors import ThreadStartError
from holdfast.runtimes.threads import start_thread

if TYPE_CHECKING:
    from holdfast.backends.sqlite.port import Transaction
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

T = TypeVar("T")

IDLE_MAX = 5.0  # seconds without a waiter before the listening thread ends


class BlockingPort:
    """One lock file, used by the threads of one client."""

    def __init__(self, address: Address, runtime: ThreadRuntime) -> None:
        self._runtime = runtime
        self._file = LockFile(address, self._ring_own)
        self._mutex = runtime.mutex()  # guards the watch, which callers and the listening thread share
        # Kernels let descriptors come and go while another thread waits on the selector.
        self._selector = selectors.DefaultSelector()
        self._watch = Watch(self._file.sessions_folder, self._ring_own, self._add_reader, self._selector.unregister)
        self._wake: Callable[[str], None] = lambda _: None
        self._thread: threading.Thread | None = None
        self._heard: Session | None = None  # whose rings we hear
        self._closed = False

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        return self._file.liveness_fds

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        async def attempt() -> T:
            return self._file.attempt(step, durable=durable, creates=creates)

        try:
            return self._file.attempt(step, durable=durable, creates=creates)  # nearly always
        except Busy:
            return await patiently(attempt, self._file, self._runtime, deadline)

    def intact(self, store: Hashable) -> bool:
        return self._file.intact(store)

    def listen(self, wake: Callable[[str], None]) -> None:
        self._wake = wake

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        with self._mutex:
            if not self._closed:
                self._watch.subscribe(nonce, sessions)
                self._listen()

    def unsubscribe(self, nonce: str) -> None:
        with self._mutex:
            self._watch.unsubscribe(nonce)

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._watch.close()
            thread = self._thread
            if thread is not None and self._file.session is not None:
                self._file.session.ring_self()
        if thread is not None:
            thread.join(IDLE_MAX)
        self._selector.close()
        self._file.close()

    def abandon(self) -> None:
        self._watch.abandon()
        self._selector.close()
        self._file.abandon()

    def _ring_own(self, nonce: str) -> None:
        self._wake(nonce)

    def _add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _listen(self) -> None:
        session = self._file.session
        if session is not None and session is not self._heard:
            self._heard = session
            self._add_reader(session.fd, lambda: self._hear(session))
        if self._thread is None:
            try:
                self._thread = start_thread(self._run, "listener")
            except ThreadStartError as error:  # waiters poll until one of them can start it
                logger().warning("waiters have to poll: %s", error)

    def _hear(self, session: Session) -> None:
        for nonce in session.rings():
            self._wake(nonce)

    def _run(self) -> None:
        """Pass on rings and deaths; end after a while without anybody who waits."""
        while True:
            try:
                heard = self._selector.select(IDLE_MAX)
            except (OSError, ValueError):
                if self._closed:  # an interrupted close() has not waited for this thread
                    return
                raise
            with self._mutex:
                for key, _ in heard:
                    key.data()
                if self._closed or (not heard and self._watch.is_idle):
                    self._thread = None
                    return


def open_backend(address: Address, runtime: ThreadRuntime) -> SqliteBackend:
    return SqliteBackend(address.redacted, BlockingPort(address, runtime), runtime)

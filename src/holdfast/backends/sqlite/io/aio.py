"""The lock file for asyncio: short transactions run on one worker thread; waiting needs no thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.sqlite.config import config_of
from holdfast.backends.sqlite.io.lock_file import LockFile, retry_while_busy
from holdfast.backends.sqlite.io.sessions import Session, SessionWatcher
from holdfast.backends.sqlite.protocol.queue import SqliteBackend
from holdfast.core.notifications import Wakeups
from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from holdfast.backends.sqlite.config import SqliteConfig
    from holdfast.backends.sqlite.port import Transaction
    from holdfast.core.tickets import Notification
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class AsyncioPort:
    """One lock file, used by the tasks of one loop."""

    def __init__(self, config: SqliteConfig, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        self.wakeups = Wakeups(runtime)
        self._file = LockFile(config, self._wake_own)
        self._worker = _Worker(config.url)
        self._watcher = SessionWatcher(
            self._file.sessions_folder,
            wake=self.wakeups.wake,
            add_reader=self._add_reader,
            remove_reader=self._remove_reader,
        )
        self._listening_to: Session | None = None  # the session whose FIFO is read
        self._closed = False

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        return self._file.liveness_fds

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        loop = self._runtime.loop

        async def attempt() -> T:
            return await self._worker.run(loop, lambda: self._file.attempt(step, durable=durable, creates=creates))

        return await retry_while_busy(attempt, self._file, self._runtime, deadline)

    def intact(self, store: Hashable) -> bool:
        return self._file.intact(store)

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        if self._closed:
            return
        self._watcher.subscribe(nonce, sessions)
        session = self._file.session
        if session is not None and session is not self._listening_to:
            self._listening_to = session
            self._runtime.loop.add_reader(session.fd, self._read_notifications, session)

    def unsubscribe(self, nonce: str) -> None:
        self._watcher.unsubscribe(nonce)

    async def close(self) -> None:
        loop = self._runtime.loop
        self._closed = True
        self._watcher.close()
        if self._listening_to is not None:
            loop.remove_reader(self._listening_to.fd)
        if self._worker.is_running:
            await self._worker.run(loop, self._file.close)
            self._worker.stop()
            self._worker.join()
        else:  # the file was never used; no thread is needed to close it
            self._file.close()

    def abandon(self) -> None:
        self._watcher.abandon()
        self._file.abandon()

    def _wake_own(self, notification: Notification) -> None:
        """Called on the worker thread, after a transaction that unblocks another ticket of this client."""
        self._runtime.call_from_thread(self.wakeups.wake, notification)

    def _add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._runtime.loop.add_reader(fd, callback)

    def _remove_reader(self, fd: int) -> None:
        self._runtime.loop.remove_reader(fd)

    def _read_notifications(self, session: Session) -> None:
        for notification in session.read_notifications():
            self.wakeups.wake(notification)


class _Worker:
    """Runs jobs one after the other on its own thread, in the order in which they were submitted.

    So a `release` that follows a cancelled `try_acquire` runs after it, and the job of a cancelled caller is either not
    started or completed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    async def run(self, loop: asyncio.AbstractEventLoop, job: Callable[[], T]) -> T:
        if self._thread is None:
            # It refers to the queue only, so it does not keep a forgotten client alive.
            thread = threading.Thread(target=_work, args=(self._jobs,), name="holdfast-sqlite", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise BackendUnavailable(backend=self._url, problem=str(error)) from error
            self._thread = thread
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, future))
        return await future

    def stop(self) -> None:
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the end of the thread after `stop`."""
        if self._thread is not None:
            self._thread.join()

    def __del__(self) -> None:
        self.stop()


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (item := jobs.get()) is not None:
        job, future = item
        if future.cancelled():
            continue
        try:
            settle, outcome = future.set_result, job()
        except BaseException as error:  # passed to the caller
            settle, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits for this
            future.get_loop().call_soon_threadsafe(_settle, future, settle, outcome)
        del item, job, future, settle, outcome  # a finished job must not be kept alive until the next one


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any) -> None:
    if not future.cancelled():
        settle(outcome)


def open_backend(address: Address, runtime: AsyncioRuntime) -> SqliteBackend:
    config = config_of(address)
    return SqliteBackend(config.url, AsyncioPort(config, runtime), runtime)

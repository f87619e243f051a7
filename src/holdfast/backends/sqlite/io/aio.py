"""The lock file for asyncio: short transactions run on one worker thread; waiting needs no thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from holdfast.backends.sqlite.config import SqliteConfig, config_of
from holdfast.backends.sqlite.io.lock_file import LockFilePort
from holdfast.backends.sqlite.io.sessions import SessionWatcher
from holdfast.backends.sqlite.port import Transaction
from holdfast.backends.sqlite.protocol.queue import SqliteBackend
from holdfast.backends.worker_thread import WorkerThread
from holdfast.core.tickets import Notification
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.url import Address

T = TypeVar("T")


class AsyncioPort(LockFilePort):
    """One lock file, used by the tasks of one loop."""

    def __init__(self, config: SqliteConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, runtime, self._wake_own)
        self._loops = runtime
        self._worker = WorkerThread(config.url, "sqlite")
        self._watcher = SessionWatcher(
            self._file.sessions_folder,
            wake=self.wakeups.wake,
            add_reader=self._add_reader,
            remove_reader=self._remove_reader,
        )

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        job = partial(self._file.attempt, step, durable=durable, creates=creates)
        return await self._retry_while_busy(lambda: self._worker.run(self._loops.loop, job), deadline)

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        if not self._closed:
            self._watcher.subscribe(nonce, sessions, self._file.session)

    def unsubscribe(self, nonce: str) -> None:
        self._watcher.unsubscribe(nonce)

    async def close(self) -> None:
        loop = self._loops.loop
        self._closed = True
        self._watcher.close()
        if self._watcher.listening_to is not None:
            loop.remove_reader(self._watcher.listening_to.fd)
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
        self._loops.call_from_thread(self.wakeups.wake, notification)

    def _add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._remove_reader(fd)  # in case other code has closed a registered file that had this number
        self._loops.loop.add_reader(fd, callback)

    def _remove_reader(self, fd: int) -> None:
        self._loops.loop.remove_reader(fd)


def open_backend(address: Address, runtime: AsyncioRuntime) -> SqliteBackend:
    config = config_of(address)
    return SqliteBackend(config.url, AsyncioPort(config, runtime), runtime)

"""The lock file for asyncio: short transactions on one worker thread; waiting occupies no thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.sqlite.io.file import LockFile, patiently
from holdfast.backends.sqlite.io.sessions import Session, Watch
from holdfast.backends.sqlite.protocol.queue import SqliteBackend
from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from holdfast.backends.sqlite.port import Transaction
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class AsyncioPort:
    """One lock file, used by the tasks of one loop."""

    def __init__(self, address: Address, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        self._file = LockFile(address, self._ring_own)
        self._worker = _Worker(address.redacted)
        self._wake: Callable[[str], None] = lambda _: None
        self._watch = Watch(
            self._file.sessions_folder,
            wake=self._wake_now,
            add_reader=self._add_reader,
            remove_reader=self._remove_reader,
        )
        self._heard: Session | None = None  # whose rings we hear
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

        return await patiently(attempt, self._file, self._runtime, deadline)

    def intact(self, store: Hashable) -> bool:
        return self._file.intact(store)

    def listen(self, wake: Callable[[str], None]) -> None:
        self._wake = wake

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        if self._closed:
            return
        self._watch.subscribe(nonce, sessions)
        session = self._file.session
        if session is not None and session is not self._heard:
            self._heard = session
            self._runtime.loop.add_reader(session.fd, self._hear, session)

    def unsubscribe(self, nonce: str) -> None:
        self._watch.unsubscribe(nonce)

    async def close(self) -> None:
        loop = self._runtime.loop
        self._closed = True
        self._watch.close()
        if self._heard is not None:
            loop.remove_reader(self._heard.fd)
        if self._worker.is_running:
            await self._worker.run(loop, self._file.close)
            self._worker.stop()
            self._worker.join()
        else:  # the file was never used; no thread is needed to close it
            self._file.close()

    def abandon(self) -> None:
        self._watch.abandon()
        self._file.abandon()

    def _ring_own(self, nonce: str) -> None:
        """Called on the worker thread, after a transaction that lets another ticket of ours in."""
        self._runtime.call_from_thread(self._wake, nonce)

    def _wake_now(self, nonce: str) -> None:
        self._wake(nonce)

    def _add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._runtime.loop.add_reader(fd, callback)

    def _remove_reader(self, fd: int) -> None:
        self._runtime.loop.remove_reader(fd)

    def _hear(self, session: Session) -> None:
        for nonce in session.rings():
            self._wake(nonce)


class _Worker:
    """Runs one job after the other on a thread of its own, in the order in which they were asked for.

    So a `release` that follows a cancelled `try_acquire` is run after it, and a job of a cancelled caller either is not
    begun or is run to its end.
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
            # It knows the queue only, so it does not keep a forgotten client alive.
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
        """Wait for its end: it was told to stop and has nothing more to do."""
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
        except BaseException as error:  # handed over to the caller, whatever it is
            settle, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
            future.get_loop().call_soon_threadsafe(_hand_over, future, settle, outcome)
        del item, job, future, settle, outcome  # nothing of a finished job lives on until the next one


def _hand_over(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any) -> None:
    if not future.cancelled():
        settle(outcome)


def open_backend(address: Address, runtime: AsyncioRuntime) -> SqliteBackend:
    return SqliteBackend(address.redacted, AsyncioPort(address, runtime), runtime)

"""A worker thread for backends on asyncio whose operations block, but take microseconds."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import BackendUnavailable

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class WorkerThread:
    """Runs jobs one after the other on its own thread, in the order in which they were submitted.

    So a `release` that follows a cancelled `try_acquire` runs after it, and the job of a cancelled caller is either not
    started or completed.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = f"holdfast-{name}"
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    async def run(self, loop: asyncio.AbstractEventLoop, job: Callable[[], T]) -> T:
        if self._thread is None:
            # It refers to the queue only, so it does not keep a forgotten client alive.
            thread = threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
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

"""The store as the parent uses it, directly and not through a proxy: declared guarantees, the queue, free locks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from holdfast.errors import ConfigurationError
from holdfast.guarantees import Guarantees
from holdfast.runtimes.system import now
from holdfast_lab.checking import history as h

from .adapter import Adapter, AnyAdapter, AsyncAdapter
from .turns import Inline, run_inline

_FIRST_TTL = 10.0
_LAST_TRY = 0.5  # seconds for each lock when the time is over
_RETRY = 0.2
_HANGS = 20.0  # seconds after its timeout at which a call counts as hanging


class StoreClient:
    """One adapter of either kind, for use without load."""

    def __init__(self, url: str, kind: AnyAdapter) -> None:
        self._url = url
        self._kind = kind
        self._runner: asyncio.Runner | None = None
        self._adapter: Any = None

    def __enter__(self) -> Self:
        if issubclass(self._kind, AsyncAdapter):
            self._runner = asyncio.Runner()
            self._adapter = self._runner.run(_created(self._kind, self._url))
        else:
            self._adapter = self._kind(self._url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is None:
            _limited(self._adapter.close, _HANGS)
        else:
            with self._runner:
                self._runner.run(self._adapter.close())

    def guarantees(self) -> Guarantees | None:
        """The guarantees that the backend declares; before the first request, those of any server."""
        guarantees: Guarantees | None = self._adapter.guarantees()
        return guarantees

    def queue(self, name: str) -> int | None:
        """The number of waiters of this lock, or None if the store does not show it."""
        waiters: int | None = self._adapter.queue(name)
        return waiters

    def require_free(self, names: list[str]) -> None:
        """Raise ConfigurationError if one of these locks is in use."""
        for name in names:
            if not self._acquire_and_release(name, _FIRST_TTL, 0.0):
                raise ConfigurationError(
                    f"the lock {name!r} is in use: choose another --prefix, or wait until the other run has ended"
                )

    def free(self, names: list[str], ttl: float, *, within: float) -> list[h.Event]:
        """Acquire and release every lock, all within this time. Returns those that did not become free."""
        end = now() + within
        return [
            h.Leftover(now(), name, "a former worker", granted=True)
            for name in names
            if not self._is_free(name, ttl, end)
        ]

    def _is_free(self, name: str, ttl: float, end: float) -> bool:
        """Whether the lock could be acquired and released by then. If the store does not answer, it retries."""
        while True:
            try:
                return self._acquire_and_release(name, ttl, max(_LAST_TRY, end - now()))
            except Exception:
                if now() > end:
                    return False
                time.sleep(_RETRY)

    def _acquire_and_release(self, name: str, ttl: float, timeout: float) -> bool:
        """Whether the lock was acquired. Both calls are on one thread, because some libraries require it."""
        adapter = Inline(self._adapter) if isinstance(self._adapter, Adapter) else self._adapter

        async def work() -> bool:
            held = await adapter.acquire(name, ttl, timeout)
            if held is None:
                return False
            await adapter.release(held)
            return True

        if self._runner is not None:
            return self._runner.run(asyncio.wait_for(work(), timeout + _HANGS))
        return bool(_limited(lambda: run_inline(work()), timeout + _HANGS))


def _limited(function: Callable[[], Any], seconds: float) -> Any:
    """Call the function on a thread of its own, which is left behind if the call hangs: then raise TimeoutError."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="holdfast-verify-store", daemon=True).start()
    return future.result(seconds)


async def _created(kind: type[AsyncAdapter], url: str) -> AsyncAdapter:
    return kind(url)

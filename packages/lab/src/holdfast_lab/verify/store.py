"""The store as the parent uses it, directly and not through a proxy: declared guarantees, the queue, free locks."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

from holdfast.errors import ConfigurationError
from holdfast.guarantees import Guarantees
from holdfast.runtimes.system import now
from holdfast_lab.checking import history as h

from .adapter import Adapter, AnyAdapter, AsyncAdapter
from .turns import Inline, run_inline

_LAST_TRY = 0.5  # seconds for each lock when the time is over
_RETRY = 0.2


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
            self._adapter.close()
        else:
            with self._runner:
                self._runner.run(self._adapter.close())

    def guarantees(self) -> Guarantees | None:
        """The guarantees that the backend declares, after it has been asked."""
        guarantees: Guarantees | None = self._adapter.guarantees()
        return guarantees

    def queue(self, name: str) -> int | None:
        """The number of waiters of this lock, if the store can tell."""
        waiters: int | None = self._adapter.queue(name)
        return waiters

    def require_free(self, names: list[str]) -> None:
        """Raise ConfigurationError if one of these locks is in use."""
        for name in names:
            held = self._acquire(name, 10.0, 0.0)
            if held is None:
                raise ConfigurationError(
                    f"the lock {name!r} is in use: choose another --prefix, or wait until the other run has ended"
                )
            self._release(held)

    def free(self, names: list[str], ttl: float, *, within: float) -> list[h.Event]:
        """Acquire and release every lock, each within this time. Returns those that did not become free."""
        end = now() + within
        return [
            h.Leftover(now(), name, "a former worker", granted=True)
            for name in names
            if not self._is_free(name, ttl, end)
        ]

    def _is_free(self, name: str, ttl: float, end: float) -> bool:
        """Whether the lock could be acquired and released by then. A store that does not answer is asked again."""
        while True:
            try:
                held = self._acquire(name, ttl, max(_LAST_TRY, end - now()))
                if held is not None:
                    self._release(held)
                return held is not None
            except Exception:
                if now() > end:
                    return False
                time.sleep(_RETRY)

    def _acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        adapter = Inline(self._adapter) if isinstance(self._adapter, Adapter) else self._adapter
        work = adapter.acquire(name, ttl, timeout)
        return run_inline(work) if self._runner is None else self._runner.run(work)

    def _release(self, held: Any) -> None:
        adapter = Inline(self._adapter) if isinstance(self._adapter, Adapter) else self._adapter
        work = adapter.release(held)
        run_inline(work) if self._runner is None else self._runner.run(work)


async def _created(kind: type[AsyncAdapter], url: str) -> AsyncAdapter:
    return kind(url)

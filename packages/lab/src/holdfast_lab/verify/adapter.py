"""The interface of a lock that is put to the test: five methods over one library, for threads or for asyncio.

    class RedisPy(Adapter):
        def __init__(self, url): self.client = redis.Redis.from_url(url)
        def acquire(self, name, ttl, timeout):
            lock = self.client.lock(name, timeout=ttl, blocking_timeout=timeout)
            return lock if lock.acquire() else None
        def is_held(self, held): return held.owned()
        def extend(self, held): return held.reacquire()
        def release(self, held): held.release(); return True

`holdfast verify --adapter MODULE:CLASS URL` runs it. One object is used by all threads (or tasks) of a worker process.
`held` is the value that `acquire` returned; the load passes it back and does not look into it.
"""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from holdfast.errors import ConfigurationError
from holdfast.guarantees import Guarantees

# The promises that the checkers judge, in the order of the table. An adapter names them in `documented`.
PROMISES: Mapping[str, str] = {
    "exclusion": "at no time do two workers hold one lock",
    "fence": "every lease has a greater fence than all before it",
    "writes": "a resource accepts no write of a former holder",
    "order": "waiters are granted the lock in the order in which they were queued",
    "wake": "a waiter learns of a release without polling",
    "losses": "a holder is told of a loss, once, before the next grant",
    "outcomes": "a call ends in time, and does not time out early",
    "progress": "after the faults every worker acquires its locks again",
    "fork": "a forked child does not hold a lease of its parent",
    "leftovers": "the locks of dead and ended workers become free",
    "events": "the events of every attempt and lease are complete",
}


class _Common:
    """Declarations. The defaults are right for a lock that promises exclusion and nothing else."""

    # Limits that the documentation of the library states, by promise: the sentence, or a summary with its place. A
    # violation of such a promise counts as documented, not as broken. "exclusion/pause" is for one fault only.
    documented: ClassVar[Mapping[str, str]] = {}
    renews: ClassVar[bool] = False  # a held lock is renewed automatically; otherwise the load calls `extend`
    reports_losses: ClassVar[bool] = False  # it calls `on_lost(name, fence)` when a lease is lost
    reports_events: ClassVar[bool] = False  # it calls `on_event(attempt, name, kind, outcome)`

    on_lost: Callable[[str, int], None] | None = None  # set by the worker
    on_event: Callable[[int, str, str, str], None] | None = None  # set by the worker

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def uses_network(cls, url: str) -> bool:
        """Whether there are connections that a proxy can cut."""
        return bool(url)

    def guarantees(self) -> Guarantees | None:
        """The guarantees that the backend declares; None: it declares none. May send requests to the store."""
        return None

    def fence(self, held: Any) -> int | None:
        """The fence of the lease, or None if the library has no fences."""
        return None

    def remaining(self, held: Any) -> float | None:
        """Seconds until the lease ends by the local clock, or None if the library does not know."""
        return None

    def queue(self, name: str) -> int | None:
        """The number of waiters that the store has for this lock, or None if the store does not show it."""
        return None


class Adapter(_Common, ABC):
    """A lock for threads."""

    @abstractmethod
    def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        """Acquire the lock and return any object for this lease; None if it was busy until the timeout.

        Any exception means that the store did not answer properly.
        """

    @abstractmethod
    def release(self, held: Any) -> bool:
        """Give the lock back: True; False if the library reports that the lease was lost before."""

    @abstractmethod
    def is_held(self, held: Any) -> bool:
        """Whether the library reports that the lease is held, by the method that its documentation names for this."""

    def extend(self, held: Any) -> bool:
        """Renew the lease: True; False if the library reports that it is lost. The default does nothing."""
        return True

    def close(self) -> None:
        """End all connections. Called once, after the last lease was released."""


class AsyncAdapter(_Common, ABC):
    """A lock for asyncio: the same methods as coroutines. It is created in the running loop."""

    @abstractmethod
    async def acquire(self, name: str, ttl: float, timeout: float) -> Any | None:
        """See Adapter."""

    @abstractmethod
    async def release(self, held: Any) -> bool:
        """See Adapter."""

    @abstractmethod
    async def is_held(self, held: Any) -> bool:
        """See Adapter."""

    async def extend(self, held: Any) -> bool:
        """See Adapter."""
        return True

    async def close(self) -> None:
        """See Adapter."""


AnyAdapter = type[Adapter] | type[AsyncAdapter]

HOLDFAST = ("holdfast_lab.verify.ours:Threads", "holdfast_lab.verify.ours:Tasks")


def load(name: str) -> AnyAdapter:
    """The adapter class MODULE:CLASS. Modules in the current directory are found too.

    Raises:
        ConfigurationError: there is no such class, it is no adapter, or its declarations are wrong.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ConfigurationError(f"--adapter must be MODULE:CLASS, not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        adapter = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--adapter {name}: {error}") from error
    if not isinstance(adapter, type) or not issubclass(adapter, Adapter | AsyncAdapter):
        raise ConfigurationError(
            f"--adapter {name}: it must be a subclass of holdfast_lab.verify.Adapter, or of its twin for asyncio"
        )
    unknown = [key for key in adapter.documented if key.partition("/")[0] not in PROMISES]
    if unknown:
        raise ConfigurationError(
            f"--adapter {name}: documented names the unknown promise {unknown[0]!r} (known: {', '.join(PROMISES)})"
        )
    return adapter

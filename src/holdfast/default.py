"""The default store: $HOLDFAST_URL, or a file in the user's state folder; the module's functions use it.

They share one client, which is created at the first use.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.base_client import DEFAULT_TTL
from holdfast.core.decorators import make_plan_locked, make_plan_once
from holdfast.core.locks import UNSET, AllOptions, LockOptions
from holdfast.core.names import Duration
from holdfast.core.once import make_once_plan
from holdfast.runtimes.threads import Mutex, mutex_of_process
from holdfast.threads.client import Client
from holdfast.threads.decorators import decorated
from holdfast.threads.once import Once

if TYPE_CHECKING:
    from holdfast.threads.election import Election
    from holdfast.threads.lock_all import LockAll
    from holdfast.threads.locks import Lock, RWLock, Semaphore


def default_client() -> Client:
    """The client that `holdfast.lock` uses, created at the first use."""
    return _clients.get("")


def lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """`Client.lock` on the default store: $HOLDFAST_URL, or a file in the user's state folder."""
    return default_client().lock(name, **options)


def rwlock(name: str, **options: Unpack[LockOptions]) -> RWLock:
    """`Client.rwlock` on the default store."""
    return default_client().rwlock(name, **options)


def semaphore(name: str, limit: int, **options: Unpack[LockOptions]) -> Semaphore:
    """`Client.semaphore` on the default store."""
    return default_client().semaphore(name, limit, **options)


def election(name: str, **options: Unpack[LockOptions]) -> Election:
    """`Client.election` on the default store."""
    return default_client().election(name, **options)


def lock_all(locks: Iterable[str | Lock], **options: Unpack[AllOptions]) -> LockAll:
    """`Client.lock_all` on the default store."""
    return default_client().lock_all(locks, **options)


if TYPE_CHECKING:
    locked = Client().locked  # for the same overloads
    once_per = Client().once_per
    once = Client().once
else:

    def locked(
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: str = "wait",
        skipped: object = UNSET,
        lease: str | None = None,
        **options: Unpack[LockOptions],
    ) -> Any:
        """`Client.locked` on the default store, whose client is created at the first call, not at import."""
        plan = make_plan_locked(
            name, name_of, busy=busy, skipped=skipped, lease=lease, ttl=DEFAULT_TTL, options=options
        )
        return lambda function: decorated(function, plan, lambda: default_client()._for_plan(plan))

    def once_per(
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
        skipped: object = UNSET,
        lease: str | None = None,
        **options: Unpack[LockOptions],
    ) -> Any:
        """`Client.once_per` on the default store, whose client is created at the first call, not at import."""
        plan = make_plan_once(period, offset, name, skipped=skipped, lease=lease, ttl=DEFAULT_TTL, options=options)
        return lambda function: decorated(function, plan, lambda: default_client()._for_plan(plan))

    def once(key: str, **options: Any) -> Any:
        """`Client.once` on the default store, whose client is created at the first call, not at import."""
        return Once(lambda: default_client()._for_once(), make_once_plan(key, ttl=DEFAULT_TTL, options=options))


class SharedClients:
    """Clients that all callers share, by a name. Each is created at its first use, and again after it was closed."""

    def __init__(self, make: Callable[[str], Client]) -> None:
        self.made: dict[str, Client] = {}
        self._make = make
        self._mutexes: dict[int, Mutex] = {}

    def get(self, name: str) -> Client:
        """The open client of this name."""
        client = self._open(name)
        if client is not None:
            return client  # without the mutex: another thread may be creating a client of another name
        with mutex_of_process(self._mutexes):
            client = self._open(name)  # of another thread
            if client is None:
                made = self._make(name)
                client = self._open(name)  # of a signal handler that ran inside the call above
                if client is None:
                    client = self.made[name] = made
                    atexit.register(client._close_if_idle)
            return client

    def close(self) -> None:
        """Close all of them."""
        with mutex_of_process(self._mutexes):
            closed, self.made = self.made, {}
        for made in closed.values():
            made.close()

    def _open(self, name: str) -> Client | None:
        client = self.made.get(name)
        return None if client is None or client._closed else client


_clients = SharedClients(lambda _: Client())  # one, with the name ""

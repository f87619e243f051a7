"""holdfast for Django: an app for INSTALLED_APPS, with locks in the stores of the setting HOLDFAST.

    INSTALLED_APPS = [..., "holdfast.django"]
    HOLDFAST = {"default": {"DATABASE": "default"}}        # or {"URL": "redis://cache"}

    from holdfast.django import lock

    with lock("nightly-report"):
        ...

The functions of this module use the store "default"; `client(alias)` is for the others. Clients are created at the
first use, one for each process and store, and they are closed when the process ends. They work after a fork.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.core.decorators import Plan, make_plan_locked, make_plan_once
from holdfast.core.locks import UNSET, AllOptions, LockOptions
from holdfast.core.names import Duration
from holdfast.core.once import make_once_plan
from holdfast.django.clients import async_client, client, ttl_of
from holdfast.threads.client import Client
from holdfast.threads.decorators import decorated
from holdfast.threads.once import Once

if TYPE_CHECKING:
    from holdfast.threads.election import Election
    from holdfast.threads.lock_all import LockAll
    from holdfast.threads.locks import Lock, RWLock, Semaphore

__all__ = [
    "async_client",
    "client",
    "election",
    "lock",
    "lock_all",
    "locked",
    "once",
    "once_per",
    "rwlock",
    "semaphore",
]


def lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """`Client.lock` on the store "default"."""
    return client().lock(name, **options)


def rwlock(name: str, **options: Unpack[LockOptions]) -> RWLock:
    """`Client.rwlock` on the store "default"."""
    return client().rwlock(name, **options)


def semaphore(name: str, limit: int, **options: Unpack[LockOptions]) -> Semaphore:
    """`Client.semaphore` on the store "default"."""
    return client().semaphore(name, limit, **options)


def election(name: str, **options: Unpack[LockOptions]) -> Election:
    """`Client.election` on the store "default"."""
    return client().election(name, **options)


def lock_all(locks: Iterable[str | Lock], **options: Unpack[AllOptions]) -> LockAll:
    """`Client.lock_all` on the store "default"."""
    return client().lock_all(locks, **options)


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
        """`Client.locked` on the store "default", for functions and for coroutine functions."""
        plan = make_plan_locked(name, name_of, busy=busy, skipped=skipped, lease=lease, ttl=ttl_of(), options=options)
        return functools.partial(_decorated, plan)

    def once_per(
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
        skipped: object = UNSET,
        lease: str | None = None,
        **options: Unpack[LockOptions],
    ) -> Any:
        """`Client.once_per` on the store "default", for functions and for coroutine functions."""
        plan = make_plan_once(period, offset, name, skipped=skipped, lease=lease, ttl=ttl_of(), options=options)
        return functools.partial(_decorated, plan)

    def once(key: str, **options: Any) -> Any:
        """`Client.once` on the store "default". As a decorator it also takes coroutine functions."""
        return _Once(lambda: client()._for_once(), make_once_plan(key, ttl=ttl_of(), options=options))


class _Once(Once[Any]):
    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)
        from holdfast.aio.once import AsyncOnce

        made: Callable[..., Any] = AsyncOnce(lambda: async_client()._for_once(), self._plan)(function)
        return made


def _decorated(plan: Plan, function: Callable[..., Any]) -> Callable[..., Any]:
    # The client is looked up at each call: settings may change in tests, and each event loop has its own.
    if inspect.iscoroutinefunction(function):
        from holdfast.aio.decorators import decorated as decorated_coroutine

        return decorated_coroutine(function, plan, lambda: async_client()._for_plan(plan))
    return decorated(function, plan, lambda: client()._for_plan(plan))

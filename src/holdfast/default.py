"""The default store: $HOLDFAST_URL, or a file in the user's state folder; the module's functions use it.

They share one client, which is created at the first use.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.base_client import DEFAULT_TTL
from holdfast.core.decorators import Plan, make_plan_locked, make_plan_once
from holdfast.core.locks import UNSET, AllOptions, LockOptions
from holdfast.core.names import Duration
from holdfast.core.once import make_once_plan
from holdfast.primitives import Primitive
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex
from holdfast.threads.client import Client
from holdfast.threads.decorators import decorated
from holdfast.threads.once import Once

if TYPE_CHECKING:
    from holdfast.threads.election import Election
    from holdfast.threads.lock_all import LockAll
    from holdfast.threads.locks import Lock, RWLock, Semaphore


def default_client() -> Client:
    """The client that `holdfast.lock` uses, created at the first use."""
    global _default
    with _default_mutex:
        if _default is None or _default._closed:
            made = Client()
            if _default is None or _default._closed:  # a signal handler may have used it inside the call above
                _default = made
                atexit.register(_close_if_idle, made)
        return _default


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
        return lambda function: decorated(function, plan, lambda: _client_for(plan))

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
        return lambda function: decorated(function, plan, lambda: _client_for(plan))

    def once(key: str, **options: Any) -> Any:
        """`Client.once` on the default store, whose client is created at the first call, not at import."""
        return Once(_client_for_once, make_once_plan(key, ttl=DEFAULT_TTL, options=options))


def _client_for_once() -> Client:
    made = default_client()
    made._require_primitive(Primitive.ONCE)
    return made


def _client_for(plan: Plan) -> Client:
    made = default_client()
    if plan.period is not None:
        made._require_primitive(Primitive.ONCE_PER)
    made._require_primitives(plan.spec)
    return made


def _close_if_idle(made: Client) -> None:
    """At the end of the process. runtimes/exits.py ends the leases, because it knows which of them are in use."""
    if not made._closed and made._current is not None and made._current.is_idle:
        made.close()


_default: Client | None = None
_default_mutex = Mutex()


def _in_forked_child() -> None:
    global _default_mutex
    _default_mutex = Mutex()  # another thread of the parent may have locked the old one


system.after_fork_in_child(_in_forked_child)

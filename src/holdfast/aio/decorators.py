"""The decorators `locked` and `once_per` for asyncio: their types, and the function that they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from holdfast.aio.locks import AsyncLease, AsyncLock
from holdfast.core.decorators import Plan, show_signature, spec_of, with_lease
from holdfast.core.periods import claim
from holdfast.errors import AcquireTimeout

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)


class AsyncLocked(Protocol):
    """The decorator that `locked` returns: the function keeps its parameters and its result."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class AsyncLockedOrSkipped(Protocol[D_co]):
    """The decorator that `locked` returns with busy="skip": a call may also return `skipped`."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | D_co]]: ...


class AsyncLockedWithLease(Protocol):
    """The decorator that `locked` returns with lease=: the first parameter, or the one after self, is filled in."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


class AsyncLockedOrSkippedWithLease(Protocol[D_co]):
    """The decorator with both: the lease is filled in, and a call may also return `skipped`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | D_co]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T | D_co]]: ...


def decorated(
    function: Callable[P, Coroutine[Any, Any, T]], plan: Plan, client: Callable[[], AsyncClient]
) -> Callable[P, Coroutine[Any, Any, Any]]:
    spec_for, signature = spec_of(plan, function, is_async=True)
    timeout, skips, skipped, period = plan.timeout, plan.skips, plan.skipped, plan.period
    call = None if plan.lease is None else with_lease(function, plan.lease)

    @functools.wraps(function)
    async def locked_function(*args: P.args, **kwargs: P.kwargs) -> Any:
        lock = AsyncLock(client(), spec_for(args, kwargs), timeout)
        if period is not None and not await claim(lock._client._engine, lock.name, period):
            lock._client._engine.skipped(lock._spec, "done")
            return skipped
        lease = None
        try:
            async with lock as lease:
                return await (function(*args, **kwargs) if call is None else call(lease, args, kwargs))
        except AcquireTimeout:
            if lease is not None or not skips:  # the body raised it
                raise
            lock._client._engine.skipped(lock._spec, "busy")
            return skipped

    show_signature(locked_function, signature)
    return locked_function

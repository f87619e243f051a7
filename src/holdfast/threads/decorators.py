"""The decorators `locked` and `once_per` for threads: their types, and the function that they return."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CoroutineType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from holdfast.core.decorators import Plan, WithLease, refuse_coroutine, show_signature, spec_of, with_lease
from holdfast.core.periods import claim
from holdfast.errors import AcquireTimeout
from holdfast.runtimes.threads import run_sync
from holdfast.threads.locks import Lease, Lock

if TYPE_CHECKING:
    from holdfast.threads.client import Client

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)


class Locked(Protocol):
    """The decorator that `locked` returns: the function keeps its parameters and its result."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


class LockedOrSkipped(Protocol[D_co]):
    """The decorator that `locked` returns with busy="skip": a call may also return `skipped`."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | D_co]: ...


class LockedWithLease(Protocol):
    """The decorator that `locked` returns with lease=: the first parameter, or the one after self, is filled in."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], T], /) -> Callable[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S, Lease, P], T], /) -> Callable[Concatenate[S, P], T]: ...


class LockedOrSkippedWithLease(Protocol[D_co]):
    """The decorator with both: the lease is filled in, and a call may also return `skipped`."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], T], /) -> Callable[P, T | D_co]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S, Lease, P], T], /) -> Callable[Concatenate[S, P], T | D_co]: ...


def decorated(
    function: Callable[P, T],
    plan: Plan,
    client: Callable[[], Client],
    *,
    call: WithLease[T] | None = None,
    on_busy: Callable[[AcquireTimeout], Any] | None = None,
) -> Callable[P, Any]:
    """The function that `locked` and `once_per` return for a function.

    Args:
        call: Calls the function, with the lease. Default: as `plan.lease` says.
        on_busy: Makes the result of a skipped call. Default: it is `plan.skipped`.
    """
    spec_for, signature = spec_of(plan, function, is_async=False)
    timeout, skips, skipped, period = plan.timeout, plan.skips, plan.skipped, plan.period
    if call is None and plan.lease is not None:
        call = with_lease(function, plan.lease)

    @functools.wraps(function)
    def locked_function(*args: P.args, **kwargs: P.kwargs) -> Any:
        lock = Lock(client(), spec_for(args, kwargs), timeout)
        if period is not None and not run_sync(claim(lock._client._engine, lock.name, period)):
            lock._client._engine.skipped(lock._spec, "done")
            return skipped
        lease, depth = None, 0
        try:
            with lock as lease:
                depth = lease._depth
                result = function(*args, **kwargs) if call is None else call(lease, args, kwargs)
                if isinstance(result, CoroutineType):  # of a function that is no coroutine function
                    result.close()
                    refuse_coroutine(function, plan.decorator)
                return result
        except AcquireTimeout as error:
            if lease is not None or not skips:  # the body raised it
                raise
            lock._client._engine.skipped(lock._spec, "busy")
            return skipped if on_busy is None else on_busy(error)
        except BaseException:
            # A KeyboardInterrupt just before the first instruction of __exit__. No other code can release the lease.
            if lease is not None and lease._depth == depth:
                lease._engine.interrupted_exit(lease)
            raise

    show_signature(locked_function, signature)
    return locked_function

"""`once` for asyncio. `threads/once.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from holdfast.aio.locks import AsyncLock
from holdfast.core.decorators import WithLease, check_function, show_signature, text_for, with_lease
from holdfast.core.once import BaseOnce, OnceCall, OnceInfo, Outcome, check_key, inspect_once
from holdfast.errors import AcquireTimeout, LockLost

if TYPE_CHECKING:
    from holdfast.aio.client import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


class AsyncOnce(BaseOnce, Generic[D]):
    """A key: of all calls with it, one runs. Use `run`, or the object as a decorator."""

    _client: Callable[[], AsyncClient]

    async def run(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | D]:
        """Call the function with these arguments, if no call with this key has run. The key is used literally.

        Raises:
            AcquireTimeout: another call runs, and `busy` is "raise", or `timeout` is over.
            OnceInterrupted: the run of this key died or lost its lease, and `after_crash` is "raise".
            OnceFailed: the run of this key failed, with `after_error="remember"`; or its result was not stored.
            OnceMismatch: the run of this key had another `check`.
            LockLost: the lease was lost before the function was called; or another run has replaced this one.
            ConfigurationError: with `result`, the result is not JSON of at most 64 KiB. The run is recorded as done.
            OutcomeUnknown: no answer. If the function has run, its record may still say that it runs.
            BackendUnavailable: no answer; the function has not run.
        """
        check_function(function, self._plan.lease, is_async=True, decorator="once")
        call_with_lease = None if self._plan.lease is None else with_lease(function, self._plan.lease)
        return await self._run(self._plan.key, self._plan.check, "", function, call_with_lease, args, kwargs)

    async def inspect(self) -> OnceInfo | None:
        """The record of this key, according to the server; None if there is none."""
        return await inspect_once(self._client()._engine, self._plan.key)

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T | D]]:
        """Decorate the function: each call is a `run` with the key that its arguments make, and returns its value.

        Raises:
            ConfigurationError: a field or the kind of function is refused.
        """
        plan = self._plan
        _, visible_signature = check_function(function, plan.lease, is_async=True, decorator="once")
        call_with_lease = None if plan.lease is None else with_lease(function, plan.lease)
        key_of = text_for(plan.key, function, visible_signature, "key")
        check_of = None if plan.check is None else text_for(plan.check, function, visible_signature, "check")

        @functools.wraps(function)
        async def once_function(*args: P.args, **kwargs: P.kwargs) -> T | D:
            key = check_key(key_of if isinstance(key_of, str) else key_of(args, kwargs))
            check = check_of(args, kwargs) if callable(check_of) else check_of
            outcome: Outcome[T | D] = await self._run(key, check, plan.key, function, call_with_lease, args, kwargs)
            return outcome.value

        show_signature(once_function, visible_signature)
        return once_function

    async def _run(  # noqa: PLR0917
        self,
        key: str,
        check: str | None,
        group: str,
        function: Callable[..., Coroutine[Any, Any, Any]],
        call_with_lease: WithLease[Coroutine[Any, Any, Any]] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Outcome[Any]:
        client = self._client()
        call = OnceCall(client._engine, self._plan, key, check, group)
        await call.look()
        if call.outcome is not None:
            return call.outcome
        lock, lease = AsyncLock(client, call.spec, self._plan.timeout), None
        try:
            async with lock as lease:
                try:
                    await _to_the_end(call.start(lease))
                except asyncio.CancelledError:
                    await _to_the_end(call.withdraw())  # the body was not started
                    raise
                if call.outcome is None:
                    try:
                        value = await (
                            function(*args, **kwargs)
                            if call_with_lease is None
                            else call_with_lease(lease, args, kwargs)
                        )
                    except BaseException as error:
                        await _to_the_end(call.body_raised(lease, error))
                        raise
                    await _to_the_end(call.complete(lease, value))
        except AcquireTimeout as error:
            if lease is not None:  # the body raised it
                raise
            return call.busy(error)
        except LockLost:
            if call.outcome is None:  # otherwise the record has decided the outcome, and the loss does not matter
                raise
        return cast("Outcome[Any]", call.outcome)


async def _to_the_end(step: Coroutine[Any, Any, T]) -> T:
    """Run a step in a task of its own, so that a cancellation of the caller is raised only after its end.

    A loss of the lease cancels the caller too. A step takes no longer than the ttl, and usually milliseconds.
    """
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()

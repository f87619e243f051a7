"""`once` for threads. `aio/once.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from holdfast.core.decorators import WithLease, check_function, refuse_coroutine, show_signature, text_for, with_lease
from holdfast.core.once import BaseOnce, OnceCall, OnceInfo, Outcome, check_key, inspect_once
from holdfast.errors import AcquireTimeout, LockLost
from holdfast.runtimes.threads import run_sync
from holdfast.threads.locks import Lock

if TYPE_CHECKING:
    from holdfast.threads.client import Client

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


class Once(BaseOnce, Generic[D]):
    """A key: of all calls with it, one runs. Use `run`, or the object as a decorator."""

    _client: Callable[[], Client]

    def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | D]:
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
        check_function(function, self._plan.lease, is_async=False, decorator="once")
        call_with_lease = None if self._plan.lease is None else with_lease(function, self._plan.lease)
        return self._run(self._plan.key, self._plan.check, "", function, call_with_lease, args, kwargs)

    def inspect(self) -> OnceInfo | None:
        """The record of this key, according to the server; None if there is none."""
        return run_sync(inspect_once(self._client()._engine, self._plan.key))

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | D]:
        """Decorate the function: each call is a `run` with the key that its arguments make, and returns its value.

        Raises:
            ConfigurationError: a field or the kind of function is refused.
        """
        plan = self._plan
        _, visible_signature = check_function(function, plan.lease, is_async=False, decorator="once")
        call_with_lease = None if plan.lease is None else with_lease(function, plan.lease)
        key_of = text_for(plan.key, function, visible_signature, "key")
        check_of = None if plan.check is None else text_for(plan.check, function, visible_signature, "check")

        @functools.wraps(function)
        def once_function(*args: P.args, **kwargs: P.kwargs) -> T | D:
            key = check_key(key_of if isinstance(key_of, str) else key_of(args, kwargs))
            check = check_of(args, kwargs) if callable(check_of) else check_of
            outcome: Outcome[T | D] = self._run(key, check, plan.key, function, call_with_lease, args, kwargs)
            return outcome.value

        show_signature(once_function, visible_signature)
        return once_function

    def _run(  # noqa: PLR0917
        self,
        key: str,
        check: str | None,
        group: str,
        function: Callable[..., Any],
        call_with_lease: WithLease[Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Outcome[Any]:
        client = self._client()
        call = OnceCall(client._engine, self._plan, key, check, group)
        run_sync(call.look())
        if call.outcome is not None:
            return call.outcome
        lock, lease = Lock(client, call.spec, self._plan.timeout), None
        try:
            with lock as lease:
                run_sync(call.start(lease))
                if call.outcome is None:
                    try:
                        value = (
                            function(*args, **kwargs)
                            if call_with_lease is None
                            else call_with_lease(lease, args, kwargs)
                        )
                        if isinstance(value, CoroutineType):  # of a function that is no coroutine function
                            value.close()
                            refuse_coroutine(function, "once")
                    except BaseException as error:
                        run_sync(call.body_raised(lease, error))
                        raise
                    run_sync(call.complete(lease, value))
        except AcquireTimeout as error:
            if lease is not None:  # the body raised it
                raise
            return call.busy(error)
        except LockLost:
            if call.outcome is None:  # otherwise the record has decided the outcome, and the loss does not matter
                raise
        except BaseException:
            # A KeyboardInterrupt just before the first instruction of __exit__. No other code can release the lease.
            if lease is not None:
                lease._engine.interrupted_exit(lease)
            raise
        return cast("Outcome[Any]", call.outcome)

"""Observers of the requests to a store, for metrics. A client without observers has no code of this module in its path.

The engine replaces its backend with an ObservedBackend while there are observers. The methods of the backend itself
stay as they are, because several verbs call others, and such a call is no request of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.core.ports import Backend

# The operation, the seconds it took, and the name of its error's type or "". Called on any thread, also of the keeper,
# so it must not wait for anything.
RequestObserver = Callable[[str, float, str], object]

OPERATIONS = (
    "try_acquire",
    "try_acquire_all",
    "release",
    "renew",
    "inspect",
    "locks",
    "break_lock",
    "advance_register",
    "read_registers",
    # Of optional ports, which only some backends have:
    "swap_record",
    "adopt",
    "extend_turn",
    "renew_alone",
    "release_and_queue",
    "break_range",
)
_OTHERS = (
    "wait",
    "intact",
    "close",
    "abandon",
    # Of optional ports:
    "hands_over_locally",
    "listing",
    "release_later",
    "on_gone",
    "without_loop",
)


class ObservedBackend:
    """A backend that reports each request. Of the methods of the ports, it has those that the inner backend has."""

    def __init__(self, inner: Backend, observers: Mapping[object, RequestObserver], now: Callable[[], float]) -> None:
        self.inner = inner

        def timed(operation: str) -> Callable[..., Any]:
            method = getattr(inner, operation)

            async def request(*arguments: Any, **options: Any) -> Any:
                started, error = now(), ""
                try:
                    answer = await method(*arguments, **options)
                    if operation in ("release", "renew"):  # the error of one server of several is a result
                        error = next((type(each).__name__ for each in answer if isinstance(each, BackendError)), "")
                    return answer
                except BaseException as raised:
                    error = type(raised).__name__
                    raise
                finally:
                    seconds = now() - started
                    for observer in list(observers.values()):
                        observer(operation, seconds, error)

            return request

        for operation in OPERATIONS:
            if hasattr(inner, operation):
                setattr(self, operation, timed(operation))
        for name in _OTHERS:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))

    url = property(attrgetter("inner.url"))
    guarantees = property(attrgetter("inner.guarantees"))
    lacks = property(attrgetter("inner.lacks"))
    warnings = property(attrgetter("inner.warnings"))
    liveness_fds = property(attrgetter("inner.liveness_fds"))

"""What happens to leases, told to whoever subscribes: logging, metrics, tests.

Subscribers are called in order, one event after the other. `waiting`, `acquired` and `released` are delivered on the
caller's own thread or task before its call returns, unless earlier events still wait. The keeper's events (`renewed`,
`revoke requested`, `lost`) are delivered by a thread of their own, in asyncio by the loop: a slow subscriber delays the
events behind it, and no lease. One that raises is logged and does not disturb the lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

Kind = Literal["waiting", "acquired", "renewed", "revoke requested", "lost", "released"]


class Event(NamedTuple):
    """One thing that happened to one lease (or, for `waiting`, to one attempt)."""

    kind: Kind
    lock: str
    fence: int | None = None
    seconds: float | None = None  # acquired: waited; released, lost: held; renewed: time left before it
    reason: str | None = None  # lost: why


Subscriber = Callable[[Event], object]


class Events:
    """The subscribers of one client."""

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()  # without any, nobody need make an event

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call it with every event from now on; the returned function ends that."""
        self.subscribers = (*self.subscribers, subscriber)

        def unsubscribe() -> None:
            self.subscribers = tuple(one for one in self.subscribers if one is not subscriber)

        return unsubscribe

    def emit(self, event: Event, runtime: Runtime, *, here: bool) -> None:
        """Have it delivered; `here` as in `Runtime.notify`."""
        if self.subscribers:
            runtime.notify(lambda: self._deliver(event), here=here)

    def _deliver(self, event: Event) -> None:
        for subscriber in self.subscribers:
            try:
                subscriber(event)
            except Exception:
                logger().exception("an event subscriber failed on %r", event)


def log_events(event: Event) -> None:
    """A subscriber that writes every event to the logger `holdfast`: losses as warnings, the rest as debug."""
    log = logger()
    write = log.warning if event.kind == "lost" else log.debug
    write(
        "%s lock=%r fence=%s seconds=%s%s",
        event.kind,
        event.lock,
        event.fence,
        None if event.seconds is None else round(event.seconds, 6),
        f" reason={event.reason!r}" if event.reason else "",
    )


class Logger:
    """The logger `holdfast`, for our own modules. Its handlers are called later, in order, and so delay no lease."""

    def __init__(self) -> None:
        self.post: Callable[[Callable[[], object]], object] = lambda call: call()  # until a runtime has a better way

    def debug(self, message: str, *arguments: object) -> None:
        self._write(10, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        self._write(20, message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self._write(30, message, arguments)

    def exception(self, message: str, *arguments: object) -> None:
        """As an error, with the exception that is being handled."""
        self._write(40, message, arguments, sys.exc_info())

    def _write(self, level: int, message: str, arguments: tuple[object, ...], error: Any = None) -> None:
        import logging  # when first needed: `import holdfast` stays light

        log = logging.getLogger("holdfast")
        if log.isEnabledFor(level):
            frame = sys._getframe(2)
            code = frame.f_code
            # Made here, so that it has the time, the thread and the place where it happened.
            record = log.makeRecord(
                log.name, level, code.co_filename, frame.f_lineno, message, arguments, error, code.co_name
            )
            self.post(lambda: log.handle(record))


_log = Logger()


def logger() -> Logger:
    """How this package logs."""
    return _log

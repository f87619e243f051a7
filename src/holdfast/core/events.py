"""Events of leases, for subscribers: logging, metrics, tests.

Subscribers are called in order, one event after the other. `waiting`, `acquired` and `released` are delivered on the
caller's own thread or task before its call returns, unless earlier events are still queued. The keeper's events
(`renewed`, `revoke requested`, `lost`) are delivered by a thread of their own, in asyncio by the loop: a slow
subscriber delays later events, and no lease. An exception of a subscriber is logged and does not affect the lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

Kind = Literal["waiting", "acquired", "renewed", "revoke requested", "lost", "released"]


class Event(NamedTuple):
    """An event of one lease; `waiting` is an event of one attempt."""

    kind: Kind
    lock: str
    fence: int | None = None
    seconds: float | None = None  # acquired: time waited; released, lost: time held; renewed: time that was left
    reason: str | None = None  # of `lost`; the holder for `waiting`


Subscriber = Callable[[Event], object]


class Events:
    """The subscribers of one client."""

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()  # if empty, callers need not create events

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on. The returned function ends the subscription."""
        self.subscribers = (*self.subscribers, subscriber)

        def unsubscribe() -> None:
            self.subscribers = tuple(other for other in self.subscribers if other is not subscriber)

        return unsubscribe

    def emit(self, event: Event, runtime: Runtime, *, here: bool) -> None:
        """Deliver an event; `here` as in `Runtime.notify`."""
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
    """The logger `holdfast`. Its handlers are called later, in order, so that they delay no lease."""

    def __init__(self) -> None:
        self.post: Callable[[Callable[[], object]], object] = lambda call: call()  # replaced by runtimes/threads.py

    def debug(self, message: str, *arguments: object) -> None:
        self._write(10, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        self._write(20, message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self._write(30, message, arguments)

    def exception(self, message: str, *arguments: object) -> None:
        """Log an error with the exception that is being handled."""
        self._write(40, message, arguments, sys.exc_info())

    def _write(self, level: int, message: str, arguments: tuple[object, ...], error: Any = None) -> None:
        import logging  # imported at the first use, so that `import holdfast` stays fast

        log = logging.getLogger("holdfast")
        if log.isEnabledFor(level):
            frame = sys._getframe(2)
            code = frame.f_code
            # Created here, so that it has the time, the thread and the source line of the event.
            record = log.makeRecord(
                log.name, level, code.co_filename, frame.f_lineno, message, arguments, error, code.co_name
            )
            self.post(lambda: log.handle(record))


_log = Logger()


def logger() -> Logger:
    """The logger of this package."""
    return _log

"""Events of attempts and leases, for subscribers: metrics, traces, logging, tests.

An *attempt* is one request of one caller for one lock. Its events, in this order:

    acquiring                     the attempt begins
    queued                        the lock is busy; `reason` is its holder; at most once
    acquired | not acquired       exactly one of them
    started                       only of `once`: its body begins; at most once
    renewed, renewal failed, revoke requested
    lost | released               exactly one of them, after `acquired`

`outcome` says why: see OUTCOMES. An attempt ends in the process in which it began; a forked child gets no events of its
parent's attempts. A subscriber that begins later also gets the events of leases that were acquired before.
`lock_all` has one attempt for each of its locks, which begins when the store has answered or the wait for that lock
begins. A re-entry has no events. `skipped` is an event of a call of a decorated function or of `once` that did not run.

Subscribers are called in order, one event after the other. The events of a call (`acquiring`, `queued`, `acquired`,
`not acquired`, `started`, `released`) are delivered on the caller's own thread or task before the call returns, unless
earlier events are still queued. The keeper's events (`renewed`, `renewal failed`, `revoke requested`, `lost`) are
delivered by a thread of their own, in asyncio by the loop: a slow subscriber delays later events, and no lease. An
exception of a subscriber is logged and does not affect the lock.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.core.names import GROUP_MAX
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, ThreadStartError, UsageError

if TYPE_CHECKING:
    from holdfast.core.leases import LockSpec
    from holdfast.core.ports import Runtime
    from holdfast.core.requests import RequestObserver

Kind = Literal[
    "acquiring",
    "queued",
    "acquired",
    "not acquired",
    "started",
    "renewed",
    "renewal failed",
    "revoke requested",
    "lost",
    "released",
    "skipped",
]
OUTCOMES = {
    "not acquired": (
        "busy",  # with timeout=0
        "timeout",
        "cancelled",  # the task, or the election was stopped
        "interrupted",  # KeyboardInterrupt and the like
        "unavailable",  # the store did not answer, so nothing has changed
        "unknown",  # the store did not answer, and may have granted it: the release is pending
        "refused",  # an argument, a limit or a guarantee is refused, or the caller would wait for itself
        "closed",  # the client was closed
    ),
    "lost": (
        "expired",  # not renewed in time
        "gone",  # the store does not know the lease any more: it ran out there, was broken, or the store was replaced
        "max_hold",
        "together",  # with another lock of the same lock_all
    ),
    "released": (
        "released",
        "unanswered",  # the server did not answer: the keeper repeats the release
        "transferred",  # another process can adopt it
        "closed",  # by close(), or at the end of the process
        "undone",  # the call that acquired it failed after that
        "dropped",  # no variable refers to the lease any more: it is left to expire
    ),
    "skipped": (
        "busy",  # another call runs
        "done",  # this period, or this key, has had its run
        "interrupted",  # of `once`: the run of this key died or lost its lease
        "failed",  # of `once`: it failed, or its result was not recorded
        "mismatch",  # of `once`: it had another `check`
    ),
}
GROUPS_MAX = 100
OTHER_GROUPS = "_other"

_attempts = itertools.count(1)


class Event(NamedTuple):
    """An event of one attempt, or of its lease."""

    kind: Kind
    lock: str
    fence: int | None = None
    seconds: float | None = None  # acquired, not acquired: since `acquiring`; released, lost: held; renewals: left
    reason: str | None = None  # for people; the holder for `queued`
    attempt: int = 0  # unique in this process
    primitive: str = ""  # lock, rwlock.read, rwlock.write, semaphore, lock_all, election, locked, once_per or once
    group: str = ""  # the lock's `group`, for labels: there are at most 101 in a client
    outcome: str = ""  # of `not acquired`, `lost`, `released` and `skipped`; the type of the error for `renewal failed`
    ttl: float | None = None


Subscriber = Callable[[Event], object]


class Attempt:
    """The state of the events of one attempt. Exists only while there are subscribers.

    Several threads may deliver events of one attempt. Only operations that are atomic without a mutex are used, because
    a fork may leave a mutex locked.
    """

    __slots__ = ("_early", "_ends", "fence", "fields", "started")

    def __init__(self, fields: Event, started: float, fence: int | None = None) -> None:
        self.fields = fields  # what all its events have in common
        self.started = started
        self.fence = fence  # None: `acquired` was not delivered
        self._early: list[Event] = []  # lost or released before `acquired` was delivered
        self._ends = [True]  # empty when the last event was delivered

    def event(
        self,
        kind: Kind,
        fence: int | None = None,
        seconds: float | None = None,
        reason: str | None = None,
        outcome: str = "",
    ) -> Event:
        """An event of this attempt, to be delivered."""
        _, lock, _, _, _, attempt, primitive, group, _, ttl = self.fields
        return Event(kind, lock, fence, seconds, reason, attempt, primitive, group, outcome, ttl)

    def next_events(self, event: Event) -> list[Event]:
        """The events to deliver now, so that each attempt and each lease ends once, after its beginning."""
        if event.kind == "acquired":
            self.fence = event.fence
            return [event, *self._take_early()]
        if event.kind == "not acquired" and self.fence is not None:  # interrupted after `acquired` was delivered
            event = event._replace(kind="released", fence=self.fence, seconds=0.0, outcome="undone")
        elif event.outcome == "undone" and self.fence is None:  # interrupted before that
            event = event._replace(kind="not acquired", fence=None, outcome="interrupted")
        if event.kind in ("lost", "released"):
            self._early.append(event)
            return [] if self.fence is None else self._take_early()
        if event.kind == "not acquired":
            return [event] if self._end() else []
        return [event]

    def _take_early(self) -> list[Event]:
        try:
            event = self._early.pop()
        except IndexError:
            return []
        return [event] if self._end() else []

    def _end(self) -> bool:
        """Whether the attempt had not ended before."""
        try:
            return self._ends.pop()
        except IndexError:
            return False


class Events:
    """The subscribers of one client.

    Threads add and remove functions without a mutex: each such operation on a dict is atomic.
    """

    def __init__(self) -> None:
        self.subscribers: dict[object, Subscriber] = {}  # by subscription; if empty, callers need not create events
        self.trace: Callable[[], str] | None = None  # returns the `traceparent` of the caller, for its tickets
        self.observers: dict[object, RequestObserver] = {}  # if empty, the engine uses its backend directly
        self._groups: set[str] = set()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on. The returned function ends the subscription."""
        subscription = object()
        self.subscribers[subscription] = subscriber

        def unsubscribe() -> None:
            self.subscribers.pop(subscription, None)

        return unsubscribe

    def new_attempt(self, spec: LockSpec, started: float, fence: int | None = None) -> Attempt:
        """An attempt; with a fence, one whose lease was acquired before anyone subscribed."""
        fields = Event(
            "acquiring",
            spec.name,
            attempt=next(_attempts),
            primitive=spec.primitive,
            group=self.group_of(spec),
            ttl=spec.ttl,
        )
        return Attempt(fields, started, fence)

    def emit(self, attempt: Attempt, event: Event, runtime: Runtime, *, here: bool) -> None:
        """Deliver an event; `here` as in `Runtime.notify`."""
        if self.subscribers:
            runtime.notify(lambda: self._deliver(attempt, event), here=here)

    def group_of(self, spec: LockSpec) -> str:
        """The group of a lock: the given one, else its name without numbers; `_other` if there are too many."""
        group = (spec.group or pattern_of(spec.name))[:GROUP_MAX]
        if group not in self._groups:
            if len(self._groups) >= GROUPS_MAX:
                return OTHER_GROUPS
            self._groups.add(group)
        return group

    def _deliver(self, attempt: Attempt, event: Event) -> None:
        for each in attempt.next_events(event):
            for subscriber in list(self.subscribers.values()):
                try:
                    subscriber(each)
                except Exception:
                    logger().exception("an event subscriber failed on %r", each)


_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_HEX = r"(?<![0-9A-Za-z])(?:(?=[a-fA-F]*[0-9])[0-9a-fA-F]{4,}|[a-fA-F]{8,})(?![0-9A-Za-z])"
_VARIABLE = re.compile(rf"{_UUID}|{_HEX}|[0-9]+")


@functools.lru_cache(maxsize=1000)
def pattern_of(name: str) -> str:
    """The name with UUIDs, hexadecimal words and numbers replaced by `*`.

    >>> pattern_of("order:4711"), pattern_of("user:9f86d081884c/cache2"), pattern_of("facade")
    ('order:*', 'user:*/cache*', 'facade')
    """
    return _VARIABLE.sub("*", name)


# The first row that names a class of the error applies.
_OUTCOMES_OF_ERRORS: tuple[tuple[str, tuple[type[BaseException], ...]], ...] = (
    ("unavailable", (BackendUnavailable, ThreadStartError)),
    ("unknown", (BackendError,)),
    ("closed", (UsageError,)),
    ("refused", (HoldfastError,)),
    ("interrupted", (Exception, KeyboardInterrupt, SystemExit)),
    ("cancelled", (BaseException,)),  # asyncio.CancelledError, GeneratorExit, and the like of gevent
)


def outcome_of(error: BaseException) -> str:
    """The outcome of an attempt that ended with this error."""
    return next(outcome for outcome, classes in _OUTCOMES_OF_ERRORS if isinstance(error, classes))


def log_events(event: Event) -> None:
    """A subscriber that writes every event to the logger `holdfast`: losses as warnings, the rest as debug."""
    log = logger()
    write = log.warning if event.kind == "lost" else log.debug
    write(
        "%s lock=%r fence=%s seconds=%s attempt=%d%s%s",
        event.kind,
        event.lock,
        event.fence,
        None if event.seconds is None else round(event.seconds, 6),
        event.attempt,
        f" outcome={event.outcome}" if event.outcome else "",
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

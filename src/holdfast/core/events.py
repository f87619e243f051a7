"""What happens to leases, told to whoever subscribes: logging, metrics, tests.

Subscribers are called on the thread or task where it happens and should return at once. One that raises is logged and
does not disturb the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import logging

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

    def emit(self, event: Event) -> None:
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


def logger() -> logging.Logger:
    """`logging.getLogger("holdfast")`, imported when first needed: `import holdfast` stays light."""
    import logging

    return logging.getLogger("holdfast")

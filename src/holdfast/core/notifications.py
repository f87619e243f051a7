"""Waiting for hints: which tickets listen where, and whether a hint can have been missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from holdfast.core.events import logger
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.ports import Event, Runtime

C = TypeVar("C")  # where hints are heard, in the backend's own words
C_contra = TypeVar("C_contra", contravariant=True)

UNSUBSCRIBED_POLL = 0.25  # seconds between looks while hints cannot be heard


class SubscriberPort(Protocol[C_contra]):
    """The part of a port that listens."""

    def subscription(self, channel: C_contra) -> int:
        """0 while it is not heard; else a number that is another one after every gap."""

    async def subscribe(self, channel: C_contra, nonce: str, *, deadline: float) -> Event | None:
        """Hear this channel, for this ticket too; returns when the server has confirmed it, or at the deadline.

        What it returns is a new event to wait on for a hint, if it has a better one than the runtime.
        """

    def unsubscribe(self, channel: C_contra, nonce: str) -> None:
        """This ticket does not wait any more; a channel nobody waits for is let go after a while."""

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        """Where hints go; `missed` is called after a gap in which there may have been some.

        A hint is a ticket's nonce; after a space there may be more, which is for the ticket.
        """


class Notifications(Generic[C]):
    """The waiting tickets of one client."""

    def __init__(self, subscriber: SubscriberPort[C], runtime: Runtime, url: str) -> None:
        self._subscriber = subscriber
        self._runtime = runtime
        self._url = url
        self._wakeups = Wakeups(runtime)
        self._subscriptions: dict[str, int] = {}  # which subscription was there before each ticket's last look
        self._subscribed: dict[str, C] = {}  # tickets for which somebody listens, and where
        self._is_polling = False  # said so already
        subscriber.listen(self._notify, self._wakeups.wake_all)

    def expect(self, nonce: str, channel: C) -> None:
        """The ticket asks the server now: hints that come from here on are kept, if they can be heard at all."""
        subscription = self._subscriber.subscription(channel)
        if subscription:
            self._wakeups.expect(nonce)
            self._subscriptions[nonce] = subscription

    async def wait(self, nonce: str, channel: C, until: float) -> str:
        """Until it is worth to look again, which is at once if a hint may have been sent before we listened.

        What it returns is what the hint said beside the nonce, if there was one that did.
        """
        self._subscribed[nonce] = channel
        event: Event | None = None
        try:
            event = await self._subscriber.subscribe(channel, nonce, deadline=until)
        except BackendError as error:
            if not self._is_polling:
                logger().warning("cannot listen on %s, so waiters have to poll: %s", self._url, error)
            self._is_polling = True
        subscription = self._subscriber.subscription(channel)
        if not subscription:
            await self._runtime.sleep(max(0.0, min(UNSUBSCRIBED_POLL, until - self._runtime.now())))
        elif subscription == self._subscriptions.get(nonce):
            self._is_polling = False
            return await self._wakeups.wait(nonce, until, event)
        return ""

    def refused(self, nonce: str) -> None:
        """The server has done nothing for this ticket. Unless it waits, the engine may never mention it again."""
        if nonce not in self._subscribed:
            self.stop(nonce)

    def stop(self, nonce: str) -> None:
        """The ticket is in, or has gone."""
        if self._subscriptions and self._subscriptions.pop(nonce, 0):
            self._wakeups.forget(nonce)
        if self._subscribed and (channel := self._subscribed.pop(nonce, None)) is not None:
            self._subscriber.unsubscribe(channel, nonce)

    def wake(self, nonce: str) -> None:
        """Have this ticket poll now, if it waits."""
        self._wakeups.wake(nonce)

    def wake_all(self) -> None:
        self._wakeups.wake_all()

    def _notify(self, said: str) -> None:
        nonce, _, payload = said.partition(" ")
        self._wakeups.wake(nonce, payload)

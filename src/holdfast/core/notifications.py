"""Notifications for waiting tickets: which tickets are subscribed to which channel, and whether one may be missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from holdfast.core.events import logger
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.ports import Event, Runtime

C = TypeVar("C")  # the channel, in the backend's own form
C_contra = TypeVar("C_contra", contravariant=True)

UNSUBSCRIBED_POLL = 0.25  # seconds between polls while there is no subscription


class SubscriberPort(Protocol[C_contra]):
    """The part of a port that receives notifications."""

    def subscription(self, channel: C_contra) -> int:
        """The number of the present subscription, which changes after every gap; 0 if there is none."""

    async def subscribe(self, channel: C_contra, nonce: str, *, deadline: float) -> Event | None:
        """Subscribe this ticket to the channel; return when the server has confirmed it, or at the deadline.

        Returns a new event to wait on, if the port has a better one than the runtime.
        """

    def unsubscribe(self, channel: C_contra, nonce: str) -> None:
        """This ticket does not wait any more. A channel without waiting tickets is unsubscribed after a while."""

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        """Set the receivers: `wake` of each notification, `missed` after a gap that may have swallowed some.

        A notification is the nonce of a ticket, optionally followed by a space and a payload for that ticket.
        """


class Notifications(Generic[C]):
    """The waiting tickets of one client."""

    def __init__(self, subscriber: SubscriberPort[C], runtime: Runtime, url: str) -> None:
        self._subscriber = subscriber
        self._runtime = runtime
        self._url = url
        self._wakeups = Wakeups(runtime)
        self._subscriptions: dict[str, int] = {}  # by nonce: the subscription that existed before the last poll
        self._subscribed: dict[str, C] = {}  # by nonce: the channel
        self._is_polling = False  # logged already
        subscriber.listen(self._notify, self._wakeups.wake_all)

    def expect(self, nonce: str, channel: C) -> None:
        """Keep the notifications of a ticket that polls the server now, if there is a subscription."""
        subscription = self._subscriber.subscription(channel)
        if subscription:
            self._wakeups.expect(nonce)
            self._subscriptions[nonce] = subscription

    async def wait(self, nonce: str, channel: C, until: float) -> str:
        """Wait for a notification and return its payload; "" without one.

        Returns at once if a notification may have been sent before the subscription.
        """
        self._subscribed[nonce] = channel
        event: Event | None = None
        try:
            event = await self._subscriber.subscribe(channel, nonce, deadline=until)
        except BackendError as error:
            if not self._is_polling:
                logger().warning("cannot subscribe on %s, so waiters have to poll: %s", self._url, error)
            self._is_polling = True
        subscription = self._subscriber.subscription(channel)
        if not subscription:
            await self._runtime.sleep(max(0.0, min(UNSUBSCRIBED_POLL, until - self._runtime.now())))
        elif subscription == self._subscriptions.get(nonce):
            self._is_polling = False
            return await self._wakeups.wait(nonce, until, event)
        return ""

    def refused(self, nonce: str) -> None:
        """The server has done nothing for this ticket. The engine may not use it again, unless it waits."""
        if nonce not in self._subscribed:
            self.stop(nonce)

    def stop(self, nonce: str) -> None:
        """The ticket is granted or released."""
        if self._subscriptions and self._subscriptions.pop(nonce, 0):
            self._wakeups.forget(nonce)
        if self._subscribed and (channel := self._subscribed.pop(nonce, None)) is not None:
            self._subscriber.unsubscribe(channel, nonce)

    def wake(self, nonce: str) -> None:
        """Let this ticket poll now, if it waits."""
        self._wakeups.wake(nonce)

    def wake_all(self) -> None:
        self._wakeups.wake_all()

    def _notify(self, notification: str) -> None:
        nonce, _, payload = notification.partition(" ")
        self._wakeups.wake(nonce, payload)

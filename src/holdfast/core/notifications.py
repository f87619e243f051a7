"""Notifications for waiting tickets, and the subscriptions to them.

A notification can arrive at any time after the request that queued the ticket was sent. So it is expected from before
that request and kept until the claim waits: none is lost between the poll and the wait. An event is created only for a
claim that really waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from holdfast.core.events import logger
from holdfast.core.tickets import Notification
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.core.ports import Event, Runtime
    from holdfast.core.tickets import Claim

C = TypeVar("C")  # the channel, in the backend's own form
C_contra = TypeVar("C_contra", contravariant=True)

UNSUBSCRIBED_POLL = 0.25  # seconds between polls while there is no subscription


class Wakeups:
    """The claims of one client that may be notified, by nonce."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._expected: dict[str, Claim] = {}

    def expect(self, claim: Claim) -> bool:
        """Keep the notifications of this claim from now on. Returns whether they were kept before."""
        if claim.nonce in self._expected:
            return True
        self._expected[claim.nonce] = claim
        return False

    def forget(self, claim: Claim) -> bool:
        """End the wait of this claim, which is granted or released. Returns whether it was expected."""
        if claim.nonce not in self._expected:
            return False
        with self._mutex:
            self._expected.pop(claim.nonce, None)
            event, claim.event, claim.notification = claim.event, None, None
        if event is not None:
            event.set()
        return True

    def wake(self, notification: Notification) -> None:
        """Deliver a notification. Nothing happens if its claim is not expected."""
        with self._mutex:
            claim = self._expected.get(notification.nonce)
            if claim is None:
                return
            if notification.fence or claim.notification is None:
                claim.notification = notification
            event = claim.event
        if event is not None:
            event.set()

    def expected(self) -> list[Claim]:
        """The claims that may be notified."""
        return list(self._expected.values())

    def wake_all(self) -> None:
        """Notifications may have been missed, so all claims poll."""
        for claim in self.expected():
            self.wake(Notification(claim.nonce))

    async def wait(self, claim: Claim, until: float, event: Event | None = None) -> Notification | None:
        """Wait for a notification, or until then; None without one. An earlier notification counts.

        Returns an empty notification at once if the claim is not expected any more. `event` is the one to wait on;
        without it the runtime makes one.
        """
        with self._mutex:
            if claim.nonce not in self._expected or claim.notification is not None:
                return self._take(claim)
            event = claim.event = event or self._runtime.event()
        try:
            await event.wait(until)
        finally:
            # Notifications that arrived before this point are used up: the claim polls after this.
            with self._mutex:
                claim.event = None
                notification = self._take(claim)
        return notification

    def _take(self, claim: Claim) -> Notification | None:
        notification, claim.notification = claim.notification, None
        if notification is None and claim.nonce not in self._expected:
            return Notification(claim.nonce)
        return notification


class SubscriberPort(Protocol[C_contra]):
    """The part of a port that subscribes to channels, and delivers their notifications to its `wakeups`."""

    wakeups: Wakeups  # after a gap that may have lost notifications, the port calls `wake_all`

    def subscription(self, channel: C_contra) -> int:
        """The number of the present subscription, which changes after every gap; 0 if there is none."""

    async def subscribe(self, channel: C_contra, nonce: str, *, deadline: float) -> Event | None:
        """Subscribe this ticket to the channel; return when the server has confirmed it, or at the deadline.

        Returns a new event to wait on, if the port has a better one than the runtime.
        """

    def unsubscribe(self, channel: C_contra, nonce: str) -> None:
        """This ticket does not wait any more. A channel without waiting tickets is unsubscribed after a while."""


class Notifications(Generic[C]):
    """The waiting claims of one client, on a store where a client has to subscribe to notifications."""

    def __init__(self, subscriber: SubscriberPort[C], runtime: Runtime, url: str) -> None:
        self._subscriber = subscriber
        self._wakeups = subscriber.wakeups
        self._runtime = runtime
        self._url = url
        self._is_polling = False  # logged already

    def expect(self, claim: Claim, channel: C) -> None:
        """Keep the notifications of a claim that polls the server now, if there is a subscription."""
        subscription = self._subscriber.subscription(channel)
        if subscription:
            self._wakeups.expect(claim)
            claim.subscription = subscription

    async def wait(self, claim: Claim, channel: C, until: float) -> Notification | None:
        """Wait for a notification. Returns at once if one may have been sent before the subscription."""
        if claim.channel is not None and claim.channel != channel:
            self._subscriber.unsubscribe(claim.channel, claim.nonce)
        claim.channel = channel
        event: Event | None = None
        try:
            event = await self._subscriber.subscribe(channel, claim.nonce, deadline=until)
        except BackendError as error:
            if not self._is_polling:
                logger().warning("cannot subscribe on %s, so waiters have to poll: %s", self._url, error)
            self._is_polling = True
        subscription = self._subscriber.subscription(channel)
        if not subscription:
            await self._runtime.sleep(max(0.0, min(UNSUBSCRIBED_POLL, until - self._runtime.now())))
        elif subscription == claim.subscription:
            self._is_polling = False
            return await self._wakeups.wait(claim, until, event)
        return None

    def refused(self, claim: Claim) -> None:
        """The server has done nothing for this claim. The engine may not use it again, unless it waits."""
        if claim.channel is None:
            self.stop(claim)

    def stop(self, claim: Claim) -> None:
        """The claim is granted or released."""
        if claim.subscription:
            claim.subscription = 0
            self._wakeups.forget(claim)
        if claim.channel is not None:
            channel, claim.channel = claim.channel, None
            self._subscriber.unsubscribe(channel, claim.nonce)

    def wake(self, nonce: str) -> None:
        """Let this claim poll now, if it waits."""
        self._wakeups.wake(Notification(nonce))

    def wake_all(self) -> None:
        self._wakeups.wake_all()

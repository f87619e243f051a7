"""Wakeups that record the notifications of a port."""

from __future__ import annotations

from holdfast.core.notifications import Wakeups
from holdfast.core.ports import Runtime
from holdfast.core.tickets import Claim, Notification


class RecordedWakeups(Wakeups):
    """Also records the nonce of each notification, and "missed" for a gap between notifications."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.received: list[str] = []

    def wake(self, notification: Notification) -> None:
        self.received.append(notification.nonce)
        super().wake(notification)

    def wake_all(self) -> None:
        self.received.append("missed")
        super().wake_all()


def claim_of(nonce: str) -> Claim:
    return Claim("a", nonce, 30.0, 1, exclusive=True, agent="test", info="{}")

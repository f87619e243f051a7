"""Wake-ups of waiting tickets by notifications.

A notification can arrive at any time after the request that queued the ticket was sent. So it is expected from before
that request and kept until the ticket waits: none is lost between the poll and the wait. An event is created only for a
ticket that really waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.ports import Event, Runtime


class Wakeups:
    """The tickets of one client that may be notified, by nonce."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._expected: dict[str, Event | None] = {}  # the event while the ticket waits
        self._notified: dict[str, str] = {}  # the payload of a notification that was not used yet

    def expect(self, nonce: str) -> bool:
        """Keep the notifications of this ticket from now on. Returns whether they were kept before."""
        if nonce in self._expected:
            return True
        self._expected[nonce] = None
        return False

    def forget(self, nonce: str) -> bool:
        """End the wait of this ticket, which is granted or released. Returns whether it was expected."""
        if nonce not in self._expected:
            return False
        with self._mutex:
            event = self._expected.pop(nonce, None)
            self._notified.pop(nonce, None)
        if event is not None:
            event.set()
        return True

    def wake(self, nonce: str, payload: str = "") -> None:
        """Pass on a notification and its payload. Nothing happens if the ticket is not expected."""
        with self._mutex:
            if nonce not in self._expected:
                return
            self._notified[nonce] = payload or self._notified.get(nonce, "")
            event = self._expected[nonce]
        if event is not None:
            event.set()

    def wake_all(self) -> None:
        """Notifications may have been missed, so all tickets poll."""
        for nonce in list(self._expected):
            self.wake(nonce)

    async def wait(self, nonce: str, until: float, event: Event | None = None) -> str:
        """Wait for a notification, or until then; return the payload. An earlier notification counts.

        `event` is the one to wait on; without it the runtime makes one.
        """
        return await self._wait(nonce, until, event) or ""

    async def notified(self, nonce: str, until: float) -> bool:
        """As `wait`; returns whether there was a notification, or the ticket is not expected any more."""
        return await self._wait(nonce, until, None) is not None

    async def _wait(self, nonce: str, until: float, event: Event | None) -> str | None:
        with self._mutex:
            if nonce not in self._expected or nonce in self._notified:
                return self._notified.pop(nonce, "")
            event = self._expected[nonce] = event or self._runtime.event()
        payload: str | None = None
        try:
            await event.wait(until)
        finally:
            # Notifications that arrived before this point are used up: the ticket polls after this.
            with self._mutex:
                payload = self._notified.pop(nonce, None)
                if nonce in self._expected:
                    self._expected[nonce] = None
                elif payload is None:
                    payload = ""
        return payload

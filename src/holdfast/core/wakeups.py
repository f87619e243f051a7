"""Hints for waiting tickets that it is worth to look again.

A hint can come at any time after the request that queued the ticket was sent, so it is expected from before then and
remembered until somebody waits: none falls between the look and the wait. An event is made only for who really waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.ports import Event, Runtime


class Wakeups:
    """The tickets of one client that may be hinted at, by nonce."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._expected: dict[str, Event | None] = {}  # the event while somebody waits
        self._notified: dict[str, str] = {}  # and what the hint said, if anything

    def expect(self, nonce: str) -> bool:
        """From now on its hints are kept. Whether they were before."""
        if nonce in self._expected:
            return True
        self._expected[nonce] = None
        return False

    def forget(self, nonce: str) -> bool:
        """The ticket has gone, or is in: if somebody still waits for it, the wait is over. Whether it was expected."""
        if nonce not in self._expected:
            return False
        with self._mutex:
            event = self._expected.pop(nonce, None)
            self._notified.pop(nonce, None)
        if event is not None:
            event.set()
        return True

    def wake(self, nonce: str, payload: str = "") -> None:
        """Pass a hint on, and what it says; nothing happens when the ticket has gone."""
        with self._mutex:
            if nonce not in self._expected:
                return
            self._notified[nonce] = payload or self._notified.get(nonce, "")
            event = self._expected[nonce]
        if event is not None:
            event.set()

    def wake_all(self) -> None:
        """Whatever was to come may have been missed: everybody looks again."""
        for nonce in list(self._expected):
            self.wake(nonce)

    async def wait(self, nonce: str, until: float, event: Event | None = None) -> str:
        """Return at a hint (one that came earlier included), or at `until`; `event` is what to wait on, if not any.

        What it returns is what the hint said.
        """
        return await self._wait(nonce, until, event) or ""

    async def notified(self, nonce: str, until: float) -> bool:
        """The same; whether there was a hint, or the ticket is not expected any more."""
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
            # Hints up to here are used up: who waited looks again after this line.
            with self._mutex:
                payload = self._notified.pop(nonce, None)
                if nonce in self._expected:
                    self._expected[nonce] = None
                elif payload is None:
                    payload = ""
        return payload

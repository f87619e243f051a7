"""Hints for waiting tickets that it is worth to look again.

A hint can come at any time after the request that queued the ticket was sent, so it is expected from before then and
remembered until somebody waits: none falls between the look and the wait. An event is made only for who really waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.ports import Event, Runtime


class Wakeups:
    """Which tickets are expected to be hinted at, by nonce: None (quiet), True (hinted), or the event waited on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._expected: dict[str, Event | bool | None] = {}

    def expect(self, nonce: str) -> None:
        self._expected.setdefault(nonce)

    def forget(self, nonce: str) -> None:
        self._expected.pop(nonce, None)

    def wake(self, nonce: str) -> None:
        """Pass a hint on; nothing happens when the ticket has gone."""
        with self._mutex:
            waited_on = self._expected.get(nonce, False)
            if waited_on is None:
                self._expected[nonce] = True
            elif waited_on is not True and waited_on is not False:
                waited_on.set()

    def wake_all(self) -> None:
        """Whatever was to come may have been missed: everybody looks again."""
        for nonce in list(self._expected):
            self.wake(nonce)

    async def wait(self, nonce: str, until: float) -> None:
        """Return at a hint (one that came earlier included), or at `until`."""
        with self._mutex:
            if self._expected.get(nonce) is True:
                self._expected[nonce] = None
                return
            event = self._runtime.event()
            self._expected[nonce] = event
        try:
            await event.wait(until)
        finally:
            # A hint that came meanwhile is not lost: who waited looks again after this line.
            with self._mutex:
                if nonce in self._expected:
                    self._expected[nonce] = None

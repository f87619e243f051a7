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

DEAF_POLL = 0.25  # seconds between looks while hints cannot be heard


class Ear(Protocol[C_contra]):
    """The part of a port that listens."""

    def hearing(self, channel: C_contra) -> int:
        """0 while it is not heard; else a number that is another one after every gap."""

    async def attend(self, channel: C_contra, nonce: str, *, deadline: float) -> Event | None:
        """Hear this channel, for this ticket too; returns when the server has confirmed it, or at the deadline.

        What it returns is a new event to wait on for a hint, if it has a better one than the runtime.
        """

    def dismiss(self, channel: C_contra, nonce: str) -> None:
        """This ticket does not wait any more; a channel nobody waits for is let go after a while."""

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        """Where hints go; `missed` is called after a gap in which there may have been some.

        A hint is a ticket's nonce; after a space there may be more, which is for the ticket.
        """


class Hearing(Generic[C]):
    """The waiting tickets of one client."""

    def __init__(self, ear: Ear[C], runtime: Runtime, url: str) -> None:
        self._ear = ear
        self._runtime = runtime
        self._url = url
        self._wakeups = Wakeups(runtime)
        self._heard: dict[str, int] = {}  # which subscription was there before each ticket's last look
        self._attended: dict[str, C] = {}  # tickets for which somebody listens, and where
        self._is_deaf = False  # said so already
        ear.listen(self._hint, self._wakeups.wake_all)

    def look(self, nonce: str, channel: C) -> None:
        """The ticket asks the server now: hints that come from here on are kept, if they can be heard at all."""
        hearing = self._ear.hearing(channel)
        if hearing:
            self._wakeups.expect(nonce)
            self._heard[nonce] = hearing

    async def wait(self, nonce: str, channel: C, until: float) -> str:
        """Until it is worth to look again, which is at once if a hint may have been sent before we listened.

        What it returns is what the hint said beside the nonce, if there was one that did.
        """
        self._attended[nonce] = channel
        event: Event | None = None
        try:
            event = await self._ear.attend(channel, nonce, deadline=until)
        except BackendError as error:
            if not self._is_deaf:
                logger().warning("cannot listen on %s, so waiters have to poll: %s", self._url, error)
            self._is_deaf = True
        hearing = self._ear.hearing(channel)
        if not hearing:
            await self._runtime.sleep(max(0.0, min(DEAF_POLL, until - self._runtime.now())))
        elif hearing == self._heard.get(nonce):
            self._is_deaf = False
            return await self._wakeups.wait(nonce, until, event)
        return ""

    def refused(self, nonce: str) -> None:
        """The server has done nothing for this ticket. Unless it waits, the engine may never mention it again."""
        if nonce not in self._attended:
            self.stop(nonce)

    def stop(self, nonce: str) -> None:
        """The ticket is in, or has gone."""
        if self._heard and self._heard.pop(nonce, 0):
            self._wakeups.forget(nonce)
        if self._attended and (channel := self._attended.pop(nonce, None)) is not None:
            self._ear.dismiss(channel, nonce)

    def wake(self, nonce: str) -> None:
        """Have this ticket poll now, if it waits."""
        self._wakeups.wake(nonce)

    def wake_all(self) -> None:
        self._wakeups.wake_all()

    def _hint(self, said: str) -> None:
        nonce, _, news = said.partition(" ")
        self._wakeups.wake(nonce, news)

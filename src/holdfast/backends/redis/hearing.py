"""Waiting for hints: which tickets listen where, and whether a hint can have been missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.core.events import logger
from holdfast.core.wakeups import Wakeups
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.redis.port import Channel
    from holdfast.core.ports import Runtime

DEAF_POLL = 0.25  # seconds between looks while hints cannot be heard


class Ear(Protocol):
    """The part of a port that listens; RedisPort says what each does."""

    def hearing(self, channel: Channel) -> int: ...
    async def attend(self, channel: Channel, nonce: str, *, deadline: float) -> None: ...
    def dismiss(self, channel: Channel, nonce: str) -> None: ...
    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None: ...


class Hearing:
    """The waiting tickets of one client."""

    def __init__(self, ear: Ear, runtime: Runtime, url: str) -> None:
        self._ear = ear
        self._runtime = runtime
        self._url = url
        self._wakeups = Wakeups(runtime)
        self._heard: dict[str, int] = {}  # which subscription was there before each ticket's last look
        self._attended: dict[str, Channel] = {}  # tickets for which somebody listens, and where
        self._is_deaf = False  # said so already
        ear.listen(self._wakeups.wake, self._wakeups.wake_all)

    def look(self, nonce: str, channel: Channel) -> None:
        """The ticket asks the server now: hints that come from here on are kept, if they can be heard at all."""
        hearing = self._ear.hearing(channel)
        if hearing:
            self._wakeups.expect(nonce)
            self._heard[nonce] = hearing

    async def wait(self, nonce: str, channel: Channel, until: float) -> None:
        """Until it is worth to look again, which is at once if a hint may have been sent before we listened."""
        self._attended[nonce] = channel
        try:
            await self._ear.attend(channel, nonce, deadline=until)
        except BackendError as error:
            if not self._is_deaf:
                logger().warning("cannot listen on %s, so waiters have to poll: %s", self._url, error)
            self._is_deaf = True
        hearing = self._ear.hearing(channel)
        if not hearing:
            await self._runtime.sleep(max(0.0, min(DEAF_POLL, until - self._runtime.now())))
        elif hearing == self._heard.get(nonce):
            self._is_deaf = False
            await self._wakeups.wait(nonce, until)

    def stop(self, nonce: str) -> None:
        """The ticket is in, or has gone."""
        if self._heard and self._heard.pop(nonce, 0):
            self._wakeups.forget(nonce)
        if self._attended and (channel := self._attended.pop(nonce, None)) is not None:
            self._ear.dismiss(channel, nonce)

    def wake_all(self) -> None:
        self._wakeups.wake_all()

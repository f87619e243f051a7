"""What adapters with sockets of their own ask of threads or asyncio: to wait for these, and to work in the background.

blocking.py and aio.py beside this have both.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.backends.net.polling import READ, WRITE

if TYPE_CHECKING:
    from holdfast.backends.net.calls import BackgroundCall

__all__ = ["READ", "WRITE", "Background", "Poller"]


class Poller(Protocol):
    """How to wait, on threads or on asyncio."""

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        """The descriptors that are ready, of these with READ or WRITE or both; none at `until`."""

    async def finished(self, call: BackgroundCall[Any], until: float) -> bool:
        """Wait until a call on another thread is done (True) or `until` has passed (False)."""


class Background(Protocol):
    """Where a listener runs: a thread, or a task."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None: ...

    async def join(self) -> None:
        """Wait a moment for what was started and has been told to end."""

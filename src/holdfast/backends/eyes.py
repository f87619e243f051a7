"""What adapters with sockets of their own ask of threads or asyncio: to wait for these, and to work in the background.

blocking.py and aio.py beside this have both.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

READ, WRITE = select.POLLIN, select.POLLOUT  # as poll() has them


class Eyes(Protocol):
    """How to wait, on threads or on asyncio."""

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        """The descriptors that are ready, of these with READ or WRITE or both; none at `until`."""

    async def addresses(self, host: str, port: int, deadline: float) -> list[str]:
        """A host's addresses. Raises OSError."""


class Background(Protocol):
    """Where a listener runs: a thread, or a task."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None: ...

    async def join(self) -> None:
        """Wait a moment for what was started and has been told to end."""

"""What the adapters for threads share: waiting where they are asked to, and a thread to listen on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.net.polling import new_poll
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadEvent, Threads

if TYPE_CHECKING:
    from holdfast.backends.net.calls import BackgroundCall


class BlockingPoller:
    """Waits where it is asked to."""

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        left = max(0.0, until - system.now())
        return [descriptor for descriptor, _ in new_poll(*wanted).poll(left * 1000)]

    async def finished(self, call: BackgroundCall[Any], until: float) -> bool:
        event = ThreadEvent()
        call.when_done(event.set)
        return await event.wait(until)


class ListenerThreads(Threads):
    """A daemon thread for each listener."""

    join_max = 1.0  # seconds: it ends at once, unless it is just connecting; then by itself, soon

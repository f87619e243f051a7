"""Waiting and background work for the adapters for threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.net.calls import BackgroundCall
from holdfast.backends.net.poller import new_poll
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadEvent, Threads


class BlockingPoller:
    """Blocks the calling thread."""

    async def poll(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        return list(dict(new_poll(*wanted).poll(max(0.0, until - system.now()) * 1000)))

    async def wait_done(self, call: BackgroundCall[Any], until: float) -> bool:
        event = ThreadEvent()
        call.add_done_callback(event.set)
        return await event.wait(until)


class BackgroundThreads(Threads):
    """A daemon thread for each piece of work."""

    # Seconds. Each ends at once when it is woken; while it connects or waits for an answer, it ends soon by itself.
    join_max = 1.0

"""What the adapters for threads share: waiting where they are asked to, and a thread to listen on."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

from holdfast.runtimes import system
from holdfast.runtimes.threads import Threads


class BlockingEyes:
    """Waits where it is asked to."""

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        poll = select.poll()
        for descriptor, events in wanted:
            poll.register(descriptor, events)
        return [descriptor for descriptor, _ in poll.poll(max(0.0, until - system.now()) * 1000)]

    async def addresses(self, host: str, port: int, deadline: float) -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]


class ListenerThreads(Threads):
    """A daemon thread for each listener."""

    join_max = 1.0  # seconds: it ends at once, unless it is just connecting; then by itself, soon

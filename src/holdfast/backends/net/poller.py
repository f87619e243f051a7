"""Waiting for sockets: the `Poller` of threads and of asyncio, and poll() itself.

`BlockingPoller` (blocking.py) and `LoopPoller` (aio.py) implement the protocol. The select module of Windows has no
poll(); `SelectPoll` replaces it there.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from holdfast.backends.net.calls import BackgroundCall

READ: int = getattr(select, "POLLIN", 0x001)
WRITE: int = getattr(select, "POLLOUT", 0x004)
_INVALID = 0x020  # POLLNVAL


class Poller(Protocol):
    """Waits for sockets and background calls, on threads or on asyncio."""

    async def poll(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        """Wait until descriptors are ready for READ, WRITE or both, and return them; [] if `until` passes first."""

    async def wait_done(self, call: BackgroundCall[Any], until: float) -> bool:
        """Wait until a call on another thread is done (True) or `until` has passed (False)."""


class Background(Protocol):
    """Runs background work: on daemon threads, or as tasks."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None: ...

    async def join(self) -> None:
        """Wait a short time for work that was started and was asked to end."""


class HasFileno(Protocol):
    """A socket, or any other object with a descriptor."""

    def fileno(self) -> int: ...


class Poll(Protocol):
    """The part of select.poll that is used here. An interrupted wait continues with the time that is left (PEP 475)."""

    def register(self, descriptor: int | HasFileno, events: int, /) -> object: ...

    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]: ...


def new_poll(*wanted: tuple[int | HasFileno, int]) -> Poll:
    """A poll object with these descriptors and events.

    select.poll is looked up at each call, because gevent replaces it when it patches the standard library.
    """
    make = getattr(select, "poll", None)
    poll: Poll = SelectPoll() if make is None else make()
    for descriptor, events in wanted:
        poll.register(descriptor, events)
    return poll


def is_readable(descriptor: int | HasFileno) -> bool:
    """Data or the end of the connection has arrived."""
    return bool(new_poll((descriptor, READ)).poll(0))


class SelectPoll:
    """select.poll, implemented with select()."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, descriptor: int | HasFileno, events: int, /) -> None:
        self._wanted[descriptor if isinstance(descriptor, int) else descriptor.fileno()] = events

    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]:
        reads = [descriptor for descriptor, events in self._wanted.items() if events & READ]
        writes = [descriptor for descriptor, events in self._wanted.items() if events & WRITE]
        try:
            # Windows reports a refused connection as an exceptional condition.
            readable, writable, refused = select.select(
                reads, writes, writes, None if milliseconds is None else milliseconds / 1000
            )
        except (OSError, ValueError):  # a descriptor is closed; poll() reports that as POLLNVAL
            return [(descriptor, _INVALID) for descriptor in self._wanted]
        ready = dict.fromkeys(readable, READ)
        for descriptor in {*writable, *refused}:
            ready[descriptor] = ready.get(descriptor, 0) | WRITE
        return list(ready.items())

"""poll() for sockets, also where the select module has none, as on Windows."""

from __future__ import annotations

import select
from typing import Protocol

READ: int = getattr(select, "POLLIN", 0x001)
WRITE: int = getattr(select, "POLLOUT", 0x004)
_INVALID = 0x020  # POLLNVAL


class HasFileno(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int: ...


class Poll(Protocol):
    """What we use of select.poll. An interrupted wait continues with the time that is left (PEP 475)."""

    def register(self, descriptor: int | HasFileno, events: int, /) -> object: ...

    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]: ...


def new_poll(*wanted: tuple[int | HasFileno, int]) -> Poll:
    """A poll object with these descriptors and events.

    Looked up at each call: gevent replaces select.poll when it patches the standard library.
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
    """The same on select()."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, descriptor: int | HasFileno, events: int, /) -> None:
        self._wanted[descriptor if isinstance(descriptor, int) else descriptor.fileno()] = events

    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]:
        reads = [descriptor for descriptor, events in self._wanted.items() if events & READ]
        writes = [descriptor for descriptor, events in self._wanted.items() if events & WRITE]
        try:
            # Windows reports a connection that was refused as an exceptional condition.
            readable, writable, refused = select.select(
                reads, writes, writes, None if milliseconds is None else milliseconds / 1000
            )
        except (OSError, ValueError):  # one of them is closed; poll() would say so too
            return [(descriptor, _INVALID) for descriptor in self._wanted]
        found = dict.fromkeys(readable, READ)
        for descriptor in {*writable, *refused}:
            found[descriptor] = found.get(descriptor, 0) | WRITE
        return list(found.items())

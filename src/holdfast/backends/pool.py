"""The connections of one client to one server, for one request after the other. The one used last is used next."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from holdfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

CONNECTIONS_MAX = 16  # in use at the same time
_ROOM_LOOK = 0.05  # seconds between looks for a free connection, should its bell go unheard


class Wire(Protocol):
    """One connection."""

    @property
    def is_open(self) -> bool: ...

    def is_dead(self) -> bool:
        """The server has closed it, or said something that nobody asked for."""

    def close(self) -> None: ...


T = TypeVar("T")
W = TypeVar("W", bound=Wire)


class Pool(Generic[W]):
    """`take() or await wait(deadline)`, then `give`, whatever has become of it meanwhile."""

    def __init__(self, url: str, connect: Callable[[float], Coroutine[Any, Any, W]], runtime: Runtime) -> None:
        self._url, self._connect, self._now = url, connect, runtime.now
        self._idle: list[W] = []
        # All that are open or being opened, weakly: one that an interrupt has dropped does not count any more.
        self._counted: weakref.WeakSet[W | _Opening] = weakref.WeakSet()
        self._mutex = runtime.mutex()
        self._waiting = 0
        self._freed = runtime.event()
        self._closed = False

    def take(self) -> W | None:
        """One that is free, if there is any."""
        while (wire := pop(self._idle)) is not None:
            if not wire.is_dead():
                return wire
            self._drop(wire)
        return None

    async def wait(self, deadline: float) -> W:
        """One that comes free, or one more.

        Raises:
            BackendUnavailable: there was none until then, or as connecting raises it.
        """
        opening = _Opening()
        while not self._has_room_for(opening):
            now = self._now()
            if now >= deadline:
                problem = f"all {CONNECTIONS_MAX} connections were in use all the time"
                raise BackendUnavailable(backend=self._url, problem=problem)
            self._waiting += 1
            try:
                self._freed.clear()
                if (wire := self.take()) is not None:
                    return wire
                await self._freed.wait(min(deadline, now + _ROOM_LOOK))
            finally:
                self._waiting -= 1
            if (wire := self.take()) is not None:
                return wire
        try:
            wire = await self._connect(deadline)
            self._counted.add(wire)
        finally:
            self._counted.discard(opening)  # its error may be kept for long
        return wire

    def give(self, wire: W) -> None:
        """It is free again, or over."""
        if self._closed or not wire.is_open:
            self._drop(wire)
        else:
            self._idle.append(wire)
        if self._waiting:
            self._freed.set()

    def close(self) -> None:
        """Keep no connection. Who was just waiting can still withdraw, on one that is closed when that is done."""
        self._closed = True
        while (wire := pop(self._idle)) is not None:
            wire.close()

    def abandon(self) -> None:
        """In a forked child: the connections themselves are abandoned by who opened them."""
        self._closed = True
        self._idle.clear()

    def _has_room_for(self, opening: _Opening) -> bool:
        with self._mutex:
            if len(self._counted) >= CONNECTIONS_MAX:
                return False
            self._counted.add(opening)  # from here on: others may open theirs meanwhile
            return True

    def _drop(self, wire: W) -> None:
        wire.close()
        self._counted.discard(wire)


class _Opening:
    """Stands for a connection that is not there yet."""

    __slots__ = ("__weakref__",)


def pop(idle: list[T]) -> T | None:
    """The last one, if there is any: in one step, whatever other threads do."""
    try:
        return idle.pop()
    except IndexError:
        return None

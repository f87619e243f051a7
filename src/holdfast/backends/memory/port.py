"""The store in memory: a dict of queues. Its one verb is to change it while nobody else does."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from holdfast.core.tickets import Ticket
from holdfast.errors import BackendUnavailable
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex

T = TypeVar("T")


class Place:
    """A ticket in a queue."""

    __slots__ = ("expires", "fence", "granted", "number", "ring", "since", "ticket")

    def __init__(self, ticket: Ticket, number: int, since: float, ring: Callable[[str], None]) -> None:
        self.ticket = ticket
        self.number = number  # its order
        self.fence = number  # once granted; another one's, if that one's owner is this one's too
        self.since = since
        self.ring = ring
        self.granted = False
        self.expires = 0.0

    @property
    def exclusive(self) -> bool:
        return self.ticket.exclusive


class Mark(NamedTuple):
    """A number that never goes down while it is there."""

    number: int
    nonce: str  # of who raised it to that
    ends: float  # when it need not be kept any longer


class Lasting:
    """The part of a store that lasts as long as the process: fences never go back, and marks stay."""

    __slots__ = ("last_number", "marks")

    def __init__(self) -> None:
        self.last_number = 0
        self.marks: dict[str, Mark] = {}


class Store:
    """Locks by name, each a queue in order by nonce; an empty queue is removed. Beside them, what lasts longer."""

    def __init__(self, lasting: Lasting | None = None) -> None:
        self._mutex = Mutex()
        self.queues: dict[str, dict[str, Place]] = {}
        self.lasting = lasting or Lasting()

    def change(self, step: Callable[[Store], T], url: str) -> T:
        """Run `step` alone.

        Raises:
            BackendUnavailable: this thread is in the middle of another step, so a signal handler or a finaliser calls.
        """
        if self._mutex.is_mine():
            problem = "a signal handler or a finaliser interrupted a step of this store and cannot use it"
            raise BackendUnavailable(backend=url, problem=problem)
        with self._mutex:
            return step(self)


class MemoryPort(Protocol):
    """What the protocol needs."""

    async def change(self, step: Callable[[Store], T], *, deadline: float) -> T:
        """Run `step` on the store, alone."""

    def ring(self, nonce: str) -> None:
        """Wake our waiting ticket; called by whoever releases, from any thread."""

    def listen(self, wake: Callable[[str], None]) -> None:
        """Where rings go."""


class _Stores:
    """The process's stores by URL: the locks for as long as a client uses them, the rest for as long as the process.

    A forked child starts without any locks: its parent's leases are not in this process. Its fences go on from there.
    """

    def __init__(self) -> None:
        self._stores: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
        self._lasting: dict[str, Lasting] = {}
        self._mutex = threading.RLock()  # a finaliser or a signal handler may make a client too
        system.on_fork(self)

    def get(self, url: str) -> Store:
        fresh = Store(self._lasting.setdefault(url, Lasting()))
        with self._mutex:  # WeakValueDictionary.setdefault alone can give two threads a store each
            return self._stores.setdefault(url, fresh)

    def _before_fork(self) -> None:
        """Nothing to prepare."""

    def _after_fork_in_parent(self) -> None:
        """Nothing changes."""

    def _after_fork(self) -> None:
        self._stores = weakref.WeakValueDictionary()
        self._mutex = threading.RLock()  # another thread of the parent may have held it


stores = _Stores()

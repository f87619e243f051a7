"""The store in memory: a dict of queues, and the port through which the protocol changes it under a mutex."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from holdfast.core.notifications import Wakeups
from holdfast.core.ports import Record
from holdfast.core.tickets import Claim, Notification
from holdfast.errors import BackendUnavailable
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex

T = TypeVar("T")


class QueueEntry:
    """A ticket in a queue, waiting or granted."""

    __slots__ = ("claim", "expires", "fence", "granted", "number", "since", "wake")

    def __init__(self, claim: Claim, number: int, since: float, wake: Callable[[Notification], None]) -> None:
        self.claim = claim
        self.number = number  # its order in the queue
        self.fence = number  # valid once granted; tickets of one owner share the fence of the first
        self.since = since
        self.wake = wake
        self.granted = False
        self.expires = 0.0

    @property
    def exclusive(self) -> bool:
        return self.claim.exclusive


class Register(NamedTuple):
    """A number that only grows while it is kept."""

    number: int
    nonce: str  # of the call that set this number
    ends: float  # when it may be dropped


class KeptRecord(NamedTuple):
    """A record, and when it ends."""

    record: Record
    ends: float


class ProcessState:
    """The part of a store that is kept as long as the process lives: the last fence, registers and records."""

    __slots__ = ("last_number", "records", "registers")

    def __init__(self) -> None:
        self.last_number = 0
        self.registers: dict[str, Register] = {}
        self.records: dict[str, KeptRecord] = {}


class Store:
    """Locks by name. Each is an ordered queue, a dict by nonce; an empty queue is removed."""

    def __init__(self, process_state: ProcessState | None = None) -> None:
        self._mutex = Mutex()
        self.queues: dict[str, dict[str, QueueEntry]] = {}
        self.process_state = process_state or ProcessState()

    def change(self, step: Callable[[Store], T], url: str) -> T:
        """Run `step` under the mutex.

        Raises:
            BackendUnavailable: a signal handler or a finaliser calls it while its thread is inside another step.
        """
        if self._mutex.is_mine():
            problem = "a signal handler or a finaliser interrupted a step of this store and cannot use it"
            raise BackendUnavailable(backend=url, problem=problem)
        with self._mutex:
            return step(self)


class MemoryPort(Protocol):
    """The port that the protocol needs."""

    wakeups: Wakeups

    async def change(self, step: Callable[[Store], T], *, deadline: float) -> T:
        """Run `step` on the store under its mutex."""

    def wake(self, notification: Notification) -> None:
        """Wake a waiting ticket of this client. Any thread that releases the lock calls this."""


class _Stores:
    """The stores of the process by URL: locks are kept while a client uses them, the rest while the process lives.

    A forked child starts without locks, because its parent's leases are not in this process. Its fences continue.
    """

    def __init__(self) -> None:
        self._stores: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
        self._lasting: dict[str, ProcessState] = {}
        self._mutex = threading.RLock()  # reentrant, because a finaliser or a signal handler may open a client too
        system.after_fork_in_child(self._after_fork)

    def get(self, url: str) -> Store:
        new = Store(self._lasting.setdefault(url, ProcessState()))
        with self._mutex:  # WeakValueDictionary.setdefault alone can give two threads different stores
            return self._stores.setdefault(url, new)

    def _after_fork(self) -> None:
        self._stores = weakref.WeakValueDictionary()
        self._mutex = threading.RLock()  # another thread of the parent may have held it


stores = _Stores()

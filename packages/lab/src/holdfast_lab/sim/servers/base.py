"""The interface of a simulated server: it runs steps, can stall or lose state, and shows its tickets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.guarantees import Guarantees, Wake
from holdfast_lab.checking import history as h

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Entry, Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

_FAULT_METHODS = {"drop": "drop", "restart": "restart", "lose_data": "lose_data", "old_data": "restore_data"}
EPOCH = 1_700_000_000.0  # its wall clock at the start of the world


class Server(ABC):
    """A store, on a machine whose clock is the true one."""

    guarantees: ClassVar[Guarantees]
    orphaning_faults: ClassVar[frozenset[str]]  # faults that may leave tickets which only expire
    keeps_order: ClassVar[bool] = False  # requests of a process are done in order
    excluded_faults: ClassVar[frozenset[str]] = frozenset()  # that the real store cannot have, besides derived ones
    duplicates_requests: ClassVar[bool] = False  # a request may arrive twice; over TCP it does not
    node_type: ClassVar[type[Server] | None] = None  # of a store of several nodes: the class that has the faults
    kinds: ClassVar[Sequence[str]] = ("lock", "rwlock", "semaphore")  # supported kinds of locks
    idle_max: ClassVar[float] = 12.0  # seconds from the end of a dead holder's lease to the next grant
    dead_waiter_max: ClassVar[float | None] = None  # seconds until a dead waiter is removed, if promised
    decides: ClassVar[bool] = True  # a grant on the server is a grant to the client, which adds no check of its own
    several_ttls: ClassVar[bool] = False  # locks with the same ttl share a session, so a run has two ttls
    # Seconds within which a free lock is granted although dead, or paused, waiters are queued first; None: not checked.
    grant_past_dead_max: ClassVar[float | None] = None
    grant_past_paused_max: ClassVar[float | None] = None
    clock_back_max: ClassVar[float] = 3600.0  # seconds by which its wall clock is set back in one step, at most

    def __init__(self, world: World, recorder: Recorder) -> None:
        self.world = world
        self.recorder = recorder
        self.starts = 1  # number of its current run
        self.is_stalled = False
        self.wall_step = 0.0
        self.set_back = 0.0  # seconds by which its wall clock was set back in total
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @classmethod
    def impossible_faults(cls) -> frozenset[str]:
        """Kinds of faults that do not happen to this store.

        They follow from what it guarantees and from the methods that model faults here; others are excluded by name.
        """
        types = (cls,) if cls.node_type is None else (cls, cls.node_type)
        not_modelled = {
            kind
            for kind, method in _FAULT_METHODS.items()
            if all(getattr(node, method) is getattr(Server, method) for node in types)
        }
        if cls.guarantees.wake is Wake.POLL:
            not_modelled |= {"drop", "lose_notification"}
        if not cls.duplicates_requests:
            not_modelled.add("duplicate")
        return cls.excluded_faults | not_modelled

    @abstractmethod
    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        """The real protocol of this store, over a simulated port."""

    def execute(self, step: Callable[[], T]) -> T:
        """Run a step, and record the changes."""
        try:
            return step()
        finally:
            self.recorder.observe(self.tickets())

    @abstractmethod
    def tickets(self) -> dict[str, Entry]:
        """All tickets on the server, by nonce."""

    @abstractmethod
    def live(self) -> dict[str, Entry]:
        """The tickets in force: not expired, and not of a dead process."""

    def state(self) -> object:
        """Its whole state, compared by `repr`; for exhaustive search."""
        raise NotImplementedError  # a model without it supports only random search

    @property
    def nodes(self) -> Sequence[Server]:
        """The parts that fail independently: itself, unless it has several nodes."""
        return [self]

    def prepare(self, faults: Faults, ttl: float) -> None:  # noqa: B027  (optional)
        """Called before the run, with its faults and ttl."""

    def state_lost(self, kind: h.StateKind, detail: str = "") -> list[h.Event]:
        """The events that record a loss of state which is about to happen."""
        return [h.StateLost(self.world.now, kind, detail=detail)]

    def stall_event(self) -> h.Event:
        """The event that records the start of a stall."""
        return h.Unreachable(self.world.now)

    def stall_end_event(self) -> h.Event:
        return h.Reachable(self.world.now)

    @abstractmethod
    def break_lock(self, name: str, fence: int) -> None:
        """End this lease, as an operator would."""

    def process_died(self, process: Process) -> None:  # noqa: B027  (optional)
        """Called when a process dies, for stores that notice this at once."""

    def lose_data(self) -> None:
        """Restart without data."""
        raise NotImplementedError  # not overridden: this fault never happens

    def restore_data(self) -> None:
        """Restart with the data of the last `back_up`."""
        raise NotImplementedError  # likewise

    def restart(self) -> None:
        """Restart with all data."""
        raise NotImplementedError  # likewise

    def drop(self, process: Process) -> bool:
        """End the connection on which this process receives notifications; False if it has none."""
        raise NotImplementedError  # likewise

    def back_up(self) -> None:  # noqa: B027  (needed only for old data)
        """Copy the data, for `restore_data`."""

    def end(self) -> None:  # noqa: B027  (optional)
        """Free its resources at the end of the world."""

    @property
    def recovery_time(self) -> float:
        """Seconds for which it may refuse requests after all faults have ended."""
        return 0.0

    @property
    def extra_lease_time(self) -> float:
        """Seconds by which leases may last too long, because the clock that ends them was set back."""
        return 0.0

    @property
    def extra_idle_time(self) -> float:
        """The same, for leases that block a waiter."""
        return self.extra_lease_time

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock, forward or back."""
        self.wall_step += seconds
        self.set_back += max(0.0, -seconds)

    def wall(self) -> float:
        return EPOCH + self.world.now + self.wall_step

    def when_running(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action now, or when the stall ends."""
        if self.is_stalled:
            self._backlog.append((action, arguments))
        else:
            action(*arguments)

    def resume(self) -> None:
        self.is_stalled = False
        backlog, self._backlog = self._backlog, []
        for action, arguments in backlog:
            if self.keeps_order:
                self.world.at(self.world.now, action, *arguments)
            else:
                self.world.soon(action, *arguments)

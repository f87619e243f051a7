"""What every simulated server is to the world: it does steps, can stand still, can forget, and can be looked at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.checking import history as h

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.guarantees import Guarantees
    from holdfast.sim.faults import Faults
    from holdfast.sim.network import Link
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Entry, Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

T = TypeVar("T")

_FAULT_METHODS = {"drop": "drop", "restart": "restart", "lose_data": "lose_data", "old_data": "restore_data"}
EPOCH = 1_700_000_000.0  # what its wall clock shows at the beginning of the world


class Server(ABC):
    """A store, on a machine whose clock is the true one."""

    guarantees: ClassVar[Guarantees]
    orphaning_faults: ClassVar[frozenset[str]]  # faults after which there may be tickets that only their ttl can end
    keeps_order: ClassVar[bool] = False  # what a process asks for is done in the order in which it asked
    # Faults that the real store cannot have, besides those without a method here. Over TCP no request arrives twice.
    excluded_faults: ClassVar[frozenset[str]] = frozenset({"duplicate"})
    node_type: ClassVar[type[Server] | None] = None  # of a store of several nodes: the class that has the faults
    kinds: ClassVar[Sequence[str]] = ("lock", "rwlock", "semaphore")  # of locks that it can keep
    idle_max: ClassVar[float] = 12.0  # seconds from the end of a dead holder's lease until the next one is in
    dead_waiter_max: ClassVar[float | None] = None  # seconds until a dead waiter has left, if promised
    decides: ClassVar[bool] = True  # a grant on the server is a grant to the client, which adds no check of its own
    several_ttls: ClassVar[bool] = False  # locks with the same ttl share something, so a run has two ttls
    # Seconds within which a free lock is granted past any number of waiters that died, or that are paused; None: not
    # judged.
    grant_past_dead_max: ClassVar[float | None] = None
    grant_past_paused_max: ClassVar[float | None] = None
    clock_back_max: ClassVar[float] = 3600.0  # seconds by which its wall clock is set back at once, at most

    def __init__(self, world: World, recorder: Recorder) -> None:
        self.world = world
        self.recorder = recorder
        self.starts = 1  # it is in its so-manieth run
        self.is_stalled = False
        self.wall_step = 0.0
        self.set_back = 0.0  # seconds by which its wall clock has gone back, all in all
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @classmethod  # noqa: B027  (most need nothing)
    def require(cls) -> None:
        """Raise ConfigurationError, with the fix, if something is not installed that this model needs."""

    @classmethod
    def impossible_faults(cls) -> frozenset[str]:
        """Kinds of faults that do not happen to this store: excluded ones, and those that no method here models."""
        types = (cls,) if cls.node_type is None else (cls, cls.node_type)
        return cls.excluded_faults | {
            kind
            for kind, method in _FAULT_METHODS.items()
            if all(getattr(one, method) is getattr(Server, method) for one in types)
        }

    @abstractmethod
    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        """The real protocol of this store, over a port that comes here."""

    def execute(self, step: Callable[[], T]) -> T:
        """Do a step now, and look at what it has changed."""
        try:
            return step()
        finally:
            self.recorder.observe(self.tickets())

    @abstractmethod
    def tickets(self) -> dict[str, Entry]:
        """All tickets that it has, by nonce."""

    @abstractmethod
    def live(self) -> dict[str, Entry]:
        """Those that count: not run out, not a dead process's."""

    def state(self) -> object:
        """All that it knows, to compare by its `repr`; for exhaustive search."""
        raise NotImplementedError  # a model without it is searched by seeds only

    @property
    def nodes(self) -> Sequence[Server]:
        """What can fail alone: itself, unless it is several."""
        return [self]

    def prepare(self, faults: Faults, ttl: float) -> None:  # noqa: B027  (most need to know nothing)
        """What will happen to it, and how long leases last."""

    def state_lost(self, what: h.StateKind, detail: str = "") -> list[h.Event]:
        """What a history says of it that something is about to be forgotten here."""
        return [h.StateLost(self.world.now, what, detail=detail)]

    def stall_event(self) -> h.Event:
        """What a history says of it that this has begun to stand still."""
        return h.Unreachable(self.world.now)

    def stall_end_event(self) -> h.Event:
        return h.Reachable(self.world.now)

    @abstractmethod
    def break_lock(self, name: str, fence: int) -> None:
        """As an operator would."""

    def process_died(self, process: Process) -> None:  # noqa: B027  (most cannot know)
        """Some see that at once."""

    def lose_data(self) -> None:
        """Come back with nothing."""
        raise NotImplementedError  # who names `lose_data` in `cannot` is never asked

    def restore_data(self) -> None:
        """Come back with what was there some time ago."""
        raise NotImplementedError  # likewise `old_data`

    def restart(self) -> None:
        """Go down and come back with everything that was there."""
        raise NotImplementedError  # likewise `restart`

    def drop(self, process: Process) -> bool:
        """End the connection on which this process hears wake-ups; False if it has none."""
        raise NotImplementedError  # likewise `drop`

    def back_up(self) -> None:  # noqa: B027  (who cannot have old data needs no copy of it)
        """Keep what is there now, to come back with it later."""

    def end(self) -> None:  # noqa: B027  (most have nothing to close)
        """The world is over."""

    @property
    def recovery_time(self) -> float:
        """Seconds for which it may not be of use yet although nothing is wrong with it any more."""
        return 0.0

    @property
    def extra_lease_time(self) -> float:
        """Seconds by which leases may have lasted too long, because the clock that ends them was set back."""
        return 0.0

    @property
    def extra_idle_time(self) -> float:
        """Likewise, of leases that keep a waiter out."""
        return self.extra_lease_time

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock, forward or back."""
        self.wall_step += seconds
        self.set_back += max(0.0, -seconds)

    def wall(self) -> float:
        return EPOCH + self.world.now + self.wall_step

    def when_running(self, action: Callable[..., None], *arguments: Any) -> None:
        """Now, or as soon as it does not stand still any more."""
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

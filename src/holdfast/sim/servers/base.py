"""What every simulated server is to the world: it does steps, can stand still, can forget, and can be looked at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.guarantees import Guarantees
    from holdfast.sim.network import Link
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Entry, Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

T = TypeVar("T")

EPOCH = 1_700_000_000.0  # what its wall clock shows at the beginning of the world


class Server(ABC):
    """A store, on a machine whose clock is the true one."""

    guarantees: ClassVar[Guarantees]
    lapses_after: ClassVar[frozenset[str]]  # faults after which there may be tickets that only their ttl can end
    keeps_order: ClassVar[bool] = False  # what a process asks for is done in the order in which it asked
    cannot: ClassVar[frozenset[str]] = frozenset()  # the kinds of faults that the real one cannot have

    def __init__(self, world: World, recorder: Recorder) -> None:
        self.world = world
        self.recorder = recorder
        self.is_stalled = False
        self.wall_step = 0.0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @abstractmethod
    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        """The real protocol of this store, over a port that comes here."""

    @abstractmethod
    def execute(self, step: Callable[[], T]) -> T:
        """Do a step now, and look at what it has changed."""

    @abstractmethod
    def tickets(self) -> dict[str, Entry]:
        """All tickets that it has, by nonce."""

    @abstractmethod
    def live(self) -> dict[str, Entry]:
        """Those that count: not run out, not a dead process's."""

    def state(self) -> object:
        """All that it knows, to compare by its `repr`; for exhaustive search."""
        raise NotImplementedError  # a model without it is searched by seeds only

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

    def back_up(self) -> None:  # noqa: B027  (who cannot have old data needs no copy of it)
        """Keep what is there now, to come back with it later."""

    def end(self) -> None:  # noqa: B027  (most have nothing to close)
        """The world is over."""

    def wall(self) -> float:
        return EPOCH + self.world.now + self.wall_step

    def when_it_answers(self, action: Callable[..., None], *arguments: Any) -> None:
        """Now, or as soon as it does not stand still any more."""
        if self.is_stalled:
            self._backlog.append((action, arguments))
        else:
            action(*arguments)

    def go_on(self) -> None:
        self.is_stalled = False
        backlog, self._backlog = self._backlog, []
        for action, arguments in backlog:
            if self.keeps_order:
                self.world.at(self.world.now, action, *arguments)
            else:
                self.world.soon(action, *arguments)

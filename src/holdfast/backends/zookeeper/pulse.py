"""The session that is open, and its pulse: pairs of writes in the background, while anybody needs the session.

They keep it and prove that it is kept, for all tickets together; standing.py says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.backends.zookeeper.nodes import SESSIONS
from holdfast.backends.zookeeper.port import Create, Refusal, Set
from holdfast.backends.zookeeper.standing import Standing
from holdfast.core.events import logger
from holdfast.errors import BackendError, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.address import Place
    from holdfast.backends.zookeeper.parents import Parents
    from holdfast.backends.zookeeper.port import Session, ZookeeperPort
    from holdfast.core.ports import Runtime

IDLE_MAX = 10.0  # seconds without a ticket or a question before the session is ended


class Chores(Protocol):
    """What its users have done at each pulse."""

    @property
    def is_needed(self) -> bool:
        """Somebody has a node that goes with the session, or may have one."""

    async def sweep(self, session: Session, deadline: float) -> None:
        """Take away what nobody believes in any longer."""

    def next_sweep(self) -> float:
        """When there will be such, as far as is known."""


class Pulse:
    """Of one client."""

    def __init__(self, place: Place, port: ZookeeperPort, parents: Parents, runtime: Runtime, chores: Chores) -> None:
        self._url, self._root = place.url, place.root
        self._port, self._parents, self._runtime, self._chores = port, parents, runtime, chores
        self._mutex = runtime.mutex()
        self._standing: dict[int, Standing] = {}  # of the session that is open, by its number
        self._used = 0.0
        self._bell = runtime.event()
        self._closed = False

    async def open(self, deadline: float) -> Session:
        """The session, which is needed now.

        Raises:
            BackendUnavailable: no server could be reached.
        """
        self._used = self._runtime.now()
        session = await self._port.open(deadline=deadline)
        standing = self._standing.get(session.number)
        if standing is None:
            standing = self._begin(session)
        standing.connected(session.connection, session.connected)
        return session

    def proven(self, session: Session) -> float:
        """Until when the ensemble certainly keeps it."""
        standing = self._standing.get(session.number)
        return 0.0 if standing is None else standing.until

    def own(self, session: Session) -> str:
        """The path of the node that the session's heartbeat writes to."""
        return f"{self._root}/{SESSIONS}/{session.number:016x}"

    def changed(self) -> None:
        """A session or a connection came or went."""
        self._bell.set()

    def close(self) -> None:
        self._closed = True
        self._bell.set()

    def abandon(self) -> None:
        """In a forked child, which has nobody to tell."""
        self._closed = True

    def _begin(self, session: Session) -> Standing:
        """A new session: the older one is over."""
        with self._mutex:
            standing = self._standing.get(session.number)
            if standing is not None:
                return standing
            standing = Standing(session.timeout)
            self._standing = {session.number: standing}
        self._port.start(lambda: self._run(session, standing))
        return standing

    async def _run(self, session: Session, standing: Standing) -> None:
        own = self.own(session)
        is_there = False
        while not session.is_over and not self._closed:
            await self._chores.sweep(session, self._runtime.now() + standing.pause)
            now = self._runtime.now()
            if not self._chores.is_needed and now - self._used > IDLE_MAX:
                self._port.end(session)
                return
            connection = session.connection
            try:
                if connection:
                    is_there = is_there or await self._make_own(session, own, now + standing.pause)
                if connection and is_there:
                    await self._pair(session, standing, own)
            except BackendError as error:
                logger().info("the pulse of the session with %s got no answer: %s", self._url, error)
                if session.connection == connection:
                    self._port.hang_up(session)  # another server may answer; this one has had its time
            except HoldfastError as error:
                logger().warning("the session with %s cannot be kept: %s", self._url, error)
            await self._bell.wait(min(self._runtime.now() + standing.pause, self._chores.next_sweep()))
            self._bell.clear()  # what rang until now is looked at after this

    async def _make_own(self, session: Session, own: str, deadline: float) -> bool:
        above, _, _ = own.rpartition("/")
        create = Create(own, b"", is_numbered=False)
        *answers, created = await self._port.ask(session, (*self._parents.made(above), create), deadline=deadline)
        if created is Refusal.NO_NODE:
            self._parents.missed(above, answers)
            return False  # the next pulse tries again
        if isinstance(created, Refusal) and created is not Refusal.EXISTS:
            raise self._parents.refused(created, own)
        return True

    async def _pair(self, session: Session, standing: Standing, own: str) -> None:
        """Two writes, one after the other: what that proves, standing.py says."""
        connection = session.connection
        standing.connected(connection, session.connected)
        times = []
        for _ in range(2):
            times.append(self._runtime.now())
            (answer,) = await self._port.ask(session, (Set(own, b""),), deadline=times[-1] + standing.pause)
            if answer is not None:
                raise self._parents.refused(answer, own)
        if connection and session.connection == connection:
            standing.pair(connection, times[0], times[1], self._runtime.now())

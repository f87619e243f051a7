"""Observing the leader of an election: the part that Election and AsyncElection share.

An election is the exclusive lock of its name. Its holder leads; the fence of the lease is the *term*. So being elected
is acquiring the lock, and a store needs no support for elections. This module polls for the present leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from holdfast.core import names
from holdfast.core.engine import OUTAGE_PAUSE_MAX, OUTAGE_PAUSE_MIN
from holdfast.core.events import logger
from holdfast.core.leases import BaseLease
from holdfast.core.locks import BaseLock
from holdfast.errors import AccessDenied, BackendError, ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.names import Duration
    from holdfast.core.tickets import LockInfo

L = TypeVar("L", bound=BaseLease)

EVERY = 1.0  # seconds between two polls of an observer


class Leader(NamedTuple):
    """The leader, according to the server."""

    term: int  # the fence of its lease, greater than that of every earlier leader; 0: a program without fences
    host: str
    pid: int
    agent: str  # its thread or task
    program: str
    since: float  # Unix time; 0 if unknown
    meta: Mapping[str, Any]  # of its election

    def __str__(self) -> str:
        """The process, in the form that errors use: host/pid."""
        return f"{self.host}/{self.pid}" if self.term else "another program"


def leader_of(info: LockInfo) -> Leader | None:
    """The exclusive holder of the lock. Readers and permits of a lock with the same name do not lead."""
    for holder in info.holders:
        if holder.exclusive and holder.fence is not None:
            return Leader(
                term=holder.fence,
                host=holder.host,
                pid=holder.pid,
                agent=holder.agent,
                program=holder.program,
                since=holder.since,
                meta=holder.meta,
            )
    return None


def term_held(election: BaseLock[Any]) -> int | None:
    """The term in which a thread or task of this process leads through this object, by the local clock."""
    for leases in list(election._kept.values()):  # copies, because other threads acquire and release
        for lease in list(leases):
            if lease.held:
                fence: int = lease.fence
                return fence
    return None


class OutageBackoff:
    """Back-off for a loop that continues during an outage of the store. Logs the outage once."""

    def __init__(self, name: str, *, from_the_start: bool = False) -> None:
        self._name = name
        self._answered = from_the_start
        self._outage = False
        self._pause = OUTAGE_PAUSE_MIN

    def answered(self) -> None:
        if self._outage:
            logger().info("the store of election %r answers again", self._name)
        self._answered, self._outage, self._pause = True, False, OUTAGE_PAUSE_MIN

    def back_off(self, error: BackendError) -> float:
        """The seconds to wait before the next try.

        Raises:
            BackendError: the store has never answered.
        """
        if not self._answered:
            raise error
        if not self._outage:
            logger().warning("election %r: the store does not answer, trying again: %s", self._name, error)
        self._outage = True
        pause, self._pause = self._pause, min(2 * self._pause, OUTAGE_PAUSE_MAX)
        return pause


class Observation:
    """One observer of one election."""

    def __init__(
        self,
        engine: Callable[[], Engine[Any] | None],
        name: str,
        every: float,
        timeout: float | None,
        *,
        is_patient: bool = False,
    ) -> None:
        """`engine` returns None when the client is closed. `is_patient` tolerates an outage at the first poll."""
        self.leader: Leader | None = None
        self._engine = engine
        self._name = name
        self._every = every
        self._timeout = timeout
        self._end = float("inf")  # on the runtime's clock; set at the first poll
        self._backoff = OutageBackoff(name, from_the_start=is_patient)
        self._newest = 0  # the greatest term so far
        self._has_polled = False
        self._is_over = False

    def end(self) -> None:
        """End the observation."""
        self._is_over = True

    async def changed(self) -> bool:
        """Wait for the next change of `leader`; the first one is the present leader. False: the observation is over.

        Raises:
            BackendError: the store gave no answer, at first or when the time was up.
        """
        while not self._is_over:
            engine = self._engine()
            if engine is None:
                break
            if self._has_polled and (await self._closes_in(engine, self._every) or engine.runtime.now() >= self._end):
                break
            if await self._poll_change(engine):
                return not self._is_over
        return False

    async def _poll_change(self, engine: Engine[Any]) -> bool:
        """Poll until there is an answer. Returns whether the leader has changed."""
        now = engine.runtime.now
        if not self._has_polled and self._timeout is not None:
            self._end = min(self._end, now() + self._timeout)
        while not self._is_over:
            try:
                info = await engine.operators.inspect(self._name, self._end)
            except HoldfastError as error:
                if engine.is_closed:
                    break
                if not isinstance(error, BackendError) or isinstance(error, AccessDenied):
                    raise
                pause = self._backoff.back_off(error)
                if now() >= self._end:
                    raise  # "no change" and "no answer" are different results
                if await self._closes_in(engine, pause):
                    break
            else:
                self._backoff.answered()
                return self._is_change(leader_of(info))
        self.end()
        return False

    async def _closes_in(self, engine: Engine[Any], seconds: float) -> bool:
        """Sleep. Returns whether the client was closed in that time."""
        return await engine.closing.wait(min(engine.runtime.now() + seconds, self._end))

    def _is_change(self, leader: Leader | None) -> bool:
        first, self._has_polled = not self._has_polled, True
        if leader is not None and 0 < leader.term < self._newest:
            return False  # from a server that lags behind, or has lost its data
        if not first and _identity(leader) == _identity(self.leader):
            return False
        self.leader = leader
        self._newest = max(self._newest, 0 if leader is None else leader.term)
        return True


class BaseElection(BaseLock[L]):
    """The part of Election and AsyncElection that awaits nothing."""

    _is_async: ClassVar[bool]

    def on_change(self, callback: Callable[[Leader | None], object], *, every: Duration = EVERY) -> Callable[[], None]:
        """Call `callback` with the present leader and each change, in the background. The returned function ends that.

        There is one call for each item of `observe`, one at a time. An exception of `callback` is logged. An outage of
        the store does not end the observation, not even at the first poll.

        Raises:
            ConfigurationError: an argument is refused.
        """
        check_callback("callback", callback, is_async=self._is_async)
        observation = Observation(self._engine_if_open, self.name, names.check_every(every), None, is_patient=True)
        self._client._engine.runtime.spawn(lambda: report(observation, callback), "observer")
        return observation.end

    @property
    def stopped(self) -> bool:
        """`stop()` was called."""
        return self._given_up

    def _engine_if_open(self) -> Engine[Any] | None:
        return None if self._client._closed else self._client._engine


def _identity(leader: Leader | None) -> object:
    """The identity of a leader: its term. Without a term, all other fields."""
    if leader is None or leader.term:
        return leader and leader.term
    return leader._replace(since=0.0)  # which is computed again at each poll


def check_callback(argument: str, function: object, *, is_async: bool) -> None:
    """Refuse an object that is no function, and a coroutine function for an election of a Client.

    Raises:
        ConfigurationError: names the argument and the fix.
    """
    import inspect

    if not callable(function):
        raise ConfigurationError(f"{argument} must be a function, not {function!r}")
    if not is_async and inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"{argument} is a coroutine function, which only the election of an AsyncClient awaits"
        )


async def report(observation: Observation, callback: Callable[[Leader | None], object]) -> None:
    """Call `callback` with each change, in order, until the observation is over. Its exceptions are logged."""
    try:
        while await observation.changed():
            try:
                outcome: Any = callback(observation.leader)
                if hasattr(outcome, "__await__"):
                    await outcome
            except Exception:
                logger().exception("an on_change callback of election %r failed", observation._name)
    except HoldfastError:
        logger().exception("the observer of election %r has failed", observation._name)

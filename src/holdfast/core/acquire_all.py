"""Taking several locks: all or nothing within one timeout.

Everybody takes them in the same order, by name and then by kind of store, and keeps what it has while it waits for the
next: so of all who wait for each other, the one that has got furthest waits for nobody, and no two ever wait for each
other. What is free is taken in as few steps as the store allows, the first that is busy is waited for in its queue like
any single lock, and so on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from holdfast.core.engine import AcquireResult, Engine
from holdfast.core.events import logger
from holdfast.core.lease_groups import LeaseGroup, by_engine
from holdfast.core.leases import BaseLease, Phase
from holdfast.core.tickets import Waiting
from holdfast.errors import (
    BackendError,
    ConfigurationError,
    OutcomeUnknown,
    ThreadStartError,
    UsageError,
    WouldDeadlock,
)

if TYPE_CHECKING:
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Caller

L = TypeVar("L", bound=BaseLease)
B = TypeVar("B", bound=LeaseGroup)
T = TypeVar("T")


class Part(NamedTuple, Generic[L]):
    """One of the locks, and the engine of its client."""

    engine: Engine[L]
    lock: BaseLock[L]


class LockIdentity(NamedTuple):
    """What tells one lock from another."""

    name: str
    store: str  # the kind of store
    client: object


def in_order(locks: Iterable[T], identity_of: Callable[[T], LockIdentity]) -> list[T]:
    """As everybody takes them; the same lock of the same client counts once.

    Raises:
        ConfigurationError: two cannot be told apart by name and kind of store, so not everybody would order them alike.
    """
    found: dict[tuple[str, str], tuple[object, T]] = {}
    for lock in locks:
        name, store, client = identity_of(lock)
        other, _ = found.setdefault((name, store), (client, lock))
        if other is not client:
            raise ConfigurationError(
                f"lock_all() has {name!r} twice, on two clients of {store}: others might take them the other way "
                "round, and wait for each other; give them different names"
            )
    return [found[place][1] for place in sorted(found)]


async def take_all(
    parts: Sequence[Part[L]], timeout: float | None, make: Callable[[Sequence[L]], B], caller: Caller | None = None
) -> AcquireResult[B]:
    """Take all of them, which are in order, or none; for the thread or task that calls this, or `caller`.

    Raises:
        WouldDeadlock: the caller holds one of them already.
        BackendUnavailable, OutcomeUnknown: a server could not be asked; what was taken is given back.
    """
    runtime = parts[0].engine.runtime
    caller, started = caller or runtime.caller(), runtime.now()
    give_up = float("inf") if timeout is None else started + timeout
    for part in parts:
        held = part.engine._held_by(caller, part.lock._spec)
        if held is not None:
            if timeout == 0:
                return AcquireResult(None, holder="this thread or task itself")
            reason = "lock_all() counts no re-entry; release it first, or leave it out"
            raise WouldDeadlock(lock=part.lock.name, fence=held.fence, reason=reason)
    leases: list[L] = []
    try:
        return await _take_in_turn(parts, caller, timeout, give_up, leases=leases, make=make)
    except BaseException as error:
        for part in parts:
            # The caller had none of them at first, so what it has now was taken here, also if an interrupt came before
            # it was noted.
            taken = part.engine._held_by(caller, part.lock._spec)
            if taken is not None:
                leases.append(taken)
        for lease in leases:
            lease._engine.give_back(lease)
            if lease._phase is Phase.RELEASED:  # by us, or before an interrupt; to be left twice does no harm
                lease._engine._keeper.schedule(lease._ticket)
        if isinstance(error, ThreadStartError):  # there may be no keeper to do it
            for part in parts:
                await part.engine._keeper.flush(part.engine._limit(give_up))
        raise


async def _take_in_turn(
    parts: Sequence[Part[L]],
    caller: Caller,
    timeout: float | None,
    give_up: float,
    *,
    leases: list[L],
    make: Callable[[Sequence[L]], B],
) -> AcquireResult[B]:
    """What is taken by now is in `leases`.

    The guard is the caller's: to CPython, an interrupt at the jump back to a loop that a `try` begins with comes before
    that `try`.
    """
    runtime = parts[0].engine.runtime
    started = runtime.now()
    holder: str | None = None
    asked = False
    while True:
        if any(part.engine._closed for part in parts):
            raise UsageError("a client was closed while its locks were waited for")
        if not all(lease.held for lease in leases):
            logger().warning("one of %d locks was lost while the next was waited for: starting again", len(leases))
            await _give_back(leases, give_up)
            leases.clear()
        if len(leases) == len(parts):
            return AcquireResult(make(leases))
        # Each request has a second at least, so the requests alone do not end when the time is up. Without any time,
        # what is free is taken to the end.
        is_over = asked and bool(timeout) and runtime.now() >= give_up
        if not is_over:
            obstacle = await _take_free(parts[len(leases) :], caller, timeout, give_up, leases)
            asked = True
            if obstacle is None:
                continue
            holder = obstacle.holder
            is_over = timeout == 0 or (obstacle is not _UNKNOWN and runtime.now() >= give_up)
        if not is_over:
            left = None if timeout is None else max(0.0, give_up - runtime.now())
            engine, lock = parts[len(leases)]
            attempt = await engine._take(lock, caller, left)
            if attempt.lease is not None:
                leases.append(attempt.lease)
                continue
            holder = attempt.holder
        await _give_back(leases, give_up)
        return AcquireResult(None, holder, runtime.now() - started)


async def _take_free(
    rest: Sequence[Part[L]], caller: Caller, timeout: float | None, give_up: float, leases: list[L]
) -> Waiting | None:
    """Take the first that are free, of one client, into `leases`, in one step; what is in the way, unless all were."""
    engine = rest[0].engine
    locks = [part.lock for part in takewhile(lambda part: part.engine is engine, rest)]
    if len(locks) == 1 and timeout != 0:
        return _UNKNOWN  # one by itself is entered and waited for in the same step
    tickets = {lock: engine._ticket(lock._spec) for lock in locks}
    try:
        engine._taking.update((ticket.nonce, ticket) for ticket in tickets.values())
        outcomes = await engine.backend.try_acquire_all(list(tickets.values()), deadline=engine._limit(give_up))
        if engine._closed:  # close() may have looked before these were there, and have left too early
            with suppress(BackendError):
                await engine.backend.release(list(tickets.values()), deadline=engine._limit(give_up))
            raise UsageError("the client was closed while this was on its way")
        if engine._required is not None:
            engine._required.require(engine.backend.url, engine.backend.guarantees)
        for lock, outcome in zip(locks, outcomes, strict=False):
            if isinstance(outcome, Waiting):
                return outcome
            engine.publish(lock, tickets[lock], outcome, caller, leases)
            engine._taking.pop(tickets.pop(lock).nonce, None)
    except BaseException as error:
        for ticket in tickets.values():
            engine._keeper.schedule(ticket)
        if isinstance(error, OutcomeUnknown) and timeout != 0 and engine.runtime.now() < give_up:
            return _UNKNOWN  # the next is asked for by itself, behind what may have been taken and is owed
        raise
    finally:
        for ticket in tickets.values():
            engine._taking.pop(ticket.nonce, None)
    return None


_UNKNOWN = Waiting(0.0)


async def _give_back(leases: Sequence[BaseLease], give_up: float) -> None:
    """What nobody works under, in one step for each store; what gets no answer is left to the keeper."""
    for lease in leases:
        lease._engine.give_back(lease)
    for engine, _ in by_engine(leases):
        await engine._keeper.flush(engine._limit(give_up))

"""Acquire several locks: all or none within one timeout.

All clients acquire them in the same order, by name and then by kind of store, and keep their leases while they wait for
the next lock. So no two clients wait for each other. Free locks are acquired in as few requests as the store allows.
The first busy lock is waited for in its queue like any single lock; then the remaining locks follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from holdfast.core.engine import ITSELF, Engine
from holdfast.core.events import logger
from holdfast.core.lease_groups import LeaseGroup, by_engine
from holdfast.core.leases import AcquireResult, BaseLease
from holdfast.core.tickets import Waiting
from holdfast.errors import ConfigurationError, OutcomeUnknown, ThreadStartError, UsageError, WouldDeadlock

if TYPE_CHECKING:
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Caller

L = TypeVar("L", bound=BaseLease)
G = TypeVar("G", bound=LeaseGroup)
T = TypeVar("T")


class Part(NamedTuple, Generic[L]):
    """One of the locks, and the engine of its client."""

    engine: Engine[L]
    lock: BaseLock[L]


class LockIdentity(NamedTuple):
    """Distinguishes locks of several clients."""

    name: str
    store: str  # the kind of store
    client: object


def in_order(locks: Iterable[T], identity_of: Callable[[T], LockIdentity]) -> list[T]:
    """The locks in the order in which all clients acquire them, each once.

    Raises:
        ConfigurationError: two locks have the same name and kind of store, so clients might order them differently.
    """
    known: dict[tuple[str, str], tuple[object, T]] = {}
    for lock in locks:
        name, store, client = identity_of(lock)
        other, _ = known.setdefault((name, store), (client, lock))
        if other is not client:
            raise ConfigurationError(
                f"lock_all() has {name!r} twice, on two clients of {store}: other programs might acquire them in the "
                "other order, and deadlock; give them different names"
            )
    return [known[key][1] for key in sorted(known)]


async def acquire_all(
    parts: Sequence[Part[L]], timeout: float | None, make: Callable[[Sequence[L]], G], caller: Caller | None = None
) -> AcquireResult[G]:
    """Acquire all of them, which are in order, or none; for the calling thread or task, or for `caller`.

    Raises:
        WouldDeadlock: the caller holds one of them.
        BackendUnavailable, OutcomeUnknown: a server gave no answer; the locks that were acquired are released.
    """
    runtime = parts[0].engine.runtime
    caller, started = caller or runtime.caller(), runtime.now()
    give_up = float("inf") if timeout is None else started + timeout
    for engine, lock in parts:
        held = engine.held_by(caller, lock._spec)
        if held is not None:
            if timeout == 0:
                engine.not_acquired(lock._spec, "busy", ITSELF)
                return AcquireResult(None, ITSELF)
            reason = "lock_all() does not support re-entry; release the lock first, or leave it out"
            engine.not_acquired(lock._spec, "refused", reason)
            raise WouldDeadlock(lock=lock.name, fence=held.fence, reason=reason)
    leases: list[L] = []
    try:
        return await _acquire_in_turn(parts, caller, timeout, give_up, leases=leases, make=make)
    except BaseException as error:
        for engine, lock in parts:
            # The caller held none of them at first, so a lease that it holds now was acquired here. An interrupt may
            # have prevented its entry in `leases`.
            acquired = engine.held_by(caller, lock._spec)
            if acquired is not None:
                leases.append(acquired)
        for lease in leases:
            lease._engine.end(lease)
        if isinstance(error, ThreadStartError):  # the keeper may have no thread
            for engine, _ in parts:
                await engine.flush(give_up)
        raise


async def _acquire_in_turn(
    parts: Sequence[Part[L]],
    caller: Caller,
    timeout: float | None,
    give_up: float,
    *,
    leases: list[L],
    make: Callable[[Sequence[L]], G],
) -> AcquireResult[G]:
    """The leases that are acquired so far are in `leases`.

    The `try` is in the caller: for CPython, an interrupt at the backward jump to a loop at the beginning of a `try` is
    raised before that `try`.
    """
    runtime = parts[0].engine.runtime
    started = runtime.now()
    holder: str | None = None
    has_tried = False
    while True:
        if any(part.engine.is_closed for part in parts):
            raise UsageError("a client was closed while its locks were waited for")
        if not all(lease.held for lease in leases):
            logger().warning("one of %d locks was lost during the wait for the next: starting again", len(leases))
            await _release_all(leases, give_up)
            leases.clear()
        if len(leases) == len(parts):
            return AcquireResult(make(leases))
        # Each request has at least a second, so requests alone do not end at the timeout. With timeout=0, all free
        # locks are tried.
        is_over = has_tried and bool(timeout) and runtime.now() >= give_up
        if not is_over:
            blocked = await _acquire_free(parts[len(leases) :], caller, timeout, give_up, leases)
            has_tried = True
            if blocked is None:
                continue
            holder = blocked.holder
            is_over = timeout == 0 or (blocked is not _UNKNOWN and runtime.now() >= give_up)
        engine, lock = parts[len(leases)]
        if not is_over:
            remaining = None if timeout is None else max(0.0, give_up - runtime.now())
            result = await engine.acquire_new(lock, caller, remaining, detached=caller is not runtime.caller())
            if result.lease is not None:
                leases.append(result.lease)
                continue
            holder = result.holder
        else:
            waited = runtime.now() - started
            engine.not_acquired(lock._spec, "timeout" if timeout else "busy", holder, waited)
        await _release_all(leases, give_up)
        return AcquireResult(None, holder, runtime.now() - started)


async def _acquire_free(
    remaining_parts: Sequence[Part[L]], caller: Caller, timeout: float | None, give_up: float, leases: list[L]
) -> Waiting | None:
    """Acquire the first locks that are free and of one client, in one request. Returns the answer for a busy lock."""
    engine = remaining_parts[0].engine
    locks = [part.lock for part in takewhile(lambda part: part.engine is engine, remaining_parts)]
    if len(locks) == 1 and timeout != 0:
        return _UNKNOWN  # `acquire_new` requests a single lock and waits for it in one step
    try:
        return await engine.try_acquire_many(locks, caller, give_up, leases)
    except OutcomeUnknown:
        if timeout != 0 and engine.runtime.now() < give_up:
            return _UNKNOWN  # `acquire_new` requests the next lock; locks that may have been granted are released first
        raise


_UNKNOWN = Waiting(0.0)  # no request has shown whether the lock is busy


async def _release_all(leases: Sequence[BaseLease], give_up: float) -> None:
    """Release leases that no code works under, in one request for each store. The keeper repeats failed releases."""
    for lease in leases:
        lease._engine.end(lease)
    for engine, _ in by_engine(leases):
        await engine.flush(give_up)

"""The straight path: the plain acquire of a free lock, and its release, with as little code as possible.

Between two requests the processor runs the server and other programs, so the code of a client runs with cold caches:
its time depends on how much code it touches. The general path (Engine.acquire_new, a protocol, a topology, a pool, a
connection) touches several times as much as a plain acquire needs.

An acquire is plain if the lock is exclusive and has no rare option, and if no ticket of the client waits. With local
hand-over (core/local_handover.py), it is also plain if another caller of the client has the lock, and passes its lease
on within POLL_INTERVAL. The requests are prepared once for a lock and a caller (core/ports.py: PreparesRequests).

The path ends at the first reply that is not a grant, at a local wait without a pass, at an error and at an interrupt.
Engine.acquire_new then continues with the same claim, and handles that reply or exception as the outcome of its own
first request. So there is one implementation of polling, retries and clean-up. A release passes the lease on or sends
one request; if that does not complete it, Engine.release_any continues.

The invariant of the engine holds here too: after the request is sent, everything runs inside the `try`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from holdfast.core.events import logger
from holdfast.core.leases import HELD, RELEASED, RELEASING, TRANSFERRED, result_of
from holdfast.core.local_handover import LAST_POLLS
from holdfast.core.tickets import POLL_INTERVAL, Claim, Granted, note_unanswered
from holdfast.errors import BackendError, UsageError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine, L
    from holdfast.core.leases import AcquireResult
    from holdfast.core.local_handover import LocalQueue
    from holdfast.core.locks import BaseLock, Kept
    from holdfast.core.ports import Caller, PreparedRequests, PreparesRequests
    from holdfast.core.tickets import Waiting


class StraightPath:
    """The data that all plain acquires of one lock by one caller share."""

    __slots__ = (
        "acquire",
        "active",
        "agent",
        "caller_ref",
        "exchange",
        "info",
        "key",
        "lifetime",
        "local",
        "lock_ref",
        "name",
        "prepared_by",
        "queues",
        "read_reply",
        "release",
        "spec",
        "try_acquire",
        "ttl",
        "waiting",
    )

    def __init__(  # noqa: PLR0917
        self,
        prepared_by: PreparesRequests,
        requests: PreparedRequests,
        lock: BaseLock[Any],
        caller: Caller,
        claim: Claim,
        engine: Engine[Any],
    ) -> None:
        spec = lock._spec
        self.prepared_by = prepared_by
        self.caller_ref, self.lock_ref = weakref.ref(caller), weakref.ref(lock)  # weak, as in BaseLease
        self.key = (engine._serial, spec.name)  # in Caller.leases
        # Copied, because reading a field of a named tuple takes several times as long.
        self.exchange, self.acquire, self.try_acquire, self.release = requests[:4]
        self.lifetime, self.waiting, self.read_reply = requests[4:]
        self.spec, self.name, self.ttl = spec, spec.name, spec.ttl
        self.agent, self.info = claim.agent, claim.info
        # None if leases of this lock are not passed on (core/local_handover.py). Then no ticket is in the dicts.
        self.local = engine.local if claim.passable else None
        self.active: dict[str, Claim] = {} if self.local is None else self.local.active
        self.queues: dict[str, LocalQueue] = {} if self.local is None else self.local.queues


class Begun:
    """An acquire that began on the straight path and continues in `Engine.acquire_new`."""

    __slots__ = ("blocked", "claim", "is_taken", "lease", "outcome", "started")

    def __init__(
        self,
        claim: Claim,
        started: float,
        lease: Any,
        outcome: Granted | Waiting | BaseException | None,
        blocked: Waiting | None = None,
    ) -> None:
        self.claim, self.started, self.lease = claim, started, lease
        self.outcome = outcome  # of the first request; None: none was sent, or it had no effect
        self.blocked = blocked  # the answer with which it was queued locally before that; None: it was not queued
        self.is_taken = False  # the guards of the general path apply now


def prepare(engine: Engine[Any], backend: PreparesRequests, lock: BaseLock[Any], caller: Caller) -> StraightPath | None:
    """The straight path of this caller to a lock; None if there is none."""
    spec = lock._spec
    is_plain = spec.exclusive and spec.renew and spec.max_hold is None
    if not is_plain or spec.lock_delay or spec.stop_margin or spec.min_hold or spec.owner or spec.detect_deadlocks:
        return None
    claim = engine._claim(spec, caller)
    requests = backend.prepare_requests(claim)
    return None if requests is None else StraightPath(backend, requests, lock, caller, claim, engine)


async def acquire_straight(  # noqa: PLR0917  (by position, because every acquire calls this)
    engine: Engine[L], lock: BaseLock[L], caller: Caller, kept: Kept[L], path: StraightPath, timeout: float | None
) -> AcquireResult[L]:
    """Acquire a lock that the caller does not hold, as `Engine.acquire_new` does. `kept` is empty."""
    runtime, spec = engine.runtime, path.spec
    try:
        nonce = runtime.spare_nonces.pop()  # atomic
    except IndexError:
        nonce = runtime.nonce()
    claim = Claim(path.name, nonce, path.ttl, 1, True, path.agent, path.info)  # noqa: FBT003  (exclusive)
    local = path.local
    lease: L | None = None
    begun: Begun | None = None
    blocked: Waiting | None = None
    passed: Granted | None = None
    sent = runtime.now()
    try:
        engine._acquiring[nonce] = (claim, spec, sent)
        if engine.events.subscribers:
            engine._begin(claim, spec, sent)
        if local is not None:
            claim.passable = True
            if path.active.setdefault(path.name, claim) is not claim or path.name in path.queues or path.waiting:
                # Another caller of this client has the lock or requests it. It may pass its lease on.
                if timeout is None or timeout > LAST_POLLS:
                    event = claim.event = runtime.event()
                    blocked = local.join(claim)
                    if blocked is not None:
                        if claim.attempt is not None:
                            engine._emit(claim.attempt, "queued", reason=blocked.holder)
                        if engine._keeper._schedule.pending:
                            await engine._keeper.flush_without_timer(sent + LAST_POLLS)
                        await event.wait(sent + POLL_INTERVAL)
                    claim.event = None
                passed = claim.passed
                if passed is None:
                    begun = Begun(claim, sent, None, None, blocked)
                    return await engine.acquire_new(lock, caller, timeout, begun=begun)
        claim.path = path
        reply: Any
        if passed is not None:
            reply = passed.fence
        elif timeout is None:
            reply = path.exchange(path.acquire, nonce, sent, sent + engine.io_timeout)
        else:
            request = path.acquire if timeout else path.try_acquire
            reply = path.exchange(request, nonce, sent, engine.request_deadline(sent + timeout))
        if reply.__class__ is not int:
            reply = await reply
        outcome: Granted | Waiting | None
        if reply.__class__ is int:
            since, deadline = runtime.now(), sent + path.lifetime if passed is None else passed.deadline
            if since < deadline:
                if local is not None and passed is None:
                    claim.is_granted = True
                    if path.name in path.queues:
                        local.begin_turn(claim)
                lease = engine._lease_type(engine, spec, claim, (reply, deadline, None), since, caller, lock)
                # As Engine._publish does.
                lease._phase = HELD
                ref = caller.leases[path.key] = weakref.ref(lease)
                kept.append(lease)
                engine._leases[nonce] = ref
                engine._keeper.add(ref, lease._renew_at)
                if engine.is_closed:  # close() may have released the ticket before it was granted and published
                    await engine._withdraw(claim, since)
                    raise UsageError("the client was closed during this call")
                if claim.attempt is not None:
                    engine._emit(claim.attempt, "acquired", lease.fence, since - sent)
                engine._acquiring.pop(nonce, None)
                return result_of((lease, None, 0.0))
            outcome = Granted(reply, deadline)
        else:
            outcome = path.read_reply(claim, reply, sent)
        if local is not None and outcome is not None and passed is None:
            outcome = local.note_answer(claim, outcome, timeout != 0)
        begun = Begun(claim, sent, None, outcome, blocked)
        return await engine.acquire_new(lock, caller, timeout, begun=begun)
    except BaseException as error:
        if begun is not None and begun.is_taken:
            raise
        if claim.path is not None and passed is None:
            note_unanswered([claim], error)
        if local is not None and blocked is None:
            local.note_error(claim, error)
        return await engine.acquire_new(lock, caller, timeout, begun=Begun(claim, sent, lease, error, blocked))


async def release_straight(engine: Engine[L], lease: L, *, after_body: bool = False) -> None:
    """Release a lease, as `Engine.release` describes.

    A lease that was not acquired on the straight path, or that is not plain any more, is released by
    `Engine.release_any`.
    """
    claim, now, is_begun, reply = lease._claim, engine.runtime.now(), False, None
    path = claim.path
    try:
        if (
            path is not None
            and path.prepared_by is engine._preparing
            and now < lease._deadline
            and not claim.unanswered
        ):
            is_queued = path.name in path.queues  # so path.local is not None
            with engine.mutex:
                if lease._phase is HELD and lease._depth == 1:
                    is_begun = True
                    lease._phase = RELEASING
            if is_begun and (is_queued or claim.server is not None):
                if is_queued and path.local is not None and path.local.pass_on(claim):
                    reply = 1
            elif is_begun:
                if path.local is not None:
                    if path.active.get(path.name) is claim:
                        del path.active[path.name]
                    if path.name in path.queues:  # since the check above: a caller has found this ticket in `active`
                        path.local.promote(path.name)
                reply = path.exchange(path.release, claim.nonce, now, now + engine.io_timeout)
                if reply.__class__ is not int:
                    reply = await reply
        if path is None or reply.__class__ is not int:  # also for an error reply
            if not after_body or lease._phase is not TRANSFERRED:
                await engine.release_any(lease, is_begun=is_begun)
            return
        if reply != 1:
            engine._settle(lease, was_held=False)
            raise lease._loss()
        # As Engine._settle does, without the mutex: no other code changes the phase of a lease that is being released.
        lease._phase = RELEASED
        ref = engine._leases.pop(claim.nonce, None)
        caller, lock = lease._caller_ref(), lease._lock()
        if caller is not None:
            if caller.leases.get(path.key) is ref:
                caller.leases.pop(path.key, None)
            if lock is not None and (kept := lock._kept.get(id(caller))):
                try:  # noqa: SIM105  (suppress() would cost half a microsecond at every release)
                    kept.remove(lease)
                except ValueError:
                    pass  # the thread of the caller has just removed it
        if lease._lost_event is not None:
            lease._lost_event.set()  # ends `wait_lost`
        if engine.events.subscribers:
            engine._released(lease, "released")
    except BaseException as error:
        # The ticket is kept until the server has answered: the keeper repeats the release.
        if is_begun and lease._phase is RELEASING:
            engine.unconfirmed(lease)
        if not after_body or not isinstance(error, BackendError):
            raise
        logger().warning("release of %r got no answer, trying again in the background: %s", lease.name, error)

"""`method=unique`, the default: a unique key on the name of the lock excludes, a table of tickets keeps the order.

One statement acquires a lock that is free and has no waiters, and one releases it. Everything else is done by the
procedures in schema.sql, with the same steps as on PostgreSQL; this module decides which of them to call.

Waiters get no notifications, so they poll: `backends/sql_polling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.mysql.protocol.base import BaseMysqlBackend
from holdfast.backends.mysql.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.mysql.protocol.statements import (
    EXTEND_TURN,
    FAST_RELEASE_ALL,
    HOLDER_FENCE,
    INSERTED,
    POLL,
    POLL_OWNED,
    RENEW_ALONE,
    TRY_ACQUIRE,
    TRY_ACQUIRE_OWNED,
    fast_acquire_all,
    release_all,
)
from holdfast.backends.mysql.sql import AGENT_MAX, lock_id
from holdfast.backends.sql_polling import POLL_MIN, Polled, PolledWaiters
from holdfast.backends.sql_protocol import GRANULARITY, refused, us
from holdfast.core.clock import lease_deadline
from holdfast.core.local_handover import with_fences
from holdfast.core.tickets import (
    POLL_INTERVAL_BEHIND,
    Claim,
    Granted,
    LeaseGone,
    Live,
    Waiting,
    note_unanswered,
    process_text,
)
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Value
    from holdfast.core.ports import Runtime

BATCH = 128  # locks in one request, at most, to keep it and its transaction small


class UniqueBackend(BaseMysqlBackend):
    """Locks in one database, in FIFO order."""

    method = "unique"
    nominal_guarantees = GUARANTEES["unique"]
    lacks = LACKS["unique"]

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime, *, local_handover: bool = False) -> None:
        super().__init__(url, port, runtime)
        self.hands_over_locally = local_handover
        self._waiters = PolledWaiters(runtime, self._poll)

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            # A ticket without an answer may hold the lock, which only TRY_ACQUIRE checks.
            is_first = claim.state is None and not claim.unanswered
            if claim.exclusive and not claim.owner and is_first:
                granted = await self._fast_acquire(claim, deadline)
                if granted is not None:
                    return granted
            return await self._try_acquire(claim, deadline, queue=queue)
        except BaseException as error:
            note_unanswered([claim], error)
            raise

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        """One request for the first tickets, up to the first lock that is not free, and TRY_ACQUIRE for that lock."""
        batch = _first_batch(claims)
        granted: list[Granted | Waiting] = [*await self._fast_acquire_all(batch, deadline)] if batch else []
        if batch and len(granted) == len(batch):
            return granted
        claim = claims[len(granted)]
        try:
            return [*granted, await self._try_acquire(claim, deadline, queue=False)]
        except BaseException as error:
            note_unanswered([claim], error)
            raise

    async def _fast_acquire_all(self, claims: Sequence[Claim], deadline: float) -> list[Granted]:
        """Acquire the locks in their order, up to the first that is held or has waiters. Returns the grants."""
        first = claims[0]
        values: list[Value] = [us(first.ttl), first.agent[:AGENT_MAX], first.info]
        for claim in claims:
            values += (lock_id(claim.name), claim.name, claim.nonce)
        sent = self._runtime.now()
        try:
            answer = await self._port.execute(fast_acquire_all(len(claims)), values, deadline=deadline)
            ((fences, changes),) = answer.rows
            acquired = await self._confirm(_acquired(claims, fences, changes), deadline)
        except BaseException as error:
            note_unanswered(claims, error)
            raise
        for claim, fence, is_new in acquired:
            if is_new:
                await self._reap_for_new(claim.name, fence, deadline)
        return [Granted(fence, lease_deadline(sent, first.ttl, GRANULARITY)) for _, fence, _ in acquired]

    async def _confirm(self, acquired: list[tuple[Claim, int, bool]], deadline: float) -> list[tuple[Claim, int, bool]]:
        """The tickets before the first one whose lock is in use, as CONFIRM_NEW has found; it releases the others."""
        new = [(claim, fence) for claim, fence, is_new in acquired if is_new]
        undone = {claim.nonce for claim, _ in new} - await self._confirm_new(new, deadline)
        for count, (claim, _, _) in enumerate(acquired):
            if claim.nonce in undone:
                surplus = [other for other, _, _ in acquired[count:]]
                values = tuple(lock_id(other.name) for other in surplus), tuple(other.nonce for other in surplus)
                await self._port.execute(FAST_RELEASE_ALL, values, deadline=deadline)
                return acquired[:count]
        return acquired

    async def _try_acquire(self, claim: Claim, deadline: float, *, queue: bool) -> Granted | Waiting:
        key, ttl, agent = lock_id(claim.name), us(claim.ttl), claim.agent[:AGENT_MAX]
        statement = TRY_ACQUIRE_OWNED
        values: tuple[Value, ...] = (key, claim.name, claim.nonce, ttl, queue, agent, claim.info, claim.owner)
        if not claim.owner:
            statement = TRY_ACQUIRE
            values = (key, claim.name, self.method, claim.nonce, ttl, claim.exclusive, claim.limit, queue)
            values += (agent, claim.info)
        values += (self._client,)
        sent = self._runtime.now()
        answer = await self._port.execute(statement, values, deadline=deadline)
        ((outcome, fence, ahead, remaining, limit, other, is_new),) = answer.rows
        match outcome:
            case "in":
                self._waiters.granted(claim)
                if is_new == "1":
                    await self._reap_for_new(claim.name, int(fence or 0), deadline)
                return Granted(int(fence or 0), lease_deadline(sent, claim.ttl, GRANULARITY))
            case "wait":
                if queue:
                    position = self._waiters.start(claim, sent)
                    position.update(int(ahead or 0), sent)
                    left = int(remaining or 0) / 1e6
                    position.blocker_ends = self._runtime.now() + max(POLL_MIN, left) if left > 0 else float("inf")
                return Waiting(POLL_INTERVAL_BEHIND, process_text(other) if other else None)
            case _:
                raise refused(outcome, claim, limit, other, self.url)

    async def wait(self, claim: Claim, until: float) -> None:
        await self._waiters.wait(claim, until)

    async def _poll(self, claim: Claim, deadline: float) -> Polled:
        statement, owner = (POLL_OWNED, (claim.owner,)) if claim.owner else (POLL, ())
        values = (lock_id(claim.name), claim.nonce, *owner)
        answer = await self._port.execute(statement, values, deadline=deadline)
        held, ahead, exclusive, waiting, exists, *same_owner = (int(value or 0) for value in answer.rows[0])
        is_full = claim.limit is not None and ahead >= claim.limit
        return Polled(bool(exists and (held or exclusive or is_full)) and not any(same_owner), waiting)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        if len(claims) == 1:
            return [await self._release(claims[0], deadline)]
        answers: list[bool | BackendError] = []
        for start in range(0, len(claims), BATCH):
            answers += await self._release_all(claims[start : start + BATCH], deadline)
        return answers

    async def _release_all(self, claims: Sequence[Claim], deadline: float) -> list[bool | BackendError]:
        """One request for all locks without waiters, and one for all others."""
        released: dict[str, bool | BackendError] = {}  # by nonce: whether it held the lock until now
        held: set[str] = set()
        first = [claim for claim in claims if self._is_first_release(claim)]
        try:
            if first:
                for claim in first:
                    claim.withdrawn = True
                ids_and_nonces = tuple(lock_id(claim.name) for claim in first), tuple(claim.nonce for claim in first)
                answer = await self._port.execute(FAST_RELEASE_ALL, ids_and_nonces, deadline=deadline)
                for nonce, is_complete in answer.rows:
                    held.add(nonce or "")
                    if is_complete == "1":
                        released[nonce or ""] = True
            others = [claim for claim in claims if claim.nonce not in released]
            if others:
                values: list[Value] = []
                for claim in others:
                    values += (lock_id(claim.name), claim.name, claim.nonce, claim.unanswered)
                rows = (await self._port.execute(release_all(len(others)), values, deadline=deadline)).rows
                for claim, row in zip(others, rows, strict=True):
                    # RELEASE may have been sent twice; then its second answer is False.
                    released[claim.nonce] = row[0] == "1" or claim.nonce in held
        except BackendError as error:
            released = {claim.nonce: released.get(claim.nonce, error) for claim in claims}
        for claim in claims:
            if not isinstance(released[claim.nonce], BackendError):
                self._forget(claim)
        return [released[claim.nonce] for claim in claims]

    def _is_first_release(self, claim: Claim) -> bool:
        """No release was sent before, and the ticket holds the lock, as far as this client knows."""
        return not claim.withdrawn and not claim.unanswered and claim.state is None

    def _forget(self, claim: Claim) -> None:
        self._waiters.stop(claim)
        claim.unanswered = claim.withdrawn = False

    async def _release(self, claim: Claim, deadline: float) -> bool:
        is_fast = claim.exclusive and not claim.owner and self._is_first_release(claim)
        if is_fast:
            claim.withdrawn = True
        was_held = await self._release_lease(claim, deadline, is_fast=is_fast)
        self._forget(claim)
        return was_held

    async def extend_turn(
        self, claim: Claim, successor: Claim, fences: int, *, may_stay: bool, deadline: float
    ) -> Granted | Waiting | LeaseGone:
        key, about = lock_id(claim.name), (successor.agent[:AGENT_MAX], with_fences(successor.info, fences))
        values = (key, claim.nonce, fences, may_stay, us(claim.ttl), *about)
        while True:
            sent = self._runtime.now()
            answer = await self._port.execute(EXTEND_TURN, values, deadline=deadline)
            if answer.number:
                return Granted(answer.number, lease_deadline(sent, claim.ttl, GRANULARITY))
            if not (await self._port.execute(HOLDER_FENCE, (key, claim.nonce), deadline=deadline)).rows:
                return LeaseGone()
            if not may_stay:
                return Waiting(0.0)

    async def renew_alone(self, claim: Claim, holder: Claim, fence: int, *, deadline: float) -> Live | LeaseGone:
        about = (holder.agent[:AGENT_MAX], holder.info)
        values = (lock_id(claim.name), claim.nonce, fence, us(claim.ttl), *about)
        sent = self._runtime.now()
        answer = await self._port.execute(RENEW_ALONE, values, deadline=deadline)
        return Live(lease_deadline(sent, claim.ttl, GRANULARITY)) if answer.number else LeaseGone()

    async def close(self) -> None:
        self._waiters.wake_all()
        await super().close()


def _first_batch(claims: Sequence[Claim]) -> list[Claim]:
    """The first tickets that fit in one request: without an owner, and with the same ttl, agent and info."""
    first, batch = claims[0], []
    for claim in claims[:BATCH]:
        if claim.owner or (claim.ttl, claim.agent, claim.info) != (first.ttl, first.agent, first.info):
            break
        batch.append(claim)
    return batch


def _acquired(claims: Sequence[Claim], fences: str | None, changes: str | None) -> list[tuple[Claim, int, bool]]:
    """The granted tickets, each with its fence and whether its row is new, from the answer to `fast_acquire_all`."""
    return [
        (claim, int(fence), int(changed) == INSERTED)
        for claim, fence, changed in zip(claims, _split(fences), _split(changes), strict=True)
        if int(fence)
    ]


def _split(text: str | None) -> list[str]:
    return (text or "").split(",")[:-1]

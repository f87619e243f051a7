"""What all methods share: a lock is a row with a lease in it, which is renewed, looked at and broken in one way."""

from __future__ import annotations

import contextlib
from abc import ABC
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.backends.mysql.protocol.registers import Registers
from holdfast.backends.mysql.protocol.statements import (
    BREAK,
    CONFIRM_NEW,
    FAST_RELEASE_ALL,
    INSPECT,
    LOCKS,
    REAP,
    RENEW,
)
from holdfast.backends.mysql.protocol.values import lock_id, us
from holdfast.backends.mysql.sql import REAP_EVERY
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import LeaseGone, Live, LockInfo, Ticket, TicketInfo, make_ticket_info
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    NameConflict,
    OutcomeUnknown,
)
from holdfast.guarantees import Exclusion, Guarantees
from holdfast.primitives import Lacks

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Row
    from holdfast.core.ports import Runtime

GRANULARITY = 0.0  # the server counts microseconds


class BaseMysqlBackend(Registers, ABC):
    """Locks in one database."""

    nominal_guarantees: ClassVar[Guarantees]  # of a server that forgets nothing
    lacks: Lacks
    warnings: tuple[str, ...] = ()  # it works, or it does not
    liveness_fds: tuple[int, ...] = ()  # the server cannot see that a holder has died

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._client = runtime.nonce()  # names this client in its tickets: its waiters are passed over together
        self._unanswered: set[str] = set()  # tickets of which an enter had no answer: it may still come

    @property
    def guarantees(self) -> Guarantees:
        """By what is known of the server so far."""
        is_forgetful = self._port.is_forgetful
        return (
            self.nominal_guarantees._replace(exclusion=Exclusion.BEST_EFFORT)
            if is_forgetful
            else self.nominal_guarantees
        )

    def _note_unanswered(self, tickets: Sequence[Ticket], error: BaseException) -> None:
        """No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come."""
        if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError):
            self._unanswered.update(ticket.nonce for ticket in tickets)

    async def _confirm_new(self, tickets: Sequence[Ticket], deadline: float) -> set[str]:
        """Of tickets for which TAKE has inserted rows, the nonces of those that hold their locks; the others do not."""
        if not tickets:
            return set()
        values = tuple(lock_id(ticket.name) for ticket in tickets), tuple(ticket.nonce for ticket in tickets)
        # The first request may have created the tables, which takes longer than a call that does not wait has.
        deadline = max(deadline, self._runtime.now() + IO_TIMEOUT_MIN)
        try:
            rows = (await self._port.execute(CONFIRM_NEW, values, deadline=deadline)).rows
        except BackendUnavailable as error:  # of this request; but TAKE has changed something
            raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
        except ConfigurationError:
            await self._port.execute(FAST_RELEASE_ALL, values, deadline=deadline)
            raise
        return {nonce or "" for (nonce,) in rows}

    async def _reap_for_new(self, name: str, fence: int, deadline: float) -> None:
        """A row was inserted for this lock. For one of REAP_EVERY such rows, by its first fence, remove idle rows."""
        if fence % REAP_EVERY == 0:
            # Another client does so later if this fails. A user without the right to has its lock all the same.
            with contextlib.suppress(BackendError, ConfigurationError):
                await self._reap(lock_id(name), deadline)

    async def _reap(self, key: bytes, deadline: float) -> None:
        await self._port.execute(REAP, (key,), deadline=deadline)

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        """One request for all that have the same ttl."""
        found: dict[str, float] = {}
        for ttl in sorted({ticket.ttl for ticket in tickets}):
            batch = [ticket for ticket in tickets if ticket.ttl == ttl]
            keys = tuple(lock_id(ticket.name) for ticket in batch)
            nonces = tuple(ticket.nonce for ticket in batch)
            sent = self._runtime.now()
            answer = await self._port.execute(RENEW, (keys, nonces, us(ttl)), deadline=deadline)
            found |= {nonce or "": sent for (nonce,) in answer.rows}
        return [
            Live(lease_deadline(found[ticket.nonce], ticket.ttl, GRANULARITY)) if ticket.nonce in found else LeaseGone()
            for ticket in tickets
        ]

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        found = _described((await self._port.execute(INSPECT, (lock_id(name),), deadline=deadline)).rows)
        return found[0] if found else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        answer = await self._port.execute(LOCKS, (prefix.encode(),), deadline=deadline)
        return sorted(_described(answer.rows), key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        if not 0 < fence < 2**63:
            return False  # no fence of ours
        answer = await self._port.execute(BREAK, (lock_id(name), fence), deadline=deadline)
        return answer.rows[0][0] == "1"

    async def close(self) -> None:
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()


def method_conflict(lock: str, method: str) -> NameConflict:
    """The error for a lock that is in use with another method than ours."""
    return NameConflict(
        lock=lock,
        reason=f"it is in use with method={method}, and two methods need not exclude each other: "
        "give all programs the same method, or use another name",
    )


def _described(rows: Sequence[Row]) -> list[LockInfo]:
    """Locks, from rows of who holds them and who waits, in order."""
    found: dict[str, tuple[list[TicketInfo], list[TicketInfo]]] = {}
    for name, fence, exclusive, limit, remaining, since, agent, info, _ in rows:
        one = make_ticket_info(
            info=info or "",
            fence=None if fence is None else int(fence),
            agent=agent or "",
            since=int(since or 0) / 1e6,
            remaining=int(remaining or 0) / 1e6,
            exclusive=exclusive == "1",
            limit=None if limit is None else int(limit),
        )
        found.setdefault(name or "", ([], []))[fence is None].append(one)
    return [LockInfo(name, tuple(holders), tuple(waiters)) for name, (holders, waiters) in found.items()]

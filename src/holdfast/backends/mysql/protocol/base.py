"""Shared by all methods: a lock is a row with a lease, renewed, inspected and broken in one way; registers; records."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.backends.mysql.protocol.statements import (
    ADOPT,
    ADVANCE_REGISTER,
    BREAK,
    CONFIRM_NEW,
    FAST_ACQUIRE,
    FAST_RELEASE,
    FAST_RELEASE_ALL,
    HOLDER_FENCE,
    INSERTED,
    INSPECT,
    LOCKS,
    READ_RECORD,
    READ_REGISTERS,
    REAP,
    REAP_RECORDS,
    REAP_REGISTERS,
    RELEASE,
    RENEW,
    RENEW_LAST,
    SWAP_RECORD,
)
from holdfast.backends.mysql.sql import AGENT_MAX, REAP_EVERY, REAP_ROWS, lock_id
from holdfast.backends.sql_protocol import GRANULARITY, SqlBackend, keep_us, lock_infos, record_in, us
from holdfast.core.clock import lease_deadline
from holdfast.core.engine import IO_TIMEOUT_MIN
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, LockInfo
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort
    from holdfast.core.ports import Record, Runtime


class BaseMysqlBackend(SqlBackend):
    """Locks, registers and records in one database."""

    method: ClassVar[str]
    warnings: tuple[str, ...] = ()  # a database that works has no problems to report
    _port: MysqlPort

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)
        self._client = runtime.nonce()  # identifies this client in its tickets: its waiters lapse together

    async def _fast_acquire(self, claim: Claim, deadline: float) -> Granted | None:
        """Acquire the lock if it is free and has no tickets."""
        values = (lock_id(claim.name), claim.name, claim.nonce, us(claim.ttl), claim.agent[:AGENT_MAX], claim.info)
        sent = self._runtime.now()
        answer = await self._port.execute(FAST_ACQUIRE, (*values, self.method), deadline=deadline)
        if not answer.number:  # not `changed`, which depends on how the connection was opened
            return None
        if answer.changed == INSERTED:
            if not await self._confirm_new([(claim, answer.number)], deadline):
                return None
            await self._reap_for_new(claim.name, answer.number, deadline)
        return Granted(answer.number, lease_deadline(sent, claim.ttl, GRANULARITY))

    async def _confirm_new(self, inserted: Sequence[tuple[Claim, int]], deadline: float) -> set[str]:
        """The nonces of those tickets that hold their locks, of tickets for which FAST_ACQUIRE has inserted rows.

        Each ticket has the fence that FAST_ACQUIRE gave it.
        """
        if not inserted:
            return set()
        values = tuple(lock_id(claim.name) for claim, _ in inserted), tuple(claim.nonce for claim, _ in inserted)
        fences = tuple(fence for _, fence in inserted)
        # The first request may have created the tables, which may take longer than a call without a wait has.
        deadline = max(deadline, self._runtime.now() + IO_TIMEOUT_MIN)
        try:
            rows = (await self._port.execute(CONFIRM_NEW, (*values, fences), deadline=deadline)).rows
        except BackendUnavailable as error:  # for this request, but FAST_ACQUIRE has changed something
            raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
        except ConfigurationError:
            await self._port.execute(FAST_RELEASE_ALL, values, deadline=deadline)
            raise
        return {nonce or "" for (nonce,) in rows}

    async def _reap_for_new(self, name: str, fence: int, deadline: float) -> None:
        """A row was inserted for this lock. For one of REAP_EVERY such rows, by its first fence, remove idle rows."""
        if fence % REAP_EVERY == 0:
            # If this fails, another client does it later. A user without the right to reap keeps its lock.
            with contextlib.suppress(BackendError, ConfigurationError):
                await self._reap(lock_id(name), deadline)

    async def _reap(self, key: bytes, deadline: float) -> None:
        await self._port.execute(REAP, (key,), deadline=deadline)

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        """One request for all tickets with the same ttl."""
        sent_at: dict[str, float] = {}
        for ttl, is_final in sorted({(claim.ttl, claim.is_final) for claim in claims}):
            batch = [claim for claim in claims if (claim.ttl, claim.is_final) == (ttl, is_final)]
            keys = tuple(lock_id(claim.name) for claim in batch)
            nonces = tuple(claim.nonce for claim in batch)
            sent = self._runtime.now()
            statement = RENEW_LAST if is_final else RENEW
            answer = await self._port.execute(statement, (keys, nonces, us(ttl)), deadline=deadline)
            sent_at |= {nonce or "": sent for (nonce,) in answer.rows}
        return [
            Live(lease_deadline(sent_at[claim.nonce], claim.ttl, GRANULARITY))
            if claim.nonce in sent_at
            else LeaseGone()
            for claim in claims
        ]

    async def _release_lease(self, claim: Claim, deadline: float, *, is_fast: bool) -> bool:
        """Release the lock or withdraw the ticket; whether it was held.

        If `is_fast`, FAST_RELEASE is tried first. RELEASE covers all cases, also an unanswered try_acquire.
        """
        key, nonce = lock_id(claim.name), claim.nonce
        if is_fast and (await self._port.execute(FAST_RELEASE, (key, nonce), deadline=deadline)).changed:
            return True
        answer = await self._port.execute(RELEASE, (key, claim.name, nonce, claim.unanswered), deadline=deadline)
        return answer.rows[0][0] == "1"

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        key, sent = lock_id(claim.name), self._runtime.now()
        values = (key, nonce, claim.nonce, us(claim.ttl), claim.agent[:AGENT_MAX], claim.info)
        answer = await self._port.execute(ADOPT, values, deadline=deadline)
        if answer.changed:
            return Granted(answer.number, lease_deadline(sent, claim.ttl, GRANULARITY))
        rows = (await self._port.execute(HOLDER_FENCE, (key, claim.nonce), deadline=deadline)).rows
        if not rows:
            return LeaseGone()
        (outcome,) = await self.renew([claim], deadline=deadline)  # a repeated call
        return Granted(int(rows[0][0] or 0), outcome.deadline) if isinstance(outcome, Live) else outcome

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        infos = lock_infos((await self._port.execute(INSPECT, (lock_id(name),), deadline=deadline)).rows, true="1")
        return infos[0] if infos else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        return lock_infos((await self._port.execute(LOCKS, (prefix.encode(),), deadline=deadline)).rows, true="1")

    async def _break(self, name: str, fence: int, deadline: float) -> bool:
        answer = await self._port.execute(BREAK, (lock_id(name), fence), deadline=deadline)
        return answer.rows[0][0] == "1"

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        values = (lock_id(name), name, number, nonce, keep_us(keep))
        answer = await self._port.execute(ADVANCE_REGISTER, values, deadline=deadline)
        if answer.changed == INSERTED and self._runtime.jitter() < 1 / REAP_EVERY:
            with contextlib.suppress(BackendError):  # another client does it later
                await self._port.execute(REAP_REGISTERS, (REAP_ROWS,), deadline=deadline)
        return bool(answer.number)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        if not names:
            return []
        rows = (await self._port.execute(READ_REGISTERS, (tuple(map(lock_id, names)),), deadline=deadline)).rows
        numbers = {bytes.fromhex(key or ""): int(number or 0) for key, number in rows}
        return [numbers.get(lock_id(name), 0) for name in names]

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        if not expected and record is None:
            return record_in((await self._port.execute(READ_RECORD, (lock_id(name),), deadline=deadline)).rows)
        nonce, payload = (None, None) if record is None else record
        values = (lock_id(name), name, expected, nonce, payload, keep_us(keep))
        stored = record_in((await self._port.execute(SWAP_RECORD, values, deadline=deadline)).rows)
        if not expected and self._runtime.jitter() < 1 / REAP_EVERY:
            with contextlib.suppress(BackendError):  # another client does it later
                await self._port.execute(REAP_RECORDS, (REAP_ROWS,), deadline=deadline)
        return stored

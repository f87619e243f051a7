"""Shared by the plain methods row and version: one row for each lock, one holder, no tickets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.mysql.protocol.base import BaseMysqlBackend
from holdfast.backends.mysql.protocol.statements import REBASE, STATE
from holdfast.backends.mysql.sql import lock_id
from holdfast.backends.sql_protocol import method_conflict
from holdfast.core.one_by_one import OneByOne, result_or_error
from holdfast.core.tickets import Claim, Granted, Waiting, note_unanswered
from holdfast.errors import BackendError, Unsupported


class State(NamedTuple):
    """The row of a lock, read without locking it."""

    version: int
    method: str
    nonce: str | None  # of the holder, also if its lease has expired
    remaining: float  # seconds
    info: str

    @property
    def is_held(self) -> bool:
        return self.nonce is not None and self.remaining > 0


class PlainBackend(OneByOne, BaseMysqlBackend):
    """A lock that is one row."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not claim.exclusive:
            raise Unsupported(
                backend=f"mysql with method={self.method}",
                what="readers and semaphores",
                others=("mysql with method=unique",),
            )
        try:
            return await self._try_acquire(claim, deadline)
        except BaseException as error:
            note_unanswered([claim], error)
            raise

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        return [await result_or_error(self._release(claim, deadline)) for claim in claims]

    async def _state(self, name: str, deadline: float) -> State | None:
        """The row of the lock, if there is one.

        Raises:
            NameConflict: the lock is in use with another method.
        """
        key = lock_id(name)
        rows = (await self._port.execute(STATE, (key,), deadline=deadline)).rows
        if rows and (renewed := rows[0][-1]) is not None:  # the clock was set back since
            await self._port.execute(REBASE, (key, int(renewed)), deadline=deadline)
            rows = (await self._port.execute(STATE, (key,), deadline=deadline)).rows
        if not rows:
            return None
        version, method, nonce, remaining, info, has_tickets, _ = rows[0]
        state = State(int(version or 0), method or "", nonce, int(remaining or 0) / 1e6, info or "")
        if has_tickets == "1":  # also if the row shows no holder: an operator may have deleted the previous row
            raise method_conflict(name, "unique")
        if state.method != self.method and state.is_held:
            raise method_conflict(name, state.method)
        return state

    @abstractmethod
    async def _try_acquire(self, claim: Claim, deadline: float) -> Granted | Waiting: ...

    @abstractmethod
    async def _release(self, claim: Claim, deadline: float) -> bool: ...

"""Shared by the protocols on MySQL and PostgreSQL: rows become answers to the engine, outcomes become errors.

Pure, as everything in `protocol/`: no sockets, threads or clocks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.base_backend import BaseBackend, Port
from holdfast.backends.local_handover import break_in_use
from holdfast.backends.texts import text_of
from holdfast.core.ports import Record
from holdfast.core.tickets import Claim, LockInfo, TicketInfo, make_ticket_info, process_text
from holdfast.errors import HoldfastError, LimitConflict, NameConflict, OutcomeUnknown
from holdfast.guarantees import Exclusion, Guarantees, Order

if TYPE_CHECKING:
    Row = tuple[str | None, ...]

GRANULARITY = 0.0  # the servers count microseconds
FENCE_MAX = 2**63 - 1  # the largest number that a BIGINT holds
KEEP_MAX = 100 * 366 * 86400.0  # seconds: practically forever, and less than a BIGINT has room for


def us(seconds: float) -> int:
    """Microseconds, rounded up."""
    return math.ceil(seconds * 1e6)


def keep_us(keep: float) -> int:
    """For how many microseconds a register or record is kept."""
    return us(min(keep, KEEP_MAX))


def record_in(rows: Sequence[Row]) -> Record | None:
    """The record in an answer of none or one row with its nonce and payload."""
    for nonce, payload in rows:
        return Record(nonce or "", payload or "")
    return None


def schema_sql(package: str, **values: object) -> str:
    """The text of schema.sql in this package, with the values in place of their {names}."""
    text = text_of(package, "schema.sql")
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def refused(outcome: str | None, claim: Claim, limit: str | None, other: str | None, url: str) -> HoldfastError:
    """The error for an outcome of a try_acquire that is neither a grant nor a wait."""
    if outcome == "limit":
        theirs = None if limit is None else int(limit)
        return LimitConflict(lock=claim.name, ours=claim.limit, theirs=theirs, holder=process_text(other or ""))
    if outcome == "method":
        return method_conflict(claim.name, other or "")
    return OutcomeUnknown(backend=url, problem=f"ticket {claim.nonce} was withdrawn before")


def method_conflict(lock: str, method: str) -> NameConflict:
    """The error for a lock that is in use with a different method than ours."""
    return NameConflict(
        lock=lock,
        reason=f"it is in use with method={method}, and two methods need not exclude each other: "
        "give all programs the same method, or use another name",
    )


def lock_infos(rows: Iterable[Row], true: str, decode: Callable[[str], str] = str) -> list[LockInfo]:
    """Locks, from rows of their holders and waiters in order; `true` is how the server writes a true boolean."""
    locks: dict[str, tuple[list[TicketInfo], list[TicketInfo]]] = {}
    for name, fence, exclusive, limit, remaining, since, agent, info, *_ in rows:
        ticket_info = make_ticket_info(
            info=info or "",
            fence=None if fence is None else int(fence),
            agent=agent or "",
            since=int(since or 0) / 1e6,
            remaining=int(remaining or 0) / 1e6,
            exclusive=exclusive == true,
            limit=None if limit is None else int(limit),
        )
        locks.setdefault(decode(name or ""), ([], []))[fence is None].append(ticket_info)
    infos = (LockInfo(name, tuple(holders), tuple(waiters)) for name, (holders, waiters) in locks.items())
    return sorted(infos, key=lambda info: info.name)


class SqlPort(Port, Protocol):
    """The part of a port that both backends use in the same way."""

    @property
    def is_durable(self) -> bool:
        """Committed data survives a crash of the machine and a failover, as far as the server has reported."""


class SqlBackend(BaseBackend[SqlPort], ABC):
    """The part that both backends share. A lease may have several fences; its `info` has their number."""

    nominal_guarantees: Guarantees  # of a durable server, with local hand-over where there is one
    hands_over_locally = False

    @property
    def guarantees(self) -> Guarantees:
        guarantees = self.nominal_guarantees
        if not self._port.is_durable:
            guarantees = guarantees._replace(exclusion=Exclusion.BEST_EFFORT)
        is_strict = guarantees.order is Order.TURNS and not self.hands_over_locally
        return guarantees._replace(order=Order.FIFO) if is_strict else guarantees

    @abstractmethod
    async def inspect(self, name: str, *, deadline: float) -> LockInfo: ...

    @abstractmethod
    async def _break(self, name: str, fence: int, deadline: float) -> bool:
        """End the lease whose row has exactly this fence. Returns whether there was one."""

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        if not 0 < fence <= FENCE_MAX:
            return False

        # A lease whose fences change after it was read has greater ones, so a break of the old one changes nothing.
        async def request() -> bool | tuple[int, int]:
            fences = await self._fences_with(name, fence, deadline)
            return await self._break(name, fence, deadline) if fences is None else fences

        return await break_in_use(request, name=name, url=self.url, runtime=self._runtime, deadline=deadline)

    async def break_range(self, name: str, fence: int, *, deadline: float) -> bool:
        if not 0 < fence <= FENCE_MAX:
            return False
        while True:
            fences = await self._fences_with(name, fence, deadline)
            if fences is None:
                return await self._break(name, fence, deadline)
            if await self._break(name, fences[0], deadline):
                return True

    async def _fences_with(self, name: str, fence: int, deadline: float) -> tuple[int, int] | None:
        """The first and the last fence of a lease with several fences, if this is one of them."""
        for holder in (await self.inspect(name, deadline=deadline)).holders:
            if holder.fence and holder.last_fence and holder.fence <= fence <= holder.last_fence:
                return holder.fence, holder.last_fence
        return None

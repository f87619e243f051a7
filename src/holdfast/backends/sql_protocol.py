"""Shared by the protocols on MySQL and PostgreSQL: rows become answers to the engine, outcomes become errors.

Pure, as everything in `protocol/`: no sockets, threads or clocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from holdfast.core.ports import Record
from holdfast.core.tickets import Claim, LockInfo, TicketInfo, make_ticket_info, process_text
from holdfast.errors import HoldfastError, LimitConflict, NameConflict, OutcomeUnknown
from holdfast.guarantees import Exclusion, Guarantees

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
    text = resources.files(package).joinpath("schema.sql").read_text()
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def guarantees_of(nominal: Guarantees, *, is_durable: bool) -> Guarantees:
    """The nominal guarantees, unless a crash of the server's machine or a failover can lose committed data."""
    return nominal if is_durable else nominal._replace(exclusion=Exclusion.BEST_EFFORT)


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

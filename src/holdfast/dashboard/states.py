"""The state of the store for the pages, as JSON texts that are made once for all connections.

A lock in the table has a text and a version, the number of the state in which the text last changed. So a connection
that has received the state n gets the texts with a greater version, and the names that disappeared since.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.core.wait_graph import WaitGraph
from holdfast.dashboard.waits import ticket_fields, waits
from holdfast.monitor import Change, Holding, LockStatus, Snapshot
from holdfast.monitor.status import kind, role

HOLDERS_MAX = 5  # in the table
WAITERS_MAX = 200  # on the page of a lock
_CHANGES_KEPT = 300
_GONE_KEPT = 5000
_SAME_DEADLINE = 0.5  # seconds; the deadline of a lease differs a little from poll to poll


class Row(NamedTuple):
    """A lock in the table."""

    version: int
    fields: Mapping[str, Any]
    text: str


class Watched(NamedTuple):
    """A lock that has a page of its own."""

    name: str
    status: LockStatus | None  # None if the monitor has not found it
    info: LockInfo | None  # read for this page, if the monitor has not found it
    history: Sequence[Holding]


class State(NamedTuple):
    """The result of one poll. The thread of the monitor makes it, the event loop reads it."""

    epoch: str  # of the monitor; versions of another one mean something else
    version: int
    read_at: float  # of the last successful read
    error: str | None
    searched: float
    poll_seconds: float
    infos: Sequence[LockInfo]
    graph: WaitGraph
    rows: Mapping[str, Row]
    gone: Sequence[tuple[int, str]]  # version and name; the last ones
    complete_since: int  # `gone` has all names of this version and later ones
    changes: Sequence[tuple[int, str]]  # version and text; the last ones
    waits: str  # the graph
    watched: Mapping[str, str]  # texts by the name of the lock

    @property
    def status(self) -> dict[str, Any]:
        """The fields for the head of every page."""
        return {
            "unavailable": self.error,
            "search": f"searching, {self.searched:.0%}" if self.searched < 1 else None,
            "cycles": len(self.graph.cycles),
        }

    def table(self, after: int | None) -> dict[str, str]:
        """The fields of a message for the table: all locks, or those that changed after this version."""
        if after is None or after > self.version or after + 1 < self.complete_since:
            return {"full": "true", "locks": _array(row.text for row in self.rows.values())}
        # A lock that was free after this version, but is in use again now, is not gone.
        gone = {name for version, name in self.gone if version > after} - self.rows.keys()
        texts = {
            "locks": _array(row.text for row in self.rows.values() if row.version > after),
            "gone": _array(map(json.dumps, gone)),
            "changes": _array(text for version, text in self.changes if version > after),
        }
        return {field: text for field, text in texts.items() if text != "[]"}

    def message(self, texts: Mapping[str, str]) -> str:
        """A message with these fields, which are JSON already."""
        head = json.dumps({"now": time.time(), "read_at": self.read_at, **self.status})
        return ",".join([head[:-1], *(f'"{field}":{text}' for field, text in texts.items())]) + "}"


class StateMaker:
    """Makes states from snapshots."""

    def __init__(self) -> None:
        self._last = State(  # before the first poll
            epoch=secrets.token_hex(4),
            version=0,
            read_at=0.0,
            error=None,
            searched=1.0,
            poll_seconds=0.0,
            infos=(),
            graph=WaitGraph((), ()),
            rows={},
            gone=(),
            complete_since=0,
            changes=(),
            waits="",
            watched={},
        )

    def next(self, snapshot: Snapshot, watched: Sequence[Watched]) -> State:
        """The state after this poll."""
        last = self._last
        version = last.version + 1
        graph = snapshot.graph
        in_cycle = {edge.lock for cycle in graph.cycles for edge in cycle}
        rows = {
            status.name: _row(status, snapshot.read_at, version, last.rows.get(status.name), status.name in in_cycle)
            for status in snapshot.locks
        }
        gone = deque(last.gone, _GONE_KEPT)
        gone.extend((version, name) for name in last.rows if name not in rows)
        changes = deque(last.changes, _CHANGES_KEPT)
        changes.extend((version, json.dumps(_change(change))) for change in snapshot.changes if change.ticket)
        self._last = State(
            epoch=last.epoch,
            version=version,
            read_at=snapshot.read_at,
            error=None if snapshot.error is None else str(snapshot.error),
            searched=snapshot.searched,
            poll_seconds=snapshot.poll_seconds,
            infos=snapshot.infos,
            graph=graph,
            rows=rows,
            gone=tuple(gone),
            complete_since=gone[0][0] + 1 if len(gone) == _GONE_KEPT else 0,
            changes=tuple(changes),
            waits=json.dumps(waits(graph)),
            watched={lock.name: json.dumps(_lock(lock, snapshot.read_at)) for lock in watched},
        )
        return self._last

    def failed(self, reason: str) -> State:
        """The state after a poll that failed for a reason that the monitor does not expect."""
        self._last = self._last._replace(version=self._last.version + 1, error=reason)
        return self._last


def _row(status: LockStatus, at: float, version: int, before: Row | None, in_cycle: bool) -> Row:  # noqa: FBT001
    holders = [
        _holder_fields(holding, at, _holder_before(before, number))
        for number, holding in enumerate(status.holdings[:HOLDERS_MAX])
    ]
    since = [waiter.since for waiter in status.waiters if waiter.since]
    fields = {
        "name": status.name,
        "kind": status.kind,
        "limit": status.limit,
        "holders": holders,
        "holder_count": len(status.holders),
        "waiters": len(status.waiters),
        "waiting_since": min(since, default=None),
        "in_cycle": in_cycle,
    }
    if before is not None and before.fields == fields:
        return before
    return Row(version, fields, json.dumps(fields))


def _holder_before(before: Row | None, number: int) -> Mapping[str, Any] | None:
    holders = before.fields["holders"] if before else ()
    return holders[number] if number < len(holders) else None


def _holder_fields(holding: Holding, at: float, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    ticket = holding.ticket
    fields = ticket_fields(ticket)
    expires_at = at + ticket.remaining if math.isfinite(ticket.remaining) else None
    ttl = round(holding.ttl, 1) if math.isfinite(holding.ttl) else None
    if expires_at and before is not None and before["fence"] == fields["fence"]:
        known: float = before["expires_at"] or 0.0
        expires_at = known if abs(known - expires_at) < _SAME_DEADLINE else expires_at
    return {**fields, "since": ticket.since or None, "expires_at": expires_at, "ttl": ttl}


def _lock(lock: Watched, at: float) -> dict[str, Any]:
    """The fields of the page of a lock."""
    status, info = lock.status, lock.info
    if status is not None:
        info, holdings = status.info, list(status.holdings)
    else:
        info = info or LockInfo(lock.name, (), ())
        holdings = [Holding(ticket, ticket.remaining, at, at) for ticket in info.holders]
    word, limit = kind(info)
    return {
        "name": lock.name,
        "kind": word,
        "limit": limit,
        "holders": [
            {
                **_holder_fields(holding, at),
                "role": role(holding.ticket, info, "holder"),
                "owner": holding.ticket.owner,
                "revocable": holding.ticket.revocable,
                "meta": _meta(holding.ticket),
            }
            for holding in holdings
        ],
        "waiters": [
            {
                **ticket_fields(ticket),
                "since": ticket.since or None,
                "role": role(ticket, info, "waiter"),
                "owner": ticket.owner,
                "meta": _meta(ticket),
            }
            for ticket in info.waiters[:WAITERS_MAX]
        ],
        "waiter_count": len(info.waiters),
        "past": [
            {
                **ticket_fields(holding.ticket),
                "from": holding.ticket.since or holding.seen_from,
                "until": holding.seen_until,
            }
            for holding in lock.history
            if holding.is_over
        ],
    }


def _meta(ticket: TicketInfo) -> list[tuple[str, str]]:
    """The user's values as texts, because JavaScript would round large numbers."""
    return [
        (str(key), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        for key, value in ticket.meta.items()
    ]


def _change(change: Change) -> dict[str, Any]:
    ticket = change.ticket
    assert ticket is not None  # noqa: S101 - for the type checker
    is_end = change.kind in ("released", "left")
    return {
        "at": change.at,
        "kind": change.kind,
        "lock": change.lock,
        "seconds": max(0.0, change.at - ticket.since) if is_end and ticket.since else None,
        **ticket_fields(ticket),
    }


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"

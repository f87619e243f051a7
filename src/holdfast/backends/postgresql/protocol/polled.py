"""method=queue for a client that cannot listen: behind a pooler that lends a session for one transaction.

The queue and its functions are the same, and the client shares them with clients that listen. Its waiters poll:
`backends/sql_polling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.postgresql.port import PostgresqlPort, Row, Statement
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend, encode_name
from holdfast.backends.sql_polling import Polled, PolledWaiters
from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import WOKEN_LEASE, Claim, Granted, Waiting
from holdfast.errors import BackendError
from holdfast.guarantees import Guarantees, Wake

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

# holdfast_wake gives a waiter that can be granted WOKEN_LEASE seconds to poll. The interval is half of that, so that a
# slow poll is in time too.
_INTERVAL_MAX = WOKEN_LEASE / 2
_COUNTED = 64  # waiters before a ticket that a poll counts: the interval does not depend on more
# Whether the ticket is blocked, and the number of waiters before it. It returns no row if the ticket does not wait: it
# was removed, or granted without an answer. A ticket that was woken is not blocked.
_POLL = Statement(
    "holdfast_poll_queue",
    """
    WITH clock AS (SELECT {schema}.holdfast_clock() AS now),
    lock AS (
        SELECT l.nonce, l.expires, l.head FROM {schema}.holdfast_locks l WHERE l.name = $1::text
        ORDER BY l.generation DESC LIMIT 1
    ),
    mine AS (
        SELECT t.number, t.expires FROM lock, {schema}.holdfast_tickets t
        WHERE t.name = $1::text AND t.number >= lock.head AND t.nonce = $2::text AND t.fence IS NULL LIMIT 1
    ),
    before AS (
        SELECT t.exclusive, t.fence FROM clock, lock, mine, {schema}.holdfast_tickets t
        WHERE t.name = $1::text AND t.number >= lock.head AND t.number < mine.number AND t.expires > clock.now
        ORDER BY t.number LIMIT $4::bigint
    )
    SELECT
        mine.expires - clock.now > $6::bigint AND (
            lock.nonce IS NOT NULL AND lock.expires > clock.now
            OR EXISTS (SELECT 1 FROM before b WHERE b.exclusive)
            OR coalesce((SELECT count(*) FROM before b) >= $3::bigint, false)
        ) AND NOT EXISTS (
            SELECT 1 FROM {schema}.holdfast_tickets t
            WHERE t.name = $1::text AND t.number >= lock.head AND t.owner = $5::text AND t.fence IS NOT NULL
            AND t.expires > clock.now
        ),
        (SELECT count(*) FROM before b WHERE b.fence IS NULL)
    FROM clock, lock, mine
    """,
)


class PolledBackend(PostgresqlBackend):
    """Locks in one database, in FIFO order, with waiters that poll."""

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime, *, local_handover: bool = False) -> None:
        super().__init__(url, port, runtime, local_handover=local_handover)
        self._waiters = PolledWaiters(runtime, self._poll, interval_max=_INTERVAL_MAX)

    @property
    def guarantees(self) -> Guarantees:
        return super().guarantees._replace(wake=Wake.POLL)

    def _outcome(self, claim: Claim, row: Row, sent: float, *, queue: bool) -> Granted | Waiting:
        outcome = super()._outcome(claim, row, sent, queue=queue)
        if isinstance(outcome, Granted):
            self._waiters.granted(claim)
        elif queue:
            self._waiters.start(claim, sent)
        return outcome

    async def wait(self, claim: Claim, until: float) -> None:
        await self._waiters.wait(claim, until)

    async def _poll(self, claim: Claim, deadline: float) -> Polled:
        counted = None if claim.limit is None else max(claim.limit, _COUNTED)
        owner = encode_name(claim.owner) if claim.owner else None
        values = (encode_name(claim.name), claim.nonce, claim.limit, counted, owner, us(WOKEN_LEASE))
        for is_blocked, ahead in await self._port.execute(_POLL, values, deadline=deadline):
            return Polled(is_blocked == "t", int(ahead or 0))
        return Polled(is_blocked=False)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        released = await super().release(claims, deadline=deadline)
        for claim in claims:
            self._waiters.stop(claim)
        return released

    async def close(self) -> None:
        self._waiters.wake_all()
        await super().close()

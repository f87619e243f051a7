"""`method=version`: optimistic. Read the lock's row and its version, then change the row if the version is still that.

Every change of hands draws a new version, which is the fence; so a change that was decided on an older state changes
nothing, however late it comes. Nothing is locked between the two steps, and nobody waits in the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.port import Statement
from holdfast.backends.mysql.protocol.base import GRANULARITY
from holdfast.backends.mysql.protocol.guarantees import VERSION, VERSION_LACKS
from holdfast.backends.mysql.protocol.plain import PlainBackend
from holdfast.backends.mysql.protocol.values import AGENT_MAX, lock_id, us
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, Ticket, Waiting, process_text

if TYPE_CHECKING:
    from holdfast.backends.mysql.protocol.plain import State

POLL = 0.1  # seconds between looks at a lock that is taken, at most; jittered, so that waiters do not march in step
TRIES_MAX = 8  # to change a lock that is free, while others change it: to be slower is not to find it taken

_CREATE = Statement(
    "create", "INSERT IGNORE INTO holdfast_locks (id, name, method, drawn) VALUES ({0}, {1}, 'version', {now})"
)
# The version decides; that the lease has run out is looked at once more, because to renew one draws no version.
_CAS_ACQUIRE = Statement(
    "cas_acquire",
    "UPDATE holdfast_locks SET drawn = LAST_INSERT_ID(GREATEST(drawn + 1, {now})), fence = drawn, nonce = {1}, "
    "method = 'version', expires = {now} + {3}, renewed = {now}, since = {now}, agent = {4}, info = {5} "
    "WHERE id = {0} AND drawn = {2} AND (nonce IS NULL OR nonce = {1} OR expires <= {now})",
)
_CAS_RELEASE = Statement(
    "cas_release",
    "UPDATE holdfast_locks SET drawn = LAST_INSERT_ID(GREATEST(drawn + 1, {now})), nonce = NULL "
    "WHERE id = {0} AND nonce = {1} AND expires > {now}",
)
# Whatever was decided before this, and still comes, changes nothing.
_BUMP_VERSION = Statement(
    "bump_version",
    "UPDATE holdfast_locks SET drawn = GREATEST(drawn + 1, {now}), nonce = IF(nonce = {1}, NULL, nonce) WHERE id = {0}",
)


class VersionBackend(PlainBackend):
    """Who asks at the right moment is next."""

    method = "version"
    nominal_guarantees = VERSION
    lacks = VERSION_LACKS

    async def _try_acquire(self, ticket: Ticket, deadline: float) -> Granted | Waiting:
        is_new = False
        for _ in range(TRIES_MAX):
            state = await self._state(ticket.name, deadline)
            if state is None:
                created = await self._port.execute(_CREATE, (lock_id(ticket.name), ticket.name), deadline=deadline)
                is_new = bool(created.changed)
            elif state.is_held and state.nonce != ticket.nonce:
                return Waiting(self._pause(state.remaining), process_text(state.info))
            elif (granted := await self._cas_acquire(ticket, state, deadline)) is not None:
                if is_new:
                    await self._reap_for_new(ticket.name, granted.fence, deadline)
                return granted
        return Waiting(self._pause(POLL))

    async def _cas_acquire(self, ticket: Ticket, state: State, deadline: float) -> Granted | None:
        agent = ticket.agent[:AGENT_MAX]
        values = (lock_id(ticket.name), ticket.nonce, state.version, us(ticket.ttl), agent, ticket.info)
        sent = self._runtime.now()
        answer = await self._port.execute(_CAS_ACQUIRE, values, deadline=deadline)
        return Granted(answer.number, lease_deadline(sent, ticket.ttl, GRANULARITY)) if answer.changed else None

    async def wait(self, ticket: Ticket, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    async def _release(self, ticket: Ticket, deadline: float) -> bool:
        values = (lock_id(ticket.name), ticket.nonce)
        answer = await self._port.execute(_CAS_RELEASE, values, deadline=deadline)
        if ticket.nonce in self._unanswered:
            await self._port.execute(_BUMP_VERSION, values, deadline=deadline)
        self._unanswered.discard(ticket.nonce)
        return bool(answer.changed)

    def _pause(self, remaining: float) -> float:
        return min(POLL * (0.5 + self._runtime.jitter() / 2), max(0.001, remaining))

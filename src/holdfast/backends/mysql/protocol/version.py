"""`method=version`: optimistic. Read the row of the lock, then update it if its version is the same.

Every grant and release draws a new version, which is the fence. So an update that was decided on an older state changes
nothing, no matter how late it arrives. Nothing is locked between the two steps, and no client waits in the server.
"""

from __future__ import annotations

from holdfast.backends.mysql.port import Statement
from holdfast.backends.mysql.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.mysql.protocol.plain import PlainBackend, State
from holdfast.backends.mysql.sql import AGENT_MAX, lock_id
from holdfast.backends.sql_protocol import GRANULARITY, us
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import WAITER_LEASE, Claim, Granted, Waiting, process_text

POLL = 0.1  # seconds between polls of a held lock, at most; jittered, so that waiters do not poll in step
TRIES_MAX = 8  # attempts to acquire a free lock whose row other clients change meanwhile; then the ticket waits

_CREATE = Statement(
    "create", "INSERT IGNORE INTO holdfast_locks (id, name, method, drawn) VALUES ({0}, {1}, 'version', {now})"
)
# The version decides. The expiry is checked too, because a renewal draws no version.
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
# An update that was decided before this, and arrives later, changes nothing. An adoption does not compare the version,
# so the release is remembered for a while.
_BUMP_VERSION = Statement(
    "bump_version",
    "UPDATE holdfast_locks SET drawn = GREATEST(drawn + 1, {now}), nonce = IF(nonce = {1}, NULL, nonce), "
    "departed = CONCAT_WS(',', IF(departed_until > {now}, departed, NULL), {1}), departed_until = {now} + {2} "
    "WHERE id = {0}",
)


class VersionBackend(PlainBackend):
    """No order: a free lock goes to the client that polls next."""

    method = "version"
    nominal_guarantees = GUARANTEES["version"]
    lacks = LACKS["version"]

    async def _try_acquire(self, claim: Claim, deadline: float) -> Granted | Waiting:
        is_new = False
        for _ in range(TRIES_MAX):
            state = await self._state(claim.name, deadline)
            if state is None:
                created = await self._port.execute(_CREATE, (lock_id(claim.name), claim.name), deadline=deadline)
                is_new = bool(created.changed)
            elif state.is_held and state.nonce != claim.nonce:
                return Waiting(self._pause(state.remaining), process_text(state.info))
            elif (granted := await self._cas_acquire(claim, state, deadline)) is not None:
                if is_new:
                    await self._reap_for_new(claim.name, granted.fence, deadline)
                return granted
        return Waiting(self._pause(POLL))

    async def _cas_acquire(self, claim: Claim, state: State, deadline: float) -> Granted | None:
        agent = claim.agent[:AGENT_MAX]
        values = (lock_id(claim.name), claim.nonce, state.version, us(claim.ttl), agent, claim.info)
        sent = self._runtime.now()
        answer = await self._port.execute(_CAS_ACQUIRE, values, deadline=deadline)
        return Granted(answer.number, lease_deadline(sent, claim.ttl, GRANULARITY)) if answer.changed else None

    async def wait(self, claim: Claim, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    async def _release(self, claim: Claim, deadline: float) -> bool:
        values = (lock_id(claim.name), claim.nonce)
        answer = await self._port.execute(_CAS_RELEASE, values, deadline=deadline)
        if claim.unanswered:
            await self._port.execute(_BUMP_VERSION, (*values, us(WAITER_LEASE)), deadline=deadline)
        claim.unanswered = False
        return bool(answer.changed)

    def _pause(self, remaining: float) -> float:
        return min(POLL * (0.5 + self._runtime.jitter() / 2), max(0.001, remaining))

"""The lock protocol on a majority of independent nodes, with a fence that needs no consensus.

Each node has one vote for each lock, and a count that never decreases. An attempt requests the votes of all nodes at
once. If it gets the votes of a majority, its fence is the highest count among them. If fewer than a majority have that
count, the counts of the others are raised to it, provided that they still have exactly the vote that was given. Any two
majorities share a node, and on that node one of two leases had the vote first: the second one was counted after it, so
its fence is greater. This argument needs no clock. Exclusion does need clocks: leases expire by clocks, as everywhere.

A node that restarts without its data could vote twice. So a node that may lose data does not count until it has been up
for `max_ttl`, the longest time that a lease from before the restart can last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.base_backend import BaseBackend
from holdfast.backends.redis.port import Call, Reply
from holdfast.backends.redis.protocol.keys import (
    REDLOCK,
    Keys,
    OtherKeys,
    keys_and_record_before,
    keys_of,
    method_conflict,
    method_in,
)
from holdfast.backends.redis.protocol.scanning import KeySource, Lister, ListsLocks
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.redlock.protocol.node_health import NodeHealth
from holdfast.backends.redlock.protocol.records import Line, NodeRecord, describe, nonce_of_holder
from holdfast.backends.redlock.protocol.registers import QuorumRegisters
from holdfast.core.clock import lease_deadline
from holdfast.core.notifications import Notifications
from holdfast.core.one_by_one import OneByOne
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, LockInfo, Waiting, process_text
from holdfast.errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    NameConflict,
    Unsupported,
)
from holdfast.guarantees import Exclusion, FenceOrder, Guarantees

if TYPE_CHECKING:
    from holdfast.backends.redlock.config import RedlockConfig
    from holdfast.backends.redlock.port import RedlockPort
    from holdfast.core.ports import Runtime


GRANULARITY = 0.002  # seconds: nodes count whole milliseconds
POLL_FIRST, POLL_BEHIND = 0.1, 1.0  # longest interval in seconds between polls of the next waiter and of the others
SPLIT_PAUSE, SPLIT_PAUSE_MAX = 0.004, 0.1  # longest pause in seconds after a split vote; doubled up to the maximum

_KEPT, _TAKEN, _FREE = 1, 0, 2  # replies of renew.lua


@dataclass(slots=True)
class _State:
    """The state of a claim."""

    attempt: int = 0  # number of the last one
    asked: set[int] = field(default_factory=set)  # nodes that may know the ticket
    unanswered: set[int] = field(default_factory=set)  # nodes where a request for the vote may still arrive
    voters: set[int] = field(default_factory=set)  # if it was granted: nodes that have its vote, as far as known
    fence: int | None = None  # if it was granted
    unanswered_ttl: float = math.inf  # the shortest ttl in a renewal that a node may still execute
    longest_ttl: float = 0.0  # of all requests: every vote expires by itself within this time
    splits: int = 0  # number of consecutive attempts without a majority for any ticket


class _Count(NamedTuple):
    """The result of a request for votes."""

    votes: dict[int, int]  # node -> its count
    refusals: dict[int, list[Reply]]  # node -> its reply, with the holder of its vote
    errors: dict[int, HoldfastError]
    uncounted: list[int]  # nodes that gave or may have given a vote that does not count


class RedlockBackend(BaseBackend["RedlockPort"], ListsLocks[int], KeySource[int], OneByOne, QuorumRegisters):
    """Locks on a majority of nodes."""

    lacks = LACKS

    def __init__(self, config: RedlockConfig, port: RedlockPort, runtime: Runtime) -> None:
        super().__init__(config.redis.url, port, runtime)
        self._config = config
        self._nodes = range(len(port.nodes))
        self._quorum = len(port.nodes) // 2 + 1
        self._notifications = Notifications(port.subscriber, runtime, config.redis.url)
        self._health = NodeHealth(config, port, runtime)
        self._lister = Lister(self, runtime, config.redis.prefix, self._read_locks)

    @property
    def guarantees(self) -> Guarantees:
        server_runs = [self._port.server_run(number) for number in self._nodes]
        if any(server_run is None or server_run.may_forget for server_run in server_runs):
            return GUARANTEES
        return GUARANTEES._replace(exclusion=Exclusion.DURABLE_AUTHORITY, fence=FenceOrder.DURABLE_STORAGE)

    @property
    def warnings(self) -> tuple[str, ...]:
        known = [number for number in self._nodes if self._port.server_run(number) is not None]
        errors = {number: self._health.ineligible(number) for number in known if not self._health.is_eligible(number)}
        errors |= self._health.unresponsive
        return tuple(f"{self._port.nodes[number]}: {error}" for number, error in sorted(errors.items()))

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        self._refuse_unfit(claim)
        state = claim.state = claim.state or _State()
        state.attempt += 1
        if queue:
            self._notifications.expect(claim, self._port.subscriber.channel(self._keys(claim.name)))
        await self._health.handshake(deadline)
        sent = self._runtime.now()
        count = self._counted(await self._call_for_votes(claim, state, queue=queue, deadline=deadline))
        conflict = self._conflict(claim, count)
        fence = await self._agree(claim, state, count, deadline) if conflict is None else None
        if fence is not None:
            self._notifications.stop(claim)
            state.splits, state.fence, state.voters = 0, fence, {*count.votes}
            return Granted(fence, lease_deadline(sent, claim.ttl, GRANULARITY))
        is_answered = len(count.votes) + len(count.refusals) >= self._quorum
        # The engine may never use this ticket again.
        is_over = (not queue and is_answered) if conflict is None else state.attempt == 1
        # Votes of a minority block other tickets. Nodes that did not reply may have given one.
        nodes = state.asked & {*count.votes, *count.uncounted}
        await self._withdraw(claim, state, nodes, deadline, is_over=is_over)
        if conflict is not None:
            if is_over:
                self._notifications.refused(claim)
                claim.state = None
            raise conflict
        if not is_answered:
            raise self._health.quorum_error(count.errors)
        if not queue:
            claim.state = None  # the ticket is not used again
        return self._waiting(state, count)

    async def wait(self, claim: Claim, until: float) -> None:
        await self._notifications.wait(claim, self._port.subscriber.channel(self._keys(claim.name)), until)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        if all(self._port.server_run(number) is None for number in self._nodes):  # granted to another backend
            await self._health.handshake(deadline)
        present = self._health.responsive()
        everywhere = set(self._nodes)
        unknown = _State(attempt=1, asked=everywhere, unanswered=everywhere)
        states: list[_State] = [claim.state or unknown for claim in claims]
        # The nodes are chosen here: a concurrent renewal may add others, for which the release is scheduled.
        calls = [
            {number: self._release(claim, state, number, is_over=True) for number in present if number in state.asked}
            for claim, state in zip(claims, states, strict=True)
        ]
        replies = await self._health.run_each(calls, self._limit(claims, deadline))
        outcomes: list[bool | BackendError] = []
        for claim, state, replied in zip(claims, states, replies, strict=True):
            outcome = self._released(claim, state, replied)
            outcomes.append(outcome)
            if not isinstance(outcome, BackendError):
                self._notifications.stop(claim)
                claim.state = None
        return outcomes

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        for claim in claims:
            self._refuse_unfit(claim)  # its ttl may have been changed
        await self._health.handshake(deadline)
        responsive = self._health.responsive()
        sent = self._runtime.now()
        states: list[_State] = [claim.state or _State() for claim in claims]
        calls = []
        for claim, state in zip(claims, states, strict=True):
            state.longest_ttl = max(state.longest_ttl, claim.ttl)
            calls.append(dict.fromkeys(self._nodes_to_renew(state, responsive), self._renewal(claim, state)))
        replies = await self._health.run_each(calls, self._limit(claims, deadline))
        outcomes: list[Live | LeaseGone | BackendError] = []
        forgotten: list[tuple[int, Claim]] = []
        for claim, state, replied in zip(claims, states, replies, strict=True):
            answered = _answered(replied)
            state.voters = (state.voters - answered) | {number for number in answered if replied[number] == _KEPT}
            outcome = self._renewed(claim, state, replied, sent)
            if not all(number in answered or _is_unchanged(reply) for number, reply in replied.items()):
                # A node may still execute it.
                state.unanswered_ttl = min(state.unanswered_ttl, claim.ttl)
            outcomes.append(outcome)
            if claim.is_final and not isinstance(outcome, BackendError):
                # A majority keeps the votes until the ttl is over. The others need not, and may have a longer ttl.
                for number in state.asked - answered if isinstance(outcome, Live) else state.asked:
                    self._schedule_release(number, claim, state, is_over=True)
                claim.unanswered = bool(state.unanswered)
                if not claim.unanswered:
                    claim.state = None
            elif isinstance(outcome, Live):
                forgotten += [(number, claim) for number, reply in replied.items() if reply == _FREE]
        if forgotten:
            await self._repair(forgotten, self._limit(claims, deadline))
        return outcomes

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        (records,) = await self._node_records([name], deadline)
        return describe(name, records, self._quorum, len(self._nodes))

    async def _read_locks(self, names: Sequence[str], deadline: float) -> Callable[[], list[LockInfo]]:
        records = await self._node_records(names, deadline)
        return lambda: self._in_use(names, records)

    def _in_use(self, names: Sequence[str], records: Sequence[Sequence[NodeRecord]]) -> list[LockInfo]:
        described = [
            describe(name, nodes, self._quorum, len(self._nodes)) for name, nodes in zip(names, records, strict=True)
        ]
        return [info for info in described if info.holders or info.waiters]

    # The nodes whose keys are searched. A node that does not reply is left out: a majority knows each held lock.

    async def servers(self, *, deadline: float) -> Sequence[int]:
        # A short request finds the nodes that hang, so that long requests may take their time.
        await self._node_records(["hello"], deadline)
        return self._health.responsive()

    async def key_count(self, server: int, *, deadline: float) -> int:
        try:
            return await self._port.key_count_at(server, deadline=deadline)
        except HoldfastError as error:
            self._health.mark_unresponsive(server, error)
            return 0

    async def scan(self, server: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, Sequence[str]]:
        try:
            return await self._port.scan_at(server, cursor, pattern, deadline=deadline)
        except HoldfastError as error:
            self._health.mark_unresponsive(server, error)
            return b"0", ()

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        (records,) = await self._node_records([name], deadline)
        nonce = nonce_of_holder(records, self._quorum, len(self._nodes), fence)
        if nonce is None:
            return False
        call = Call(lua.RELEASE, self._keys(name), (nonce, 2**53, 1))
        calls = dict.fromkeys(self._health.responsive(), call)
        (replied,) = await self._health.run_each([calls], self._node_deadline(deadline))
        if len(_answered(replied)) < self._quorum:
            raise self._health.quorum_error({**self._health.unresponsive, **_errors(replied)})
        return 1 in replied.values()

    async def close(self) -> None:
        self._notifications.wake_all()
        await self._health.close()
        await super().close()

    # ── acquiring ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call_for_votes(
        self, claim: Claim, state: _State, *, queue: bool, deadline: float
    ) -> dict[int, Reply | HoldfastError]:
        channel = self._port.subscriber.channel(self._keys(claim.name))
        state.longest_ttl = max(state.longest_ttl, claim.ttl)
        nodes = [number for number in self._health.responsive() if self._port.server_run(number) is not None]
        queueing = (int(queue), channel.verb, channel.name)
        calls = [(number, self._vote_call(claim, state.attempt, number, 0, "", queueing)) for number in nodes]
        asked, unanswered = state.asked, state.unanswered
        state.asked, state.unanswered = asked.union(nodes), unanswered.union(nodes)  # in case this is cancelled
        replies = await self._health.run_calls(calls, self._limit((claim,), deadline))
        replied = dict(zip(nodes, replies, strict=True))
        changed = [number for number, reply in replied.items() if not _is_unchanged(reply)]
        state.asked = asked.union(changed)
        state.unanswered = unanswered.union(number for number in changed if isinstance(replied[number], HoldfastError))
        return {**self._health.unresponsive, **replied}

    def _vote_call(  # noqa: PLR0917  (the words of a script, in its order)
        self, claim: Claim, attempt: int, number: int, count_min: int, fence: str, queueing: tuple[int, str, str]
    ) -> Call:
        server_run = self._port.server_run(number)
        # A node that is not eligible must not continue from the counts that it gives now. When it is eligible again,
        # the clock is its lower bound again, and all earlier leases have expired. So clocks may differ by `max_ttl`.
        run = server_run.run_id if server_run is not None and self._health.is_eligible(number) else ""
        arguments = (
            claim.nonce,
            attempt,
            math.ceil(claim.ttl * 1000),
            count_min,
            fence,
            run,
            *queueing,
            claim.agent.replace("\n", " "),
            claim.info,
        )
        return Call(lua.ACQUIRE, self._counting_keys(claim.name), arguments)

    def _counted(self, replied: dict[int, Reply | HoldfastError]) -> _Count:
        count = _Count({}, {}, {}, [])
        for number, reply in replied.items():
            if isinstance(reply, HoldfastError):
                count.errors[number] = reply
                if not _is_unchanged(reply):
                    count.uncounted.append(number)
            elif not self._health.is_eligible(number):
                count.errors[number] = self._health.ineligible(number)
                if reply[0] == b"granted":
                    count.uncounted.append(number)
            elif reply[0] == b"granted":
                count.votes[number] = int(reply[1])
            else:
                count.refusals[number] = reply
        return count

    def _conflict(self, claim: Claim, count: _Count) -> HoldfastError | None:
        """The error if this lock must not be acquired, even with a majority."""
        for reply in count.refusals.values():
            method = method_in(reply[3].decode(errors="replace")) if reply[0] == b"wait" else None
            if method not in {None, "redlock"}:
                return method_conflict(claim.name, str(method))
        is_quorate = len(count.votes) + len(count.refusals) >= self._quorum
        for error in count.errors.values():
            if isinstance(error, AccessDenied):
                continue  # a node that refuses this user is one that does not answer
            if isinstance(error, ConfigurationError) and not (isinstance(error, NameConflict) and is_quorate):
                return error
        return None

    async def _agree(self, claim: Claim, state: _State, count: _Count, deadline: float) -> int | None:
        """The fence, after a majority has at least that count; None without a majority."""
        votes = count.votes
        if len(votes) < self._quorum:
            return None
        fence = max(votes.values())
        behind = [number for number, counted in votes.items() if counted < fence]
        agreed = len(votes) - len(behind)
        if agreed < self._quorum:
            # Only on nodes that voted for this attempt, and only if it is still exactly that vote.
            keys = self._counting_keys(claim.name)
            calls = [
                (number, Call(lua.RAISE, keys, (f"{claim.nonce}:{state.attempt}:{votes[number]}", fence)))
                for number in behind
            ]
            replies = await self._health.run_calls(calls, self._limit((claim,), deadline))
            agreed += replies.count(1)
        return fence if agreed >= self._quorum else None

    def _waiting(self, state: _State, count: _Count) -> Waiting:
        jitter = self._runtime.jitter()
        waits = [reply for reply in count.refusals.values() if reply[0] == b"wait"]
        holders = Counter(_holder(bytes(reply[3])) for reply in waits)
        if max(holders.values(), default=0) < self._quorum:
            # A split vote: no ticket has a majority, as far as this client knows. Random pauses let one be the first.
            state.splits += 1
            return Waiting(jitter * min(SPLIT_PAUSE_MAX, SPLIT_PAUSE * 2 ** min(state.splits, 10)))
        state.splits = 0
        is_first = sum(reply[1] == 0 for reply in waits) * 2 > len(waits)
        poll_after = (POLL_FIRST if is_first else POLL_BEHIND) * (0.5 + jitter / 2)
        remaining = [reply[2] / 1000 for reply in waits if reply[2] >= 0]
        if is_first and remaining:
            poll_after = min(poll_after, max(remaining) + GRANULARITY + jitter * SPLIT_PAUSE)
        line = next((reply[4] for reply in waits if reply[4]), b"")
        return Waiting(poll_after, process_text(Line(line).info) if line else None)

    def _refuse_unfit(self, claim: Claim) -> None:
        if not claim.exclusive:
            raise Unsupported(
                backend="redlock", what="readers and semaphores", others=("redis with method=queue", "sqlite")
            )
        if claim.ttl > self._config.max_ttl:
            delay = f" (with a lock delay of {claim.delay:g})" if claim.delay else ""
            raise ConfigurationError(
                f"ttl={claim.ttl:g}{delay} of lock {claim.name!r} is more than max_ttl={self._config.max_ttl:g} of "
                f"{self.url}: use a shorter ttl, because leases are renewed anyway; or raise max_ttl in all clients"
            )

    # ── releasing ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _withdraw(
        self, claim: Claim, state: _State, nodes: Collection[int], deadline: float, *, is_over: bool
    ) -> None:
        """Release this attempt on these nodes; on those that do not reply, in the background."""
        silent = self._health.unresponsive
        asked = [number for number in nodes if number not in silent]
        calls = {number: self._release(claim, state, number, is_over=is_over) for number in asked}
        (replied,) = await self._health.run_each([calls], self._limit((claim,), deadline))
        answered = _answered(replied)
        for number in nodes:
            if number not in answered:
                self._schedule_release(number, claim, state, is_over=is_over)

    def _released(self, claim: Claim, state: _State, replied: dict[int, Reply | HoldfastError]) -> bool | BackendError:
        unanswered = state.asked - _answered(replied)
        for number in unanswered:
            self._schedule_release(number, claim, state, is_over=True)
        if len(self._nodes) - len(unanswered) < self._quorum:
            return self._health.quorum_error({**self._health.unresponsive, **_errors(replied)})
        # Nodes that did not reply may have had the vote: the lease was lost only if a majority did not have it.
        had_it = sum(reply == 1 for reply in replied.values())
        return state.fence is not None and had_it + len(unanswered) >= self._quorum

    def _release(self, claim: Claim, state: _State, number: int, *, is_over: bool) -> Call:
        ending = lua.ending(is_over=is_over, is_answered=number not in state.unanswered)
        return Call(lua.RELEASE, self._keys(claim.name), (claim.nonce, state.attempt, ending))

    def _schedule_release(self, number: int, claim: Claim, state: _State, *, is_over: bool) -> None:
        """Release this attempt on the node in the background."""
        # The ttl of the claim may be shorter by now than that of a vote, at the end of a min_hold or by renew(ttl).
        expires = self._runtime.now() + max(state.longest_ttl, claim.ttl)
        self._health.schedule_release(number, claim, state.attempt, is_over=is_over, until=expires)

    # ── renewing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _nodes_to_renew(self, state: _State, responsive: list[int]) -> list[int]:
        """The responsive nodes. If too few of them have the vote, also those that have it and did not respond lately.

        One lost reply makes a node unresponsive, and another node may have become responsive without having the vote.
        """
        if sum(number in state.voters and self._health.is_eligible(number) for number in responsive) >= self._quorum:
            return responsive
        return responsive + sorted(state.voters.difference(responsive))

    def _renewal(self, claim: Claim, state: _State) -> Call:
        fence = "" if state.fence is None else state.fence
        arguments = (claim.nonce, state.attempt, math.ceil(claim.ttl * 1000), fence)
        return Call(lua.RENEW, self._keys(claim.name), arguments)

    def _renewed(
        self, claim: Claim, state: _State, replied: dict[int, Reply | HoldfastError], sent: float
    ) -> Live | LeaseGone | BackendError:
        kept = sum(reply == _KEPT and self._health.is_eligible(number) for number, reply in replied.items())
        if kept >= self._quorum:
            return Live(lease_deadline(sent, min(claim.ttl, state.unanswered_ttl), GRANULARITY))
        replies = list(replied.values())
        lost = replies.count(_TAKEN) + replies.count(_FREE)
        if len(self._nodes) - lost < self._quorum:
            return LeaseGone(
                "a majority of the nodes does not know this lease any more: it ran out or was broken, "
                "or they lost their data"
            )
        return self._health.quorum_error({**self._health.unresponsive, **self._health.errors_in(replied)})

    async def _repair(self, forgotten: Sequence[tuple[int, Claim]], deadline: float) -> None:
        """Give leases their vote again on nodes that have lost it. This is safe, because their fences are fixed."""
        calls = []
        repaired: list[tuple[int, Claim, _State]] = []
        for number, claim in forgotten:
            state: _State | None = claim.state
            if state is not None and state.fence is not None and self._port.server_run(number) is not None:
                state.asked.add(number)
                state.voters.add(number)
                state.unanswered.add(number)  # stays set: an unneeded tombstone of a release does no harm
                call = self._vote_call(claim, state.attempt, number, state.fence + 1, str(state.fence), _NOT_QUEUEING)
                calls.append((number, call))
                repaired.append((number, claim, state))
        if not calls:
            return
        try:
            await self._health.run_calls(calls, deadline)
        finally:
            for number, claim, state in repaired:
                if claim.state is not state:
                    # It was released in the meantime, and the release may have arrived before this request.
                    self._schedule_release(number, claim, state, is_over=True)

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _node_records(self, names: Sequence[str], deadline: float) -> list[list[NodeRecord]]:
        """The state of each lock on the nodes that reply.

        Raises:
            QuorumError: too few nodes replied.
        """
        await self._health.handshake(deadline)
        nodes = self._health.responsive()
        calls = [dict.fromkeys(nodes, Call(lua.INSPECT, self._keys(name), ())) for name in names]
        records = []
        for replied in await self._health.run_each(calls, self._node_deadline(deadline)):
            errors = _errors(replied)
            if len(replied) - len(errors) < self._quorum:
                conflict = next((error for error in errors.values() if isinstance(error, NameConflict)), None)
                raise conflict or self._health.quorum_error({**self._health.unresponsive, **errors})
            records.append(
                [
                    NodeRecord(reply, is_eligible=self._health.is_eligible(number))
                    for number, reply in replied.items()
                    if not isinstance(reply, HoldfastError)
                ]
            )
        return records

    def _limit(self, claims: Collection[Claim], deadline: float) -> float:
        """The deadline for one request: a node may take much less time than a lease lasts."""
        shortest = min((claim.ttl - claim.delay for claim in claims), default=math.inf)
        return min(deadline, self._runtime.now() + min(self._config.node_timeout, shortest / 4))

    def _node_deadline(self, deadline: float) -> float:
        return min(deadline, self._runtime.now() + self._config.node_timeout)

    def _keys(self, name: str) -> Keys:
        return keys_of(self._config.redis.prefix, name)

    def _counting_keys(self, name: str) -> OtherKeys:
        return keys_and_record_before(self._config.redis.prefix, name)


_NOT_QUEUEING = (0, "", "")


def _answered(replied: Mapping[int, Reply | HoldfastError]) -> set[int]:
    """The nodes whose reply is no error."""
    return {number for number, reply in replied.items() if not isinstance(reply, HoldfastError)}


def _errors(replied: Mapping[int, Reply | HoldfastError]) -> dict[int, HoldfastError]:
    return {number: reply for number, reply in replied.items() if isinstance(reply, HoldfastError)}


def _is_unchanged(reply: Reply | HoldfastError) -> bool:
    """The node has changed nothing, or has not received the request."""
    return isinstance(reply, BackendUnavailable | ConfigurationError)


def _holder(value: bytes) -> bytes:
    """The holder in a value of the lock's key: without the count of a vote, because each node has its own count."""
    return value.rpartition(b":")[0] if value.startswith(REDLOCK.encode()) else value

"""Redlock with one bug each: mistakes in quorum fences, and in majorities.

Bugs of the fence need messages in an order that random runs rarely produce: the exhaustive search has to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.port import Call
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol.node_health import NodeHealth
from holdfast.backends.redlock.protocol.quorum import GRANULARITY, RedlockBackend, _State
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Live
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.mutants.redis import edited
from holdfast_lab.sim.servers.redlock.server import RedlockServer

if TYPE_CHECKING:
    from holdfast.backends.redlock.config import RedlockConfig
    from holdfast.backends.redlock.port import RedlockPort
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim, LeaseGone
    from holdfast.errors import BackendError

_ALL = (lua.ACQUIRE, lua.RAISE, lua.RELEASE, lua.RENEW)
_FREE = 2


def _texts(*edits: tuple[str, str]) -> type[RedlockServer]:
    return type("Edited", (RedlockServer,), {"texts": edited(_ALL, *edits)})


def _with(backend: Callable[..., Any], **more: Any) -> type[RedlockServer]:
    return type("Mutated", (RedlockServer,), {"backend": backend, **more})


# ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class NoWriteBack(RedlockBackend):
    """The fence is the greatest count, and it is not written back to the other nodes."""

    async def _agree(self, claim: Claim, state: Any, count: Any, deadline: float) -> int | None:
        return max(count.votes.values()) if len(count.votes) >= self._quorum else None


class RaisesAll(RedlockBackend):
    """Raises the count of any node and takes that for a vote, also of one that refused or did not reply."""

    async def _agree(self, claim: Claim, state: Any, count: Any, deadline: float) -> int | None:
        votes = count.votes
        if len(votes) < self._quorum:
            return None
        fence = max(votes.values())
        behind = [number for number in self._nodes if votes.get(number, 0) < fence]
        agreed = len(self._nodes) - len(behind)
        if agreed < self._quorum:
            keys = self._counting_keys(claim.name)
            words = (f"{claim.nonce}:{state.attempt}:", fence)
            replies = await self._health.run_calls([(n, Call(lua.RAISE, keys, words)) for n in behind], deadline)
            agreed += sum(reply == 1 for reply in replies)
        return fence if agreed >= self._quorum else None


# ── majorities ───────────────────────────────────────────────────────────────────────────────────────────────────────


class HalfIsEnough(RedlockBackend):
    """Half of the nodes, rounded down: of three, one."""

    def __init__(self, config: RedlockConfig, port: RedlockPort, runtime: Runtime) -> None:
        super().__init__(config, port, runtime)
        self._quorum = len(port.nodes) // 2


class RepairsCount(RedlockBackend):
    """A node that has forgotten the lease gets it back, and counts as if it had kept it."""

    def _renewed(
        self, claim: Claim, state: _State, replied: dict[int, Any], sent: float
    ) -> Live | LeaseGone | BackendError:
        kept = sum(reply in (1, _FREE) for reply in replied.values())
        if kept >= self._quorum:
            return Live(lease_deadline(sent, claim.ttl, GRANULARITY))
        return super()._renewed(claim, state, replied, sent)


class _NoPendingReleases(NodeHealth):
    def schedule_release(self, number: int, claim: Claim, attempt: int, *, is_over: bool, until: float) -> None:
        """No release is sent in the background."""


class ReleasesAnsweringNodes(RedlockBackend):
    """Releases only the votes that were acknowledged."""

    def __init__(self, config: RedlockConfig, port: RedlockPort, runtime: Runtime) -> None:
        super().__init__(config, port, runtime)
        self._health = _NoPendingReleases(config, port, runtime)

    async def _withdraw(
        self, claim: Claim, state: Any, nodes: Collection[int], deadline: float, *, is_over: bool
    ) -> None:
        silent = self._health.unresponsive
        asked = [number for number in nodes if number not in silent]
        await super()._withdraw(claim, state, asked, deadline, is_over=is_over)


REDLOCK = [
    Mutant(
        name="quorum-fence-without-write-back",
        mistake="the fence is the greatest of a majority's counts, and the others of the majority do not learn of it",
        backend="redlock",
        by_seeds=False,
        server=_with(NoWriteBack),
    ),
    Mutant(
        name="write-back-without-owner",
        mistake="a node raises its count for an attempt although another ticket has its vote now",
        backend="redlock",
        by_seeds=False,
        server=_texts(("if redis.call('GET', lock) ~= VOTE .. vote then\n  return 0", "if false then\n  return 0")),
    ),
    Mutant(
        name="write-back-outside-voters",
        mistake="the counts of nodes that have not voted for the attempt are raised too, and count as votes",
        backend="redlock",
        by_seeds=False,
        server=_with(
            RaisesAll,
            texts=edited(
                _ALL,
                (
                    "if redis.call('GET', lock) ~= VOTE .. vote then\n  return 0",
                    "if string.sub(redis.call('GET', lock) or '', 1, #VOTE + #vote) ~= VOTE .. vote then\n  return 0",
                ),
            ),
        ),
    ),
    Mutant(
        name="lost-count-starts-at-zero",
        mistake="a node that has lost its data starts to count from zero, not from its clock",
        backend="redlock",
        by_seeds=False,
        server=_texts(
            ("local count = known[1] and known[1] + 1 or tonumber(since)", "local count = (known[1] or 0) + 1"),
            ("count = math.max(count, tonumber(since))", "count = count + 0"),
        ),
    ),
    Mutant(
        name="write-back-by-nonce",
        mistake="the write-back compares only the nonce: a vote that was lost and given again counts as the same",
        backend="redlock",
        by_seeds=False,
        server=_texts(
            (
                "if redis.call('GET', lock) ~= VOTE .. vote then\n  return 0",
                "if vote_in(redis.call('GET', lock)) ~= string.match(vote, '^[^:]*') then\n  return 0",
            )
        ),
    ),
    Mutant(
        name="half-is-a-majority",
        mistake="half of the nodes count as a majority",
        backend="redlock",
        server=_with(HalfIsEnough),
    ),
    Mutant(
        name="renewal-counts-repairs",
        mistake="a renewal counts nodes that had forgotten the lease and get it back by this renewal",
        backend="redlock",
        server=_with(RepairsCount),
        kinds=frozenset({"break_lock"}),
    ),
    Mutant(
        name="renewal-counts-any-attempt",
        mistake="a renewal counts votes that an earlier attempt of its ticket is about to release",
        backend="redlock",
        server=_texts(
            ("if theirs == nonce and their_attempt == attempt then\n  redis", "if theirs == nonce then\n  redis")
        ),
        kinds=frozenset({"lose_request", "lose_reply", "slow"}),
        budget=1000,
    ),
    Mutant(
        name="releases-only-answering-nodes",
        mistake="a node that did not reply keeps a vote that no client uses any more",
        backend="redlock",
        server=_with(ReleasesAnsweringNodes),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="votes-after-the-last-release",
        mistake="a request that arrives after the last release of its ticket gets the vote, without a client",
        backend="redlock",
        server=_texts(("if redis.call('ZSCORE', leases, 'gone:' .. nonce) then", "if false then")),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="no-quarantine",
        mistake="a node that restarts without its data counts at once, and votes twice",
        backend="redlock",
        server=type("Hasty", (RedlockServer,), {"quarantine": False}),
        kinds=frozenset({"lose_data", "lose_request"}),
    ),
]

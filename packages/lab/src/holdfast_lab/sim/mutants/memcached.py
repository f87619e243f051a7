"""The memcached protocol with one bug each: the usual mistakes with a cache, its versions and its clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.backends.memcached.protocol.clock_check import ClockCheck
from holdfast.backends.memcached.protocol.item import KnownItem, MemcachedBackend
from holdfast.backends.memcached.protocol.values import value_of
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.memcached.port import SimPort
from holdfast_lab.sim.servers.memcached.server import MemcachedServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.memcached.port import Answer, Batch, ServerRun
    from holdfast.core.tickets import Claim


class DeletesBlindly(MemcachedBackend):
    """As tooz, sherlock and most recipes do: `delete` does not check the owner."""

    def _deletion(self, key: bytes, _: Claim, known: KnownItem) -> bytes:
        return b"md %b\r\n" % key


class RenewsBlindly(MemcachedBackend):
    """The same with `set` and `touch`."""

    def _renewal(self, key: bytes, claim: Claim, known: KnownItem) -> bytes:
        value = value_of(claim.nonce, known.fence, known.body)
        return b"ms %b %d T%d c\r\n%b\r\n" % (key, len(value), self._seconds(claim.ttl), value)


class DeadlineFromTheReply(MemcachedBackend):
    def _remember(self, claim: Claim, sent: float, known: KnownItem) -> float:
        return super()._remember(claim, self._runtime.now(), known)


class NoMargin(MemcachedBackend):
    @staticmethod
    def _seconds(ttl: float) -> int:
        return math.ceil(ttl)


class _NeverChecks(ClockCheck):
    def needs_check(self, now: float) -> bool:
        return False


class NoClockCheck(MemcachedBackend):
    _clock_check = _NeverChecks


class FenceIsTheVersion(MemcachedBackend):
    @staticmethod
    def fence_of(_: ServerRun, version: int) -> int:
        return version


class ForgetsUnansweredAdds(MemcachedBackend):
    """A release stores nothing against an add that is still in flight."""

    def _note_unanswered(self, claim: Claim, until: float) -> None:
        pass


class _AnyRun(SimPort):
    async def request(self, batch: Batch, *, deadline: float) -> Answer:
        return await super().request(batch._replace(run=None), deadline=deadline)


class VersionOfEarlierRun(MemcachedServer):
    port = _AnyRun


def _with(backend: Callable[..., MemcachedBackend]) -> type[MemcachedServer]:
    return type("Mutated", (MemcachedServer,), {"backend": backend})


MEMCACHED = [
    Mutant(
        name="memcached-deletes-blindly",
        mistake="releases by deleting any item under the key",
        backend="memcached",
        server=_with(DeletesBlindly),
        kinds=frozenset({"pause", "slow", "stall"}),
    ),
    Mutant(
        name="memcached-renews-blindly",
        mistake="renews by overwriting any item under the key",
        backend="memcached",
        server=_with(RenewsBlindly),
        kinds=frozenset({"break_lock"}),
    ),
    Mutant(
        name="memcached-deadline-from-reply",
        mistake="counts a lease from the reply, not from the request",
        backend="memcached",
        server=_with(DeadlineFromTheReply),
        kinds=frozenset({"slow", "cut", "pause"}),
    ),
    Mutant(
        name="memcached-no-margin",
        mistake="stores an item for just the ttl, although the clock of the server is coarse and behind",
        backend="memcached",
        server=_with(NoMargin),
        kinds=frozenset({"cut", "slow"}),
    ),
    Mutant(
        name="memcached-no-clock-check",
        mistake="stores without a check of the server's clock, which may have been paused",
        backend="memcached",
        server=_with(NoClockCheck),
        kinds=frozenset({"stall"}),
    ),
    Mutant(
        name="memcached-fence-is-the-version",
        mistake="uses an item's version as its fence, although a restarted server counts from 1 again",
        backend="memcached",
        server=_with(FenceIsTheVersion),
        kinds=frozenset({"lose_data"}),
    ),
    Mutant(
        name="memcached-forgets-unanswered-adds",
        mistake="forgets that an add without an answer may be executed after its ticket was released",
        backend="memcached",
        server=_with(ForgetsUnansweredAdds),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="memcached-version-of-earlier-run",
        mistake="deletes and renews by a version of the server's last run",
        backend="memcached",
        server=VersionOfEarlierRun,
        kinds=frozenset({"lose_data", "pause", "cut"}),
        budget=600,
    ),
]

"""The memcached protocol with one bug each: what people get wrong with a cache, its versions and its clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.backends.memcached.protocol.clock_check import Pulse
from holdfast.backends.memcached.protocol.item import Held, MemcachedBackend
from holdfast.backends.memcached.protocol.values import value_of
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.memcached.port import SimPort
from holdfast.sim.servers.memcached.server import MemcachedServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.memcached.port import Answer, Errand, Life
    from holdfast.core.tickets import Ticket


class DeletesBlindly(MemcachedBackend):
    """As tooz, sherlock and most recipes: `delete` asks for no owner."""

    def _deletion(self, key: bytes, _: Ticket, held: Held) -> bytes:
        return b"md %b\r\n" % key


class RenewsBlindly(MemcachedBackend):
    """Likewise `set` and `touch`."""

    def _renewal(self, key: bytes, ticket: Ticket, held: Held) -> bytes:
        value = value_of(ticket.nonce, held.fence, held.body)
        return b"ms %b %d T%d c\r\n%b\r\n" % (key, len(value), self._seconds(ticket.ttl), value)


class CountsFromTheReply(MemcachedBackend):
    def _believed(self, ticket: Ticket, sent: float, held: Held) -> float:
        return super()._believed(ticket, self._runtime.now(), held)


class TakesSecondsAtTheirWord(MemcachedBackend):
    @staticmethod
    def _seconds(ttl: float) -> int:
        return math.ceil(ttl)


class _NeverInDoubt(Pulse):
    def is_in_doubt(self, now: float) -> bool:
        return False


class TrustsEveryClock(MemcachedBackend):
    _pulse = _NeverInDoubt


class FenceIsTheVersion(MemcachedBackend):
    @staticmethod
    def fence_of(_: Life, version: int) -> int:
        return version


class _KeepsNothing(dict[str, float]):
    def __setitem__(self, key: str, value: float) -> None:
        pass


class NothingComesLate(MemcachedBackend):
    """Who leaves, leaves: nothing keeps an add away that is still on its way."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self._late = _KeepsNothing()


class _AnyLife(SimPort):
    async def ask(self, errand: Errand, *, deadline: float) -> Answer:
        return await super().ask(errand._replace(life=None), deadline=deadline)


class VersionsOutliveTheServer(MemcachedServer):
    port = _AnyLife


def _with(backend: Callable[..., MemcachedBackend]) -> type[MemcachedServer]:
    return type("Mutated", (MemcachedServer,), {"backend": backend})


MEMCACHED = [
    Mutant(
        name="memcached-deletes-blindly",
        mistake="gives back by deleting whatever is there",
        backend="memcached",
        server=_with(DeletesBlindly),
        kinds=frozenset({"pause", "slow", "stall"}),
    ),
    Mutant(
        name="memcached-renews-blindly",
        mistake="renews by storing over whatever is there",
        backend="memcached",
        server=_with(RenewsBlindly),
        kinds=frozenset({"break_lock"}),
    ),
    Mutant(
        name="memcached-deadline-from-reply",
        mistake="counts a lease from the reply, not from the request",
        backend="memcached",
        server=_with(CountsFromTheReply),
        kinds=frozenset({"slow", "cut", "pause"}),
    ),
    Mutant(
        name="memcached-seconds-at-their-word",
        mistake="has an item kept for just the ttl, by a server whose clock is coarse and behind",
        backend="memcached",
        server=_with(TakesSecondsAtTheirWord),
        kinds=frozenset({"cut", "slow"}),
    ),
    Mutant(
        name="memcached-trusts-every-clock",
        mistake="stores without a look at the server's clock, which may have stood still",
        backend="memcached",
        server=_with(TrustsEveryClock),
        kinds=frozenset({"stall"}),
    ),
    Mutant(
        name="memcached-fence-is-the-version",
        mistake="takes an item's version for its fence, which begins anew when the server does",
        backend="memcached",
        server=_with(FenceIsTheVersion),
        kinds=frozenset({"lose_data"}),
    ),
    Mutant(
        name="memcached-nothing-comes-late",
        mistake="forgets that an add without an answer may be done after its ticket has gone",
        backend="memcached",
        server=_with(NothingComesLate),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="memcached-versions-outlive-the-server",
        mistake="deletes and renews by a version of the server's last run",
        backend="memcached",
        server=VersionsOutliveTheServer,
        kinds=frozenset({"lose_data", "pause", "cut"}),
        budget=600,
    ),
]

"""`method=setnx`: the plain form that every client library knows. SET NX PX to take, compare and delete to give back.

No other key, so nothing stays behind; no queue, so who asks at the right moment is next. The fence is the server's own
time in microseconds, and grows for as long as that clock does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.backends.redis.plain import PlainBackend
from holdfast.backends.redis.port import Call
from holdfast.backends.redis.scripts import load
from holdfast.backends.redis.values import SETNX
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Gone, Granted, Live, Ticket
from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake

if TYPE_CHECKING:
    from holdfast.backends.redis.keys import Keys

GUARANTEES = Guarantees(
    exclusion=Exclusion.BEST_EFFORT,
    fence=FenceOrder.BEST_EFFORT,  # nothing but the clock
    order=Order.NONE,
    wake=Wake.POLL,
    scope=Scope.NETWORK,
)

_ENTER, _LEAVE, _RENEW, _BREAK = (load("setnx", name) for name in ("enter", "leave", "renew", "break"))
_GRANULARITY = 0.001  # the server counts whole milliseconds


class SetnxBackend(PlainBackend):
    """The value of a lock's key is `holdfast:setnx:<nonce>:<fence>`."""

    method = "setnx"
    base = GUARANTEES

    async def _take(self, ticket: Ticket, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent = self._runtime.now()
        call = Call(_ENTER, keys, (ticket.nonce, math.ceil(ticket.ttl * 1000)))
        reply = await self._port.run(call, deadline=deadline)
        if reply[0] == b"in":
            return Granted(int(reply[1]), lease_deadline(sent, ticket.ttl, _GRANULARITY))
        _, remaining_ms, value = reply
        return value.decode(errors="replace"), math.inf if remaining_ms < 0 else remaining_ms / 1000

    async def _give_back(self, ticket: Ticket, keys: Keys, deadline: float) -> bool:
        return bool(await self._port.run(Call(_LEAVE, keys, (ticket.nonce,)), deadline=deadline))

    async def _prolong(self, ticket: Ticket, keys: Keys, deadline: float) -> Live | Gone:
        sent = self._runtime.now()
        call = Call(_RENEW, keys, (ticket.nonce, math.ceil(ticket.ttl * 1000)))
        is_there = await self._port.run(call, deadline=deadline)
        return Live(lease_deadline(sent, ticket.ttl, _GRANULARITY)) if is_there else Gone()

    def _read(self, value: str, remaining: float) -> tuple[int, float]:
        return (int(value.rpartition(":")[2]) if value.startswith(SETNX) else 0), remaining

    async def _delete_if(self, keys: Keys, value: str, deadline: float) -> bool:
        return bool(await self._port.run(Call(_BREAK, keys, (value,)), deadline=deadline))

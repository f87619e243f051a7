"""`method=getset`: the timestamp form, for stores without scripts. A key's value says when its lease ends.

    take      SETNX key <end>. If it is there and its end has passed: GETSET key <new end>, and if that returns the one
              which had passed, it is ours; if not, somebody else was faster.
    give back GET; DEL only if it is ours and has not run out.

What this form cannot do, whoever writes it:

- All clients judge by their own wall clocks. One that is fast by more than SKEW takes over from a living holder.
- Who loses the race for a take-over has overwritten the winner's value, and puts it back. Should it die in between, or
  the winner look just then, the winner has lost the lock; nobody has it until that value runs out.
- Between GET and DEL, or GET and SET, the lock can change hands if the client stops there for longer than MARGIN.
- A key whose holder died stays until somebody takes it over.
- Several locks are taken, renewed and given back one after the other.
- A request that reaches the server after its own ticket was given back takes the lock, for nobody, until its end.

The fence is the client's wall clock, no better than that clock.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.backends.redis.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.redis.protocol.keys import register_key
from holdfast.backends.redis.protocol.plain import PlainBackend
from holdfast.backends.redis.protocol.values import GETSET
from holdfast.core.clock import lease_deadline
from holdfast.core.one_by_one import OneByOne
from holdfast.core.tickets import Granted, LeaseGone, Live, Ticket
from holdfast.errors import BackendError, NameConflict, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.redis.port import RedisPort
    from holdfast.backends.redis.protocol.keys import Keys, OtherKeys
    from holdfast.core.ports import Runtime

T = TypeVar("T")

SKEW = 0.5  # seconds by which clients' wall clocks may differ: a lease is taken over that long after its end
# A lease with less than this left is neither prolonged nor deleted: it might end between the two commands. In seconds,
# or a quarter of the ttl if that is less.
MARGIN = 0.5


class _Value(NamedTuple):
    """`holdfast:getset:<nonce>:<end in microseconds>:<fence>`."""

    nonce: str
    end: float
    fence: int

    @classmethod
    def parse(cls, text: str) -> _Value | None:
        """None: not ours."""
        try:
            nonce, end, fence = text.removeprefix(GETSET).split(":")
            return cls(nonce, int(end) / 1e6, int(fence)) if text.startswith(GETSET) else None
        except (ValueError, OverflowError):
            return None

    def __str__(self) -> str:
        return f"{GETSET}{self.nonce}:{math.floor(self.end * 1e6)}:{self.fence}"


class GetsetBackend(OneByOne, PlainBackend):
    """Plain commands only."""

    method = "getset"
    base = GUARANTEES["getset"]
    lacks = LACKS["getset"]

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        # Tickets that have tried to take over and do not know that they were first: should the key have their value,
        # it may be because they have overwritten the winner's. It is not theirs then.
        self._claims: set[str] = set()
        # By nonce: tickets whose release is between its GET and the answer to its DEL, and which call that is.
        self._releasing: dict[str, object] = {}

    async def _take(self, ticket: Ticket, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent, wall = self._runtime.now(), self._runtime.wall()
        mine = _Value(ticket.nonce, wall + ticket.ttl, math.floor(wall * 1e6))
        granted = Granted(mine.fence, lease_deadline(sent, ticket.ttl, 0.0))
        if await self._port.command(keys, "SET", keys.lock, str(mine), "NX", deadline=deadline):
            self._claims.discard(ticket.nonce)
            return granted
        text = await self._get(keys, deadline)
        if text is None:
            return "", 0.0  # given back just now
        value = _Value.parse(text)
        if value is None:
            return text, math.inf
        now = self._runtime.wall()
        is_mine = value.nonce == ticket.nonce and ticket.nonce not in self._claims
        if not is_mine and value.end + SKEW > now:
            return text, value.end + SKEW - now
        # It has run out; or it is ours, by a SETNX that got no answer. Somebody else may see that too: who gets the
        # value back that both have read is in.
        self._claims.add(ticket.nonce)
        try:
            found = await self._port.command(keys, "GETSET", keys.lock, str(mine), deadline=deadline)
        except NameConflict:
            self._claims.discard(ticket.nonce)  # refused, so the engine may never mention this ticket again
            raise
        if found is None or found.decode(errors="replace") == text:
            self._claims.discard(ticket.nonce)
            return granted
        await self._port.command(keys, "SET", keys.lock, found, "XX", deadline=deadline)  # the winner's
        return found.decode(errors="replace"), 0.0

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        return [
            await _answer(self._give_back(ticket, self._keys(ticket.name), deadline), otherwise=False)
            for ticket in tickets
        ]

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        gone = LeaseGone("its key was taken for something else")
        return [
            await _answer(self._prolong(ticket, self._keys(ticket.name), deadline), otherwise=gone)
            for ticket in tickets
        ]

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        """A stream takes an entry only with a greater number than all before: one command that compares and sets.

        Who dies between that and PEXPIRE was not told that it has raised the mark, but leaves it there for ever, or
        until the next who does.
        """
        keys, mine = register_key(self._prefix, name), (number, nonce)
        while True:
            last = await self._last(keys, deadline)
            if last[0] < number:
                last = await self._add(keys, mine, deadline)
            if last != mine:
                return False
            # Should the mark that was there before have ended just now, this one ended with it.
            if await self._keep(keys, math.ceil(keep * 1000), deadline):
                return True

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return [(await self._last(register_key(self._prefix, name), deadline))[0] for name in names]

    async def _give_back(self, ticket: Ticket, keys: Keys, deadline: float) -> bool:
        if ticket.nonce in self._claims:
            self._claims.discard(ticket.nonce)
            return False
        this_call = object()
        try:
            if self._releasing.setdefault(ticket.nonce, this_call) is not this_call:  # one step, for threads
                # The DEL of the later one could delete the key of the next holder. The keeper repeats it.
                raise OutcomeUnknown(backend=self.url, problem="another release of this ticket is on its way")
            value = await self._mine(ticket, keys, deadline)
            if value is None or value.end <= self._runtime.wall() + min(MARGIN, ticket.ttl / 4):
                return value is not None and value.end > self._runtime.wall()
            return bool(await self._port.command(keys, "DEL", keys.lock, deadline=deadline))
        finally:
            if self._releasing.get(ticket.nonce) is this_call:
                del self._releasing[ticket.nonce]

    async def _prolong(self, ticket: Ticket, keys: Keys, deadline: float) -> Live | LeaseGone:
        value = await self._mine(ticket, keys, deadline)
        if value is None or value.end <= self._runtime.wall() + min(MARGIN, ticket.ttl / 4):
            return LeaseGone("it has run out, or another client took it over")
        sent = self._runtime.now()
        longer = value._replace(end=self._runtime.wall() + ticket.ttl)
        if not await self._port.command(keys, "SET", keys.lock, str(longer), "XX", deadline=deadline):
            return LeaseGone()
        return Live(lease_deadline(sent, ticket.ttl, 0.0))

    def _read(self, value: str, remaining: float) -> tuple[int, float]:
        parsed = _Value.parse(value)
        return (0, remaining) if parsed is None else (parsed.fence, parsed.end - self._runtime.wall())

    async def _delete_if(self, keys: Keys, value: str, deadline: float) -> bool:
        if await self._get(keys, deadline) != value:
            return False
        return bool(await self._port.command(keys, "DEL", keys.lock, deadline=deadline))

    async def _last(self, keys: OtherKeys, deadline: float) -> tuple[int, str]:
        """A mark's number, and the nonce of who has raised it to that."""
        entries = await self._port.command(keys, "XREVRANGE", keys.lock, "+", "-", "COUNT", 1, deadline=deadline)
        if not entries:
            return 0, ""
        ((number, (_, nonce)),) = entries
        return int(number.partition(b"-")[0]), nonce.decode()

    async def _add(self, keys: OtherKeys, mine: tuple[int, str], deadline: float) -> tuple[int, str]:
        """Raise a mark, unless it is there already; what it is then."""
        number, nonce = mine
        entry = ("MAXLEN", 1, f"{number}-0", "nonce", nonce)
        try:
            await self._port.command(keys, "XADD", keys.lock, *entry, deadline=deadline)
        except OutcomeUnknown:
            # Refused, because somebody else was faster; or no answer came.
            last = await self._last(keys, deadline)
            if last[0] < number:
                raise
            return last
        return mine

    async def _keep(self, keys: OtherKeys, ms: int, deadline: float) -> bool:
        """Let it live for at least that long; whether it is there."""
        if await self._port.command(keys, "PTTL", keys.lock, deadline=deadline) >= ms:
            return True
        return bool(await self._port.command(keys, "PEXPIRE", keys.lock, ms, deadline=deadline))

    async def _mine(self, ticket: Ticket, keys: Keys, deadline: float) -> _Value | None:
        text = await self._get(keys, deadline)
        value = None if text is None else _Value.parse(text)
        return value if value is not None and value.nonce == ticket.nonce else None

    async def _get(self, keys: Keys, deadline: float) -> str | None:
        value: bytes | None = await self._port.command(keys, "GET", keys.lock, deadline=deadline)
        return None if value is None else value.decode(errors="replace")


async def _answer(coming: Awaitable[T], *, otherwise: T) -> T | BackendError:
    """Also if its key is something else by now: then it is not ours any more, and the next ones have their turn."""
    try:
        return await coming
    except NameConflict:
        return otherwise
    except BackendError as error:
        return error

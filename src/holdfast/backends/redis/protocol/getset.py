"""`method=getset`: locks with a timestamp, for stores without scripts. The value of a key has the end of its lease.

    acquire   SETNX key <end>. If the key exists and its end has passed: GETSET key <new end>. If that returns the
              expired value, the lock is ours; otherwise another client was faster.
    release   GET, then DEL only if the value is ours and has not expired.

Limits of this method in any implementation:

- Clients compare with their own wall clocks. A client whose clock is ahead by more than SKEW takes over a live lease.
- A client that loses the race for a take-over has overwritten the winner's value, and restores it. If it dies before
  that, or if the winner reads the key just then, the winner has lost the lock, and it stays taken until the value
  expires.
- If a client is paused for longer than MARGIN between GET and DEL, or GET and SET, it can delete or overwrite the value
  of the next holder.
- The key of a dead holder stays until another client takes it over.
- Several locks are acquired, renewed and released one after the other.
- A request that reaches the server after the release of its ticket takes the lock until its end, without a holder.

The fence is the client's wall clock, and no better than that clock.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.backends.redis.protocol.base import PlainBackend
from holdfast.backends.redis.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.redis.protocol.keys import GETSET, Keys, OtherKeys, register_key
from holdfast.core.clock import lease_deadline
from holdfast.core.one_by_one import OneByOne, result_or_error
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live
from holdfast.errors import BackendError, NameConflict, OutcomeUnknown
from holdfast.guarantees import Exclusion, Guarantees

if TYPE_CHECKING:
    from holdfast.backends.redis.port import RedisPort
    from holdfast.core.ports import Runtime

T = TypeVar("T")

SKEW = 0.5  # seconds by which clients' wall clocks may differ: a lease is taken over this long after its end
# Seconds, or a quarter of the ttl if that is less. A lease that ends sooner is neither extended nor deleted, because it
# could end between the two commands.
MARGIN = 0.5
# The state of a claim is the ttl with which its value was written; if a reply is missing, the shortest ttl that may
# have been written. Or it is this object: the claim sent a GETSET, and does not know whether it replaced the expired
# value. If the key has the value of such a claim, that value may have overwritten the winner's, so the claim does not
# hold the lock.
_UNCERTAIN = object()


class _Value(NamedTuple):
    """`holdfast:getset:<nonce>:<end in microseconds>:<fence>`."""

    nonce: str
    end: float
    fence: int

    @classmethod
    def parse(cls, text: str) -> _Value | None:
        """None for a value of another program or method."""
        try:
            nonce, end, fence = text.removeprefix(GETSET).split(":")
            return cls(nonce, int(end) / 1e6, int(fence)) if text.startswith(GETSET) else None
        except (ValueError, OverflowError):
            return None

    def __str__(self) -> str:
        return f"{GETSET}{self.nonce}:{math.floor(self.end * 1e6)}:{self.fence}"


class GetsetBackend(OneByOne, PlainBackend):
    """Locks with plain commands only."""

    method = "getset"
    lacks = LACKS["getset"]

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        # By nonce: tickets whose release is between its GET and the reply to its DEL, and the call that does it.
        self._releasing: dict[str, object] = {}

    @property
    def guarantees(self) -> Guarantees:
        # The clocks of clients end leases, so a server that keeps all writes makes exclusion no stronger.
        on_server = super().guarantees
        return GUARANTEES[self.method] if on_server.exclusion is Exclusion.DURABLE_AUTHORITY else on_server

    async def _try_take(self, claim: Claim, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent, wall = self._runtime.now(), self._runtime.wall()
        ours = _Value(claim.nonce, wall + claim.ttl, math.floor(wall * 1e6))
        granted = Granted(ours.fence, lease_deadline(sent, claim.ttl, 0.0))
        if await self._port.command(keys, "SET", keys.lock, str(ours), "NX", deadline=deadline):
            claim.state = claim.ttl
            return granted
        text = await self._get(keys, deadline)
        if text is None:
            return "", 0.0  # released just now
        value = _Value.parse(text)
        if value is None:
            return text, math.inf
        now = self._runtime.wall()
        is_ours = value.nonce == claim.nonce and claim.state is not _UNCERTAIN
        if not is_ours and value.end + SKEW > now:
            return text, value.end + SKEW - now
        # It has expired, or it is ours by a SETNX that got no reply. Other clients may read the same value; the one
        # whose GETSET returns it is granted.
        claim.state = _UNCERTAIN
        try:
            replaced = await self._port.command(keys, "GETSET", keys.lock, str(ours), deadline=deadline)
        except NameConflict:
            claim.state = None  # refused, so the engine may never use this ticket again
            raise
        if replaced is None or replaced.decode(errors="replace") == text:
            claim.state = claim.ttl
            return granted
        await self._port.command(keys, "SET", keys.lock, replaced, "XX", deadline=deadline)  # the winner's
        return replaced.decode(errors="replace"), 0.0

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        return [
            await _result(self._release_one(claim, self._keys(claim.name), deadline), on_conflict=False)
            for claim in claims
        ]

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        gone = LeaseGone("its key has a value of another type now")
        return [
            await _result(self._renew_one(claim, self._keys(claim.name), deadline), on_conflict=gone)
            for claim in claims
        ]

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        """XADD accepts only an entry with a greater id than all before, so it compares and sets in one command.

        A client that dies between XADD and PEXPIRE leaves a register without a ttl until the next advance.
        """
        keys, ours = register_key(self._prefix, name), (number, nonce)
        while True:
            last = await self._last(keys, deadline)
            if last[0] < number:
                last = await self._add(keys, ours, deadline)
            if last != ours:
                return False
            # If the ttl of the old register ended just now, the new entry was deleted with it; then try again.
            if await self._keep(keys, math.ceil(keep * 1000), deadline):
                return True

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return [(await self._last(register_key(self._prefix, name), deadline))[0] for name in names]

    async def _release_one(self, claim: Claim, keys: Keys, deadline: float) -> bool:
        if claim.state is _UNCERTAIN:
            claim.state = None
            return False
        this_call = object()
        try:
            # setdefault is atomic, because threads may call this.
            if self._releasing.setdefault(claim.nonce, this_call) is not this_call:
                # A second DEL could delete the key of the next holder. The keeper repeats this release.
                raise OutcomeUnknown(backend=self.url, problem="another release of this ticket is in progress")
            value = await self._own_value(claim, keys, deadline)
            if value is None or value.end <= self._runtime.wall() + _margin(claim):
                return value is not None and value.end > self._runtime.wall()
            return bool(await self._port.command(keys, "DEL", keys.lock, deadline=deadline))
        finally:
            if self._releasing.get(claim.nonce) is this_call:
                del self._releasing[claim.nonce]

    async def _renew_one(self, claim: Claim, keys: Keys, deadline: float) -> Live | LeaseGone:
        value = await self._own_value(claim, keys, deadline)
        if value is None or value.end <= self._runtime.wall() + _margin(claim):
            return LeaseGone("it has expired, or another client took it over")
        sent, ttl = self._runtime.now(), claim.ttl
        renewed = value._replace(end=self._runtime.wall() + ttl)
        claim.state = min(ttl, claim.state or ttl)
        if not await self._port.command(keys, "SET", keys.lock, str(renewed), "XX", deadline=deadline):
            return LeaseGone()
        claim.state = ttl
        return Live(lease_deadline(sent, ttl, 0.0))

    def _read(self, value: str, remaining: float) -> tuple[int, float]:
        parsed = _Value.parse(value)
        return (0, remaining) if parsed is None else (parsed.fence, parsed.end - self._runtime.wall())

    async def _delete_if(self, keys: Keys, value: str, deadline: float) -> bool:
        if await self._get(keys, deadline) != value:
            return False
        return bool(await self._port.command(keys, "DEL", keys.lock, deadline=deadline))

    async def _last(self, keys: OtherKeys, deadline: float) -> tuple[int, str]:
        """The number of a register, and the nonce of the call that set it."""
        entries = await self._port.command(keys, "XREVRANGE", keys.lock, "+", "-", "COUNT", 1, deadline=deadline)
        if not entries:
            return 0, ""
        ((number, (_, nonce)),) = entries
        return int(number.partition(b"-")[0]), nonce.decode()

    async def _add(self, keys: OtherKeys, entry: tuple[int, str], deadline: float) -> tuple[int, str]:
        """Advance a register unless its number is as high already. Returns its state after that."""
        number, nonce = entry
        words = ("MAXLEN", 1, f"{number}-0", "nonce", nonce)
        try:
            await self._port.command(keys, "XADD", keys.lock, *words, deadline=deadline)
        except OutcomeUnknown:
            # Refused because another client was faster, or no reply arrived.
            last = await self._last(keys, deadline)
            if last[0] < number:
                raise
            return last
        return entry

    async def _keep(self, keys: OtherKeys, ms: int, deadline: float) -> bool:
        """Keep the key for at least this long. Returns whether it exists."""
        if await self._port.command(keys, "PTTL", keys.lock, deadline=deadline) >= ms:
            return True
        return bool(await self._port.command(keys, "PEXPIRE", keys.lock, ms, deadline=deadline))

    async def _own_value(self, claim: Claim, keys: Keys, deadline: float) -> _Value | None:
        text = await self._get(keys, deadline)
        value = None if text is None else _Value.parse(text)
        return value if value is not None and value.nonce == claim.nonce else None

    async def _get(self, keys: Keys, deadline: float) -> str | None:
        value: bytes | None = await self._port.command(keys, "GET", keys.lock, deadline=deadline)
        return None if value is None else value.decode(errors="replace")


def _margin(claim: Claim) -> float:
    return min(MARGIN, (claim.state or claim.ttl) / 4)


async def _result(work: Awaitable[T], *, on_conflict: T) -> T | BackendError:
    """The result for one ticket. A key of another type is not ours any more, and an error must not stop the others."""
    try:
        return await result_or_error(work)
    except NameConflict:
        return on_conflict

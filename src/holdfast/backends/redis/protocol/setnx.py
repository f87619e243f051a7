"""`method=setnx`: the plain lock that most client libraries use. SET NX PX acquires, compare-and-delete releases.

There is no other key, except for ten seconds after a request without a reply, when a side key remembers that the ticket
was withdrawn. There is no queue: the first poll after a release is granted. The fence is the server's time in
microseconds, and grows as long as that clock does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.backends.redis.lua import load, load_all
from holdfast.backends.redis.port import Call, Reply
from holdfast.backends.redis.protocol.base import PlainBackend, renewed
from holdfast.backends.redis.protocol.guarantees import LACKS
from holdfast.backends.redis.protocol.keys import SETNX, Keys, keys_for_one_script
from holdfast.backends.redis.protocol.registers import ScriptRegisters
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, Waiting, note_unanswered
from holdfast.errors import BackendError, NameConflict, OutcomeUnknown

_TRY_ACQUIRE, _RENEW, _ADOPT = (load("setnx", name, is_grant=True) for name in ("try_acquire", "renew", "adopt"))
_RELEASE, _BREAK = (load("setnx", name) for name in ("release", "break"))
_TRY_ACQUIRE_ALL = load_all("setnx", "try_acquire", keys=4)
_GRANULARITY = 0.001  # the server counts whole milliseconds


class SetnxBackend(ScriptRegisters, PlainBackend):
    """The value of a lock's key is `holdfast:setnx:<nonce>:<fence>`."""

    method = "setnx"
    lacks = LACKS["setnx"]

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        locks = keys_for_one_script(self._port, self._keys, claims)
        arguments: list[str | int] = []
        for claim, _ in zip(claims, locks, strict=False):
            arguments += (claim.nonce, math.ceil(claim.ttl * 1000))
        sent = self._runtime.now()
        replies = await self._run_for_all(_TRY_ACQUIRE_ALL, locks, claims, arguments, deadline)
        return [
            self._result_of(claim, self._parse_reply(claim, reply, sent))
            for claim, reply in zip(claims, replies, strict=False)
        ]

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        calls = [Call(_RELEASE, self._keys(claim.name), (claim.nonce, int(claim.unanswered))) for claim in claims]
        replies: list[Reply]
        if len(calls) == 1:
            try:
                replies = [await self._port.run(calls[0], deadline=deadline)]
            except NameConflict as error:
                replies = [error]
        else:
            replies = await self._port.run_all(calls, deadline=deadline)
        for claim, reply in zip(claims, replies, strict=True):
            if not isinstance(reply, BackendError):
                claim.unanswered = False
        # A key of another type is not ours any more, so the ticket is released in that case too.
        return [reply if isinstance(reply, BackendError) else reply == 1 for reply in replies]

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        calls = [Call(_RENEW, self._keys(claim.name), (claim.nonce, math.ceil(claim.ttl * 1000))) for claim in claims]
        sent = self._runtime.now()
        replies = await self._port.run_all(calls, deadline=deadline)
        return [
            renewed(reply, lease_deadline(sent, claim.ttl, _GRANULARITY))
            for claim, reply in zip(claims, replies, strict=True)
        ]

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        sent = self._runtime.now()
        call = Call(_ADOPT, self._keys(claim.name), (nonce, claim.nonce, math.ceil(claim.ttl * 1000)))
        fence = await self._port.run(call, deadline=deadline)
        return Granted(int(fence), lease_deadline(sent, claim.ttl, _GRANULARITY)) if fence else LeaseGone()

    async def _try_take(self, claim: Claim, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent = self._runtime.now()
        call = Call(_TRY_ACQUIRE, keys, (claim.nonce, math.ceil(claim.ttl * 1000)))
        try:
            reply = await self._port.run(call, deadline=deadline)
        except BaseException as error:
            note_unanswered([claim], error)
            raise
        return self._parse_reply(claim, reply, sent)

    def _parse_reply(self, claim: Claim, reply: Reply, sent: float) -> Granted | tuple[str, float]:
        if reply[0] == b"granted":
            return Granted(int(reply[1]), lease_deadline(sent, claim.ttl, _GRANULARITY))
        if reply[0] == b"withdrawn":
            raise OutcomeUnknown(backend=self.url, problem=f"ticket {claim.nonce} was withdrawn before")
        _, remaining_ms, value = reply
        return value.decode(errors="replace"), math.inf if remaining_ms < 0 else remaining_ms / 1000

    def _read(self, value: str, remaining: float) -> tuple[int, float]:
        fence = value.rpartition(":")[2]
        return (int(fence) if value.startswith(SETNX) and fence.isdecimal() else 0), remaining

    async def _delete_if(self, keys: Keys, value: str, deadline: float) -> bool:
        return bool(await self._port.run(Call(_BREAK, keys, (value,)), deadline=deadline))

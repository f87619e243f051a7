"""Registers and records by script: for each name a number that never decreases, or a text, under a key of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.backends.redis.lua import load
from holdfast.backends.redis.port import Call, RedisPort, replies_of
from holdfast.backends.redis.protocol.keys import record_key, register_key
from holdfast.core.ports import Record

ADVANCE, READ = load("registers", "advance", is_grant=True), load("registers", "read")
SWAP_RECORD, READ_RECORD = load("registers", "swap_record", is_grant=True), load("registers", "read_record")


class ScriptRegisters:
    """A mixin for backends whose server runs scripts."""

    _port: RedisPort
    _prefix: str

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        call = Call(ADVANCE, register_key(self._prefix, name), (nonce, number, math.ceil(keep * 1000)))
        return bool(await self._port.run(call, deadline=deadline))

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        calls = [Call(READ, register_key(self._prefix, name), ()) for name in names]
        return [int(reply) for reply in replies_of(await self._port.run_all(calls, deadline=deadline))]


class ScriptRecords(ScriptRegisters):
    """Registers and durable records, by scripts."""

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        keys = record_key(self._prefix, name)
        if record is None and not expected:
            call = Call(READ_RECORD, keys, ())
        else:
            call = Call(SWAP_RECORD, keys, (expected, *(record or ("", "")), math.ceil(keep * 1000)))
        reply = await self._port.run(call, deadline=deadline)
        if reply == 1:
            return record
        nonce, payload = reply
        return None if nonce is None else Record(nonce.decode(), payload.decode())

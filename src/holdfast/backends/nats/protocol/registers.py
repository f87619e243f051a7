"""Registers: a number per name that only grows. One key per name, changed by the sequence number of its last entry.

    {"nonce": …, "number": …}

The nonce identifies the call that advanced the register. A call that got no answer is repeated and recognises its own
entry by it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from holdfast.backends.nats.port import Entry, NatsPort, Put
from holdfast.backends.nats.protocol.keys import register_key
from holdfast.core.ports import Runtime, StoreMissing
from holdfast.errors import BackendError, NameConflict

# Seconds before a refused put is repeated: another put of the key may be in progress, or an old leader has answered.
BUSY_PAUSE = 0.01


class Registers:
    """The registers of one client; a part of its backend."""

    _port: NatsPort
    _runtime: Runtime
    _skew: float

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        key, value, last = register_key(name), json.dumps({"nonce": nonce, "number": number}).encode(), 0
        while await self._put(Put(key, value, last, self._seconds(keep)), deadline) is None:
            await self._runtime.sleep(BUSY_PAUSE * self._runtime.jitter())
            (entry,) = await self._port.get([key], deadline=deadline, timed=True)
            last, stored = entry.seq, _parse(name, entry)
            if stored:
                if stored["number"] >= number:
                    return bool(stored == {"nonce": nonce, "number": number})
                keep = max(keep, entry.remaining)  # promised for the previous number
        return True

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        try:
            entries = await self._port.get([register_key(name) for name in names], deadline=deadline)
        except StoreMissing:
            return [0] * len(names)
        return [_parse(name, entry).get("number", 0) for name, entry in zip(names, entries, strict=True)]

    async def _put(self, put: Put, deadline: float) -> int | None:
        (answer,) = await self._port.put([put], deadline=deadline)
        if isinstance(answer, BackendError):
            raise answer
        return answer

    def _seconds(self, ttl: float) -> int:
        return math.ceil(ttl + self._skew)


def _parse(name: str, entry: Entry) -> dict[str, Any]:
    """The fields of an entry; empty if there is none."""
    if entry.is_marker:
        return {}
    try:
        return dict(json.loads(entry.value))
    except (ValueError, TypeError):
        raise NameConflict(lock=name, reason="another program uses the key of its register") from None

"""Registers: a number per name that only grows. One key per name, changed by the sequence number of its last entry.

    {"nonce": …, "number": …}

The nonce identifies the call that advanced the register. A call that got no answer is repeated and recognises its own
entry by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.nats.port import Put
from holdfast.backends.nats.protocol.keys import register_key
from holdfast.core.ports import StoreMissing
from holdfast.errors import BackendError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.nats.port import Entry, NatsPort
    from holdfast.core.ports import Runtime

_PAUSE = 0.01  # seconds before a put is repeated that was refused


class Registers:
    """The registers of one client."""

    def __init__(self, port: NatsPort, runtime: Runtime, seconds: Callable[[float], int]) -> None:
        self._port, self._runtime, self._seconds = port, runtime, seconds

    async def advance(self, name: str, number: int, nonce: str, keep: float, deadline: float) -> bool:
        """Raise the number. True if it was lower, or if this very call has raised it already."""
        key, value, last = register_key(name), json.dumps({"nonce": nonce, "number": number}).encode(), 0
        while not await self._put(Put(key, value, last, self._seconds(keep)), deadline):
            (entry,) = await self._port.get([key], deadline=deadline, timed=True)
            last, stored = 0 if entry is None else entry.seq, _parse(name, entry)
            if stored:
                if stored["number"] >= number:
                    return bool(stored == {"nonce": nonce, "number": number})
                keep = max(keep, entry.remaining if entry else 0.0)  # promised for the previous number
        return True

    async def read(self, names: Sequence[str], deadline: float) -> list[int]:
        """The number of each name; 0 for a register that does not exist."""
        try:
            entries = await self._port.get([register_key(name) for name in names], deadline=deadline)
        except StoreMissing:
            return [0] * len(names)
        return [_parse(name, entry).get("number", 0) for name, entry in zip(names, entries, strict=True)]

    async def _put(self, put: Put, deadline: float) -> bool:
        (answer,) = await self._port.put([put], deadline=deadline)
        if isinstance(answer, BackendError):
            raise answer
        if answer is None:
            await self._runtime.sleep(_PAUSE * self._runtime.jitter())
        return answer is not None


def _parse(name: str, entry: Entry | None) -> dict[str, Any]:
    """The fields of an entry; empty if there is none."""
    if entry is None or entry.is_marker:
        return {}
    try:
        return dict(json.loads(entry.value))
    except (ValueError, TypeError):
        raise NameConflict(lock=name, reason="another program uses the key of its register") from None

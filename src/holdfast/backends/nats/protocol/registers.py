"""Registers and records: one key for each name, changed by the sequence number of its last entry.

    register    {"nonce": …, "number": …}      a number that only grows
    record      {"nonce": …, "payload": …}     a text, for `once`

The nonce identifies the call that wrote the entry. A call that got no answer is repeated and recognises its own entry
by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.nats.port import Put
from holdfast.backends.nats.protocol.bucket import MARKER_SECONDS
from holdfast.backends.nats.protocol.keys import record_key, register_key
from holdfast.core.ports import Record, StoreMissing
from holdfast.errors import BackendError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.nats.port import Entry, NatsPort
    from holdfast.core.ports import Runtime

_PAUSE = 0.01  # seconds before a put is repeated that was refused


class Registers:
    """The registers and records of one client."""

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

    async def swap_record(
        self, name: str, expected: str, record: Record | None, keep: float, deadline: float
    ) -> Record | None:
        """Replace the record with this nonce; see KeepsRecords."""
        put = Put(record_key(name), b"", 0, MARKER_SECONDS, is_marker=True)
        if record is not None:
            put = Put(put.key, json.dumps(record._asdict()).encode(), 0, self._seconds(keep))
            if not expected and await self._put(put, deadline):  # most new records need no read
                return record
        while True:
            (entry,) = await self._port.get([put.key], deadline=deadline)
            stored = _parse(name, entry)
            current = Record(**stored) if stored else None
            nonce = current.nonce if current is not None else ""
            if nonce != expected or (record is None and not expected):
                return current
            if await self._put(put._replace(last=0 if entry is None else entry.seq), deadline):
                return record

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
        raise NameConflict(lock=name, reason="another program uses the key of its register or record") from None

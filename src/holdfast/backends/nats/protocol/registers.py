"""Registers: a number per name that only grows. One key per name, changed by the sequence number of its last entry.

    <number> <nonce>

The nonce identifies the call that advanced the register. A call that got no answer is repeated and recognises its own
write by it. An entry that the server is about to remove is not changed, because its removal would remove the new one
too (lock.py); the call waits until it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.nats.port import Put
from holdfast.backends.nats.protocol.keys import register_key
from holdfast.core.ports import StoreMissing
from holdfast.errors import BackendError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.nats.port import Entry, NatsPort
    from holdfast.core.ports import Runtime

_EXTRA = 60.0  # seconds that an entry is kept longer than promised, so that most changes are far from its end
_ABOUT_TO_END = 6.0  # seconds: more than a request may take
_PAUSE = 0.1  # seconds between reads of an entry that is about to be removed


class Registers:
    """The registers of one client."""

    def __init__(self, port: NatsPort, runtime: Runtime, seconds: Callable[[float], int]) -> None:
        self._port, self._runtime, self._seconds = port, runtime, seconds

    async def advance(self, name: str, number: int, nonce: str, keep: float, deadline: float) -> bool:
        """Raise the number. True if it was lower, or if this very call has raised it already."""
        key, value = register_key(name), f"{number} {nonce}".encode()
        last: int | None = 0
        while True:
            if last is not None:
                put = Put(key, value, last, self._seconds(keep + _EXTRA))
                (answer,) = await self._port.put([put], deadline=deadline)
                if isinstance(answer, BackendError):
                    raise answer
                if answer is not None:
                    return True
            (entry,) = await self._port.get([key], deadline=deadline, timed=True)
            last = 0 if entry is None else entry.seq
            if entry is None or entry.is_marker:
                continue
            stored = _parse(name, entry)
            if stored[0] >= number:
                return stored == (number, nonce)
            keep = max(keep, entry.remaining - _EXTRA)  # the retention that was promised for the previous number
            if entry.remaining < _ABOUT_TO_END:
                last = None
                await self._runtime.sleep(_PAUSE)

    async def read(self, names: Sequence[str], deadline: float) -> list[int]:
        """The number of each name; 0 for a register that does not exist."""
        try:
            entries = await self._port.get([register_key(name) for name in names], deadline=deadline)
        except StoreMissing:
            return [0] * len(names)
        return [
            0 if entry is None or entry.is_marker else _parse(name, entry)[0]
            for name, entry in zip(names, entries, strict=True)
        ]


def _parse(name: str, entry: Entry) -> tuple[int, str]:
    number, _, nonce = entry.value.decode(errors="replace").partition(" ")
    if not number.isdigit():
        raise NameConflict(lock=name, reason="another program uses the key of its register")
    return int(number), nonce

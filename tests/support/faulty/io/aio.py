"""faulty:// for asyncio."""

from __future__ import annotations

from holdfast.backends.memory.io import aio
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.url import Address
from tests.support.faulty import FaultyBackend


def open_backend(address: Address, runtime: AsyncioRuntime) -> FaultyBackend:
    return FaultyBackend(address.redacted, aio.open_backend(address, runtime), runtime)

"""faulty:// for threads."""

from __future__ import annotations

from holdfast.backends.memory.io import blocking
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import Address
from tests.support.faulty import FaultyBackend


def open_backend(address: Address, runtime: ThreadRuntime) -> FaultyBackend:
    return FaultyBackend(address.redacted, blocking.open_backend(address, runtime), runtime)

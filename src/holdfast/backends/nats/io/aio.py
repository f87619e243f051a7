"""NATS for asyncio: a connection for each request in flight, and one task that receives notifications."""

from __future__ import annotations

from holdfast.backends.nats.config import config_of
from holdfast.backends.nats.io.cluster import backend_on
from holdfast.backends.net.aio import BackgroundTasks, LoopPoller
from holdfast.core.ports import Backend
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    return backend_on(config_of(address), LoopPoller(runtime), BackgroundTasks(runtime), runtime)

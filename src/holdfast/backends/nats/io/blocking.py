"""NATS for threads: requests on the caller's own thread, and one thread that receives notifications."""

from __future__ import annotations

from holdfast.backends.nats.config import config_of
from holdfast.backends.nats.io.cluster import backend_on
from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.core.ports import Backend
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    return backend_on(config_of(address), BlockingPoller(), BackgroundThreads(), runtime)

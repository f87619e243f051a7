"""etcd for threads: calls on the caller's own thread, and one thread that receives watch events."""

from __future__ import annotations

from holdfast.backends.etcd.config import config_of
from holdfast.backends.etcd.io.cluster import Cluster, backend_on
from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.core.ports import Backend
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return backend_on(Cluster(config, BlockingPoller(), BackgroundThreads(), runtime), config, runtime)

"""ZooKeeper for threads: callers wait on their own threads, and kazoo's one thread delivers answers and events."""

from __future__ import annotations

from holdfast.backends.net.blocking import BackgroundThreads
from holdfast.backends.zookeeper.config import config_of
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.core.ports import Backend
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    return ZookeeperBackend(config, Ensemble(config, BackgroundThreads(), runtime), runtime)

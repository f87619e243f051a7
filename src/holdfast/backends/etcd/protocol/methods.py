"""The backend for the method of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.etcd.protocol.keys import Keys
from holdfast.backends.etcd.protocol.queue import EtcdBackend
from holdfast.backends.etcd.protocol.single_key import KeyBackend

if TYPE_CHECKING:
    from holdfast.backends.etcd.config import EtcdConfig
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Backend, Runtime


def backend_on(port: EtcdPort, config: EtcdConfig, runtime: Runtime) -> Backend:
    kind = KeyBackend if config.method == "key" else EtcdBackend
    return kind(config.url, port, runtime, Keys(config.prefix, raw_names=config.raw_names))

"""Which protocol speaks for a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.etcd.protocol.keys import Keys
from holdfast.backends.etcd.protocol.queue import EtcdBackend
from holdfast.backends.etcd.protocol.single_key import KeyBackend

if TYPE_CHECKING:
    from holdfast.backends.etcd.config import Place
    from holdfast.backends.etcd.port import EtcdPort
    from holdfast.core.ports import Backend, Runtime


def backend_on(port: EtcdPort, place: Place, runtime: Runtime) -> Backend:
    kind = KeyBackend if place.method == "key" else EtcdBackend
    return kind(place.url, port, runtime, Keys(place.prefix, raw_names=place.raw_names))

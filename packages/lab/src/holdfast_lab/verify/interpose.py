"""Changes inside a worker process: its TCP connections go through proxies, and its wall clock can be stepped.

Connections are redirected where Python connects a socket, not in the URL. So addresses that a server announces
(redirections of Redis Cluster, a primary named by Sentinel, members of etcd) are redirected too, and TLS still verifies
the name of the server. libpq connects by itself; its host address is replaced in its connection string. A driver that
connects in other C code is not redirected.

The step of the wall clock is visible to Python code that calls `time.time` or `time.time_ns`. `install` must run before
the adapter is imported, so that a `from time import time` in its library sees it too.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .hub import Hub

_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::ffff:127.0.0.1"}
_NANOSECONDS = 1_000_000_000


class WallClock:
    """The offset of the wall clock of this process."""

    def __init__(self) -> None:
        self.offset = 0.0

    def install(self) -> None:
        """Replace the functions of the module `time`."""
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + self.offset
        time.time_ns = lambda: real_ns() + round(self.offset * _NANOSECONDS)


class Redirection:
    """The proxy ports of this process, requested once for each server."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ports: dict[tuple[str, int], int] = {}
        self._mutex = threading.Lock()

    def install(self) -> None:
        """Replace `connect` and `connect_ex` of all sockets, and the connect of libpq."""
        for name in ("connect", "connect_ex"):
            setattr(socket.socket, name, self._redirected(getattr(socket.socket, name)))
        with contextlib.suppress(ImportError):
            self._install_libpq()

    def port(self, host: str, port: int) -> int:
        with self._mutex:
            if (host, port) not in self._ports:
                self._ports[host, port] = self._hub.proxy(host, port)
            return self._ports[host, port]

    def _redirected(self, connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
        @functools.wraps(connect)
        def redirect(sock: socket.socket, address: Any) -> Any:
            loopback = _LOOPBACK.get(sock.family)
            if loopback is None or sock.type & socket.SOCK_STREAM == 0:
                return connect(sock, address)
            return connect(sock, (loopback, self.port(address[0], address[1])))

        return redirect

    def _install_libpq(self) -> None:
        from psycopg import conninfo, pq

        redirection = self

        class PGconn(pq.PGconn):  # type: ignore[misc,valid-type]  # one of three implementations
            """libpq's connection, to the proxy instead of the server. TLS still verifies `host`."""

            @classmethod
            def connect_start(cls, info: bytes) -> Any:
                parameters = conninfo.conninfo_to_dict(info.decode())
                host = str(parameters.get("hostaddr") or parameters.get("host") or "localhost")
                if not host.startswith(("/", "@")):  # not a Unix socket
                    port = redirection.port(host, int(parameters.get("port") or 5432))
                    parameters.update(hostaddr="127.0.0.1", port=str(port))
                return super().connect_start(conninfo.make_conninfo("", **parameters).encode())

        pq.PGconn = PGconn

"""The methods of a backend, as in holdfast_lab/conformance/verbs.py, on connections that record what was sent."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from holdfast.backends.mysql.config import MysqlConfig, config_of
from holdfast.backends.mysql.io.connections import Connections, make_backend
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast_lab.conformance.verbs import Verbs


class RecordingSocket(socket.socket):
    """A socket that records what was sent on it."""

    sent: list[bytes]

    def send(self, data: Any, *flags: Any) -> int:
        self.sent.append(bytes(data))
        return super().send(data, *flags)


class CountingConnections(Connections):
    """Connections that record all requests."""

    def __init__(self, config: MysqlConfig, runtime: ThreadRuntime) -> None:
        super().__init__(config, BlockingPoller(), runtime)
        self.sent: list[bytes] = []

    async def _log_in(self, deadline: float) -> socket.socket:
        plain = await super()._log_in(deadline)
        sock = RecordingSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        sock.setblocking(False)  # noqa: FBT003  (its name says it)
        sock.sent = self.sent
        return sock


class Driver(Verbs):
    """A client without an engine. It joins no queue by default."""

    def __init__(self, url: str) -> None:
        self.runtime = ThreadRuntime()
        if "tls=" not in url:
            url += f"{'&' if '?' in url else '?'}tls=no"  # else the requests are encrypted
        config = config_of(parse(url))
        self._connections = CountingConnections(config, self.runtime)
        self.backend = make_backend(config, self._connections, self.runtime)

    @property
    def requests(self) -> int:
        """How many requests were sent so far: each is one packet."""
        return len(self._connections.sent)

    def try_acquire(self, ticket: Claim, *, queue: bool = False) -> Granted | Waiting:
        return super().try_acquire(ticket, queue=queue)

    def try_acquire_all(self, tickets: Sequence[Claim], *, seconds: float = 20.0) -> Sequence[Granted | Waiting]:
        return run_sync(self.backend.try_acquire_all(tickets, deadline=self.runtime.now() + seconds))

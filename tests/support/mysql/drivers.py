"""Drives the verbs of a backend directly, as the engine does, and counts what goes to the server."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from holdfast.backends.mysql.address import Place, place_of
from holdfast.backends.mysql.blocking import BlockingEyes
from holdfast.backends.mysql.lines import Lines
from holdfast.backends.mysql.login import log_in
from holdfast.backends.mysql.methods import backend_of
from holdfast.core.tickets import Gone, Granted, Live, LockInfo, Ticket, Waiting
from holdfast.errors import BackendError
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse

INFO = '{"who": {"host": "here", "pid": 1, "program": "test"}, "meta": {}}'


class Heard(socket.socket):
    """A connection that knows what was sent on it."""

    said: list[bytes]

    def send(self, data: Any, *flags: Any) -> int:
        self.said.append(bytes(data))
        return super().send(data, *flags)


class CountingEyes(BlockingEyes):
    """Makes such connections."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    async def log_in(self, place: Place, deadline: float) -> socket.socket:
        plain = log_in(place, deadline - system.now())
        sock = Heard(plain.family, plain.type, plain.proto, fileno=plain.detach())
        sock.setblocking(False)  # noqa: FBT003  (its name says it)
        sock.said = self.said
        return sock


class Driver:
    """A client without an engine."""

    def __init__(self, url: str) -> None:
        self._eyes = CountingEyes()
        self.runtime = ThreadRuntime()
        place = place_of(parse(f"{url}{'&' if '?' in url else '?'}tls=no"))  # what is said has to be seen
        self._backend = backend_of(place, Lines(place, self._eyes, self.runtime), self.runtime)

    def ticket(self, name: str, *, owner: str = "", ttl: float = 30.0) -> Ticket:
        return Ticket(name, self.runtime.nonce(), ttl, 1, exclusive=True, agent="main", info=INFO, owner=owner)

    @property
    def said(self) -> int:
        """How many requests were sent so far: each is one packet, and waits for its answer."""
        return len(self._eyes.said)

    def enter(self, ticket: Ticket, *, queue: bool = False) -> Granted | Waiting:
        return run_sync(self._backend.enter(ticket, queue=queue, deadline=self._soon()))

    def enter_all(self, tickets: Sequence[Ticket], *, seconds: float = 20.0) -> Sequence[Granted | Waiting]:
        return run_sync(self._backend.enter_all(tickets, deadline=self.runtime.now() + seconds))

    def leave(self, *tickets: Ticket) -> Sequence[bool | BackendError]:
        return run_sync(self._backend.leave(tickets, deadline=self._soon()))

    def renew(self, *tickets: Ticket) -> Sequence[Live | Gone | BackendError]:
        return run_sync(self._backend.renew(tickets, deadline=self._soon()))

    def wait(self, ticket: Ticket, seconds: float) -> None:
        run_sync(self._backend.wait(ticket, self.runtime.now() + seconds))

    def inspect(self, name: str) -> LockInfo:
        return run_sync(self._backend.inspect(name, deadline=self._soon()))

    def locks(self) -> list[LockInfo]:
        return run_sync(self._backend.locks("", deadline=self._soon()))

    def break_lock(self, name: str, fence: int) -> bool:
        return run_sync(self._backend.break_lock(name, fence, deadline=self._soon()))

    def mark(self, name: str, number: int, *, nonce: str | None = None, keep: float = 60.0) -> bool:
        nonce = self.runtime.nonce() if nonce is None else nonce
        return run_sync(self._backend.mark(name, number, nonce=nonce, keep=keep, deadline=self._soon()))

    def marks(self, *names: str) -> Sequence[int]:
        return run_sync(self._backend.marks(names, deadline=self._soon()))

    def close(self) -> None:
        run_sync(self._backend.close())

    def _soon(self) -> float:
        return self.runtime.now() + 20.0

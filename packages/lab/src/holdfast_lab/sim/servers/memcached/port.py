"""A MemcachedPort whose requests cross a simulated network, on connections that end with the run of the server.

Connecting takes no time here, and fails only by the fault `refuse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memcached.port import Answer, Batch, ServerRun
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.servers.memcached.server import MemcachedServer

NODE = Node("sim", 11211)


class SimPort:
    """The connections of one client to the server."""

    def __init__(self, server: MemcachedServer, link: Link) -> None:
        self._server = server
        self._link = link
        self._idle: list[tuple[int, ServerRun]] = []  # connections: the number of the run, and the run

    def request_now(self, node: Node, request: bytes, run: ServerRun, now: float, deadline: float) -> Reply | None:
        return None

    async def request(self, batch: Batch, *, deadline: float) -> Answer:
        connection = self._idle.pop() if self._idle else (self._server.runs, self._server.run)
        number, run = connection
        if batch.run not in {None, run}:
            self._idle.append(connection)
            return Answer(run, ())
        replies = await self._exchange(number, b"".join(batch.requests), deadline)
        self._idle.append(connection)
        return Answer(run, replies)

    async def request_each(self, batches: Sequence[Batch], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        """There is one server, but the batches may be for different runs of it."""
        answers: list[Answer | HoldfastError] = []
        for batch in batches:
            try:
                answers.append(await self.request(batch, deadline=deadline))
            except HoldfastError as error:
                answers.append(error)
        return answers

    async def close(self) -> None:
        self._idle.clear()

    def abandon(self) -> None:
        """The process has ended, so the server sees its connections end."""

    async def _exchange(self, number: int, requests: bytes, deadline: float) -> list[Reply]:
        server = self._server

        def arrived() -> bytes:
            if server.runs != number:
                raise OutcomeUnknown(backend="sim", problem="connection reset")
            return server.respond(requests)

        parser, replies = Parser(), []
        parser.feed(await self._link.request(arrived, deadline))
        while (reply := parser.next_reply()) is not None:
            replies.append(reply)
        return replies

"""A MemcachedPort whose requests travel through a simulated network, on connections that end with the server's run.

That a connection is made takes no time here, and cannot fail but by `refuse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memcached.config import Node
from holdfast.backends.memcached.port import Answer, Errand, Life
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.errors import HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.sim.network import Link
    from holdfast.sim.servers.memcached.server import MemcachedServer

NODE = Node("sim", 11211)


class SimPort:
    """The way of one client to the server."""

    def __init__(self, server: MemcachedServer, link: Link) -> None:
        self._server = server
        self._link = link
        self._idle: list[tuple[int, Life]] = []  # connections: to which run of the server, and what it said of itself

    def at_once(self, node: Node, request: bytes, life: Life, now: float, deadline: float) -> Reply | None:
        return None

    async def ask(self, errand: Errand, *, deadline: float) -> Answer:
        connection = self._idle.pop() if self._idle else (self._server.runs, self._server.life)
        run, life = connection
        if errand.life not in {None, life}:
            self._idle.append(connection)
            return Answer(life, ())
        said = await self._exchange(run, b"".join(errand.requests), deadline)
        self._idle.append(connection)
        return Answer(life, said)

    async def ask_each(self, errands: Sequence[Errand], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        """There is one server; but what was told by a run of it before is asked for beside what this one said."""
        answers: list[Answer | HoldfastError] = []
        for errand in errands:
            try:
                answers.append(await self.ask(errand, deadline=deadline))
            except HoldfastError as error:
                answers.append(error)
        return answers

    async def close(self) -> None:
        self._idle.clear()

    def abandon(self) -> None:
        """The process is gone; the server sees its connections end."""

    async def _exchange(self, run: int, requests: bytes, deadline: float) -> list[Reply]:
        server = self._server

        def arrived() -> bytes:
            if server.runs != run:
                raise OutcomeUnknown(backend="sim", problem="connection reset")
            return server.respond(requests)

        parser, said = Parser(), []
        parser.feed(await self._link.request(arrived, deadline))
        while (reply := parser.gets()) is not None:
            said.append(reply)
        return said

"""A TCP proxy for a server. On request of a test it delays or loses data, and resets or refuses connections.

It runs on its own thread, so commands take effect at once. It can distinguish requests and replies only for a client
that waits for each reply before it sends the next request. For other clients, all that follows on the connection is
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Literal, Self

from tests.support.processes import PATIENCE

Then = Literal["cut", "hang", "go on"]


class _Link:
    """The connection of one client, and the connection of the proxy to the server for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.loses_requests = False
        self.loses_replies = False
        self.then: Then = "hang"
        self.awaits_reply = False  # the data that was passed last was a request


class Proxy:
    """Listens on `port` and forwards to `target`; both are ports of this machine."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections_made = 0
        self.round_trips = 0  # requests; several without a reply between them count as one
        self._loses_requests = self._loses_replies = False
        self._delay = 0.0
        self._plan: tuple[Literal["request", "reply"], bytes, Then] | None = None
        self._loss = threading.Event()
        self._links: set[_Link] = set()
        self._transports: set[asyncio.WriteTransport] = set()  # of all links, ended ones included
        self._cuts = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None

    # ── commands of tests ────────────────────────────────────────────────────────────────────────────────────────

    def lose_next_reply(self, containing: str, *, then: Then = "cut") -> None:
        """Pass the next request that contains this text, but not its reply: the connection is cut instead, or hangs.

        With "go on", all later replies pass.
        """
        self._loss.clear()
        self._plan = ("reply", containing.encode(), then)

    def lose_next_request(self, containing: str, *, then: Then = "cut") -> None:
        """Do not pass the next request that contains this text: the connection is cut instead, or hangs."""
        self._loss.clear()
        self._plan = ("request", containing.encode(), then)

    def await_loss(self, within: float = PATIENCE) -> None:
        """Wait until the planned request or reply has been dropped."""
        assert self._loss.wait(within), "the proxy saw no such request, or no reply to it"

    def lose_requests(self) -> None:
        """From now on nothing arrives at the server."""
        self._loses_requests = True

    def lose_replies(self) -> None:
        """From now on replies of the server are lost. The server still executes requests."""
        self._loses_replies = True

    def delay(self, seconds: float) -> None:
        """From now on each request and each reply is delayed by this time."""
        self._delay = seconds

    def forget(self) -> None:
        """Drop all later data of existing connections without a reset, as a NAT does. New connections work."""
        for link in list(self._links):
            link.loses_requests = link.loses_replies = True
            link.then = "hang"

    def cut(self) -> None:
        """Reset all existing connections. New connections work."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Reset all connections, and refuse new ones until `heal`."""
        self._run(self._refuse())

    def heal(self) -> None:
        """Stop losing and delaying, and accept connections again. Lost data stays lost."""
        self._loses_requests = self._loses_replies = False
        self._delay = 0.0
        self._plan = None
        self._run(self._listen())

    def lead_to(self, target: int) -> None:
        """Reset all connections, and forward new ones to another server."""
        self.target = target
        self.cut()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    # ── implementation ───────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        self._cuts += 1  # `_accept` resets a link that it is about to make
        for link in list(self._links):
            _reset(link.client)
            _reset(link.server)

    async def _refuse(self) -> None:
        if self._server is not None:
            # asyncio creates the transport of a new connection in a task, which fails and leaves the connection open if
            # the server is closed before it runs. So accept no more connections, and let these tasks begin.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._server.close()
            self._server = None
        await self._cut()

    async def _end(self) -> None:
        await self._refuse()
        # The tasks end with their connections. asyncio itself may have a task for a new connection.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            done, _ = await asyncio.wait(others, timeout=PATIENCE)
            assert done, f"tasks do not end: {others}"
        # A connection that was closed with unsent data stays open until its peer reads the data, which may be never.
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # the transports are closed in this step

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._transports.add(to_client.transport)
        if self._server is None:  # accepted just before refusing began
            _reset(to_client)
            return
        self.connections_made += 1
        cuts = self._cuts
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _reset(to_client)
            return
        self._transports.add(to_server.transport)
        if cuts != self._cuts:
            _reset(to_client)
            _reset(to_server)
            return
        link = _Link(to_client, to_server)
        self._links.add(link)
        try:
            pumps = [
                asyncio.ensure_future(self._pass_requests(link, from_client)),
                asyncio.ensure_future(self._pass_replies(link, from_server)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._links.discard(link)
            to_client.close()
            to_server.close()

    async def _pass_requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await _read(reader):
            self.round_trips += not link.awaits_reply
            link.awaits_reply = True
            if self._plan is not None and self._plan[1] in data:
                lost, _, link.then = self._plan
                self._plan = None
                if lost == "request":
                    link.loses_requests = True
                    self._loss.set()
                    if link.then == "cut":
                        _reset(link.client)
                        return
                else:
                    link.loses_replies = True
            if self._delay:
                await asyncio.sleep(self._delay)
            if not (self._loses_requests or link.loses_requests):
                link.server.write(data)

    async def _pass_replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await _read(reader):
            link.awaits_reply = False
            if link.loses_replies:
                self._loss.set()
                if link.then == "cut":
                    _reset(link.client)
                    return
                if link.then == "go on":
                    link.loses_replies = False
                    continue
            if self._delay:
                await asyncio.sleep(self._delay)
            if not (self._loses_replies or link.loses_replies):
                link.client.write(data)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; b"" when the connection has ended for any reason."""
    with contextlib.suppress(OSError):
        return await reader.read(1 << 16)
    return b""


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, without sending the remaining data."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

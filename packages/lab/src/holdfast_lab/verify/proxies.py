"""TCP proxies between workers and servers, and the faults of a network: cut, refused, delayed, one-way, half-open.

One proxy for each worker and each server that it connects to, so a fault can hit one worker, one server or all. All
run in one loop of asyncio on a thread of its own; the methods for faults can be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal

PATIENCE = 30.0  # seconds; a call of another thread into the loop takes milliseconds
_CHUNK = 1 << 16
_BACKLOG = 1000

Direction = Literal["requests", "replies"]


class Link:
    """One connection of a client, and ours to the server."""

    __slots__ = ("client", "is_dead", "server")

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.is_dead = False  # passes nothing more, without closing: half-open


class Proxy:
    """Listens on `port` of the loopback address and forwards to `target`. Used in the thread of its loop only."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.delay = 0.0  # seconds, each way
        self._held: dict[Direction, asyncio.Event] = {}  # bytes in these directions wait until the event is set
        self.links: set[Link] = set()
        # A Server of asyncio is not used: until Python 3.12 its close() leaks a connection that is being accepted.
        self._listening: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._cuts = 0

    def listen(self) -> None:
        """Accept connections, on the same port as before."""
        if self._listening is None:
            self._listening = socket.create_server(("127.0.0.1", self.port), backlog=_BACKLOG)
            self._listening.setblocking(False)  # noqa: FBT003  (its name says it)
            self.port = int(self._listening.getsockname()[1])
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def refuse(self) -> None:
        """Reset all connections and refuse new ones until `listen`."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        self.cut()

    def cut(self) -> None:
        """Reset all connections; new ones are accepted."""
        self._cuts += 1  # also for those that are being opened
        for link in list(self.links):
            _reset(link.client)
            _reset(link.server)

    def hold(self, directions: Iterable[Direction]) -> None:
        """Pass nothing in these directions until `heal`, and then everything: TCP sends lost packets again."""
        for direction in directions:
            self._held.setdefault(direction, asyncio.Event())

    def heal(self) -> None:
        """End all faults but `forget`."""
        self.delay = 0.0
        held, self._held = self._held, {}
        for event in held.values():
            event.set()
        self.listen()

    def forget(self) -> None:
        """Pass nothing more on the present connections and keep them open, as a NAT that lost its table does."""
        for link in self.links:
            link.is_dead = True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            client, _ = self._listening.accept()  # type: ignore[union-attr]  # it listens
            self.connections += 1
            task = asyncio.ensure_future(self._serve(client, self._cuts))
            self._serving.add(task)  # the loop has only a weak reference
            task.add_done_callback(self._serving.discard)

    async def _serve(self, client: socket.socket, cuts: int) -> None:
        """Pass bytes between the client and a new connection to the server, until one of them ends."""
        from_client, to_client = await asyncio.open_connection(sock=client)
        try:
            from_server, to_server = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(to_client)
            return
        # A connection to a free port of this machine can get that port as its own, and would occupy it.
        is_own = to_server.get_extra_info("sockname") == to_server.get_extra_info("peername")
        if cuts != self._cuts or is_own:
            _reset(to_client)
            _reset(to_server)
            return
        for writer in (to_client, to_server):
            with contextlib.suppress(OSError, AttributeError):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(to_client, to_server)
        self.links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump(link, from_client, to_server, "requests")),
            asyncio.ensure_future(self._pump(link, from_server, to_client, "replies")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.links.discard(link)
            to_client.close()
            to_server.close()

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Pass bytes until one end closes."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if direction in self._held:
                    await self._held[direction].wait()
                if link.is_dead:
                    continue
                writer.write(data)
                await writer.drain()


class Proxies:
    """All proxies of a run, by client and server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._all: dict[tuple[str, tuple[str, int]], Proxy] = {}

    def port(self, client: str, host: str, port: int) -> int:
        """The port of the proxy for this client and server; called in the loop."""
        key = (client, (host, port))
        if key not in self._all:
            self._all[key] = proxy = Proxy((host, port))
            proxy.listen()
        return self._all[key].port

    @property
    def servers(self) -> list[tuple[str, int]]:
        """The servers that workers have connected to, in the order of their names."""
        return sorted({server for _, server in list(self._all)})

    @property
    def connections(self) -> int:
        """Connections that were made in total."""
        return sum(proxy.connections for proxy in list(self._all.values()))

    def chosen(self, clients: Iterable[str], servers: Iterable[tuple[str, int]]) -> list[Proxy]:
        """The proxies between these clients and these servers."""
        clients, servers = set(clients), set(servers)
        return [proxy for (client, server), proxy in list(self._all.items()) if client in clients and server in servers]

    def cut(self, proxies: Iterable[Proxy]) -> None:
        self._run(_each(proxies, Proxy.cut))

    def forget(self, proxies: Iterable[Proxy]) -> None:
        self._run(_each(proxies, Proxy.forget))

    def refuse(self, proxies: Iterable[Proxy]) -> None:
        self._run(_each(proxies, Proxy.refuse))

    def delay(self, proxies: Iterable[Proxy], seconds: float) -> None:
        for proxy in proxies:
            proxy.delay = seconds

    def hold(self, proxies: Iterable[Proxy], *directions: Direction) -> None:
        self._run(_each(proxies, lambda proxy: proxy.hold(directions)))

    def heal(self, proxies: Iterable[Proxy]) -> None:
        self._run(_each(proxies, Proxy.heal))

    def close(self) -> None:
        self._run(_each(self._all.values(), Proxy.refuse))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


async def _each(proxies: Iterable[Proxy], action: Callable[[Proxy], None]) -> None:
    for proxy in proxies:
        action(proxy)


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of an orderly end."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

"""Three servers that decide together. Each reaches the others through proxies, so that links can be cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import free_ports
from tests.support.zookeeper.servers import Server

SIZE = 3


class Ensemble:
    """Servers 1 to 3, and what is between them: `links[follower, leader]` is there for whichever of them leads."""

    def __init__(self, folder: Path, *, sync_limit: int = 10) -> None:
        """After `sync_limit` ticks without a word a follower and its leader give each other up."""
        numbers = range(1, SIZE + 1)
        ports = free_ports(2 * SIZE)
        quorum = dict(zip(numbers, ports[:SIZE], strict=True))
        election = dict(zip(numbers, ports[SIZE:], strict=True))
        self._stack = contextlib.ExitStack()
        self.links = {
            (one, other): self._stack.enter_context(Proxy(quorum[other]))
            for one in numbers
            for other in numbers
            if one != other
        }
        self.servers = []
        for number in numbers:
            seen = {other: quorum[other] if other == number else self.links[number, other].port for other in numbers}
            peers = [f"server.{other}=127.0.0.1:{seen[other]}:{election[other]}" for other in numbers]
            settings = {"syncLimit": sync_limit}
            self.servers.append(Server(folder / str(number), number=number, peers=peers, settings=settings))

    def start(self) -> None:
        for server in self.servers:
            server.spawn()
        self.await_leader()

    def await_leader(self) -> None:
        """Until all that run serve, and one of them leads."""
        running = [server for server in self.servers if server.is_running]

        def serves() -> bool:
            modes = [server.mode() for server in running]
            return all(modes) and "leader" in modes

        eventually(serves)

    @property
    def leader(self) -> Server:
        return next(server for server in self.servers if server.is_running and server.mode() == "leader")

    @property
    def followers(self) -> list[Server]:
        return [server for server in self.servers if server.is_running and server.mode() == "follower"]

    @property
    def hosts(self) -> str:
        return ",".join(server.address for server in self.servers)

    def url(self, *servers: Server, **options: object) -> str:
        """Of these of them, or of all."""
        hosts = ",".join(server.address for server in servers) or self.hosts
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"zookeeper://{hosts}/locks" + (f"?{query}" if query else "")

    def part(self, follower: Server, leader: Server) -> None:
        """Nothing gets through between these two any more, either way; no connection is closed."""
        link = self.links[follower.number, leader.number]
        link.lose_requests()
        link.lose_replies()

    def heal(self) -> None:
        """All is as before: what runs is resumed, what was killed is started, all links pass."""
        for link in self.links.values():
            link.heal()
            link.cut()  # what was lost on them is lost: begin anew
        for server in self.servers:
            if server.is_running:
                server.resume()
            else:
                server.spawn()
        self.await_leader()

    def end(self) -> None:
        for server in self.servers:
            server.end()
        self._stack.close()


@contextlib.contextmanager
def running(ensemble: Ensemble) -> Iterator[Ensemble]:
    """The ensemble, started, for as long as the block lasts."""
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.end()

"""Ensembles of three servers, on separate hosts or on this one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy
from tests.support.server_process import HERE, Host, ServerGroup, free_ports
from tests.support.zookeeper.servers import Server

# Members run for seconds only. Early compilation, as in a long run, would take a fifth of their processor time.
_SHORT_RUN = ("-XX:CompileThresholdScaling=10",)


class Ensemble(ServerGroup[Server]):
    """Servers 1 to 3."""

    def __init__(
        self,
        folder: Path,
        *,
        sync_limit: int = 10,
        init_limit: int = 25,
        flags: Sequence[str] = (),
        hosts: Sequence[Host] = (HERE, HERE, HERE),
    ) -> None:
        """A follower and its leader drop each other after `sync_limit` ticks without a message, and after `init_limit`
        ticks if they are not synchronised yet. The flags are Java's.
        """
        hosts_by_number = dict(enumerate(hosts, start=1))
        self._quorum = {number: f"{host.address}:{free_ports(1)[0]}" for number, host in hosts_by_number.items()}
        election = dict(zip(hosts_by_number, free_ports(len(hosts)), strict=True))
        servers = []
        for number, host in hosts_by_number.items():
            peers = [
                f"server.{other}={self._peer_address(number, other)}:{election[other]}" for other in hosts_by_number
            ]
            settings = {"syncLimit": sync_limit, "initLimit": init_limit}
            own = folder / str(number)
            servers.append(
                Server(own, number=number, peers=peers, settings=settings, flags=(*_SHORT_RUN, *flags), host=host)
            )
        super().__init__(servers)

    def _peer_address(self, number: int, other: int) -> str:
        """The address at which server `number` reaches server `other` as its leader."""
        return self._quorum[other]

    def await_answer(self) -> None:
        """Wait until all running members serve, and one of them is the leader."""
        self._modes()

    def _modes(self) -> dict[Server, str]:
        """Wait until all running members serve, because a busy one may answer late. Return the mode of each of them."""
        modes: dict[Server, str] = {}

        def serves() -> bool:
            modes.update({server: server.mode() for server in self.servers if server.is_running})
            return all(modes.values()) and list(modes.values()).count("leader") == 1

        eventually(serves)
        return modes

    @property
    def leader(self) -> Server:
        return next(server for server, mode in self._modes().items() if mode == "leader")

    @property
    def followers(self) -> list[Server]:
        return [server for server, mode in self._modes().items() if mode == "follower"]

    @property
    def hosts(self) -> str:
        return ",".join(server.address for server in self.servers)

    def url(self, *servers: Server, **options: object) -> str:
        """The URL of these servers, or of all."""
        hosts = ",".join(server.address for server in servers) or self.hosts
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"zookeeper://{hosts}/locks" + (f"?{query}" if query else "")


class ProxiedEnsemble(Ensemble):
    """Members reach each other through proxies, so that links can be cut without root; no packets are lost."""

    def __init__(self, folder: Path, *, sync_limit: int = 10) -> None:
        self._stack = contextlib.ExitStack()
        self.links: dict[tuple[int, int], Proxy] = {}  # from a follower to each possible leader
        self._parted: set[Server] = set()
        super().__init__(folder, sync_limit=sync_limit)

    def part(self, follower: Server, leader: Server) -> None:
        """Block all data between these two, in both directions, without closing connections."""
        link = self.links[follower.number, leader.number]
        link.lose_requests()
        link.lose_replies()
        self._parted.add(follower)

    def heal(self) -> None:
        """Let all data pass, and make all members run.

        A follower that was parted is restarted, because data on its connection were lost. If the connection were only
        closed, it would report for a while that it follows, and then drop its clients.
        """
        for link in self.links.values():
            link.heal()
        for follower in self._parted:
            if follower.is_running:
                follower.kill()
        self._parted.clear()
        super().heal()

    def end(self) -> None:
        super().end()
        self._stack.close()

    def _peer_address(self, number: int, other: int) -> str:
        if number == other:
            return super()._peer_address(number, other)
        link = self.links[number, other] = self._stack.enter_context(Proxy(int(self._quorum[other].rpartition(":")[2])))
        return f"127.0.0.1:{link.port}"

"""Independent servers: the nodes of Redlock."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.redis.binaries import Binary
from tests.support.redis.resp import ServerError
from tests.support.redis.servers import Server
from tests.support.server_process import ServerGroup, free_ports

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")  # a write is on disk before its reply


class RedlockServers(ServerGroup[Server]):
    """Independent nodes. `environments` has the environment of single nodes, by number."""

    def __init__(
        self,
        binary: Binary,
        folder: Path,
        options: Sequence[str] = (),
        *,
        number: int = 5,
        environments: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(
            [
                Server(
                    binary,
                    folder / f"node-{index}",
                    port=port,
                    options=options,
                    environment=(environments or {}).get(index),
                )
                for index, port in enumerate(free_ports(number))
            ]
        )

    @property
    def addresses(self) -> list[str]:
        """The names of the nodes in errors."""
        return [server.address for server in self.servers]

    def url(self, *, ports: Mapping[int, int] | None = None, **options: str | float) -> str:
        """The URL of all nodes in order. `ports` has the ports of proxies for single nodes, by number."""
        hosts = [f"127.0.0.1:{(ports or {}).get(number, server.port)}" for number, server in enumerate(self.servers)]
        query = "&".join(f"{option}={value}" for option, value in options.items())
        return f"redlock://{','.join(hosts)}" + (f"?{query}" if query else "")

    def votes(self, name: str, prefix: str = "holdfast:") -> list[str | None]:
        """The value of the lock's key on each node; None also for a node that does not reply."""
        values: list[str | None] = []
        for server in self.servers:
            values.append(None)
            with contextlib.suppress(OSError, ServerError), server.connect(timeout=1.0) as connection:
                values[-1] = connection.call("GET", prefix + name)
        return values

    def vote_count(self, name: str) -> int:
        """The number of nodes that have given their vote for this lock."""
        return sum(vote is not None for vote in self.votes(name))

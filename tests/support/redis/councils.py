"""Servers that know nothing of each other: what Redlock asks for its votes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.redis.binaries import Binary
from tests.support.redis.resp import ServerError
from tests.support.redis.servers import Server, free_ports
from tests.support.redis.topologies import Topology

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")  # on disk before it is answered


class Council(Topology):
    """Some nodes, each for itself. `environments` are of single nodes, by number."""

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
                    folder / f"node-{place}",
                    port=port,
                    options=options,
                    environment=(environments or {}).get(place),
                )
                for place, port in enumerate(free_ports(number))
            ]
        )

    @property
    def addresses(self) -> list[str]:
        """How errors name the nodes."""
        return [server.address for server in self.servers]

    def url(self, *, ports: Mapping[int, int] | None = None, **options: str | float) -> str:
        """Of all of them, in order; `ports` are those of proxies before single ones, by number."""
        hosts = [f"127.0.0.1:{(ports or {}).get(number, one.port)}" for number, one in enumerate(self.servers)]
        query = "&".join(f"{option}={value}" for option, value in options.items())
        return f"redlock://{','.join(hosts)}" + (f"?{query}" if query else "")

    def votes(self, name: str, prefix: str = "holdfast:") -> list[str | None]:
        """What each node's key of the lock says; None also for a node that says nothing."""
        found: list[str | None] = []
        for server in self.servers:
            found.append(None)
            with contextlib.suppress(OSError, ServerError), server.connect(timeout=1.0) as connection:
                found[-1] = connection.call("GET", prefix + name)
        return found

    def vote_count(self, name: str) -> int:
        """How many nodes have given their vote for this lock to somebody."""
        return sum(vote is not None for vote in self.votes(name))

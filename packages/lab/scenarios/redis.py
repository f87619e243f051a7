"""Redis: failovers by Sentinels, failovers of a Cluster, and slots that move to another node."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from packages.lab.scenarios.scenario import Deployment, Scenario
from tests.support.processes import eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.resp import ServerError, facts
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Watched
from tests.support.server_process import running

_PAUSE_MAX = 30_000  # milliseconds
_MOVE = 1.0  # seconds: a slot with many keys takes its time


def _is_linked(server: Server) -> bool:
    return server.info("replication").get("master_link_status") == "up"


class _Sentinel:
    """A primary and a replica, whose roles change, and three Sentinels."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def _roles(self) -> tuple[Server, Server]:
        primary, replica = self._watched.primary, self._watched.replica
        return (primary, replica) if self._watched.named_primary() == primary.port else (replica, primary)

    def switch(self) -> Iterator[None]:
        """SENTINEL FAILOVER of a primary that takes no writes meanwhile; ends when the new primary takes them."""
        primary, replica = self._roles()
        primary.call("CLIENT", "PAUSE", _PAUSE_MAX, "WRITE")
        written = int(primary.info("replication")["master_repl_offset"])
        replica.await_true(lambda server: int(server.info("replication")["slave_repl_offset"]) >= written)
        self._watched.fail_over()
        primary.call("REPLICAOF", "127.0.0.1", replica.port)
        primary.call("CLIENT", "UNPAUSE")
        yield
        primary.await_true(_is_linked)

    def unfenced_switch(self) -> Iterator[None]:
        """SENTINEL FAILOVER alone: the Sentinels demote the former primary 8 s later. Until then it takes writes."""
        primary, _ = self._roles()
        self._watched.fail_over()
        yield
        primary.await_true(_is_linked)

    def crash(self) -> Iterator[None]:
        """SIGKILL of the primary. The Sentinels notice it; the operator starts it again as a replica."""
        primary, replica = self._roles()
        before = self._watched.named_primary()
        primary.kill()
        yield
        self._watched.await_other_primary(before)
        primary.options = ["--replicaof", "127.0.0.1", str(replica.port)]
        primary.start()
        primary.await_true(_is_linked)


@contextlib.contextmanager
def _sentinel(folder: Path) -> Iterator[Deployment]:
    with running(Watched(main_binary(), folder)) as watched:
        faults = _Sentinel(watched)
        yield Deployment(watched.url, {"switch": faults.switch, "crash": faults.crash})


@contextlib.contextmanager
def _sentinel_unfenced(folder: Path) -> Iterator[Deployment]:
    with running(Watched(main_binary(), folder)) as watched:
        yield Deployment(watched.url, {"switch": _Sentinel(watched).unfenced_switch})


class _Failovers:
    """Each of the three pairs of a Cluster in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        pairs = zip(cluster.servers[:3], cluster.servers[3:], strict=True)
        self._pairs = itertools.cycle(pairs)

    def _next(self) -> tuple[Server, Server]:
        first, second = next(self._pairs)
        return (first, second) if first.call("ROLE")[0] == "master" else (second, first)

    def switch(self) -> Iterator[None]:
        """CLUSTER FAILOVER at a replica; ends when it is the primary."""
        primary, replica = self._next()
        replica.call("CLUSTER", "FAILOVER")
        replica.await_true(lambda server: server.call("ROLE")[0] == "master")
        yield
        self._await_whole(primary)

    def crash(self) -> Iterator[None]:
        """SIGKILL of a primary. Its replica takes over; it is started again after that, because it has no data."""
        primary, replica = self._next()
        primary.kill()
        yield
        replica.await_true(lambda server: server.call("ROLE")[0] == "master")
        primary.start()
        self._await_whole(primary)

    def _await_whole(self, replica: Server) -> None:
        replica.await_true(_is_linked)
        for server in self._cluster.servers:
            server.await_true(lambda server: facts(server.call("CLUSTER", "INFO"))["cluster_state"] == "ok")
            server.await_true(lambda server: "fail" not in server.call("CLUSTER", "NODES"))


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Deployment]:
    with running(Cluster(main_binary(), folder)) as cluster:
        faults = _Failovers(cluster)
        yield Deployment(cluster.url, {"switch": faults.switch, "crash": faults.crash})


class _Migrations:
    """The slots with the keys of locks move to another primary."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def move(self) -> Iterator[None]:
        """Move all slots that have keys to the next primary; the keys follow after a second of load."""
        cluster = self._cluster
        eventually(lambda: bool(cluster.all_keys()))
        slots = sorted({cluster.slot(key) for key in cluster.all_keys()})
        moves = []
        for slot in slots:
            owner = cluster.owner(slot)
            target = cluster.servers[(cluster.servers.index(owner) + 1) % 3]
            moves.append((slot, cluster.begin_move(slot, target), target))
        yield
        time.sleep(_MOVE)
        for slot, source, target in moves:
            cluster.move_keys(slot, source, target)
            self._end(slot, target)

    def _end(self, slot: int, target: Server) -> None:
        def is_owner() -> bool:
            with contextlib.suppress(ServerError):
                self._cluster.end_move(slot, target)
            return all(_owner_at(server, slot) == target.port for server in self._cluster.servers)

        eventually(is_owner)


def _owner_at(server: Server, slot: int) -> int:
    """The port of the owner of the slot, as this server knows it."""
    for first, last, primary, *_ in server.call("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return int(primary[1])
    return 0


@contextlib.contextmanager
def _migration(folder: Path) -> Iterator[Deployment]:
    with running(Cluster(main_binary(), folder)) as cluster:
        yield Deployment(cluster.url, {"move": _Migrations(cluster).move})


SCENARIOS = (
    Scenario(
        "sentinel-failover",
        "Redis, a primary, a replica and three Sentinels; SENTINEL FAILOVER while writes are paused (`switch`), and"
        " SIGKILL of the primary (`crash`)",
        _sentinel,
    ),
    Scenario(
        "sentinel-split-brain",
        "the same servers; SENTINEL FAILOVER alone, after which the former primary takes writes for another 8 s"
        " (`switch`)",
        _sentinel_unfenced,
        limits=("fence",),
    ),
    Scenario(
        "cluster-failover",
        "Redis Cluster, three primaries with a replica each; CLUSTER FAILOVER (`switch`), and SIGKILL of a primary"
        " (`crash`)",
        _cluster,
    ),
    Scenario(
        "cluster-migration",
        "Redis Cluster; all slots with keys of locks move to another primary, with a second between the announcement"
        " and the keys (`move`)",
        _migration,
    ),
)

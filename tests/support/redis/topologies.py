"""Groups of servers: a primary with a replica, three Sentinels for them, a Cluster of six."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import eventually
from tests.support.redis.binaries import Binary
from tests.support.redis.resp import ServerError, facts
from tests.support.redis.servers import Server
from tests.support.server_process import ServerGroup, free_ports

SLOTS = 16384
SERVICE = "locks"


class Pair(ServerGroup[Server]):
    """A primary and one replica."""

    def __init__(
        self, binary: Binary, folder: Path, options: Sequence[str] = (), *, ports: Sequence[int] = (), link: int = 0
    ) -> None:
        """`link` is the port of a proxy before the primary, through which the replica receives its data."""
        ports = ports or free_ports(2)
        self.primary = Server(binary, folder / "primary", port=ports[0], options=options)
        replica = ["--replicaof", "127.0.0.1", str(link or ports[0]), *options]
        self.replica = Server(binary, folder / "replica", port=ports[1], options=replica)
        super().__init__([self.primary, self.replica])

    def start(self) -> None:
        super().start()
        self.await_link()

    def await_link(self) -> None:
        """Wait until the replica has loaded the data of its primary."""
        self.replica.await_true(lambda server: server.info("replication").get("master_link_status") == "up")


class Watched(Pair):
    """A primary, a replica and three Sentinels over them, which fail over when the primary is silent for 0.5 s."""

    def __init__(
        self, binary: Binary, folder: Path, options: Sequence[str] = (), *, ports: Sequence[int] = (), link: int = 0
    ) -> None:
        super().__init__(binary, folder, options, ports=ports, link=link)
        self.sentinels = []
        for number, port in enumerate(free_ports(3)):
            sentinel_folder = folder / f"sentinel-{number}"
            sentinel_folder.mkdir(parents=True)
            settings = sentinel_folder / "sentinel.conf"
            settings.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {sentinel_folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\n"
                f"sentinel failover-timeout {SERVICE} 3000\n"
            )
            self.sentinels.append(Server(binary, sentinel_folder, port=port, settings=settings, options=["--sentinel"]))

    @property
    def url(self) -> str:
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def start(self) -> None:
        super().start()
        for sentinel in self.sentinels:
            sentinel.spawn()
        for sentinel in self.sentinels:
            sentinel.await_answer()
            sentinel.await_true(_knows_all)

    def end(self) -> None:
        for sentinel in self.sentinels:
            sentinel.end()
        super().end()

    def named_primary(self) -> int:
        """The port of the primary according to the Sentinels; 0 while they disagree."""
        ports = set()
        for sentinel in self.sentinels:
            _, port = sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            ports.add(int(port))
        return ports.pop() if len(ports) == 1 else 0

    def fail_over(self) -> None:
        """Make the Sentinels promote the replica of a healthy primary. Returns when all of them report it."""
        before = self.named_primary()

        def ordered() -> bool:
            try:
                self.sentinels[0].call("SENTINEL", "FAILOVER", SERVICE)
            except ServerError as error:
                if error.code not in ("NOGOODSLAVE", "INPROG"):
                    raise
                return error.code == "INPROG"
            return True

        eventually(ordered)
        self.await_other_primary(before)

    def await_other_primary(self, before: int) -> None:
        """Wait until all Sentinels report another primary, and it accepts writes."""
        eventually(lambda: self.named_primary() not in (0, before))
        new = self.primary if self.named_primary() == self.primary.port else self.replica
        new.await_true(lambda server: server.call("ROLE")[0] == "master")


class Cluster(ServerGroup[Server]):
    """Three primaries that share the slots, each with a replica; `servers[n + 3]` replicates `servers[n]`."""

    def __init__(self, binary: Binary, folder: Path, options: Sequence[str] = (), *, replicas: bool = True) -> None:
        """Without `replicas`, tests must not let a node fail."""
        pairs = cluster_ports(binary, 6 if replicas else 3)
        self._bus_ports = dict(pairs)
        nodes = [
            Server(
                binary,
                folder / f"node-{number}",
                port=port,
                options=[
                    *("--cluster-enabled", "yes", *bus_option(binary, bus)),
                    *("--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000"),
                    *("--cluster-replica-validity-factor", "0", *options),
                ],
            )
            for number, (port, bus) in enumerate(pairs)
        ]
        super().__init__(nodes)

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.servers[0].address},{self.servers[1].address},{self.servers[2].address}"

    def start(self) -> None:
        super().start()
        primaries, replicas = self.servers[:3], self.servers[3:]
        for number, server in enumerate(self.servers, start=1):
            server.call("CLUSTER", "SET-CONFIG-EPOCH", number)
        for number, primary in enumerate(primaries):
            slots = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            primary.call("CLUSTER", "ADDSLOTS", *slots)
        for server, neighbour in zip(self.servers[1:], self.servers, strict=False):
            server.call("CLUSTER", "MEET", "127.0.0.1", neighbour.port, self._bus_ports[neighbour.port])
        known = str(len(self.servers))
        for server in self.servers:
            server.await_true(lambda server: facts(server.call("CLUSTER", "INFO"))["cluster_known_nodes"] == known)
        for primary, replica in zip(primaries, replicas, strict=False):
            identity = primary.call("CLUSTER", "MYID")
            replica.await_true(lambda server, identity=identity: server.call("CLUSTER", "REPLICATE", identity) == "OK")
        for server in self.servers:
            server.await_true(lambda server: _sees_whole_cluster(server, replicas=len(replicas)))
        for replica in replicas:
            replica.await_true(lambda server: server.info("replication").get("master_link_status") == "up")

    def slot(self, key: str) -> int:
        return int(self._any().call("CLUSTER", "KEYSLOT", key))

    def owner(self, slot: int) -> Server:
        """The primary that has the slot, according to a running server."""
        for first, last, primary, *_ in self._any().call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == primary[1])
        raise AssertionError(f"no server has slot {slot}")

    def replica_of(self, primary: Server) -> Server:
        return self.servers[self.servers.index(primary) + 3]

    def await_owner(self, slot: int, *, other_than: Server) -> Server:
        """Wait until the slot has a new owner, and the other servers report that the Cluster is complete again."""

        def moved() -> bool:
            with contextlib.suppress(OSError, ServerError, AssertionError):
                return self.owner(slot) is not other_than
            return False

        eventually(moved)
        for server in self.servers:
            if server is not other_than:
                server.await_true(lambda server: facts(server.call("CLUSTER", "INFO"))["cluster_state"] == "ok")
        return self.owner(slot)

    def begin_move(self, slot: int, to: Server) -> Server:
        """The first half of a resharding: the slot begins to move, without its keys. Returns its owner."""
        # Wait until all servers know the previous move. Otherwise both moves get the same epoch, and servers redirect
        # clients to each other.
        eventually(
            lambda: (
                len({facts(server.call("CLUSTER", "INFO"))["cluster_current_epoch"] for server in self.servers}) == 1
            )
        )
        source = self.owner(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", to.call("CLUSTER", "MYID"))
        return source

    def move_keys(self, slot: int, source: Server, to: Server) -> int:
        """The second half: move the keys that exist now. Returns their number."""
        moved = 0
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.call("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, to: Server) -> None:
        """Assign the slot to its new owner."""
        identity = to.call("CLUSTER", "MYID")
        for server in (to, *(server for server in self.servers[:3] if server is not to)):
            server.call("CLUSTER", "SETSLOT", slot, "NODE", identity)

    def all_keys(self) -> set[str]:
        """All keys of all primaries that are up."""
        keys: set[str] = set()
        for server in self.servers:
            with contextlib.suppress(OSError):
                if server.call("ROLE")[0] == "master":
                    keys |= server.all_keys()
        return keys

    def _any(self) -> Server:
        for server in self.servers:
            with contextlib.suppress(OSError, ServerError):
                if facts(server.call("CLUSTER", "INFO"))["cluster_state"] == "ok":
                    return server
        raise AssertionError("no server of the Cluster reports that it is complete")


def cluster_ports(binary: Binary, number: int) -> list[tuple[int, int]]:
    """Pairs of free ports: one for clients, one for the Cluster bus."""
    if _has_bus_option(binary):
        ports = free_ports(2 * number)
        return list(zip(ports[:number], ports[number:], strict=True))
    low = [port for port in free_ports(20 * number) if port + _BUS <= _PORT_MAX]
    return [(port, port + _BUS) for port in low[:number]]


def bus_option(binary: Binary, bus: int) -> list[str]:
    """The option for the port of the Cluster bus. The default, 10,000 above the client port, may exceed 65,535."""
    return ["--cluster-port", str(bus)] if _has_bus_option(binary) else []


_BUS, _PORT_MAX = 10_000, 65_535


def _has_bus_option(binary: Binary) -> bool:
    return binary.product == "valkey" or binary.version >= (7,)


def _knows_all(sentinel: Server) -> bool:
    answer = sentinel.call("SENTINEL", "MASTER", SERVICE)
    known = dict(zip(answer[::2], answer[1::2], strict=True))
    return (known["num-other-sentinels"], known["num-slaves"], known["flags"]) == ("2", "1", "master")


def _sees_whole_cluster(server: Server, *, replicas: int) -> bool:
    info = facts(server.call("CLUSTER", "INFO"))
    nodes = server.call("CLUSTER", "NODES").splitlines()
    return info["cluster_state"] == "ok" and sum(" connected" in node and "slave" in node for node in nodes) == replicas

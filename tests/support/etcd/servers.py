"""etcd servers, one or three together, and the requests that tests send to them."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE, eventually
from tests.support.server_process import (
    GO_ENVIRONMENT,
    HERE,
    Host,
    ServerGroup,
    ServerProcess,
    dies_with_thread,
    free_ports,
    program,
)

# Short election timeouts, because the shortest ttl of a lease is one and a half election timeouts. The timeout has to
# be five heartbeat intervals or more, and a shorter interval only costs processor time.
_FAST = ("--heartbeat-interval", "40", "--election-timeout", "200")
# For a single server that runs for long, because an idle server works at each heartbeat too. The shortest ttl is one
# second with both.
IDLE = ("--heartbeat-interval", "120", "--election-timeout", "600")


class Server(ServerProcess):
    """One member of a cluster; by default it is the only one."""

    errors = (OSError, http.client.HTTPException, KeyError, ValueError)

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        cluster: Sequence[tuple[str, str]] = (),
        number: int = 0,
        tls: ssl.SSLContext | None = None,
        host: Host = HERE,
    ) -> None:
        """`cluster`: names and peer addresses of all members; `number` is the index of this one."""
        super().__init__(folder, options=options, environment=GO_ENVIRONMENT, host=host)
        self.name = f"n{number}"
        self._cluster = list(cluster) or [(self.name, f"{host.address}:{free_ports(1)[0]}")]
        self.peer_address = dict(self._cluster)[self.name]
        self._tls = tls

    @property
    def url(self) -> str:
        return f"etcd{'s' if self._tls else ''}://{self.address}"

    def command(self) -> list[str]:
        client, peer = f"http{'s' if self._tls else ''}://{self.address}", f"http://{self.peer_address}"
        members = ",".join(f"{name}=http://{address}" for name, address in self._cluster)
        return [
            *(program("etcd"), "--name", self.name, "--data-dir", str(self.folder / "data"), *_FAST),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", members),
        ]

    def answers(self) -> bool:
        """Whether it answers, and its cluster has a leader."""
        return bool(self.request("GET", "/health")["health"] == "true")

    def save_snapshot(self) -> None:
        """Take a snapshot for `restore_snapshot`; it replaces the previous one."""
        self._etcdctl("--endpoints", self.address, "snapshot", "save", str(self.folder / "snapshot"))

    def restore_snapshot(self, *, cluster: str = "etcd-cluster") -> None:
        """Start again with the data of the snapshot. With etcd's default token, the cluster id stays the same."""
        self.end()
        shutil.rmtree(self.folder / "data")
        peer = f"http://{self.peer_address}"
        options = ["--name", self.name, "--data-dir", str(self.folder / "data"), "--initial-cluster-token", cluster]
        options += ["--initial-cluster", f"{self.name}={peer}", "--initial-advertise-peer-urls", peer]
        self._etcdctl("snapshot", "restore", str(self.folder / "snapshot"), *options)
        self.start()

    def _etcdctl(self, *arguments: str) -> None:
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run(
            [program("etcdctl"), *arguments], check=True, capture_output=True, env=environment, timeout=PATIENCE
        )

    def request(self, verb: str, path: str, body: str | None = None, *, token: str = "") -> Any:
        """Send one request on a new connection; returns the JSON of the answer."""
        return json.loads(self.text(verb, path, body, token=token))

    def text(self, verb: str, path: str, body: str | None = None, *, token: str = "") -> str:
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self.host.address, self.port, timeout=5)
        else:
            connection = http.client.HTTPSConnection(self.host.address, self.port, timeout=5, context=self._tls)
        with contextlib.closing(connection):
            connection.request(verb, path, body, {"Authorization": token} if token else {})
            return connection.getresponse().read().decode()

    def call(self, method: str, *, token: str = "", **message: Any) -> Any:
        return self.request("POST", f"/v3/{method}", json.dumps(message), token=token)

    def keys(self, prefix: str = "") -> list[str]:
        """All keys with this prefix."""
        start = prefix.encode() or b"\0"
        end = start[:-1] + bytes([start[-1] + 1]) if prefix else b"\0"
        answer = self.call("kv/range", key=_b64(start), range_end=_b64(end), keys_only=True)
        return [base64.b64decode(kv["key"]).decode() for kv in answer.get("kvs", ())]

    def put(self, key: str, value: str) -> None:
        self.call("kv/put", key=_b64(key.encode()), value=_b64(value.encode()))

    def delete(self, key: str) -> int:
        return int(self.call("kv/deleterange", key=_b64(key.encode())).get("deleted", 0))

    def make_space(self, prefix: str) -> None:
        """Delete all keys with this prefix, compact, and disarm the alarm of a full database."""
        start = prefix.encode()
        self.call("kv/deleterange", key=_b64(start), range_end=_b64(start[:-1] + bytes([start[-1] + 1])))
        self.call("kv/compaction", revision=str(self.revision()), physical=True)
        self.call("maintenance/defragment")
        for alarm in self.call("maintenance/alarm", action="GET").get("alarms", ()):
            self.call("maintenance/alarm", action="DEACTIVATE", **alarm)

    def leases(self) -> list[int]:
        return [int(lease["ID"]) for lease in self.call("lease/leases").get("leases", ())]

    def revoke(self, lease: int) -> None:
        self.call("lease/revoke", ID=str(lease))

    def revision(self) -> int:
        return int(self.call("kv/range", key=_b64(b"\0"))["header"]["revision"])

    def is_leader(self) -> bool:
        status = self.call("maintenance/status")
        return bool(status["header"]["member_id"] == status.get("leader"))

    def metrics(self) -> dict[str, float]:
        """The server's counters; the name of a counter with labels includes them."""
        lines = [line for line in self.text("GET", "/metrics").splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


class Trio(ServerGroup[Server]):
    """Three members of one cluster."""

    def __init__(
        self, folder: Path, *, options: Sequence[str] = (), hosts: Sequence[Host] = (HERE, HERE, HERE)
    ) -> None:
        ports = free_ports(len(hosts))
        members = [(f"n{number}", f"{host.address}:{ports[number]}") for number, host in enumerate(hosts)]
        token = ("--initial-cluster-token", f"holdfast-{os.getpid()}-{ports[0]}")
        super().__init__(
            [
                Server(folder / f"n{number}", options=[*options, *token], cluster=members, number=number, host=host)
                for number, host in enumerate(hosts)
            ]
        )

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(server.address for server in self.servers)

    def url_from(self, first: Server) -> str:
        """The URL of the cluster, with this member first."""
        others = [server for server in self.servers if server is not first]
        return "etcd://" + ",".join(server.address for server in (first, *others))

    def leader(self) -> Server:
        leaders: list[Server] = []

        def has_one_leader() -> bool:
            leaders[:] = [server for server in self.servers if _leads(server)]
            return len(leaders) == 1

        eventually(has_one_leader)
        return leaders[0]

    def followers(self) -> list[Server]:
        leader = self.leader()
        return [server for server in self.servers if server is not leader]


def _leads(server: Server) -> bool:
    try:
        return server.is_leader()
    except Server.errors:
        return False


def etcdctl(server: Server, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Run `etcdctl …` on this server as a process that the caller ends."""
    return subprocess.Popen(
        [*dies_with_thread(), program("etcdctl"), "--endpoints", server.address, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ETCDCTL_API": "3", **(environment or {})},
    )


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()

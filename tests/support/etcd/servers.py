"""Private etcd servers, alone or three together: data in a folder, free ports, always reaped.

Start servers from the main thread: they are killed with the *thread* that started them, so that a killed test run
leaves none behind. A server that is missing skips its tests with one line; with CI=true it fails them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.partitions.networks import HERE, Host
from tests.support.processes import PATIENCE, _state, eventually
from tests.support.redis.binaries import missing
from tests.support.redis.servers import free_ports

# Short election timeouts, because the shortest ttl of a lease is one and a half election timeouts.
_FAST = ("--heartbeat-interval", "20", "--election-timeout", "200")


@functools.cache
def binary(name: str = "etcd") -> str:
    command = shutil.which(name)
    if command is None:
        missing(f"no {name} on this machine: `make servers` installs it")
    return str(command)


class Server:
    """A server process and its folder, which outlives the process: `start` again for a restart with its data."""

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
        self.folder = folder
        self.name = f"n{number}"
        self.host = host
        self.port, peer = free_ports(2)
        self._cluster = list(cluster) or [(self.name, f"{host.address}:{peer}")]
        self._peer = dict(self._cluster)[self.name]
        self._options = list(options)
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def url(self) -> str:
        return f"etcd{'s' if self._tls else ''}://{self.address}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Returns when it answers, and has a leader."""
        self.spawn()
        self.await_answer()

    def spawn(self) -> None:
        """Start the process without waiting; members of a cluster answer only when others run."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "it would die with this thread"
        self.folder.mkdir(parents=True, exist_ok=True)
        client = f"http{'s' if self._tls else ''}://{self.address}"
        peer = f"http://{self._peer}"
        together = ",".join(f"{name}=http://{address}" for name, address in self._cluster)
        command = [binary(), "--name", self.name, "--data-dir", str(self.folder / "data"), *_FAST]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", together]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*_with_parent(), *self.host.under, *command, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def await_answer(self) -> None:
        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended at once:\n{self.log()}"
            try:
                return bool(self.request("GET", "/health")["health"] == "true")
            except (OSError, http.client.HTTPException, KeyError, ValueError):
                return False

        eventually(answers)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead and reaped."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def stop(self) -> None:
        """SIGSTOP; returns when the process is stopped. Connections stay open, and get no answers."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def save_snapshot(self) -> None:
        """Take a snapshot for `restore_snapshot`; it replaces the previous one."""
        self._etcdctl("--endpoints", self.address, "snapshot", "save", str(self.folder / "snapshot"))

    def restore_snapshot(self, *, cluster: str = "etcd-cluster") -> None:
        """Start again with the data of the snapshot; with etcd's default token, under the same cluster id."""
        self.end()
        shutil.rmtree(self.folder / "data")
        peer = f"http://{self._peer}"
        options = ["--name", self.name, "--data-dir", str(self.folder / "data"), "--initial-cluster-token", cluster]
        options += ["--initial-cluster", f"{self.name}={peer}", "--initial-advertise-peer-urls", peer]
        self._etcdctl("snapshot", "restore", str(self.folder / "snapshot"), *options)
        self.start()

    def _etcdctl(self, *arguments: str) -> None:
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run(
            [binary("etcdctl"), *arguments], check=True, capture_output=True, env=environment, timeout=PATIENCE
        )

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

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
        return [int(one["ID"]) for one in self.call("lease/leases").get("leases", ())]

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


class Trio:
    """Three members of one cluster."""

    def __init__(
        self, folder: Path, *, options: Sequence[str] = (), hosts: Sequence[Host] = (HERE, HERE, HERE)
    ) -> None:
        ports = free_ports(len(hosts))
        members = [(f"n{number}", f"{host.address}:{ports[number]}") for number, host in enumerate(hosts)]
        token = ("--initial-cluster-token", f"holdfast-{os.getpid()}-{ports[0]}")
        self.servers = [
            Server(folder / f"n{number}", options=[*options, *token], cluster=members, number=number, host=host)
            for number, host in enumerate(hosts)
        ]

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(server.address for server in self.servers)

    def url_from(self, first: Server) -> str:
        """The URL of the cluster, with this member first."""
        others = [server for server in self.servers if server is not first]
        return "etcd://" + ",".join(server.address for server in (first, *others))

    def start(self) -> None:
        for server in self.servers:
            server.spawn()
        for server in self.servers:
            server.await_answer()

    def end(self) -> None:
        for server in self.servers:
            server.end()

    def heal(self) -> None:
        """Make all members run, and wait until they agree."""
        for server in self.servers:
            if server._process is None:
                server.spawn()
            else:
                server.resume()
        for server in self.servers:
            server.await_answer()

    def leader(self) -> Server:
        leaders: list[Server] = []

        def is_there() -> bool:
            leaders[:] = [server for server in self.servers if _leads(server)]
            return len(leaders) == 1

        eventually(is_there)
        return leaders[0]

    def followers(self) -> list[Server]:
        leader = self.leader()
        return [server for server in self.servers if server is not leader]


def _leads(server: Server) -> bool:
    try:
        return server.is_leader()
    except (OSError, KeyError, ValueError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def running(server: Server | Trio) -> Iterator[Any]:
    """Start the server or servers, and end them after the block."""
    try:
        server.start()
        yield server
    finally:
        server.end()


def etcdctl(server: Server, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Run `etcdctl …` on this server as a process that the caller ends."""
    return subprocess.Popen(
        [*_with_parent(), binary("etcdctl"), "--endpoints", server.address, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ETCDCTL_API": "3", **(environment or {})},
    )


def _with_parent() -> list[str]:
    """The prefix of a command that kills it with the thread that starts it, where that is supported."""
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()

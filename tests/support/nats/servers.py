"""NATS servers, one or three together, and the requests that tests send to them."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from holdfast.backends.nats.protocol import wire
from tests.support.processes import PATIENCE, eventually
from tests.support.server_process import GO_ENVIRONMENT, HERE, Host, ServerGroup, ServerProcess, free_ports, missing

_INSTALLED = Path(sys.prefix) / "servers" / "bin" / "nats-server"


class Server(ServerProcess):
    """One server; by default it is the only one."""

    errors = (OSError, ValueError, KeyError)

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        routes: Sequence[str] = (),
        number: int = 0,
        host: Host = HERE,
        login: Mapping[str, str] | None = None,
    ) -> None:
        """`routes`: the addresses at which the servers of a cluster connect; `number` is the index of this one.

        `login`: the fields of CONNECT by which tests log in.
        """
        super().__init__(folder, options=options, environment=GO_ENVIRONMENT, host=host)
        self.name, self._routes, self.login = f"n{number}", list(routes), dict(login or {})
        self._number = number

    @property
    def url(self) -> str:
        return f"nats://{self.address}"

    def command(self) -> list[str]:
        if not _INSTALLED.exists():
            missing("no nats-server on this machine: `make servers` installs it")
        words = [str(_INSTALLED), "-a", self.host.address, "-p", str(self.port), "-js", "-n", self.name]
        words += ["-sd", str(self.folder / "data")]
        if self._routes:
            routes = ",".join(f"nats://{route}" for route in self._routes)
            cluster = f"nats://{self._routes[self._number]}"
            words += ["-cluster_name", "holdfast", "-cluster", cluster, "-routes", routes]
        return words

    def answers(self) -> bool:
        """Whether it answers, and its cluster has a leader."""
        return "error" not in self.call("$JS.API.INFO", timeout=1.0)

    def connect(self, timeout: float = PATIENCE) -> RawConnection:
        return RawConnection(self.host.address, self.port, self.login, timeout)

    def call(
        self, subject: str, data: bytes = b"", headers: Mapping[str, object] | None = None, timeout: float = PATIENCE
    ) -> Any:
        """Send one request on a new connection; returns the JSON of the answer."""
        with self.connect(timeout) as connection:
            return json.loads(connection.request(subject, data, headers).data or "{}")

    def stream(self, bucket: str, timeout: float = PATIENCE) -> Any:
        return self.call(f"$JS.API.STREAM.INFO.KV_{bucket}", b'{"subjects_filter": ">"}', timeout=timeout)

    def entry(self, bucket: str, key: str) -> Any:
        """The last entry of a key: seq, headers and data; None if there is none."""
        request = json.dumps({"last_by_subj": f"$KV.{bucket}.{key}"}).encode()
        message = self.call(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", request).get("message")
        if message is None:
            return None
        _, headers = wire.parse_headers(base64.b64decode(message.get("hdrs", "")))
        return {"seq": message["seq"], "headers": headers, "data": base64.b64decode(message.get("data", ""))}

    def put(self, bucket: str, key: str, data: bytes, **headers: object) -> Any:
        return self.call(
            f"$KV.{bucket}.{key}", data, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    def leads(self, bucket: str) -> bool:
        # Without a leader there is no answer.
        return bool(self.stream(bucket, timeout=0.5)["cluster"].get("leader") == self.name)

    def forget(self) -> None:
        """Delete the data of a server that does not run."""
        shutil.rmtree(self.folder / "data")


class RawConnection:
    """One connection."""

    def __init__(self, host: str, port: int, login: Mapping[str, str], timeout: float) -> None:
        self._sock = socket.create_connection((host, port), timeout)
        self._parser, self._number = wire.Parser(), 0
        self._inbox = f"_INBOX.test.{uuid.uuid4().hex}"
        self.next("INFO")
        options = {"headers": True, "no_responders": True, "verbose": False, **login}
        self.send(wire.connect(options) + wire.subscribe(f"{self._inbox}.*", 1))

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def request(self, subject: str, data: bytes = b"", headers: Mapping[str, object] | None = None) -> wire.Message:
        return self.send_request(lambda reply: wire.publish(subject, reply, data, headers))

    def send_request(self, request: Callable[[str], bytes]) -> wire.Message:
        """Send the bytes that `request` makes from the subject of the answer, and receive the answer."""
        self._number += 1
        reply = f"{self._inbox}.{self._number}"
        self.send(request(reply))
        while (message := self.next("MSG")).subject != reply:
            pass
        return message

    def next(self, verb: str) -> wire.Message:
        while True:
            while (message := self._parser.next_message()) is not None:
                assert message.verb != "-ERR", message
                if message.verb == verb:
                    return message
            data = self._sock.recv(65536)
            assert data, "the server closed the connection"
            self._parser.feed(data)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trio(ServerGroup[Server]):
    """Three servers of one cluster."""

    def __init__(self, folder: Path, *, options: Sequence[str] = ()) -> None:
        routes = [f"{HERE.address}:{port}" for port in free_ports(3)]
        super().__init__(
            [Server(folder / f"n{number}", options=options, routes=routes, number=number) for number in range(3)]
        )

    def start(self) -> None:
        """Wait also until a stream can have three replicas: servers answer before they know that all are online."""
        super().start()
        probe = json.dumps({"name": "probe", "subjects": ["probe"], "num_replicas": len(self.servers)}).encode()
        eventually(lambda: "error" not in self.servers[0].call("$JS.API.STREAM.CREATE.probe", probe))
        self.servers[0].call("$JS.API.STREAM.DELETE.probe")

    @property
    def url(self) -> str:
        return "nats://" + ",".join(server.address for server in self.servers)

    def leader(self, bucket: str) -> Server:
        """The server that leads the stream of this bucket."""
        leaders: list[Server] = []

        def has_one_leader() -> bool:
            leaders[:] = [server for server in self.servers if server.is_running and _leads(server, bucket)]
            return len(leaders) == 1

        eventually(has_one_leader)
        return leaders[0]


def _leads(server: Server, bucket: str) -> bool:
    try:
        return server.leads(bucket)
    except Server.errors:
        return False

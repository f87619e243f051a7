"""The port for both runtimes: requests about the bucket, to the servers of one cluster.

A put is sent once: the answer to a second one does not show whether the first will be executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.backends.nats.config import NatsConfig
from holdfast.backends.nats.io.connection import Connection, Request
from holdfast.backends.nats.io.watcher import Watcher
from holdfast.backends.nats.port import Entry, Put
from holdfast.backends.nats.protocol.bucket import NOT_FOUND, Bucket
from holdfast.backends.nats.protocol.guarantees import REPLICAS_MIN
from holdfast.backends.nats.protocol.lock import NatsBackend
from holdfast.backends.nats.protocol.wire import Message
from holdfast.backends.net.cluster import ServerCluster
from holdfast.backends.net.poller import Background, Poller
from holdfast.core.ports import Backend, Runtime, StoreMissing
from holdfast.errors import BackendError, BackendUnavailable
from holdfast.url_parts import Node

_NO_LEADER_PAUSE = 0.05  # seconds


def backend_on(config: NatsConfig, poller: Poller, background: Background, runtime: Runtime) -> Backend:
    port = Cluster(config, poller, background, runtime)
    return NatsBackend(config.url, port, runtime, replicas=config.replicas, clock_skew=config.clock_skew)


class Cluster(ServerCluster[Connection, str]):
    """A NatsPort on connections."""

    def __init__(self, config: NatsConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        super().__init__(config, runtime, Watcher(config.bucket, self._open_any, poller, background, runtime))
        self._config, self._poller = config, poller
        self._bucket = Bucket(config.url, config.bucket)
        self.replicas = 0
        self._is_clustered = False

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, puts: Sequence[Put], *, deadline: float) -> list[int | BackendError | None]:
        if not self.replicas:
            await self._find_bucket(deadline, create=True)
        requests = [partial(self._bucket.put_request, put) for put in puts]
        answers = await self._exchange(requests, deadline, repeat=False)
        results = [self._bucket.put_answer(answer) for answer in answers]
        if any(isinstance(result, BackendUnavailable) for result in results):
            self.replicas = 0  # the bucket may be gone, so check it before the next request
        return results

    async def get(self, keys: Sequence[str], *, deadline: float, timed: bool = False) -> list[Entry]:
        now = None
        if timed or not self.replicas:
            now = datetime.fromisoformat((await self._find_bucket(deadline, create=False))["ts"])
        requests = [partial(self._bucket.get_request, key) for key in keys]
        answers = await self._exchange(requests, deadline) if requests else []
        return [self._bucket.get_answer(answer, now if timed else None) for answer in answers]

    async def keys(self, subjects: str, *, deadline: float) -> list[str]:
        keys: list[str] = []
        while True:
            info = await self._find_bucket(
                deadline, create=False, subjects_filter=self._bucket.subject(subjects), offset=len(keys)
            )
            listed = info["state"].get("subjects") or {}
            keys += [subject.removeprefix(self._bucket.subject("")) for subject in listed]
            if not listed or len(keys) >= info.get("total", 0):
                return keys

    def watch(self, nonce: str, key: str) -> None:
        super().watch(nonce, self._bucket.notifications(key))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _find_bucket(self, deadline: float, *, create: bool, **arguments: Any) -> dict[str, Any]:
        """The description of the stream, after a check of its settings."""
        info = await self._call("INFO", deadline, **arguments)
        if info.get("error", {}).get("code") == NOT_FOUND:
            if not create:
                raise StoreMissing(backend=self._config.url, problem=f"there is no bucket {self._bucket.name!r}")
            replicas = self._config.replicas or (REPLICAS_MIN if self._is_clustered else 1)
            settings = self._bucket.settings(replicas, int(self._runtime.wall() * 1e6))
            created = await self._call("CREATE", deadline, **settings)  # refused if another client was faster
            info = await self._call("INFO", deadline)
            if "error" in info and "error" in created:
                info = created
        if "error" in info:
            raise self._bucket.error(info["error"])
        self._bucket.check(info["config"], self._config.replicas or 1)
        self.replicas = info["config"]["num_replicas"]
        return info

    async def _call(self, verb: str, deadline: float, **arguments: Any) -> dict[str, Any]:
        request = partial(self._bucket.api_request, verb, **arguments)
        (message,) = await self._exchange([request], deadline)
        return self._bucket.answer(message)

    async def _exchange(self, requests: Sequence[Request], deadline: float, *, repeat: bool = True) -> list[Message]:
        """The answers. A request that no server handles is repeated, because a leader may be elected soon."""
        answers = await self._exchange_once(requests, deadline, repeat=repeat)
        while any(answer.status for answer in answers) and self._now() + _NO_LEADER_PAUSE < deadline:
            await self._runtime.sleep(_NO_LEADER_PAUSE)
            refused = [number for number, answer in enumerate(answers) if answer.status]
            again = await self._exchange_once([requests[number] for number in refused], deadline, repeat=repeat)
            for number, answer in zip(refused, again, strict=True):
                answers[number] = answer
        return answers

    async def _exchange_once(self, requests: Sequence[Request], deadline: float, *, repeat: bool) -> list[Message]:
        def exchange(node: Node, until: float, _: bool) -> Awaitable[list[Message]]:  # noqa: FBT001  (of `_try_each`)
            work = partial(Connection.exchange, requests=requests, until=until, repeat=repeat)
            return self._pools[node].run(work, until)

        return await self._try_each(exchange, deadline, once=not repeat)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, node: Node, until: float) -> Connection:
        connection = Connection(self._config, node, self._poller, self._runtime)
        self._connections.add(connection)
        await connection.open(until)
        self._is_clustered = "cluster" in connection.info
        return connection

    async def _open_any(self, until: float) -> Connection:
        return await self._try_each(lambda node, share, _: self.open(node, share), until)

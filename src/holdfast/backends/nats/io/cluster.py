"""The port for both runtimes: connections to the servers of one cluster, which are tried in turn, and the watcher.

A server that does not answer must not use up the caller's time: each gets its share of the time that is left, and the
next request is sent first to the server that answered last. A put is sent once: the answer to a second one does not
tell whether the first will be executed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.backends.nats.io.connection import Connection, Request
from holdfast.backends.nats.io.watcher import Watcher
from holdfast.backends.nats.port import Entry, Put
from holdfast.backends.nats.protocol.bucket import NOT_FOUND, Bucket
from holdfast.backends.nats.protocol.guarantees import REPLICAS_MIN
from holdfast.backends.nats.protocol.lock import NatsBackend
from holdfast.backends.net.pool import ConnectionPool
from holdfast.core.ports import StoreMissing
from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.nats.config import NatsConfig
    from holdfast.backends.nats.protocol.wire import Message
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.core.notifications import Wakeups
    from holdfast.core.ports import Backend, Runtime
    from holdfast.url_parts import Node

_NO_LEADER_PAUSE = 0.05  # seconds


def backend_on(config: NatsConfig, poller: Poller, background: Background, runtime: Runtime) -> Backend:
    port = Cluster(config, poller, background, runtime)
    return NatsBackend(config.url, port, runtime, replicas=config.replicas, clock_skew=config.clock_skew)


class Cluster:
    """A NatsPort on connections."""

    def __init__(self, config: NatsConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        self._config, self._poller, self._runtime, self._now = config, poller, runtime, runtime.now
        self._bucket = Bucket(config.url, config.bucket)
        self._current = 0  # index of the server that is tried first
        self._pools = {
            node: ConnectionPool(
                config.url, partial(self.open, node), runtime, config.max_connections, server=str(node)
            )
            for node in config.nodes
        }
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()  # all, those in use included
        self.replicas = 0
        self._is_clustered = False
        self._watcher = Watcher(self._bucket, self, poller, background, runtime)

    @property
    def wakeups(self) -> Wakeups:
        return self._watcher.wakeups

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

    async def get(self, keys: Sequence[str], *, deadline: float, timed: bool = False) -> list[Entry | None]:
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
            found = info["state"].get("subjects") or {}
            keys += [subject.removeprefix(self._bucket.subject("")) for subject in found]
            if not found or len(keys) >= info.get("total", 0):
                return keys

    def watch(self, nonce: str, key: str) -> None:
        self._watcher.watch(nonce, key)

    def unwatch(self, nonce: str) -> None:
        self._watcher.unwatch(nonce)

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
        answer = self._bucket.answer(message)
        if isinstance(answer, BackendError):
            raise answer
        return answer

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
        nodes, started = self._config.nodes, self._current
        unanswered: OutcomeUnknown | None = None
        refused: BackendUnavailable | None = None
        for number in range(len(nodes)):
            node, now = nodes[(started + number) % len(nodes)], self._now()
            until = now + (deadline - now) / (len(nodes) - number)
            try:
                return await self._pools[node].run(
                    partial(Connection.exchange, requests=requests, until=until, repeat=repeat), until
                )
            except BackendUnavailable as error:
                refused = error
            except OutcomeUnknown as error:
                unanswered = error
            self._avoid(node)
            if unanswered is not None and not repeat:
                break
        raise unanswered or refused or BackendUnavailable(backend=self._config.url, problem="no server is configured")

    def _avoid(self, node: Node) -> None:
        """This server does not answer: try another one first."""
        nodes = self._config.nodes
        if nodes[self._current] == node:
            self._current = (self._current + 1) % len(nodes)
        self._watcher.avoid(node)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, node: Node, until: float) -> Connection:
        """A new connection for the caller alone. Raises BackendUnavailable or ConfigurationError."""
        connection = Connection(self._config, node, self._poller, self._runtime)
        self._connections.add(connection)
        await connection.open(until)
        self._is_clustered = "cluster" in connection.info
        return connection

    async def open_any(self, until: float) -> Connection:
        """The same, to the server that answered last."""
        return await self.open(self._config.nodes[self._current], until)

    async def close(self) -> None:
        await self._watcher.close()
        for pool in self._pools.values():
            pool.close()

    def abandon(self) -> None:
        self._watcher.abandon()
        for pool in self._pools.values():
            pool.abandon()
        for connection in list(self._connections):
            connection.abandon()

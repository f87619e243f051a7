"""The port for both runtimes: connections to the members of one cluster, which are tried in turn, and the watcher.

A member that does not answer must not use up the caller's time: each gets its share of the time that is left, and the
next request is sent first to the member that answered last.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.io import errors
from holdfast.backends.etcd.io.connection import Connection, NotAnswered, NotSent
from holdfast.backends.etcd.io.errors import NoAuthentication, TokenRefused
from holdfast.backends.etcd.io.watcher import Watcher
from holdfast.backends.etcd.port import Answer, Message, Watch
from holdfast.backends.etcd.protocol.messages import encoded
from holdfast.backends.net.pool import ConnectionPool
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.config import EtcdConfig
    from holdfast.backends.etcd.io.http import Response
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.core.notifications import Wakeups
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

_OK = 200
_TOKEN_ATTEMPTS_MAX = 2  # times that a request is sent, each with a new token


class Cluster:
    """An EtcdPort on HTTP connections."""

    def __init__(self, config: EtcdConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        self._config, self._poller, self._runtime, self._now = config, poller, runtime, runtime.now
        self._current = 0  # index of the member that is tried first
        self._pools = {
            node: ConnectionPool(
                config.url, partial(self.open, node), runtime, config.max_connections, server=str(node)
            )
            for node in config.nodes
        }
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()  # all, those in use included
        self._token = ""
        self._needs_token = bool(config.user)
        self._watcher = Watcher(config.url, self, poller, background, runtime)

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        url, nodes = self._config.url, self._config.nodes
        body = encoded(message)
        started = self._current
        unanswered: OutcomeUnknown | None = None
        refused: BackendUnavailable | None = None
        for number in range(len(nodes)):
            index = (started + number) % len(nodes)
            now = self._now()
            until = now + (deadline - now) / (len(nodes) - number)
            try:
                answer, sent = await self._request_member(nodes[index], method, body, until)
            except BackendUnavailable as error:
                refused = error
            except OutcomeUnknown as error:
                unanswered = error
            else:
                return Answer(answer, sent, repeated=unanswered is not None)
            self.avoid(nodes[index])
            self._watcher.avoid(nodes[index])
            if unanswered is not None and once:
                break
        raise unanswered or refused or BackendUnavailable(backend=url, problem="no server is configured")

    def name_mutex(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()  # threads have no order

    async def _request_member(self, node: Node, method: str, body: bytes, until: float) -> tuple[Message, float]:
        """Send a request to this member.

        Raises:
            BackendUnavailable, OutcomeUnknown: another member may be tried.
            LeaseNotFound, ConfigurationError: any other member would return the same error.
        """
        url = self._config.url
        refused: Exception | None = None
        for _ in range(_TOKEN_ATTEMPTS_MAX):
            token = self._token or await self._authenticate(node, until)
            try:
                return await self._exchange(node, method, token, body, until)
            except TokenRefused as error:
                if not self._config.user:
                    raise ConfigurationError(f"{url}: etcd requires a user and a password: {error}") from error
                refused = error
                self._needs_token = True
                if self._token == token:
                    self._token = ""
        raise BackendUnavailable(backend=url, problem=f"{node} refuses its own token: {refused}")

    async def _exchange(self, node: Node, method: str, token: str, body: bytes, until: float) -> tuple[Message, float]:
        url = self._config.url

        async def exchange(connection: Connection) -> tuple[Response, float]:
            sent = self._now()
            try:
                return await connection.exchange(f"/v3/{method}", token, body, until), sent
            except NotSent as error:
                raise BackendUnavailable(backend=url, problem=f"{node}: {error}") from error
            except NotAnswered as error:
                raise OutcomeUnknown(backend=url, problem=f"{node}: {error}") from error

        response, sent = await self._pools[node].run(exchange, until)
        if response.status != _OK:
            raise errors.error_for(response.status, response.body, url, str(node))
        try:
            message: Message = json.loads(response.body)
        except ValueError as error:
            raise OutcomeUnknown(backend=url, problem=f"{node}'s answer is not JSON: {error}") from error
        if "error" in message:  # an error in a stream, such as keep-alive, follows its status 200
            detail = message["error"]
            code = detail.get("grpc_code", 0) if isinstance(detail, dict) else 0
            text = detail.get("message", "") if isinstance(detail, dict) else str(detail)
            raise errors.error_for(0, json.dumps({"error": text, "code": code}).encode(), url, str(node))
        return message, sent

    async def _authenticate(self, node: Node, until: float) -> str:
        if not self._needs_token:
            return ""
        body = encoded({"name": self._config.user, "password": self._config.password})
        try:
            message, _ = await self._exchange(node, "auth/authenticate", "", body, until)
        except NoAuthentication:
            self._needs_token = False  # until authentication is enabled
            return ""
        except OutcomeUnknown as error:  # only authentication was requested, so nothing was changed
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        self._token = str(message["token"])
        return self._token

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, node: Node, until: float) -> Connection:
        """A new connection for the caller alone.

        Raises:
            BackendUnavailable: this member cannot be reached.
        """
        connection = Connection(node, self._poller, self._runtime)
        self._connections.add(connection)
        try:
            await connection.connect(self._config.tls, min(until, self._now() + self._config.connect_timeout))
        except OSError as error:
            raise BackendUnavailable(backend=self._config.url, problem=f"{node}: {error}") from error
        return connection

    async def open_stream(self, method: str, body: bytes, until: float) -> Connection:
        """Start a request with a streamed answer, at the first member that accepts it; the caller reads the stream.

        Raises:
            BackendUnavailable, ConfigurationError: no member accepts it.
        """
        problem = BackendUnavailable(backend=self._config.url, problem="no server is configured")
        for number in range(len(self._config.nodes)):
            node = self._config.nodes[(self._current + number) % len(self._config.nodes)]
            now = self._now()
            share = now + (until - now) / (len(self._config.nodes) - number)
            connection: Connection | None = None
            try:
                token = self._token or await self._authenticate(node, share)
                connection = await self.open(node, share)
                await connection.send(f"/v3/{method}", token, body, share)
            except BackendUnavailable as error:
                problem = error
            except (NotSent, OSError) as error:
                problem = BackendUnavailable(backend=self._config.url, problem=f"{node}: {error}")
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            else:
                return connection
            if connection is not None:
                connection.close()
        raise problem

    def discard_token(self) -> None:
        """Authenticate again before the next request."""
        self._token = ""

    def avoid(self, node: Node) -> None:
        """This member does not answer: try another one first."""
        if self._config.nodes[self._current] == node:
            self._current = (self._current + 1) % len(self._config.nodes)

    # ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, nonce: str, watches: Sequence[Watch]) -> None:
        self._watcher.watch(nonce, watches)

    def unwatch(self, nonce: str) -> None:
        self._watcher.unwatch(nonce)

    @property
    def wakeups(self) -> Wakeups:
        return self._watcher.wakeups

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────

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

"""The port for both runtimes: connections to the members of one cluster, which are tried in turn, and the watcher.

A member that does not answer must not use up the caller's time: each gets its share of the time that is left, and the
next request is sent first to the member that answered last.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.io import errors
from holdfast.backends.etcd.io.connection import Connection
from holdfast.backends.etcd.io.errors import NoAuthentication, TokenRefused
from holdfast.backends.etcd.io.http import encode_request
from holdfast.backends.etcd.io.watcher import Watcher
from holdfast.backends.etcd.port import Answer, Watch
from holdfast.backends.etcd.protocol.messages import encoded
from holdfast.backends.net.passwords import ask_password
from holdfast.backends.net.pool import ConnectionPool
from holdfast.errors import AccessDenied, BackendUnavailable, ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.config import EtcdConfig
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.core.notifications import Wakeups
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

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
        url, nodes, body = self._config.url, self._config.nodes, encoded(message)
        started = self._current
        unanswered: OutcomeUnknown | None = None
        refused: BackendUnavailable | None = None
        for number in range(len(nodes)):
            node, now = nodes[(started + number) % len(nodes)], self._now()
            pool, until = self._pools[node], now + (deadline - now) / (len(nodes) - number)
            for _ in range(_TOKEN_ATTEMPTS_MAX):
                token = self._token
                try:
                    token = token or await self._authenticate(node, until)
                    # Not `pool.run`, which adds two frames to each request.
                    connection = pool.get_idle(self._now()) or await pool.open_or_wait(until)
                    try:
                        response, sent = await connection.exchange(encode_request(node, method, token, body), until)
                        message = errors.message_of(response, url, node)
                    except BaseException as error:
                        pool.put_after(connection, error)
                        raise
                    pool.put(connection)
                    return Answer(message, sent, repeated=unanswered is not None)
                except TokenRefused as error:
                    refused = self._token_refused(node, token, error)
                    continue
                except AccessDenied as error:
                    if unanswered is not None:  # another member may have executed it before
                        raise unanswered from error
                    raise
                except BackendUnavailable as error:
                    refused = error
                except OutcomeUnknown as error:
                    unanswered = error
                break
            self.avoid(node)
            self._watcher.avoid(node)
            if unanswered is not None and once:
                break
        raise unanswered or refused or BackendUnavailable(backend=url, problem="no server is configured")

    def name_mutex(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()  # threads have no order

    def _token_refused(self, node: Node, token: str, error: TokenRefused) -> BackendUnavailable:
        """Discard this token. Returns the error to raise if the member refuses the next one too."""
        if not self._config.user:
            raise ConfigurationError(f"{self._config.url}: etcd requires a user and a password: {error}") from error
        self._needs_token = True
        if self._token == token:
            self._token = ""
        return BackendUnavailable(backend=self._config.url, problem=f"{node} refuses its own token: {error}")

    async def _authenticate(self, node: Node, until: float) -> str:
        if not self._needs_token:
            return ""
        config = self._config
        password = await ask_password(config.password, config.url, self._poller, until)
        body = encoded({"name": config.user, "password": password})
        request = encode_request(node, "auth/authenticate", "", body)
        try:
            response, _ = await self._pools[node].run(lambda connection: connection.exchange(request, until), until)
            self._token = str(errors.message_of(response, self._config.url, node)["token"])
        except NoAuthentication:
            self._needs_token = False  # until authentication is enabled
            return ""
        except OutcomeUnknown as error:  # only authentication was requested, so nothing was changed
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        return self._token

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, node: Node, until: float) -> Connection:
        """A new connection for the caller alone.

        Raises:
            BackendUnavailable: this member cannot be reached.
        """
        connection = Connection(self._config.url, node, self._poller, self._runtime)
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
                await connection.send(encode_request(node, method, token, body), share)
            except BackendUnavailable as error:
                problem = error
            except OSError as error:
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

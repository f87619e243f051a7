"""The port for both runtimes: requests to members of one cluster, which net/cluster.py tries in turn, and tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from holdfast.backends.etcd.config import EtcdConfig
from holdfast.backends.etcd.io.connection import Connection
from holdfast.backends.etcd.io.errors import NoAuthentication, TokenRefused, message_of
from holdfast.backends.etcd.io.http import encode_request
from holdfast.backends.etcd.io.watcher import Watcher
from holdfast.backends.etcd.port import Answer, Watch
from holdfast.backends.etcd.protocol.keys import Keys
from holdfast.backends.etcd.protocol.messages import encoded
from holdfast.backends.etcd.protocol.queue import EtcdBackend
from holdfast.backends.etcd.protocol.single_key import KeyBackend
from holdfast.backends.net.cluster import ServerCluster
from holdfast.backends.net.errors import not_sent
from holdfast.backends.net.passwords import ask_password
from holdfast.backends.net.poller import Background, Poller
from holdfast.core.ports import Backend, Runtime
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.url_parts import Node

_TOKEN_ATTEMPTS_MAX = 2  # times that a request is sent, each with a new token
_NO_MUTEX = contextlib.nullcontext()


def backend_on(port: Cluster, config: EtcdConfig, runtime: Runtime) -> Backend:
    """The backend for the method of the URL."""
    kind = KeyBackend if config.method == "key" else EtcdBackend
    return kind(config.url, port, runtime, Keys(config.prefix, raw_names=config.raw_names))


class Cluster(ServerCluster[Connection, Sequence[Watch]]):
    """An EtcdPort on HTTP connections."""

    def __init__(self, config: EtcdConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        super().__init__(config, runtime, Watcher(config.url, self, poller, background, runtime))
        self._config, self._poller = config, poller
        self._token = ""
        self._needs_token = bool(config.user)

    def call(
        self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False
    ) -> Coroutine[Any, Any, Answer]:
        return self._try_each(partial(self._call_one, method, encoded(message)), deadline, once=once)

    async def _call_one(
        self,
        method: str,
        body: bytes,
        node: Node,
        until: float,
        repeated: bool,  # noqa: FBT001  (of `_try_each`)
    ) -> Answer:
        pool = self._pools[node]
        refused: BackendUnavailable
        for _ in range(_TOKEN_ATTEMPTS_MAX):
            token = self._token
            try:
                token = token or await self._authenticate(node, until)
                # Not `pool.run`, which adds two frames to each request.
                connection = pool.get_idle(self._now()) or await pool.open_or_wait(until)
                try:
                    response, sent = await connection.exchange(encode_request(node, method, token, body), until)
                    message = message_of(response, self._url, node)
                except BaseException as error:
                    pool.put_after(connection, error)
                    raise
                pool.put(connection)
                return Answer(message, sent, repeated)
            except TokenRefused as error:
                refused = self._token_refused(node, token, error)
        raise refused

    def name_mutex(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        return _NO_MUTEX  # threads have no order

    def _token_refused(self, node: Node, token: str, error: TokenRefused) -> BackendUnavailable:
        """Discard this token. Returns the error to raise if the member refuses the next one too."""
        if not self._config.user:
            raise ConfigurationError(f"{self._url}: etcd requires a user and a password: {error}") from error
        self._needs_token = True
        if self._token == token:
            self._token = ""
        return BackendUnavailable(backend=self._url, problem=f"{node} refuses its own token: {error}")

    async def _authenticate(self, node: Node, until: float) -> str:
        if not self._needs_token:
            return ""
        config = self._config
        password = await ask_password(config.password, config.url, self._poller, until)
        body = encoded({"name": config.user, "password": password})
        request = encode_request(node, "auth/authenticate", "", body)
        try:
            response, _ = await self._pools[node].run(lambda connection: connection.exchange(request, until), until)
            self._token = str(message_of(response, self._url, node)["token"])
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
        connection = Connection(self._url, node, self._poller, self._runtime)
        self._connections.add(connection)
        try:
            await connection.connect(self._config.tls, min(until, self._now() + self._config.connect_timeout))
        except OSError as error:
            raise not_sent(self._url, node, str(error)) from error
        return connection

    async def open_stream(self, method: str, body: bytes, until: float) -> Connection:
        """Start a request with a streamed answer, at the first member that accepts it; the caller reads the stream.

        Raises:
            BackendUnavailable, ConfigurationError: no member accepts it.
        """

        async def open_one(node: Node, share: float, _: bool) -> Connection:  # noqa: FBT001  (of `_try_each`)
            token = self._token or await self._authenticate(node, share)
            connection = await self.open(node, share)
            try:
                await connection.send(encode_request(node, method, token, body), share)
            except BaseException as error:
                connection.close()
                if isinstance(error, OSError):
                    raise not_sent(self._url, node, str(error)) from error
                raise
            return connection

        return await self._try_each(open_one, until)

    def discard_token(self) -> None:
        """Authenticate again before the next request."""
        self._token = ""

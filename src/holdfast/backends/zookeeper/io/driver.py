"""One session on kazoo, typed. This is the only module that uses names of kazoo that are not public.

It uses kazoo's connection, its one thread, its wire format, its failover and its session. Requests are put directly
into its queue with our own reply objects, so an answer wakes the caller without a second thread. kazoo's retries and
its watch and completion threads are not used. A client is closed with its session: it never opens a second one.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler
from kazoo.protocol.states import KazooState
from kazoo.security import ACL, Id

from holdfast.backends.net.addresses import addresses_of
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.net.passwords import ask_password
from holdfast.backends.net.sockets import open_socket, wrap_tls
from holdfast.backends.net.tls import tls_context
from holdfast.backends.zookeeper.config import ZookeeperConfig
from holdfast.backends.zookeeper.port import (
    Answer,
    Check,
    Children,
    Create,
    Created,
    CreateParent,
    CreatePersistent,
    Delete,
    Ephemerals,
    Get,
    Node,
    Refusal,
    Request,
    Set,
    Transaction,
)
from holdfast.backends.zookeeper.protocol.nodes import SESSIONS
from holdfast.errors import (
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    OutcomeUnknown,
    ThreadStartError,
)
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

# Seconds for one server to accept a connection: a third of the session's timeout, but not more or less than these.
CONNECT_TIMEOUT, CONNECT_TIMEOUT_MIN = 3.0, 0.5
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0  # seconds between two rounds through all servers
_EPHEMERAL, _SEQUENCE, _CONTAINER = 1, 2, 4

_REFUSALS = {
    exceptions.NoNodeError: Refusal.NO_NODE,
    exceptions.NodeExistsError: Refusal.EXISTS,
    exceptions.BadVersionError: Refusal.CHANGED,
    exceptions.NoAuthError: Refusal.NO_RIGHT,
    exceptions.UnimplementedError: Refusal.UNKNOWN_REQUEST,
}
# Another request of the same transaction was refused.
_ROLLED_BACK_WITH_OTHERS = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
_NOT_SENT = (exceptions.SessionExpiredError, exceptions.ConnectionClosedError, exceptions.SessionMovedError)

# kazoo writes whole requests into its log at DEBUG, the login included.
_logger = logging.getLogger("holdfast.zookeeper")
_logger.setLevel(logging.INFO)


class Reply:
    """Stores an answer. It is read after the answer to the last request of the same call has arrived."""

    __slots__ = ("_wake", "error", "value")

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        """`wake` is called when the answer or an error has arrived: from any thread, perhaps more than once."""
        self.value: Any = None
        self.error: Exception | None = None
        self._wake = wake

    def set(self, value: Any) -> None:
        self.value = value
        self._wake()

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._wake()


class KazooSession:
    """One session.

    On kazoo's thread it calls `on_change` after each change of its state or connection, and `fired` when a watch fires.
    """

    def __init__(
        self,
        config: ZookeeperConfig,
        timeout: float,
        now: Callable[[], float],
        on_change: Callable[[KazooSession], None],
        fired: Callable[[KazooSession, str], None],
    ) -> None:
        self.id = 0
        self.requested = self.timeout = timeout
        self.is_closed = False
        self.rolled_back = False
        self.seen = 0
        self.connected_at = 0.0
        self.rounds_failed = 0  # rounds through all servers without a connection
        self.problem = "no server has answered yet"
        self.thread_ended = False
        self._config = config
        self._now = now
        self._on_change = on_change
        self._fired = fired
        self.connection = 0  # the number of its connection; 0 while there is none
        self._connections = 0  # so far
        self._is_detached = False
        self.login_refused = False
        self._acl = [ACL(entry.permissions, Id(entry.scheme, entry.id)) for entry in config.acl]
        self._client = self._make_client()

    def start(self) -> None:
        """Start to connect.

        Raises:
            ThreadStartError: its thread could not be started.
        """
        try:
            self._client.start_async()
        except (RuntimeError, MemoryError) as error:
            self.abandon()
            self.thread_ended = True
            self._on_change(self)  # wakes callers that wait for its connection
            raise ThreadStartError(thread="kazoo", problem=str(error) or type(error).__name__) from error

    def send(self, request: Request, reply: Reply) -> None:
        """Queue a request after all earlier ones."""
        self._client._call(self._encoded(request), reply)

    def close(self) -> None:
        """Close the session on the servers, if they can be reached, and end the thread."""
        self.is_closed = True
        client = self._client
        if client._stopped.is_set():
            return
        client._stopped.set()
        client._queue.append((serialization.CloseInstance, None))
        with contextlib.suppress(OSError, AttributeError):  # it has ended already
            client._connection._write_sock.send(b"\0")

    def detach(self) -> None:
        """End the thread without a request to the servers. The leader's timer ends the session."""
        self.is_closed = self._is_detached = True
        self._client._stopped.set()
        self.disconnect()

    def disconnect(self) -> None:
        """Cut the connection; kazoo connects to the next server."""
        with contextlib.suppress(OSError, AttributeError):
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In a forked child: close the descriptors only. The thread does not exist here, and may have held locks."""
        connection = self._client._connection
        for sock in (connection._socket, connection._read_sock, connection._write_sock):
            if sock is not None:
                sock.close()
        self.is_closed = True

    def connect_error(self, url: str) -> HoldfastError:
        """The error to raise while there is no connection."""
        if self.login_refused:
            return ConfigurationError(f"{url}: the servers do not accept this user and password")
        return BackendUnavailable(backend=url, problem=self.problem)

    def _make_client(self) -> Any:
        config = self._config
        client = KazooClient(
            hosts=config.hosts,
            timeout=self.requested,
            handler=_Handler(None if config.tls is None else tls_context(config.tls)),
            connection_retry={"max_tries": -1, "delay": _PAUSE_MIN, "backoff": 2, "max_delay": _PAUSE_MAX},
            logger=_logger,
        )
        client._session_timeout = round(self.requested * 1000)  # kazoo would round it down
        client._connection = _Connection(self, client)
        client.add_listener(self._on_state)
        return client

    def _on_state(self, state: str) -> None:
        """On kazoo's thread."""
        if state == KazooState.CONNECTED:
            self.id = self._client._session_id & 0xFFFFFFFFFFFFFFFF
            self._connections += 1
            self.connection = self._connections
            if self._is_detached:  # while it was connecting
                self.disconnect()
        else:
            self.connection = 0
        if state == KazooState.LOST:
            self.seen = self._client.last_zxid  # before kazoo resets it
            self.is_closed = True
            self._client._stopped.set()  # it must not open another session by itself
        self._on_change(self)

    def _watcher(self, event: Any) -> None:
        """On kazoo's thread."""
        if event.path is not None:
            self._fired(self, event.path)

    def _encoded(self, request: Request | Check) -> Any:
        match request:
            case Create(path, data, is_sequential):
                return serialization.Create2(path, data, self._acl, _EPHEMERAL | (_SEQUENCE if is_sequential else 0))
            case Delete(path, version):
                return serialization.Delete(path, version)
            case Children(path, watch):
                return serialization.GetChildren(path, self._watcher if watch else None)
            case Get(path, watch):
                return serialization.GetData(path, self._watcher if watch else None)
            case Ephemerals(path):
                return _GetEphemerals(path, None)
            case Set(path, data, version):
                return serialization.SetData(path, data, version)
            case Check(path, version):
                return serialization.CheckVersion(path, version)
            case Transaction(requests):
                return serialization.Transaction([self._encoded(part) for part in requests])
            case CreatePersistent(path, data):
                return serialization.Create2(path, data, self._acl, 0)
            case CreateParent(path, is_container):
                if is_container:
                    return _CreateContainer(path, b"", self._acl, _CONTAINER)
                return serialization.Create2(path, b"", self._acl, 0)


def answer(request: Request, value: Any, error: Exception | None, url: str) -> Answer:
    """The answer in a reply of kazoo.

    Raises:
        BackendUnavailable, OutcomeUnknown: see `failure`.
    """
    if error is not None:
        refusal = _REFUSALS.get(type(error))
        if refusal is None:
            raise failure(error, url) from error
        return refusal
    match request:
        case Create():
            path, stat = value
            return Created(path, stat.czxid)
        case Children() | Ephemerals():
            names: list[str] = value
            return names
        case Get():
            data, stat = value
            times = (stat.ctime / 1000, stat.mtime / 1000)
            return Node(data or b"", stat.czxid, *times, stat.ephemeralOwner, stat.version)
        case Transaction():
            refused = (
                error
                for error in value
                if isinstance(error, Exception) and not isinstance(error, _ROLLED_BACK_WITH_OTHERS)
            )
            return next((_REFUSALS.get(type(error), Refusal.OTHER) for error in refused), None)
        case _:
            return None


def failure(error: Exception, url: str) -> BackendUnavailable | OutcomeUnknown:
    """The error for a failure of the connection or the session, not of the request."""
    name = type(error).__name__
    if isinstance(error, _NOT_SENT):
        return BackendUnavailable(backend=url, problem=f"the session is closed ({name})")
    if isinstance(error, exceptions.ConnectionLoss):
        return OutcomeUnknown(backend=url, problem="the connection was lost before the answer arrived")
    if isinstance(error, exceptions.ZookeeperError) and not isinstance(error, exceptions.OperationTimeoutError):
        return BackendUnavailable(backend=url, problem=f"refused ({name})")
    return OutcomeUnknown(backend=url, problem=f"the answer cannot be read: {error!r}")


def _bounded(seconds: float) -> float:
    return min(max(seconds, CONNECT_TIMEOUT_MIN), CONNECT_TIMEOUT)


class _CreateContainer(serialization.Create2):  # type: ignore[misc]  # kazoo has no types
    """Like Create2, for a container, which the server deletes once it is empty; kazoo lacks it."""

    type = 19


class _GetEphemerals(serialization.GetChildren):  # type: ignore[misc]  # kazoo has no types
    """Answered like GetChildren, with full paths; kazoo lacks it."""

    type = 103

    def serialize(self) -> bytes:
        return bytes(serialization.write_string(self.path))


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs callbacks on the connection's thread, without threads of their own, because our callbacks are short."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **_: object
    ) -> socket.socket:
        """Like kazoo's, but with a deadline, and the socket is closed if the TLS handshake fails."""
        seconds, poller = _bounded(timeout / 3), BlockingPoller()
        sock = run_sync(open_socket(*address, poller, system.now() + seconds))
        if self._tls is None:
            return sock
        return run_sync(wrap_tls(sock, self._tls, hostname, poller, system.now() + seconds))


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Records what kazoo does not: when a session was requested, the negotiated timeout, and the last problem."""

    def __init__(self, session: KazooSession, client: Any) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=_logger)
        self._session = session
        self._socket: Any = None
        self._was_rejected = False  # the server closed the connection instead of answering the session request

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        sent = self._session._now()
        try:
            result = super()._invoke(_bounded(timeout), request, xid)
        except ConnectionDropped:
            self._was_rejected = isinstance(request, serialization.Connect) and request.last_zxid_seen > 0
            raise
        if isinstance(request, serialization.Connect) and result[0].time_out > 0:  # else the session has expired
            self._session.connected_at = sent
            self._session.timeout = result[0].time_out / 1000
        return result

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        """Like kazoo's, but a reply out of order closes the connection, not the session.

        A server that loses its leader can drop a request and answer the next one.
        """
        pending = self.client._pending
        if not pending or pending[0][2] != header.xid:
            raise ConnectionDropped(f"the reply to request {header.xid} arrived before replies to earlier requests")
        return super()._read_response(header, buffer, offset)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Like kazoo's, but with a deadline: a silent name server must not use up the session's time."""
        hosts = self.client.hosts
        deadline = system.now() + CONNECT_TIMEOUT
        resolved: list[tuple[str, str, int]] = []
        for number, (host, port) in enumerate(hosts):
            now = system.now()
            until = now + (deadline - now) / (len(hosts) - number)
            try:
                addresses = run_sync(addresses_of(host.strip(), BlockingPoller(), until))
            except OSError as error:
                self._session.problem = f"{host}: {error}"
                continue
            resolved += [(host.strip(), address, port) for address in addresses]
        if self.client.randomize_hosts:
            random.shuffle(resolved)
        return resolved

    def _log_in_as(self, config: ZookeeperConfig) -> None:
        """Set the user and the present password, which kazoo sends on each new connection."""
        until = system.now() + _bounded(self._session.requested / 3)
        try:
            password = run_sync(ask_password(config.password, config.url, BlockingPoller(), until))
        except HoldfastError as error:
            raise ConnectionDropped(error.problem if isinstance(error, BackendUnavailable) else str(error)) from error
        self.client.auth_data = {("digest", f"{config.user}:{password}")}

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._was_rejected = False
        try:
            if self._session._config.user:
                self._log_in_as(self._session._config)
            try:
                return super()._connect(host, hostip, port)
            except ConnectionDropped:
                if self._was_rejected and self._rolled_back(host, hostip, port):
                    self._session.rolled_back = True
                    raise exceptions.SessionExpiredError("the servers have older data than before") from None
                raise
        except exceptions.AuthFailedError:
            self._session.login_refused = True
            raise
        except Exception as error:
            self._session.problem = f"{host}:{port}: {error}" if str(error) else f"{host}:{port} does not answer"
            raise

    def _rolled_back(self, host: str, hostip: str, port: int) -> bool:
        """Whether the ensemble has fewer transactions than this client has seen: its data were restored or deleted.

        A server that has fewer closes the connection without an answer, but it may only lag behind the others. So a
        new session sends a write, and the leader gives it a number that is greater than that of any transaction
        before. The write deletes a node that never exists, because an error is a transaction too.
        """
        timeout = CONNECT_TIMEOUT
        self._socket.close()
        try:
            with self._socket_error_handling():
                self._socket = self.handler.create_connection((hostip, port), hostname=host, timeout=3 * timeout)
            self._socket.setblocking(0)
            requested = self.client._session_timeout
            reply, _ = super()._invoke(timeout, serialization.Connect(0, 0, requested, 0, bytes(16), False))  # noqa: FBT003
            if reply.time_out <= 0:
                return False
            self._submit(serialization.Delete(f"{self._session._config.root}/{SESSIONS}/%none", -1), timeout, 1)
            header, _, _ = self._read_header(timeout)
            self._submit(serialization.CloseInstance, timeout, 2)
            self._read_header(timeout)
        except (ConnectionDropped, self.handler.timeout_exception):
            return False
        return bool(0 < header.zxid < self.client.last_zxid)

    def _connect_loop(self, retry: Any) -> Any:
        before = self._session._connections
        try:
            return super()._connect_loop(retry)
        finally:
            # A round that connected ends with its connection, which is no failed round.
            self._session.rounds_failed += self._session._connections == before
            self._session._on_change(self._session)

    def zk_loop(self) -> None:
        try:
            super().zk_loop()
        finally:
            self.close()
            self._session.is_closed = self._session.thread_ended = True
            self._session._on_change(self._session)

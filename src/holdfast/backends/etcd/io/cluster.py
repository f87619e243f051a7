"""The port: connections to the members of one cluster, asked one after the other, and the listener; written once.

A member that does not answer must not use up the caller's time: each gets its share of what is left, and the next
request goes to the one that answered last.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.io import errors
from holdfast.backends.etcd.io.connection import NotAnswered, NotSent, Wire
from holdfast.backends.etcd.io.errors import NoAuthentication, TokenRefused
from holdfast.backends.etcd.io.watching import Listener
from holdfast.backends.etcd.port import Answer, Message, Watch
from holdfast.backends.etcd.protocol.messages import encoded
from holdfast.backends.net.pool import ConnectionPool
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.etcd.config import Node, Place
    from holdfast.backends.etcd.io.http import Response
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.core.ports import Runtime

_OK = 200
_TOKENS_MAX = 2  # times that a request is repeated with a new token


class Cluster:
    """One cluster, as port.py has it."""

    def __init__(self, place: Place, poller: Poller, background: Background, runtime: Runtime) -> None:
        self._place, self._poller, self._runtime, self._now = place, poller, runtime, runtime.now
        self._at = 0  # the member that is asked first
        self._pools = {
            node: ConnectionPool(place.url, partial(self.open, node), runtime, place.max_connections, server=str(node))
            for node in place.nodes
        }
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()  # all of them, also those that belong to somebody
        self._token = ""
        self._needs_token = bool(place.user)
        self._listener = Listener(place.url, self, poller, background, runtime)

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        url, nodes = self._place.url, self._place.nodes
        body = encoded(message)
        started = self._at
        unheard: OutcomeUnknown | None = None
        refused: BackendUnavailable | None = None
        for number in range(len(nodes)):
            at = (started + number) % len(nodes)
            now = self._now()
            until = now + (deadline - now) / (len(nodes) - number)
            try:
                answer, sent = await self._ask(nodes[at], method, body, until)
            except BackendUnavailable as error:
                refused = error
            except OutcomeUnknown as error:
                unheard = error
            else:
                return Answer(answer, sent, repeated=unheard is not None)
            self.move_on(nodes[at])
            self._listener.distrust(nodes[at])
            if unheard is not None and once:
                break
        raise unheard or refused or BackendUnavailable(backend=url, problem="there is no server to ask")

    def turn(self, name: str, *, deadline: float) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()  # threads come as they come

    async def _ask(self, node: Node, method: str, body: bytes, until: float) -> tuple[Message, float]:
        """Ask this member.

        Raises:
            BackendUnavailable, OutcomeUnknown: another one may be asked.
            LeaseNotFound, ConfigurationError: another one would say the same.
        """
        url = self._place.url
        refused: Exception | None = None
        for _ in range(_TOKENS_MAX):
            token = self._token or await self._authenticate(node, until)
            try:
                return await self._exchange(node, method, token, body, until)
            except TokenRefused as error:
                if not self._place.user:
                    raise ConfigurationError(f"{url}: etcd asks for a user and a password: {error}") from error
                refused = error
                self._needs_token = True
                if self._token == token:
                    self._token = ""
        raise BackendUnavailable(backend=url, problem=f"{node} refuses its own token: {refused}")

    async def _exchange(self, node: Node, method: str, token: str, body: bytes, until: float) -> tuple[Message, float]:
        url = self._place.url

        async def ask(wire: Wire) -> tuple[Response, float]:
            sent = self._now()
            try:
                return await wire.ask(f"/v3/{method}", token, body, until), sent
            except NotSent as error:
                raise BackendUnavailable(backend=url, problem=f"{node}: {error}") from error
            except NotAnswered as error:
                raise OutcomeUnknown(backend=url, problem=f"{node}: {error}") from error

        response, sent = await self._pools[node].run(ask, until)
        if response.status != _OK:
            raise errors.refusal(response.status, response.body, url, str(node))
        try:
            message: Message = json.loads(response.body)
        except ValueError as error:
            raise OutcomeUnknown(backend=url, problem=f"{node} answered no JSON: {error}") from error
        if "error" in message:  # of a stream, such as keep-alive: its head had been sent by then
            said = message["error"]
            code = said.get("grpc_code", 0) if isinstance(said, dict) else 0
            text = said.get("message", "") if isinstance(said, dict) else str(said)
            raise errors.refusal(0, json.dumps({"error": text, "code": code}).encode(), url, str(node))
        return message, sent

    async def _authenticate(self, node: Node, until: float) -> str:
        if not self._needs_token:
            return ""
        body = encoded({"name": self._place.user, "password": self._place.password})
        try:
            message, _ = await self._exchange(node, "auth/authenticate", "", body, until)
        except NoAuthentication:
            self._needs_token = False  # until somebody turns it on
            return ""
        except OutcomeUnknown as error:  # of authenticating, that is: nothing else was asked
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        self._token = str(message["token"])
        return self._token

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, node: Node, until: float) -> Wire:
        """A connection of its own, for the caller alone.

        Raises:
            BackendUnavailable: this member cannot be reached.
        """
        wire = Wire(node, self._poller, self._runtime)
        self._wires.add(wire)
        try:
            await wire.connect(self._place.tls, min(until, self._now() + self._place.connect_timeout))
        except OSError as error:
            raise BackendUnavailable(backend=self._place.url, problem=f"{node}: {error}") from error
        return wire

    async def open_stream(self, method: str, body: bytes, until: float) -> Wire:
        """Begin a request whose answer does not end, at the first member that takes it; the caller reads it.

        Raises:
            BackendUnavailable, ConfigurationError: none does.
        """
        problem = BackendUnavailable(backend=self._place.url, problem="there is no server to ask")
        for number in range(len(self._place.nodes)):
            node = self._place.nodes[(self._at + number) % len(self._place.nodes)]
            now = self._now()
            share = now + (until - now) / (len(self._place.nodes) - number)
            wire: Wire | None = None
            try:
                token = self._token or await self._authenticate(node, share)
                wire = await self.open(node, share)
                await wire.send(f"/v3/{method}", token, body, share)
            except BackendUnavailable as error:
                problem = error
            except (NotSent, OSError) as error:
                problem = BackendUnavailable(backend=self._place.url, problem=f"{node}: {error}")
            except BaseException:
                if wire is not None:
                    wire.close()
                raise
            else:
                return wire
            if wire is not None:
                wire.close()
        raise problem

    def token_refused(self) -> None:
        """The next request authenticates anew."""
        self._token = ""

    def move_on(self, node: Node) -> None:
        """This member is silent: ask another one first."""
        if self._place.nodes[self._at] == node:
            self._at = (self._at + 1) % len(self._place.nodes)

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self, nonce: str, watches: Sequence[Watch]) -> None:
        self._listener.follow(nonce, watches)

    def unfollow(self, nonce: str) -> None:
        self._listener.unfollow(nonce)

    def listen(self, wake: Callable[[str], None]) -> None:
        self._listener.listen(wake)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        await self._listener.close()
        for pool in self._pools.values():
            pool.close()

    def abandon(self) -> None:
        self._listener.abandon()
        for pool in self._pools.values():
            pool.abandon()
        for wire in list(self._wires):
            wire.abandon()

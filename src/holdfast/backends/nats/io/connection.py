"""One connection to a server. Requests get their answers on an inbox of the connection, in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.backends.nats.config import NatsConfig
from holdfast.backends.nats.protocol import wire
from holdfast.backends.net.connection import PolledConnection
from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.backends.net.passwords import ask_password
from holdfast.backends.net.poller import READ, Poller
from holdfast.backends.net.pool import wait_ready
from holdfast.backends.net.sockets import wrap_tls
from holdfast.core.ports import Runtime
from holdfast.errors import AccessDenied, BackendError, BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.url_parts import Node

OLDEST = (2, 12)  # the first version whose removals of expired entries are all proposed to the other servers
REQUEST_HEADER_MAX = 4096  # bytes of a message beside its value
REPEAT_AFTER = 0.25  # seconds
_PONG_MAX = 1.0  # seconds to send the answer to a PING
Request = Callable[[str], bytes]  # makes the bytes of a request from the subject for its answer


class Connection(PolledConnection):
    """One connection."""

    __slots__ = ("_config", "_inbox", "_number", "_parser", "info")

    def __init__(self, config: NatsConfig, node: Node, poller: Poller, runtime: Runtime) -> None:
        super().__init__(config.url, node, poller, runtime)
        self._config, self._parser = config, wire.Parser()
        self._inbox, self._number = f"_INBOX.holdfast.{runtime.nonce()}", 0
        self.info: dict[str, Any] = {}  # of the server

    async def open(self, until: float) -> None:
        """Connect, log in, and subscribe to the inbox.

        Raises:
            BackendUnavailable: the server cannot be reached.
            ConfigurationError: it refuses the login, or it cannot be used for locks.
        """
        config = self._config
        until = min(until, self._now() + config.connect_timeout)
        try:
            await self.connect(None, until)
            self.info = json.loads((await self._next("INFO", until)).data)
            await self._check_info(until)
            password = await ask_password(config.password, config.url, self._poller, until)
            login = {"user": config.user, "pass": password} if config.user else {"auth_token": password}
            options = {"lang": "python-holdfast", "version": "1", "protocol": 0, "verbose": False, "pedantic": False}
            options |= {"headers": True, "no_responders": True, **(login if password else {})}
            await self.send(wire.connect(options) + wire.subscribe(f"{self._inbox}.*", 1) + wire.PING, until)
            await self._next("PONG", until)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | ValueError) and not isinstance(error, ConfigurationError):
                raise not_sent(self._url, self.node, f"cannot connect: {error}") from error
            raise

    async def _check_info(self, until: float) -> None:
        info, tls = self.info, self._config.tls
        version = tuple(int(part) for part in str(info.get("version", "0")).split("-")[0].split(".") if part.isdigit())
        if version < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise ConfigurationError(
                f"NATS at {self.node} is version {info.get('version')}, which cannot expire a lease on all servers at "
                f"once: use {oldest} or newer"
            )
        if info.get("tls_required") and tls is None:
            raise ConfigurationError(f"NATS at {self.node} requires TLS: write natss:// in place of nats://")
        if tls is not None and (sock := self._socket) is not None:
            self._socket = None  # `wrap_tls` closes it if it fails
            self._socket = await wrap_tls(sock, tls, self.node.host, self._poller, until)

    async def _next(self, verb: str, until: float) -> wire.Message:
        """The next message of this kind, during the handshake."""
        while True:
            for message in await self.read_messages():
                if message.verb == verb:
                    return message
            await self._wait(READ, until)

    async def exchange(self, requests: Sequence[Request], until: float, *, repeat: bool = False) -> list[wire.Message]:
        """Send requests and read their answers. `repeat`: send them again after a while without an answer.

        A stream without a leader does not answer, also not when it has one again.

        Raises:
            BackendUnavailable, OutcomeUnknown: the connection is closed.
            AccessDenied: this user lacks a permission.
            ConfigurationError: a value is too long for the server.
        """
        first, count = self._number, len(requests)
        self._number += count
        subjects = [f"{self._inbox}.{number}" for number in range(first, first + count)]
        packed = [request(subject) for request, subject in zip(requests, subjects, strict=True)]
        if max(map(len, packed)) > int(self.info.get("max_payload", 1 << 20)) - REQUEST_HEADER_MAX:
            raise ConfigurationError(
                f"meta of a lock is too long: NATS at {self.node} accepts messages of {self.info.get('max_payload')} "
                "bytes (max_payload)"
            )
        answers: dict[str, wire.Message] = {}
        is_sent = False
        try:
            await self.send(b"".join(packed), until)
            is_sent = True
            while True:  # without a condition, as in `Engine.acquire_new`
                if len(answers) >= count:
                    break
                repeat_at = min(until, self._now() + REPEAT_AFTER) if repeat else until
                if await wait_ready(self, self._poller, self.fileno(), READ, repeat_at):
                    answers |= _answers_in(await self.read_messages(), subjects)
                elif repeat_at < until:
                    await self.send(_missing(packed, subjects, answers), until)
                else:
                    raise TimeoutError("no answer in time")
        except BaseException as error:
            self.close()
            if isinstance(error, BackendUnavailable) and is_sent:  # of a PONG, or of a repeated request
                raise OutcomeUnknown(backend=self._url, problem=error.problem) from error
            if isinstance(error, OSError | ValueError) and not isinstance(error, BackendError):
                raise no_answer(self._url, self.node, self._problem(error)) from error
            raise
        return [answers[subject] for subject in subjects]

    async def read_messages(self) -> list[wire.Message]:
        """The messages that have arrived. PINGs are answered.

        Raises:
            OSError, ValueError: the connection has failed, or this is not the protocol of NATS.
            AccessDenied, ConfigurationError: the server refuses a request or the login.
        """
        while (data := self.receive()) is not None:
            if not data:
                raise ConnectionError("the server closed the connection")
            self._parser.feed(data)
            if not self.has_more:
                break
        messages = list(iter(self._parser.next_message, None))
        for message in messages:
            if message.verb == "-ERR":
                raise self._refused(message)
            if message.verb == "PING":
                await self.send(wire.PONG, self._now() + _PONG_MAX)
        return messages

    def _refused(self, message: wire.Message) -> Exception:
        """The error for an -ERR. A request that lacks a permission was not executed."""
        text = message.data.decode(errors="replace")
        if text.lower().startswith("permissions violation"):
            problem = f"{self.node}: this user lacks a permission that locks need: {text}"
            return AccessDenied(backend=self._url, problem=problem)
        if "authorization" in text.lower() or "authentication" in text.lower():
            return ConfigurationError(f"{self._url}: NATS at {self.node} refuses this login: {text}")
        return ConnectionError(text)


# In functions of their own: from Python 3.13 on, the handler in `exchange` would not cover the backward jump of a
# comprehension with a condition.


def _answers_in(messages: Sequence[wire.Message], subjects: Sequence[str]) -> dict[str, wire.Message]:
    return {message.subject: message for message in messages if message.subject in subjects}


def _missing(packed: Sequence[bytes], subjects: Sequence[str], answers: Mapping[str, wire.Message]) -> bytes:
    """The requests without an answer."""
    return b"".join(data for data, subject in zip(packed, subjects, strict=True) if subject not in answers)

"""The base of all topologies: send scripts and commands to the primary that has their keys.

After a reply that means "not executed here" the request is sent again, to the same or another server. A request without
a reply is never repeated here: the engine does that, because only it knows that its methods are idempotent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.net.errors import no_answer
from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.connection import Batch, Connections
from holdfast.backends.redis.io.resp import ErrorReply, pack, pack_call, pack_text
from holdfast.backends.redis.io.subscriber import Subscriber, SubscriberIO
from holdfast.backends.redis.protocol.keys import LockKeys, OtherKeys, slot_of
from holdfast.backends.redis.protocol.scanning import SCAN_COUNT, KeyspaceSubscription
from holdfast.errors import AccessDenied, BackendError, BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.handshake import Handshake
    from holdfast.backends.redis.port import Call, Channel, Reply, Word
    from holdfast.backends.redis.protocol.server_info import ServerInfo
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

PAUSE_MIN, PAUSE_MAX = 0.01, 0.1  # seconds before a request to the same server is repeated
CLUSTER_DOWN_RETRY = 1.0  # seconds: CLUSTERDOWN is retried, because it may last for a moment only
_ASKING = pack("ASKING")


class _Request(NamedTuple):
    """One script or command, for retries and redirections."""

    keys: LockKeys | OtherKeys
    packed: bytes
    call: Call | None  # None: a plain command


class Topology(ABC):
    """A RedisPort. Subclasses find the primary for a slot."""

    def __init__(
        self,
        config: RedisConfig,
        servers: Connections,
        handshake: Handshake,
        subscriber_io: SubscriberIO,
        runtime: Runtime,
    ) -> None:
        self.handshake = handshake
        self.subscriber = Subscriber(config, self, subscriber_io, runtime)
        self._config = config
        self._replicas = config.replicas
        self._connections = servers
        self._runtime = runtime

    async def _first_reply(
        self,
        connections: Connections,
        nodes: Sequence[Node],
        request: bytes,
        *,
        empty: str,
        missing: str,
        deadline: float,
    ) -> tuple[Node, Reply]:
        """The first of these servers that replies, and its reply.

        Raises:
            AccessDenied: none replies, and this user lacks a permission at one of them.
            BackendUnavailable: none replies. `missing` begins the message; `empty` is the problem of an empty reply.
        """
        problems = []
        refused: HoldfastError | None = None
        for number, node in enumerate(nodes):
            # A server that does not answer must leave time for the others and for the primary.
            left = deadline - self._runtime.now()
            share = min(self._config.connect_timeout, left / (len(nodes) - number + 1))
            try:
                reply = await connections.exchange(node, request, self._runtime.now() + share)
            except BackendError as error:
                problems.append(error.problem)
                continue
            if isinstance(reply, ErrorReply):
                problems.append(f"{node}: {reply}")
                refused = errors.refusal(reply, self._config.url, node, "")
            elif reply:
                return node, reply
            else:
                problems.append(f"{node}: {empty}")
        if isinstance(refused, AccessDenied):
            raise refused
        raise BackendUnavailable(backend=self._config.url, problem=f"{missing}: {'; '.join(problems)}")

    # ── primaries ────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def known_primary(self, slot: int) -> Node | None:
        """The primary that has this slot, if it is known without a request."""

    @abstractmethod
    async def find_primary(self, slot: int, deadline: float) -> Node:
        """The primary that has this slot, from a request to the servers or Sentinels."""

    async def recheck_primary(self, slot: int, node: Node, deadline: float) -> Node:
        """The primary that has this slot, as other servers than `node` report it."""
        return await self.find_primary(slot, deadline)

    async def rediscover_primary(self, slot: int, node: Node, deadline: float) -> Node:
        """The primary that has this slot, after an error of `node`, which was used as such."""
        return node

    def trusts(self, node: Node, since: float) -> bool:
        """Whether a reply of this server to a request sent at `since` counts without a check of its role."""
        return True

    def trusts_message(self, keys: LockKeys, since: float) -> bool:
        node = self.known_primary(keys.slot)
        return node is not None and self.trusts(node, since)

    async def channel_node(self, channel: Channel, deadline: float, *, refresh: bool = False) -> Node:
        """The server on which to subscribe to a channel. `refresh`: do not use the known primary."""
        slot = slot_of(channel.name)
        return (None if refresh else self.known_primary(slot)) or await self.find_primary(slot, deadline)

    # ── the port ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def server_info(self) -> ServerInfo | None:
        return self.handshake.server_info

    async def run(self, call: Call, *, deadline: float) -> Reply:
        return await self._send(self._request_of(call), deadline)

    def may_share_script(self, keys: LockKeys, others: LockKeys) -> bool:
        return True

    async def command(self, keys: LockKeys | OtherKeys, *words: Word, deadline: float) -> Reply:
        return await self._send(_Request(keys, pack(*words), None), deadline)

    async def run_all(self, calls: Sequence[Call], *, deadline: float) -> list[Reply | HoldfastError]:
        outcomes: list[Reply | HoldfastError] = [None] * len(calls)
        nodes: dict[Node, list[int]] = {}
        for number, call in enumerate(calls):
            try:
                node = self.known_primary(call.keys.slot) or await self.find_primary(call.keys.slot, deadline)
            except HoldfastError as error:
                outcomes[number] = error
            else:
                nodes.setdefault(node, []).append(number)
        since = self._runtime.now()
        await self._run_batches(calls, nodes, outcomes, deadline)
        unknown = {
            node: numbers
            for node, numbers in (
                (node, [number for number in numbers if is_unknown_script(outcomes[number])])
                for node, numbers in nodes.items()
            )
            if numbers
        }
        if unknown:
            await self._run_batches(calls, unknown, outcomes, deadline, by_text=True)
        for node, numbers in nodes.items():
            await self._resolve(calls, node, numbers, outcomes, since=since, deadline=deadline)
        return outcomes

    async def servers(self, *, deadline: float) -> Sequence[Node]:
        # Refreshed for each search, so that no new primary is left out.
        return [await self.find_primary(0, deadline)]

    async def key_count(self, server: Node, *, deadline: float) -> int:
        reply = await self._connections.exchange(server, pack("DBSIZE"), deadline)
        return 0 if isinstance(reply, ErrorReply) else int(reply)

    async def scan(self, server: Node, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        request = pack("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        reply = await self._connections.exchange(server, request, deadline)
        if isinstance(reply, ErrorReply):
            raise errors.refusal(reply, self._config.url, server, pattern)
        following, keys = reply
        return following, [key.decode(errors="replace") for key in keys]

    async def subscribe_keyspace(self, server: Node, pattern: str, *, deadline: float) -> KeyspaceSubscription | None:
        return await self.subscriber.subscribe_keyspace(server, pattern, deadline)

    async def close(self) -> None:
        await self.subscriber.close()
        await self._connections.close()

    def abandon(self) -> None:
        self.subscriber.abandon()
        self._connections.abandon()

    def drop(self, node: Node) -> None:
        """The server is no longer a primary: close its connections and subscriptions."""
        self._connections.drop(node)
        self.handshake.forget(node)
        self.subscriber.drop(node)

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _request_of(self, call: Call) -> _Request:
        return _Request(call.keys, pack_call(call), call)

    async def _send(self, request: _Request, deadline: float) -> Reply:
        node = self.known_primary(request.keys.slot) or await self.find_primary(request.keys.slot, deadline)
        try:
            reply = await self._exchange(request, node, deadline)
        except BackendUnavailable:
            # Nothing was sent. If another server has the slot now, send the request there, once.
            if not await self._has_moved(request.keys.slot, node, deadline):
                raise
            node = self.known_primary(request.keys.slot) or await self.find_primary(request.keys.slot, deadline)
            reply = await self._exchange(request, node, deadline)
        return await self._retry(request, node, reply, deadline)

    async def _retry(self, request: _Request, node: Node, reply: Reply, deadline: float) -> Reply:
        """Repeat a request that was not executed, if another server, a pause or the script's text may help."""
        limits = {"TRYAGAIN": deadline, "CLUSTERDOWN": min(deadline, self._runtime.now() + CLUSTER_DOWN_RETRY)}
        pause, asking = PAUSE_MIN, False
        while reply.__class__ is ErrorReply:
            code = errors.code_of(reply)
            target = errors.redirection(reply) if self._config.shape == "cluster" else None
            if code == "NOSCRIPT" and request.call is not None:
                request = request._replace(packed=pack_text(request.call))
            elif target is not None:
                node, asking = self._redirect(target.slot, target.host, target.port, node, is_final=target.is_final)
            elif code in limits and self._runtime.now() + pause < limits[code]:
                await self._runtime.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX)
                if code == "CLUSTERDOWN":
                    node, asking = await self.find_primary(request.keys.slot, deadline), False
            elif code in {"READONLY", "MASTERDOWN"}:
                other = await self.rediscover_primary(request.keys.slot, node, deadline)
                if other == node:
                    raise self._refusal(reply, node, request.keys.lock)
                node, asking = other, False
            else:
                raise self._refusal(reply, node, request.keys.lock)
            reply = await self._exchange(request, node, deadline, asking=asking)
        return reply

    async def _exchange(self, request: _Request, node: Node, deadline: float, *, asking: bool = False) -> Reply:
        since = self._runtime.now()
        reply = await self._exchange_with_wait(request, node, deadline, asking=asking)
        if reply.__class__ is not ErrorReply and not self.trusts(node, since):
            await self._confirm_primary(request.keys.slot, node, deadline)
        return reply

    async def _exchange_with_wait(self, request: _Request, node: Node, deadline: float, *, asking: bool) -> Reply:
        confirmed = self._replicas and request.call is not None and request.call.script.is_grant
        if not asking and not confirmed:
            return await self._connections.exchange(node, request.packed, deadline)
        packed, count = request.packed, 1
        if asking:
            packed, count = _ASKING + packed, 2
        if confirmed:
            packed, count = packed + self._wait(deadline), count + 1
        replies = await self._connections.exchange_batch(Batch(node, packed, count), deadline, alone=bool(confirmed))
        reply = replies[1 if asking else 0]
        if confirmed and reply.__class__ is not ErrorReply:
            self._check_confirmed(node, replies[-1])
        return reply

    def _redirect(self, slot: int, host: str, port: int, node: Node, *, is_final: bool) -> tuple[Node, bool]:
        raise NotImplementedError  # only a Cluster redirects

    async def _confirm_primary(self, slot: int, node: Node, deadline: float) -> None:
        """A reply that took long counts only if its server is still the primary."""
        try:
            primary = await self.recheck_primary(slot, node, max(deadline, self._runtime.now() + 1.0))
        except BackendUnavailable as error:  # that error would mean that nothing was changed
            raise no_answer(self._config.url, node, f"its reply took long, and {error.problem}") from error
        if primary != node:
            raise no_answer(self._config.url, node, "its reply took long, and it is no longer the primary")

    def _refusal(self, reply: ErrorReply, node: Node, key: str) -> HoldfastError:
        return errors.refusal(reply, self._config.url, node, key.removeprefix(self._config.prefix))

    # ── replicas ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _wait(self, deadline: float) -> bytes:
        left = min(self._config.replicas_timeout, deadline - self._runtime.now())
        return pack("WAIT", self._replicas, max(1, int(left * 1000)))

    def _check_confirmed(self, node: Node, confirmed: Reply) -> None:
        if isinstance(confirmed, ErrorReply):
            raise no_answer(self._config.url, node, f"WAIT for its replicas failed: {confirmed}")
        if confirmed < self._replicas:
            raise no_answer(self._config.url, node, f"{confirmed} of {self._replicas} replicas confirmed it in time")

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run_batches(
        self,
        calls: Sequence[Call],
        nodes: dict[Node, list[int]],
        outcomes: list[Reply | HoldfastError],
        deadline: float,
        *,
        by_text: bool = False,
    ) -> None:
        form = pack_text if by_text else pack_call
        confirmed = self._replicas and any(call.script.is_grant for call in calls)
        batches = []
        for node, numbers in nodes.items():
            request = b"".join(form(calls[number]) for number in numbers)
            if confirmed:  # one WAIT for all: it covers all earlier writes on the same connection
                request += self._wait(deadline)
            batches.append(Batch(node, request, len(numbers) + bool(confirmed)))
        answers = await self._connections.exchange_batches(batches, deadline, alone=bool(confirmed))
        for (node, numbers), answer in zip(nodes.items(), answers, strict=True):
            if isinstance(answer, HoldfastError):
                for number in numbers:
                    outcomes[number] = answer
                continue
            for number, reply in zip(numbers, answer, strict=False):
                outcomes[number] = reply
                if confirmed and reply.__class__ is not ErrorReply and calls[number].script.is_grant:
                    try:
                        self._check_confirmed(node, answer[-1])
                    except HoldfastError as error:
                        outcomes[number] = error

    async def _resolve(
        self,
        calls: Sequence[Call],
        node: Node,
        numbers: Sequence[int],
        outcomes: list[Reply | HoldfastError],
        *,
        since: float,
        deadline: float,
    ) -> None:
        """Handle the calls of a batch one by one that were redirected, refused or answered late."""
        has_moved = isinstance(outcomes[numbers[0]], BackendUnavailable) and await self._has_moved(
            calls[numbers[0]].keys.slot, node, deadline
        )
        is_late = not self.trusts(node, since)
        for number in numbers:
            call, outcome = calls[number], outcomes[number]
            request = self._request_of(call)
            try:
                if isinstance(outcome, ErrorReply):
                    outcomes[number] = await self._retry(request, node, outcome, deadline)
                elif has_moved and isinstance(outcome, BackendUnavailable):
                    outcomes[number] = await self._send(request, deadline)
                elif is_late and not isinstance(outcome, HoldfastError):
                    await self._confirm_primary(call.keys.slot, node, deadline)
            except HoldfastError as error:
                outcomes[number] = error

    async def _has_moved(self, slot: int, node: Node, deadline: float) -> bool:
        try:
            return await self.rediscover_primary(slot, node, deadline) != node
        except HoldfastError:
            return False


def is_unknown_script(outcome: object) -> bool:
    return isinstance(outcome, ErrorReply) and errors.code_of(outcome) == "NOSCRIPT"

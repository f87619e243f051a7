"""A RedisPort over a simulated network. Notifications may be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.redis.port import Call, Channel, Reply, Word
from holdfast.backends.redis.protocol.keys import LockKeys, OtherKeys, channel_of
from holdfast.backends.redis.protocol.server_info import ServerInfo
from holdfast.core.handovers import notification_of
from holdfast.core.tickets import Notification
from holdfast.errors import HoldfastError, NameConflict, OutcomeUnknown
from holdfast.url_parts import Node
from holdfast_lab.sim.servers.redis.commands import TOO_SMALL, Refused
from holdfast_lab.sim.servers.subscriptions import SimSubscriber

if TYPE_CHECKING:
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.redis.server import RedisServer

T = TypeVar("T")

PREFIX = "sim:"


class ScriptFailed(AssertionError):
    """The server refused a request that no protocol may send. It is a bug, not an error for clients."""


class SimPort(SimSubscriber[Channel]):
    """The port of one client."""

    def __init__(self, server: RedisServer, link: Link, runtime: SimRuntime, number: int) -> None:
        super().__init__(server, link, runtime)
        self.server_info: ServerInfo | None = None
        self._server = server
        self._listener = f"{link.process.name}.{number}"

    @property
    def subscriber(self) -> SimPort:
        return self

    def notification_of(self, message: str) -> Notification:
        return notification_of(message.encode())

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, call: Call, *, deadline: float) -> Reply:
        return await self._request(lambda: self._server.run(call), deadline)

    def prepare(self, call: Call) -> Call | None:
        return None if self._server.is_cluster else call

    async def exchange_now(self, prepared: Call, nonce: str, now: float, deadline: float) -> Reply:
        call = prepared._replace(arguments=(nonce, *prepared.arguments[1:]))
        try:
            return await self.run(call, deadline=deadline)
        except NameConflict as error:
            return error

    async def run_all(self, calls: Sequence[Call], *, deadline: float) -> list[Reply | HoldfastError]:
        """On a Cluster each slot gets its own request, so some may get a reply and some not."""
        groups: dict[int, list[Call]] = {}
        for call in calls:
            groups.setdefault(call.keys.slot if self._server.is_cluster else 0, []).append(call)
        answers = {slot: iter(await self._run_group(group, deadline)) for slot, group in groups.items()}
        return [next(answers[call.keys.slot if self._server.is_cluster else 0]) for call in calls]

    async def _run_group(self, calls: list[Call], deadline: float) -> list[Reply | HoldfastError]:
        try:
            return await self._request(lambda: [self._server.run(call) for call in calls], deadline)
        except HoldfastError as error:
            return [error] * len(calls)

    def may_share_script(self, keys: LockKeys, others: LockKeys) -> bool:
        return not self._server.is_cluster or keys.slot == others.slot

    async def command(self, keys: LockKeys | OtherKeys, *words: Word, deadline: float) -> Reply:
        return await self._request(lambda: self._server.command(keys, words), deadline)

    async def servers(self, *, deadline: float) -> Sequence[Node]:
        return [Node("sim", 0)]

    async def key_count(self, server: Node, *, deadline: float) -> int:
        return 0  # only for display

    async def scan(self, server: Node, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        reply: Reply = await self._request(
            lambda: self._server.machine.command(["SCAN", 0, "MATCH", pattern]), deadline
        )
        return b"0", [key.decode() for key in reply[1]]

    async def subscribe_keyspace(self, server: Node, pattern: str, *, deadline: float) -> None:
        return None  # for `holdfast watch` only

    async def _request(self, step: Callable[[], T], deadline: float) -> T:
        try:
            return await self.request(step, deadline)
        except Refused as refused:
            if refused.code == "WRONGTYPE":
                raise NameConflict(lock="?", reason=str(refused)) from refused
            if str(refused) == TOO_SMALL:  # io/errors.py makes this of an error without a code
                raise OutcomeUnknown(backend="sim", problem=str(refused)) from refused
            raise ScriptFailed(str(refused)) from refused

    # ── subscriptions ────────────────────────────────────────────────────────────────────────────────────────────

    def channel(self, keys: LockKeys) -> Channel:
        if self._server.is_cluster:
            return Channel("SPUBLISH", channel_of(PREFIX, keys, self._listener))
        return Channel("PUBLISH", f"{PREFIX}wake:{self._listener}")

    def trusts_message(self, keys: LockKeys, since: float) -> bool:
        return True

    def channel_name(self, channel: Channel) -> str:
        return channel.name

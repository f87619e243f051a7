"""What all shapes have in common: sending scripts and commands to where their keys are, until one server answers.

A reply that says "not executed here" may be followed by sending again, here or elsewhere. A request without a reply is
never sent again from here: the engine, which knows that its verbs are idempotent, does that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.connection import Parcel
from holdfast.backends.redis.io.resp import ErrorReply, pack, pack_call, pack_text
from holdfast.backends.redis.protocol.keys import slot_of
from holdfast.backends.redis.protocol.scanning import SCAN_COUNT
from holdfast.errors import BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, Place
    from holdfast.backends.redis.io.connection import Lines
    from holdfast.backends.redis.io.handshake import Acquaintance
    from holdfast.backends.redis.io.subscriber import Hints
    from holdfast.backends.redis.port import Call, Channel, Reply, Word
    from holdfast.backends.redis.protocol.keys import Keys, OtherKeys
    from holdfast.backends.redis.protocol.scanning import Notifications
    from holdfast.backends.redis.protocol.server_info import Standing
    from holdfast.core.ports import Event, Runtime

PAUSE_MIN, PAUSE_MAX = 0.01, 0.1  # seconds before the same server is asked again
PATIENCE = 1.0  # seconds for which a Cluster that is down is asked again: it may only look so for a moment
_ASKING = pack("ASKING")


class _Errand(NamedTuple):
    """One script or command, as the slow ways need to know it."""

    slot: int
    key: str
    request: bytes
    call: Call | None  # None: a plain command


class Topology(ABC):
    """Finds the server for a slot; subclasses know how. It is the port itself: a layer less between lock and socket."""

    def __init__(self, place: Place, servers: Lines, known: Acquaintance, runtime: Runtime) -> None:
        self.known = known
        self.hints: Hints  # whoever makes this knows how to listen, and puts it here
        self._place = place
        self._replicas = place.replicas
        self._lines = servers
        self._runtime = runtime

    # ── where ────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def at_hand(self, slot: int) -> Node | None:
        """The primary that has this slot, if that is known without asking."""

    @abstractmethod
    async def find(self, slot: int, deadline: float) -> Node:
        """The same, after asking."""

    async def confirm(self, slot: int, node: Node, deadline: float) -> Node:
        """The primary that has this slot, as others than `node` know it."""
        return await self.find(slot, deadline)

    @abstractmethod
    async def reconsider(self, slot: int, node: Node, deadline: float) -> Node:
        """The primary for this slot, after trouble with the one that we took for it."""

    def trusts(self, node: Node, since: float) -> bool:
        """An answer of this server to what was sent at `since` counts; else, whether it is a primary is asked again."""
        return True

    def trusts_message(self, keys: Keys, since: float) -> bool:
        node = self.at_hand(keys.slot)
        return node is not None and self.trusts(node, since)

    def primaries(self) -> Collection[Node]:
        """All of them, as far as known."""
        node = self.at_hand(0)
        return () if node is None else (node,)

    async def home(self, channel: Channel, deadline: float, *, afresh: bool = False) -> Node:
        """Where to listen to a channel; `afresh`: what was known may be wrong."""
        slot = slot_of(channel.name)
        return (None if afresh else self.at_hand(slot)) or await self.find(slot, deadline)

    # ── the port: what ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def standing(self) -> Standing | None:
        return self.known.standing

    async def run(self, call: Call, *, deadline: float) -> Reply:
        return await self._send(self._errand(call), deadline)

    def are_together(self, some: Keys, others: Keys) -> bool:
        return True

    async def command(self, keys: Keys | OtherKeys, *words: Word, deadline: float) -> Reply:
        return await self._send(_Errand(keys.slot, keys.lock, pack(*words), None), deadline)

    async def run_all(self, calls: Sequence[Call], *, deadline: float) -> list[Reply | HoldfastError]:
        outcomes: list[Reply | HoldfastError] = [None] * len(calls)
        nodes: dict[Node, list[int]] = {}
        for number, call in enumerate(calls):
            try:
                node = self.at_hand(call.keys.slot) or await self.find(call.keys.slot, deadline)
            except HoldfastError as error:
                outcomes[number] = error
            else:
                nodes.setdefault(node, []).append(number)
        since = self._runtime.now()
        await self._run_batches(calls, nodes, outcomes, deadline)
        unknown = {
            node: numbers
            for node, numbers in (
                (node, [number for number in numbers if _is_unknown_script(outcomes[number])])
                for node, numbers in nodes.items()
            )
            if numbers
        }
        if unknown:
            await self._run_batches(calls, unknown, outcomes, deadline, by_text=True)
        for node, numbers in nodes.items():
            await self._settle(calls, node, numbers, outcomes, since=since, deadline=deadline)
        return outcomes

    async def servers(self, *, deadline: float) -> Sequence[Node]:
        # Asked for each search: a primary that is not known yet would be left out.
        node = await self.find(0, deadline)
        return list(self.primaries()) or [node]

    async def key_count(self, server: Node, *, deadline: float) -> int:
        reply = await self._lines.one(server, pack("DBSIZE"), deadline)
        return 0 if isinstance(reply, ErrorReply) else int(reply)

    async def scan(self, server: Node, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        request = pack("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        reply = await self._lines.one(server, request, deadline)
        if isinstance(reply, ErrorReply):
            raise errors.refusal(reply, self._place.url, server, pattern)
        following, keys = reply
        return following, [key.decode(errors="replace") for key in keys]

    async def notifications(self, server: Node, pattern: str, *, deadline: float) -> Notifications | None:
        return await self.hints.notifications(server, pattern, deadline)

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self.hints.listen(wake, missed)

    def channel(self, keys: Keys) -> Channel:
        return self.hints.channel(keys)

    def subscription(self, channel: Channel) -> int:
        return self.hints.subscription(channel)

    async def subscribe(self, channel: Channel, nonce: str, *, deadline: float) -> Event | None:
        return await self.hints.subscribe(channel, nonce, deadline)

    def unsubscribe(self, channel: Channel, nonce: str) -> None:
        self.hints.unsubscribe(channel, nonce)

    async def close(self) -> None:
        await self.hints.close()
        await self._lines.close()

    def abandon(self) -> None:
        self.hints.abandon()
        self._lines.abandon()

    def drop(self, node: Node) -> None:
        """It is not a primary of ours any more: speak and listen to it no more."""
        self._lines.drop(node)
        self.known.forget(node)
        self.hints.leave(node)

    # ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _errand(self, call: Call) -> _Errand:
        return _Errand(call.keys.slot, call.keys.lock, pack_call(call), call)

    async def _send(self, errand: _Errand, deadline: float) -> Reply:
        node = self.at_hand(errand.slot) or await self.find(errand.slot, deadline)
        try:
            reply = await self._ask(errand, node, deadline)
        except BackendUnavailable as error:
            return await self._send_elsewhere(errand, node, error, deadline)
        return await self._insist(errand, node, reply, deadline)

    async def _send_elsewhere(self, errand: _Errand, node: Node, error: BackendUnavailable, deadline: float) -> Reply:
        """Nothing was sent, so if another server has the slot by now, it is asked, once."""
        if not await self._is_elsewhere(errand.slot, node, deadline):
            raise error
        other = self.at_hand(errand.slot) or await self.find(errand.slot, deadline)
        return await self._insist(errand, other, await self._ask(errand, other, deadline), deadline)

    async def _insist(self, errand: _Errand, node: Node, reply: Reply, deadline: float) -> Reply:
        """As long as a server says that it has done nothing and that another, or later, or the text would help."""
        limits = {"TRYAGAIN": deadline, "CLUSTERDOWN": min(deadline, self._runtime.now() + PATIENCE)}
        pause, asking = PAUSE_MIN, False
        while reply.__class__ is ErrorReply:
            code = errors.code_of(reply)
            there = errors.redirection(reply) if self._place.shape == "cluster" else None
            if code == "NOSCRIPT" and errand.call is not None:
                errand = errand._replace(request=pack_text(errand.call))
            elif there is not None:
                node, asking = self._redirect(there.slot, there.host, there.port, node, is_final=there.is_final)
            elif code in limits and self._runtime.now() + pause < limits[code]:
                await self._runtime.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX)
                if code == "CLUSTERDOWN":
                    node, asking = await self.find(errand.slot, deadline), False
            elif code in {"READONLY", "MASTERDOWN"}:
                other = await self.reconsider(errand.slot, node, deadline)
                if other == node:
                    raise self._refusal(reply, node, errand.key)
                node, asking = other, False
            else:
                raise self._refusal(reply, node, errand.key)
            reply = await self._ask(errand, node, deadline, asking=asking)
        return reply

    async def _ask(self, errand: _Errand, node: Node, deadline: float, *, asking: bool = False) -> Reply:
        since = self._runtime.now()
        reply = await self._exchange(errand, node, deadline, asking=asking)
        if reply.__class__ is not ErrorReply and not self.trusts(node, since):
            await self._vouch(errand.slot, node, deadline)
        return reply

    async def _exchange(self, errand: _Errand, node: Node, deadline: float, *, asking: bool) -> Reply:
        confirmed = self._replicas and errand.call is not None and _is_grant(errand.call)
        if not asking and not confirmed:
            return await self._lines.one(node, errand.request, deadline)
        request, count = errand.request, 1
        if asking:
            request, count = _ASKING + request, 2
        if confirmed:
            request, count = request + self._wait(deadline), count + 1
        said = await self._lines.many(Parcel(node, request, count), deadline, alone=bool(confirmed))
        reply = said[1 if asking else 0]
        if confirmed and reply.__class__ is not ErrorReply:
            self._check_confirmed(node, said[-1])
        return reply

    def _redirect(self, slot: int, host: str, port: int, node: Node, *, is_final: bool) -> tuple[Node, bool]:
        raise NotImplementedError  # only a Cluster redirects

    async def _vouch(self, slot: int, node: Node, deadline: float) -> None:
        """Believe an answer that took long only if its server is still the primary now that it is here."""
        try:
            primary = await self.confirm(slot, node, max(deadline, self._runtime.now() + 1.0))
        except BackendUnavailable as error:  # which would say that nothing was changed
            raise errors.no_answer(self._place.url, node, f"its answer took long, and {error.problem}") from error
        if primary != node:
            raise errors.no_answer(self._place.url, node, "its answer took long, and it is not the primary any more")

    def _refusal(self, reply: ErrorReply, node: Node, key: str) -> HoldfastError:
        return errors.refusal(reply, self._place.url, node, key.removeprefix(self._place.prefix))

    # ── replicas ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _wait(self, deadline: float) -> bytes:
        left = min(self._place.replicas_timeout, deadline - self._runtime.now())
        return pack("WAIT", self._replicas, max(1, int(left * 1000)))

    def _check_confirmed(self, node: Node, confirmed: Reply) -> None:
        if isinstance(confirmed, ErrorReply):
            raise errors.no_answer(self._place.url, node, f"its replicas could not be asked: {confirmed}")
        if confirmed < self._replicas:
            raise errors.no_answer(
                self._place.url, node, f"{confirmed} of {self._replicas} replicas confirmed it in time"
            )

    # ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────

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
        confirmed = self._replicas and any(_is_grant(call) for call in calls)
        parcels = []
        for node, numbers in nodes.items():
            request = b"".join(form(calls[number]) for number in numbers)
            if confirmed:  # one word for all: it covers what was written before on the same connection
                request += self._wait(deadline)
            parcels.append(Parcel(node, request, len(numbers) + bool(confirmed)))
        answers = await self._lines.each(parcels, deadline, alone=bool(confirmed))
        for (node, numbers), answer in zip(nodes.items(), answers, strict=True):
            if isinstance(answer, HoldfastError):
                for number in numbers:
                    outcomes[number] = answer
                continue
            for number, reply in zip(numbers, answer, strict=False):
                outcomes[number] = reply
                if confirmed and reply.__class__ is not ErrorReply and _is_grant(calls[number]):
                    try:
                        self._check_confirmed(node, answer[-1])
                    except HoldfastError as error:
                        outcomes[number] = error

    async def _settle(
        self,
        calls: Sequence[Call],
        node: Node,
        numbers: Sequence[int],
        outcomes: list[Reply | HoldfastError],
        *,
        since: float,
        deadline: float,
    ) -> None:
        """What a batch could not settle at once goes its own way: redirected calls, and a server that has moved."""
        is_elsewhere = isinstance(outcomes[numbers[0]], BackendUnavailable) and await self._is_elsewhere(
            calls[numbers[0]].keys.slot, node, deadline
        )
        is_late = not self.trusts(node, since)
        for number in numbers:
            call, outcome = calls[number], outcomes[number]
            errand = self._errand(call)
            try:
                if isinstance(outcome, ErrorReply):
                    outcomes[number] = await self._insist(errand, node, outcome, deadline)
                elif is_elsewhere and isinstance(outcome, BackendUnavailable):
                    outcomes[number] = await self._send(errand, deadline)
                elif is_late and not isinstance(outcome, HoldfastError):
                    await self._vouch(call.keys.slot, node, deadline)
            except HoldfastError as error:
                outcomes[number] = error

    async def _is_elsewhere(self, slot: int, node: Node, deadline: float) -> bool:
        try:
            return await self.reconsider(slot, node, deadline) != node
        except HoldfastError:
            return False


def _is_grant(call: Call) -> bool:
    """It begins or prolongs a lease, or raises a mark: replicas should know of it before anybody relies on it."""
    return call.script.name.endswith(("/enter", "/enter_all", "/renew", "/mark"))


def _is_unknown_script(outcome: object) -> bool:
    return isinstance(outcome, ErrorReply) and errors.code_of(outcome) == "NOSCRIPT"

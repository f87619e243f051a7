"""The lock protocol on memcached: a lock is one item, and the nonce in the item identifies the holder.

    acquire    add. If the key exists, read it. It is another client's: wait. It is ours, by an add that got no answer,
               or it is free (`holdfast:free`): replace it by its version.
    renew      replace exactly the version that we know; if the item has another version, read whose item it is.
    release    delete exactly the version that we know; otherwise as for renew.

An item of another client is never overwritten or deleted, because a version belongs to one item and every write makes a
new one. A restarted server uses the same versions again, so a version is used only on the run of the server that
assigned it (`ServerRun`).

The fence is made of the start time of the server and the version that the add gave the item, which grows with every
write. It needs no counter that could be evicted.

A cache may evict any item at any time. The holder detects that at its next renewal.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from holdfast.backends.base_backend import BaseBackend
from holdfast.backends.memcached.port import Answer, Batch, MemcachedPort, ServerRun
from holdfast.backends.memcached.protocol import errors, meta
from holdfast.backends.memcached.protocol.clock_check import MARGIN, ClockCheck, seconds_for
from holdfast.backends.memcached.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.memcached.protocol.keys import key_of, name_of, node_of
from holdfast.backends.memcached.protocol.registers import RegistersInItems
from holdfast.backends.memcached.protocol.values import FREE, Value, body_of, value_of
from holdfast.backends.net.errors import no_answer
from holdfast.core.clock import lease_deadline
from holdfast.core.one_by_one import OneByOne, result_or_error
from holdfast.core.tickets import (
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Waiting,
    make_ticket_info,
    may_have_happened,
    process_text,
)
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    Unsupported,
)

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

GRANULARITY = 0.0  # the expiry of the item includes the time by which the server may be early (clock_check.py)
# Seconds between polls of a held lock: short at first, for locks that are held briefly; with jitter, so that waiters do
# not poll at the same times.
POLL_MIN, POLL_MAX, POLL_GROWTH = 0.002, 0.1, 1.5
UNANSWERED_MAX = 60  # seconds for which a write without an answer may still be executed
_FENCE_SHIFT = 22  # bits: fences of two runs can only overlap above four million writes per second, all the time
_CLOCK_POLL = 0.02  # seconds between requests to a server whose clock does not run
_ATTEMPTS = 4  # for changes of the item between read and write
_CHUNK = 100  # items read with one request
_GONE = LeaseGone("the server no longer has this lease: it expired, was broken or evicted, or the server was restarted")


@dataclass(slots=True)
class KnownItem:
    """A ticket's item as this client last saw it. It is only a hint; the nonce in the item decides."""

    run: ServerRun
    version: int
    fence: int
    body: bytes


class _State:
    """The state of a claim. Another thread may release the claim, and remove its state, during any request."""

    known: KnownItem | None = None
    # Until then a write without an answer may be executed: of this ticket, or of one whose `free` item it replaced.
    unanswered_until = 0.0
    pause = 0.0  # seconds between the last two polls; 0 before the first


@dataclass(slots=True)
class _Write:
    """A write of the item of a ticket that is being acquired."""

    claim: Claim
    node: Node
    key: bytes
    seconds: int
    body: bytes


class MemcachedBackend(BaseBackend[MemcachedPort], OneByOne, RegistersInItems):
    """Locks on one server, or spread over several."""

    lacks = LACKS
    guarantees = GUARANTEES
    _clock_check = ClockCheck

    def __init__(
        self, url: str, port: MemcachedPort, runtime: Runtime, *, prefix: str, nodes: tuple[Node, ...]
    ) -> None:
        super().__init__(url, port, runtime)
        self._prefix = prefix
        self._nodes = nodes
        self._clocks = {node: self._clock_check() for node in nodes}

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{node} has evicted {clock.evictions} items since it was started, and can evict locks too: "
            "give it more memory (-m), or use a separate server for locks"
            for node, clock in self._clocks.items()
            if clock.evictions
        )

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not claim.exclusive:
            raise Unsupported(
                backend="memcached",
                what="readers and semaphores",
                others=("sqlite", "postgresql", "redis with method=queue"),
            )
        key = key_of(self._prefix, claim.name)
        node = node_of(key, self._nodes)
        seconds = self._seconds(claim.ttl)
        run = self._clocks[node].run or await self._check_clock(node, deadline)
        body = body_of(self._runtime.wall(), claim.agent, claim.info, claim.name)
        if len(body) > run.value_max:
            raise ConfigurationError(
                f"meta of lock {claim.name!r} is too long: memcached at {node} accepts items of {run.value_max} bytes"
            )
        write = _Write(claim, node, key, seconds, body)
        state = claim.state = claim.state or _State()
        # A waiter reads first. So does every client where memory can run out, because an add that finds no memory
        # deletes the item under its key (errors.py).
        if not state.pause and run.evicts and (granted := await self._add(write, deadline)):
            return granted
        for _ in range(_ATTEMPTS):
            run, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            if item.code == "EN":
                granted = await self._add(write, deadline)
            elif item.value == FREE or (value is not None and value.nonce == claim.nonce):
                granted = await self._take_over(write, run, item, value, deadline)
            else:
                holder = "another program" if value is None else process_text(value.details()[2])
                return self._waiting(state, holder, queue=queue)
            if granted:
                return granted
        return self._waiting(state, None, queue=queue)

    def _add(self, write: _Write, deadline: float) -> Awaitable[Granted | None]:
        """Granted, if the key did not exist."""
        request = meta.add(write.key, write.seconds, value_of(write.claim.nonce, 0, write.body))
        return self._put(write, request, None, 0, deadline)

    def _take_over(
        self, write: _Write, run: ServerRun, item: meta.Reply, value: Value | None, deadline: float
    ) -> Awaitable[Granted | None]:
        """Granted, if the item is unchanged: it is free, or ours by a write that got no answer.

        Our own item is written again, because the start of its ttl is unknown.
        """
        fence, unanswered_until = 0, 0.0
        if value is not None:
            fence, write = value.fence or self.fence_of(run, item.version), replace(write, body=value.body)
        else:  # the write against which it was stored may also arrive after ours
            unanswered_until = self._runtime.now() + item.seconds_left
        request = meta.replace(write.key, item.version, write.seconds, value_of(write.claim.nonce, fence, write.body))
        return self._put(write, request, run, fence, deadline, unanswered_until=unanswered_until)

    async def _put(
        self,
        write: _Write,
        request: bytes,
        run: ServerRun | None,
        fence: int,
        deadline: float,
        *,
        unanswered_until: float = 0.0,
    ) -> Granted | None:
        """Granted, if the write succeeds, on this run of the server or on any. A fence of 0 is taken from the reply.

        A write without an answer may still be executed, so it is noted. If this write replaces a free item, a write of
        another ticket may be executed until `unanswered_until`, which is noted too.
        """
        claim, node = write.claim, write.node
        clock, sent = self._clocks[node], self._runtime.now()
        current = clock.run
        if current is None or clock.needs_check(sent):
            current = await self._check_clock(node, deadline)
            sent = self._runtime.now()
        current = run or current
        try:
            reply = self._request_now(node, request, current, sent, deadline)
            if reply is None:
                current, reply = await self._request_one(node, request, run, deadline)
        except BaseException as error:
            if may_have_happened(error):
                self._note_unanswered(claim, max(unanswered_until, self._runtime.now() + UNANSWERED_MAX))
            raise
        if reply is None or reply.code != "HD":
            return None
        if unanswered_until:
            self._note_unanswered(claim, unanswered_until)
        if not fence:
            if not reply.version:  # the reply does not contain the version: read the item
                return None
            fence = self.fence_of(current, reply.version)
        if (state := claim.state) is not None:
            state.pause = 0.0
        return Granted(fence, self._remember(claim, sent, KnownItem(current, reply.version, fence, write.body)))

    def _note_unanswered(self, claim: Claim, until: float) -> None:
        state = claim.state = claim.state or _State()
        claim.unanswered, state.unanswered_until = True, max(until, state.unanswered_until)

    def _waiting(self, state: _State, holder: str | None, *, queue: bool) -> Waiting:
        pause = min(POLL_MAX, POLL_GROWTH * (state.pause or POLL_MIN / POLL_GROWTH))
        if queue:
            state.pause = pause
        return Waiting(pause * (0.5 + self._runtime.jitter() / 2), holder)

    async def wait(self, claim: Claim, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    # ── release ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        if len(claims) == 1:  # nearly all calls release one lease
            (claim,) = claims
            known = _known(claim)
            if known is not None and not claim.unanswered:
                key = key_of(self._prefix, claim.name)
                node, request = node_of(key, self._nodes), self._deletion(key, claim, known)
                reply = self._request_now(node, request, known.run, self._runtime.now(), deadline)
                if reply is None:
                    _, reply = await self._request_one(node, request, known.run, deadline)
                if reply is not None and reply.code == "HD":
                    claim.state = None
                    return [True]
                return [await self._released(claim, reply, deadline)]
        direct = [claim for claim in claims if not claim.unanswered]
        _, replies = await self._request_known(direct, self._deletion, deadline)
        return [await result_or_error(self._released(claim, replies.get(claim.nonce), deadline)) for claim in claims]

    async def _released(self, claim: Claim, reply: meta.Reply | BackendError | None, deadline: float) -> bool:
        if isinstance(reply, BackendError):
            raise reply
        if reply is None or reply.code == "EX":
            was_ours = await self._release_any_version(claim, deadline)
        else:
            was_ours = reply.code == "HD"
        claim.state, claim.unanswered = None, False
        return was_ours

    async def _release_any_version(self, claim: Claim, deadline: float) -> bool:
        """Release the item at its current version, and make sure that a write in flight has no effect.

        Raises:
            OutcomeUnknown: this is not possible while another client holds the lock; the caller tries again.
        """
        key = key_of(self._prefix, claim.name)
        node = node_of(key, self._nodes)
        for _ in range(_ATTEMPTS):
            run, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            is_ours = value is not None and value.nonce == claim.nonce
            unanswered_until = 0.0 if (state := claim.state) is None else state.unanswered_until
            pending_for = math.ceil(unanswered_until - self._runtime.now())
            if pending_for <= 0:
                if not is_ours:
                    return False
                request = meta.delete(key, item.version)
            elif item.code == "EN":
                request = meta.add(key, pending_for + MARGIN, FREE)
            elif is_ours or item.value == FREE:
                seconds = pending_for + MARGIN if is_ours else max(pending_for + MARGIN, item.seconds_left)
                request = meta.replace(key, item.version, seconds, FREE)
            else:
                break
            answer = await self._request(Batch(node, (request,), run), deadline)
            if answer.replies and answer.replies[0].code == "HD":
                return is_ours
        raise no_answer(self.url, node, "a write for a released ticket may still be executed")

    # ── renew ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        failed: dict[Node, BackendError] = {}
        pairs = [(claim, node_of(key_of(self._prefix, claim.name), self._nodes)) for claim in claims]
        nodes = list(dict.fromkeys(node for _, node in pairs))
        for node in nodes:
            now = self._runtime.now()
            try:  # a silent server must leave time for the others
                await self._check_clock(node, deadline if len(nodes) == 1 else now + (deadline - now) / 2)
            except BackendError as error:
                failed[node] = error
        now = self._runtime.now()
        direct = (claim for claim, node in pairs if node not in failed and not self._clocks[node].needs_check(now))
        sent, replies = await self._request_known(direct, self._renewal, deadline)
        return [
            await result_or_error(self._renewed(claim, failed.get(node, replies.get(claim.nonce)), sent, deadline))
            for claim, node in pairs
        ]

    async def _renewed(
        self, claim: Claim, reply: meta.Reply | BackendError | None, sent: float, deadline: float
    ) -> Live | LeaseGone:
        if isinstance(reply, BackendError):
            raise reply
        if reply is None or reply.code == "EX":
            return await self._renew_any_version(claim, deadline)
        known = _known(claim)
        if reply.code != "HD" or known is None:
            return _GONE
        return Live(self._remember(claim, sent, KnownItem(known.run, reply.version, known.fence, known.body)))

    async def _renew_any_version(self, claim: Claim, deadline: float) -> Live | LeaseGone:
        """Renew the item at its current version."""
        key = key_of(self._prefix, claim.name)
        node = node_of(key, self._nodes)
        for _ in range(_ATTEMPTS):
            run, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            if value is None or value.nonce != claim.nonce:
                return _GONE
            known = KnownItem(run, item.version, value.fence or self.fence_of(run, item.version), value.body)
            await self._check_clock(node, deadline)
            sent = self._runtime.now()
            answer = await self._request(Batch(node, (self._renewal(key, claim, known),), run), deadline)
            if answer.replies and answer.replies[0].code == "HD":
                known.version = answer.replies[0].version
                return Live(self._remember(claim, sent, known))
        raise no_answer(self.url, node, "the item changed at every attempt")

    # ── adopt ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        """Replace the item at its version. The new version, which is greater, gives the fence."""
        key = key_of(self._prefix, claim.name)
        node = node_of(key, self._nodes)
        body = body_of(self._runtime.wall(), claim.agent, claim.info, claim.name)
        write = _Write(claim, node, key, self._seconds(claim.ttl), body)
        for _ in range(_ATTEMPTS):
            run, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            if value is None or value.nonce not in {nonce, claim.nonce}:
                return _GONE
            if value.nonce == claim.nonce:  # a repeated call
                granted = await self._take_over(write, run, item, value, deadline)
            else:
                request = meta.replace(key, item.version, write.seconds, value_of(claim.nonce, 0, body))
                granted = await self._put(write, request, run, 0, deadline)
            if granted:
                return granted
        raise no_answer(self.url, node, "the item changed at every attempt")

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        key = key_of(self._prefix, name)
        run, item = await self._read(node_of(key, self._nodes), key, deadline)
        return self._lock_info(name, run, item) or LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        infos = []
        for node in self._nodes:
            answer = await self._port.request(Batch(node, (meta.DUMP,)), deadline=deadline)
            if answer.replies[0].value.startswith(b"ERROR metadump not allowed"):
                raise Unsupported(backend=f"memcached at {node}, which runs with -X,", what="listing its locks")
            self._check(node, answer)
            dumped = (line[4:].partition(b" ")[0] for line in answer.replies[0].lines)
            keys = [key for key in map(unquote_to_bytes, dumped) if key.startswith(self._prefix.encode())]
            for start in range(0, len(keys), _CHUNK):
                chunk = keys[start : start + _CHUNK]
                answer = await self._request(Batch(node, [meta.read(key) for key in chunk]), deadline)
                for key, item in zip(chunk, answer.replies, strict=True):
                    value = Value.parse(item.value)
                    name = name_of(self._prefix, key) if value is None else value.details()[3]
                    if name and name.startswith(prefix) and (info := self._lock_info(name, answer.run, item)):
                        infos.append(info)
        return sorted(infos, key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        key = key_of(self._prefix, name)
        node = node_of(key, self._nodes)
        run, item = await self._read(node, key, deadline)
        value = Value.parse(item.value)
        if value is None or (value.fence or self.fence_of(run, item.version)) != fence:
            return False
        answer = await self._request(Batch(node, (meta.delete(key, item.version),), run), deadline)
        if answer.replies and answer.replies[0].code == "EX":  # it was renewed, or belongs to another holder
            return await self.break_lock(name, fence, deadline=deadline)
        return bool(answer.replies) and answer.replies[0].code == "HD"

    # ── values ───────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def fence_of(run: ServerRun, version: int) -> int:
        return (run.started << _FENCE_SHIFT) + version

    @staticmethod
    def _seconds(ttl: float) -> int:
        return seconds_for(ttl)

    def _remember(self, claim: Claim, sent: float, known: KnownItem) -> float:
        """Remember the item of a granted or renewed ticket. Returns the deadline of the lease."""
        state = claim.state = claim.state or _State()
        state.known = known
        return lease_deadline(sent, claim.ttl, GRANULARITY)

    def _deletion(self, key: bytes, _: Claim, known: KnownItem) -> bytes:
        return meta.delete(key, known.version)

    def _renewal(self, key: bytes, claim: Claim, known: KnownItem) -> bytes:
        value = value_of(claim.nonce, known.fence, known.body)
        return meta.replace(key, known.version, self._seconds(claim.ttl), value)

    def _lock_info(self, name: str, run: ServerRun, item: meta.Reply) -> LockInfo | None:
        """The lock, if a client holds it."""
        if item.code == "EN" or item.value == FREE:
            return None
        value = Value.parse(item.value)
        since, agent, info, _ = (0.0, "another program", "", "") if value is None else value.details()
        holder = make_ticket_info(
            info=info,
            fence=0 if value is None else value.fence or self.fence_of(run, item.version),
            agent=agent,
            since=since,
            remaining=float("inf") if item.seconds_left < 0 else item.seconds_left - (MARGIN if value else 0),
            exclusive=True,
            limit=1,
        )
        return LockInfo(name, (holder,), ())

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check_clock(self, node: Node, deadline: float) -> ServerRun:
        """Return when the clock of the server is confirmed. Only then may a request be sent that starts a timer.

        Raises:
            BackendUnavailable: the clock does not run.
        """
        clock = self._clocks[node]
        while clock.run is None or clock.needs_check(self._runtime.now()):
            sent = self._runtime.now()
            answer = self._check(node, await self._port.request(Batch(node, (meta.STATS,)), deadline=deadline))
            stats, now = answer.replies[0].stats(), self._runtime.now()
            clock.answered(sent, answer.run)
            clock.evictions = int(stats.get("evictions", 0))
            if not clock.is_ticking(int(stats["time"]), sent, now, self._runtime.wall()):
                if now + _CLOCK_POLL >= deadline:
                    raise BackendUnavailable(
                        backend=self.url,
                        problem=f"{node}: its clock does not run; is the process stopped, or too busy?",
                    )
                await self._runtime.sleep(_CLOCK_POLL)
        return clock.run

    async def _request(self, batch: Batch, deadline: float) -> Answer:
        sent = self._runtime.now()
        answer = await self._port.request(batch, deadline=deadline)
        self._clocks[batch.node].answered(sent, answer.run)
        return self._check(batch.node, answer)

    async def _request_one(
        self, node: Node, request: bytes, run: ServerRun | None, deadline: float
    ) -> tuple[ServerRun, meta.Reply | None]:
        """Send one request. There is no reply, and nothing was sent, if that run has ended."""
        answer = await self._request(Batch(node, (request,), run), deadline)
        return answer.run, answer.replies[0] if answer.replies else None

    def _request_now(
        self, node: Node, request: bytes, run: ServerRun, sent: float, deadline: float
    ) -> meta.Reply | None:
        """The same without a coroutine, if the port can: a coroutine costs noticeable time beside a round trip."""
        reply = self._port.request_now(node, request, run, sent, deadline)
        if reply is not None:
            self._clocks[node].answered(sent, run)
            if reply.code != "HD" and reply.is_error:
                raise errors.error_of(reply, self.url, node)
        return reply

    def _check(self, node: Node, answer: Answer) -> Answer:
        for reply in answer.replies:
            if reply.is_error:
                raise errors.error_of(reply, self.url, node)
        return answer

    async def _read(self, node: Node, key: bytes, deadline: float) -> tuple[ServerRun, meta.Reply]:
        answer = await self._request(Batch(node, (meta.read(key),)), deadline)
        return answer.run, answer.replies[0]

    async def _request_known(
        self, claims: Iterable[Claim], request: Callable[[bytes, Claim, KnownItem], bytes], deadline: float
    ) -> tuple[float, dict[str, meta.Reply | BackendError]]:
        """Send a request about the known version of each ticket's item. Returns when, and the reply per nonce.

        A ticket has no entry if its version is not known, or belongs to another run of the server.
        """
        sent = self._runtime.now()
        batches: dict[tuple[Node, ServerRun], list[tuple[Claim, bytes]]] = {}
        for claim in claims:
            known = _known(claim)
            if known is not None:
                key = key_of(self._prefix, claim.name)
                requests = batches.setdefault((node_of(key, self._nodes), known.run), [])
                requests.append((claim, request(key, claim, known)))
        packed = [Batch(node, [data for _, data in requests], run) for (node, run), requests in batches.items()]
        replies: dict[str, meta.Reply | BackendError] = {}
        if len(packed) == 1:
            answers: Sequence[Answer | HoldfastError] = [await self._port.request(packed[0], deadline=deadline)]
        else:
            answers = await self._port.request_each(packed, deadline=deadline) if packed else ()
        for batch, requests, answer in zip(packed, batches.values(), answers, strict=True):
            if isinstance(answer, BackendError):
                replies.update((claim.nonce, answer) for claim, _ in requests)
                continue
            if isinstance(answer, HoldfastError):
                raise answer
            self._clocks[batch.node].answered(sent, answer.run)
            for (claim, _), reply in zip(requests, answer.replies, strict=False):  # no replies from another run
                replies[claim.nonce] = errors.error_of(reply, self.url, batch.node) if reply.is_error else reply
        return sent, replies


def _known(claim: Claim) -> KnownItem | None:
    state: _State | None = claim.state
    return None if state is None else state.known

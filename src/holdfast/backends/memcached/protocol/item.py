"""The lock protocol on memcached: a lock is one item, and who has it is whose nonce stands in it.

    take       add. If something is there: read it, and wait; or it is ours, by an add that got no answer; or it is
               nobody's (`holdfast:free`) and is taken over by its version.
    renew      store over exactly the version that we know; if that is another by now, read whose it is.
    give back  delete exactly the version that we know; likewise.

Nothing of another's is ever written over or deleted: a version is one item's, and a new one after every write. Versions
begin anew when the server does, so one is only used on the run of the server that gave it (`Life`).

The fence is made of the time at which the server was started and the version that the add gave the item, which grows
with everything that is stored. It needs no counter that could be evicted.

A cache may drop any item at any time: the holder learns of it at its next renewal, and not before.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote_to_bytes

from holdfast.backends.memcached.io import errors
from holdfast.backends.memcached.port import Errand
from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.clock_check import EARLY, Pulse, seconds_for
from holdfast.backends.memcached.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.memcached.protocol.keys import home_of, key_of, name_of
from holdfast.backends.memcached.protocol.registers import Marks
from holdfast.backends.memcached.protocol.values import FREE, Value, body_of, value_of
from holdfast.core.clock import lease_deadline
from holdfast.core.one_by_one import OneByOne
from holdfast.core.tickets import Granted, LeaseGone, Live, LockInfo, Ticket, Waiting, make_ticket_info, process_text
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    OutcomeUnknown,
    Unsupported,
)

if TYPE_CHECKING:
    from holdfast.backends.memcached.config import Node
    from holdfast.backends.memcached.port import Answer, Life, MemcachedPort
    from holdfast.backends.memcached.protocol.meta import Reply
    from holdfast.core.ports import Runtime

T = TypeVar("T")


GRANULARITY = 0.0  # what the server may be early by is in the seconds that it is told to keep an item (pulse.py)
# Seconds between looks at a lock that is taken: short at first, for locks that are held shortly; jittered, so that
# waiters do not march in step.
POLL_MIN, POLL_MAX, POLL_GROWTH = 0.002, 0.1, 1.5
LATE_MAX = 60  # seconds that an add may be on its way after we have given up on it
_FENCE_SHIFT = 22  # bits: four million stores a second, all the time, before a fence could meet one of the next run
_CLOCK_LOOK = 0.02  # seconds between questions to a server whose clock stands still
_ROUNDS = 4  # when an item comes and goes between reading and writing
_BATCH = 100  # items read at once
_ROOM = 1000  # tickets remembered before those are forgotten that were never given back
_GONE = LeaseGone("the server no longer has this lease: it ran out, was broken or evicted, or the server was restarted")


@dataclass(slots=True)
class Held:
    """What this client knows of a ticket's item. No more than a hint: the nonce in the item decides."""

    life: Life
    version: int
    fence: int
    body: bytes
    deadline: float = 0.0


@dataclass(slots=True)
class _Claim:
    """A ticket on its way in."""

    ticket: Ticket
    node: Node
    key: bytes
    seconds: int
    body: bytes


class MemcachedBackend(OneByOne):
    """Locks on one server, or spread over several."""

    lacks = LACKS
    guarantees = GUARANTEES
    _pulse = Pulse
    liveness_fds: tuple[int, ...] = ()  # the server cannot see that a holder has died

    def __init__(
        self, url: str, port: MemcachedPort, runtime: Runtime, *, prefix: str, nodes: tuple[Node, ...]
    ) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._prefix = prefix
        self._nodes = nodes
        self._pulses = {node: self._pulse() for node in nodes}
        self._held: dict[str, Held] = {}  # by nonce, as all here
        self._room = _ROOM
        # Those with a write without an answer, and those that took over from such a one: until when it may be done yet.
        self._late: dict[str, float] = {}
        self._pauses: dict[str, float] = {}  # how long each waited before its last look

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"{node} has evicted {pulse.evictions} items since it was started, and locks can go the same way: "
            "give it more memory (-m), or give locks a server of their own"
            for node, pulse in self._pulses.items()
            if pulse.evictions
        )

    # ── take ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive:
            raise Unsupported(
                backend="memcached",
                what="readers and semaphores",
                others=("sqlite", "postgresql", "redis with method=queue"),
            )
        key = key_of(self._prefix, ticket.name)
        node = home_of(key, self._nodes)
        seconds = self._seconds(ticket.ttl)
        life = self._pulses[node].life or await self._in_time(node, deadline)
        body = body_of(self._runtime.wall(), ticket.agent, ticket.info, ticket.name)
        if len(body) > life.value_max:
            raise ConfigurationError(
                f"meta of lock {ticket.name!r} is too long: memcached at {node} takes items of {life.value_max} bytes"
            )
        claim = _Claim(ticket, node, key, seconds, body)
        # Who waits reads first, and so does everybody where memory can run out: an add that finds none deletes what is
        # there (replies.py).
        if ticket.nonce not in self._pauses and life.evicts and (granted := await self._add(claim, deadline)):
            return granted
        for _ in range(_ROUNDS):
            life, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            if item.code == "EN":
                granted = await self._add(claim, deadline)
            elif item.value == FREE or (value is not None and value.nonce == ticket.nonce):
                granted = await self._take_over(claim, life, item, value, deadline)
            else:
                holder = "another program" if value is None else process_text(value.described()[2])
                return self._waiting(ticket.nonce, holder, queue=queue)
            if granted:
                return granted
        return self._waiting(ticket.nonce, None, queue=queue)

    def _add(self, claim: _Claim, deadline: float) -> Awaitable[Granted | None]:
        """The grant, if nothing was there."""
        request = meta.add(claim.key, claim.seconds, value_of(claim.ticket.nonce, 0, claim.body))
        return self._put(claim, request, None, 0, deadline)

    def _take_over(
        self, claim: _Claim, life: Life, item: Reply, value: Value | None, deadline: float
    ) -> Awaitable[Granted | None]:
        """The grant, if that item is still there: nobody's, or ours by a write that got no answer.

        Ours is written once more, because nobody knows when its time began.
        """
        fence, late_until = 0, 0.0
        if value is not None:
            fence, claim = value.fence or self.fence_of(life, item.version), replace(claim, body=value.body)
        else:  # what it stood there for may come after us as well
            late_until = self._runtime.now() + item.left
        request = meta.replace(claim.key, item.version, claim.seconds, value_of(claim.ticket.nonce, fence, claim.body))
        return self._put(claim, request, life, fence, deadline, late_until=late_until)

    async def _put(
        self, claim: _Claim, request: bytes, life: Life | None, fence: int, deadline: float, *, late_until: float = 0.0
    ) -> Granted | None:
        """The grant, if that is done: on that life of the server, or on any. A fence of 0 is told by the reply only.

        What gets no answer may still be done, and has to be reckoned with. Once this one has taken its place, so has a
        request of another ticket that may be done until `late_until`.
        """
        ticket, node = claim.ticket, claim.node
        pulse, sent = self._pulses[node], self._runtime.now()
        here = pulse.life
        if here is None or pulse.is_in_doubt(sent):
            here = await self._in_time(node, deadline)
            sent = self._runtime.now()
        here = life or here
        try:
            reply = self._at_once(node, request, here, sent, deadline)
            if reply is None:
                here, reply = await self._ask_one(node, request, life, deadline)
        except BaseException as error:
            # No answer, or cancelled or interrupted before it.
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError):
                self._is_late(ticket.nonce, max(late_until, self._runtime.now() + LATE_MAX))
            raise
        if reply is None or reply.code != "HD":
            return None
        if late_until:
            self._is_late(ticket.nonce, late_until)
        if not fence:
            if not reply.version:  # one that does not say which version it has made: read it
                return None
            fence = self.fence_of(here, reply.version)
        self._pauses.pop(ticket.nonce, None)
        return Granted(fence, self._believed(ticket, sent, Held(here, reply.version, fence, claim.body)))

    def _is_late(self, nonce: str, until: float) -> None:
        self._late[nonce] = max(until, self._late.get(nonce, 0.0))

    def _waiting(self, nonce: str, holder: str | None, *, queue: bool) -> Waiting:
        pause = min(POLL_MAX, POLL_GROWTH * self._pauses.get(nonce, POLL_MIN / POLL_GROWTH))
        if queue:
            self._pauses[nonce] = pause
        return Waiting(pause * (0.5 + self._runtime.jitter() / 2), holder)

    async def wait(self, ticket: Ticket, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    # ── give back ────────────────────────────────────────────────────────────────────────────────────────────────

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        if len(tickets) == 1:  # a release, as nearly all of them are
            (ticket,) = tickets
            held = self._held.get(ticket.nonce)
            if held is not None and ticket.nonce not in self._late:
                key = key_of(self._prefix, ticket.name)
                node, request = home_of(key, self._nodes), self._deletion(key, ticket, held)
                reply = self._at_once(node, request, held.life, self._runtime.now(), deadline)
                if reply is None:
                    _, reply = await self._ask_one(node, request, held.life, deadline)
                if reply is not None and reply.code == "HD":
                    self._held.pop(ticket.nonce, None)
                    return [True]
                return [await self._left(ticket, reply, deadline)]
        known = [ticket for ticket in tickets if ticket.nonce not in self._late]
        _, said = await self._at_versions(known, self._deletion, deadline)
        return [await _or_error(self._left(ticket, said.get(ticket.nonce), deadline)) for ticket in tickets]

    async def _left(self, ticket: Ticket, said: Reply | BackendError | None, deadline: float) -> bool:
        if isinstance(said, BackendError):
            raise said
        if said is None or said.code == "EX":
            was_ours = await self._give_back(ticket, deadline)
        else:
            was_ours = said.code == "HD"
        self._held.pop(ticket.nonce, None)
        self._late.pop(ticket.nonce, None)
        self._pauses.pop(ticket.nonce, None)
        return was_ours

    async def _give_back(self, ticket: Ticket, deadline: float) -> bool:
        """Whatever version it has by now; and so that a write of ours that is still on its way comes to nothing.

        Raises:
            OutcomeUnknown: that is not possible while somebody else has the lock; to be tried again.
        """
        key = key_of(self._prefix, ticket.name)
        node = home_of(key, self._nodes)
        for _ in range(_ROUNDS):
            life, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            is_ours = value is not None and value.nonce == ticket.nonce
            late_for = math.ceil(self._late.get(ticket.nonce, 0.0) - self._runtime.now())
            if late_for <= 0:
                if not is_ours:
                    return False
                request = meta.delete(key, item.version)
            elif item.code == "EN":
                request = meta.add(key, late_for + EARLY, FREE)
            elif is_ours or item.value == FREE:
                seconds = late_for + EARLY if is_ours else max(late_for + EARLY, item.left)
                request = meta.replace(key, item.version, seconds, FREE)
            else:
                break
            answer = await self._ask(Errand(node, (request,), life), deadline)
            if answer.replies and answer.replies[0].code == "HD":
                return is_ours
        why = "what was sent for a ticket that has gone may still be done"
        raise errors.no_answer(self.url, node, why)

    # ── renew ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        late: dict[Node, BackendError] = {}
        homes = [home_of(key_of(self._prefix, ticket.name), self._nodes) for ticket in tickets]
        nodes = list(dict.fromkeys(homes))
        for node in nodes:
            now = self._runtime.now()
            try:  # one that does not answer must leave time for the others
                await self._in_time(node, deadline if len(nodes) == 1 else now + (deadline - now) / 2)
            except BackendError as error:
                late[node] = error
        pairs = list(zip(tickets, homes, strict=True))
        now = self._runtime.now()
        known = (ticket for ticket, node in pairs if node not in late and not self._pulses[node].is_in_doubt(now))
        sent, said = await self._at_versions(known, self._renewal, deadline)
        return [
            await _or_error(self._renewed(ticket, late.get(node, said.get(ticket.nonce)), sent, deadline))
            for ticket, node in pairs
        ]

    async def _renewed(
        self, ticket: Ticket, said: Reply | BackendError | None, sent: float, deadline: float
    ) -> Live | LeaseGone:
        if isinstance(said, BackendError):
            raise said
        if said is None or said.code == "EX":
            return await self._prolong(ticket, deadline)
        held = self._held.get(ticket.nonce)
        if said.code != "HD" or held is None:
            return _GONE
        return Live(self._believed(ticket, sent, Held(held.life, said.version, held.fence, held.body)))

    async def _prolong(self, ticket: Ticket, deadline: float) -> Live | LeaseGone:
        """Whatever version it has by now."""
        key = key_of(self._prefix, ticket.name)
        node = home_of(key, self._nodes)
        for _ in range(_ROUNDS):
            life, item = await self._read(node, key, deadline)
            value = Value.parse(item.value)
            if value is None or value.nonce != ticket.nonce:
                return _GONE
            held = Held(life, item.version, value.fence or self.fence_of(life, item.version), value.body)
            await self._in_time(node, deadline)
            sent = self._runtime.now()
            answer = await self._ask(Errand(node, (self._renewal(key, ticket, held),), life), deadline)
            if answer.replies and answer.replies[0].code == "HD":
                held.version = answer.replies[0].version
                return Live(self._believed(ticket, sent, held))
        raise errors.no_answer(self.url, node, "the item changed at every look")

    def intact(self, store: Hashable) -> bool:
        return True

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        key = key_of(self._prefix, name)
        life, item = await self._read(home_of(key, self._nodes), key, deadline)
        return self._shown(name, life, item) or LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        found = []
        for node in self._nodes:
            answer = await self._port.ask(Errand(node, (meta.DUMP,)), deadline=deadline)
            if answer.replies[0].value.startswith(b"ERROR metadump not allowed"):
                raise Unsupported(backend=f"memcached at {node}, which runs with -X,", what="listing its locks")
            self._check(node, answer)
            dumped = (line[4:].partition(b" ")[0] for line in answer.replies[0].lines)
            keys = [key for key in map(unquote_to_bytes, dumped) if key.startswith(self._prefix.encode())]
            for start in range(0, len(keys), _BATCH):
                batch = keys[start : start + _BATCH]
                answer = await self._ask(Errand(node, [meta.read(key) for key in batch]), deadline)
                for key, item in zip(batch, answer.replies, strict=True):
                    value = Value.parse(item.value)
                    name = name_of(self._prefix, key) if value is None else value.described()[3]
                    if name and name.startswith(prefix) and (info := self._shown(name, answer.life, item)):
                        found.append(info)
        return sorted(found, key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        key = key_of(self._prefix, name)
        node = home_of(key, self._nodes)
        life, item = await self._read(node, key, deadline)
        value = Value.parse(item.value)
        if value is None or (value.fence or self.fence_of(life, item.version)) != fence:
            return False
        answer = await self._ask(Errand(node, (meta.delete(key, item.version),), life), deadline)
        if answer.replies and answer.replies[0].code == "EX":  # renewed meanwhile, or another's by now
            return await self.break_lock(name, fence, deadline=deadline)
        return bool(answer.replies) and answer.replies[0].code == "HD"

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._marks().put(name, number, nonce, keep, deadline)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._marks().get(names, deadline)

    def _marks(self) -> Marks:
        return Marks(self.url, self._prefix, self._nodes, self._ask, self._in_time)

    async def close(self) -> None:
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def fence_of(life: Life, version: int) -> int:
        return (life.started << _FENCE_SHIFT) + version

    @staticmethod
    def _seconds(ttl: float) -> int:
        return seconds_for(ttl)

    def _deletion(self, key: bytes, _: Ticket, held: Held) -> bytes:
        return meta.delete(key, held.version)

    def _renewal(self, key: bytes, ticket: Ticket, held: Held) -> bytes:
        value = value_of(ticket.nonce, held.fence, held.body)
        return meta.replace(key, held.version, self._seconds(ticket.ttl), value)

    def _shown(self, name: str, life: Life, item: Reply) -> LockInfo | None:
        """The lock, if somebody has it."""
        if item.code == "EN" or item.value == FREE:
            return None
        value = Value.parse(item.value)
        since, agent, info, _ = (0.0, "another program", "", "") if value is None else value.described()
        holder = make_ticket_info(
            info=info,
            fence=0 if value is None else value.fence or self.fence_of(life, item.version),
            agent=agent,
            since=since,
            remaining=float("inf") if item.left < 0 else item.left - (EARLY if value else 0),
            exclusive=True,
            limit=1,
        )
        return LockInfo(name, (holder,), ())

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _in_time(self, node: Node, deadline: float) -> Life:
        """Return when the server's clock is known to go: only then may something be sent that starts a timer there.

        Raises:
            BackendUnavailable: it stands still.
        """
        pulse = self._pulses[node]
        while pulse.life is None or pulse.is_in_doubt(self._runtime.now()):
            sent = self._runtime.now()
            answer = self._check(node, await self._port.ask(Errand(node, (meta.STATS,)), deadline=deadline))
            facts, now = answer.replies[0].facts(), self._runtime.now()
            pulse.was_heard(sent, answer.life)
            pulse.evictions = int(facts.get("evictions", 0))
            if not pulse.is_going(int(facts["time"]), sent, now, self._runtime.wall()):
                if now + _CLOCK_LOOK >= deadline:
                    raise BackendUnavailable(
                        backend=self.url,
                        problem=f"{node}: its clock stands still; has it been stopped, or is it too busy?",
                    )
                await self._runtime.sleep(_CLOCK_LOOK)
        return pulse.life

    async def _ask(self, errand: Errand, deadline: float) -> Answer:
        sent = self._runtime.now()
        answer = await self._port.ask(errand, deadline=deadline)
        self._pulses[errand.node].was_heard(sent, answer.life)
        return self._check(errand.node, answer)

    async def _ask_one(
        self, node: Node, request: bytes, life: Life | None, deadline: float
    ) -> tuple[Life, Reply | None]:
        """A single request; no reply, and nothing was sent, if that life is over."""
        answer = await self._ask(Errand(node, (request,), life), deadline)
        return answer.life, answer.replies[0] if answer.replies else None

    def _at_once(self, node: Node, request: bytes, life: Life, sent: float, deadline: float) -> Reply | None:
        """The same without a coroutine in between, where the port can do that: it is felt beside a round trip."""
        reply = self._port.at_once(node, request, life, sent, deadline)
        if reply is not None:
            self._pulses[node].was_heard(sent, life)
            if reply.code != "HD" and reply.is_error:
                raise errors.refusal(reply, self.url, node)
        return reply

    def _check(self, node: Node, answer: Answer) -> Answer:
        for reply in answer.replies:
            if reply.is_error:
                raise errors.refusal(reply, self.url, node)
        return answer

    async def _read(self, node: Node, key: bytes, deadline: float) -> tuple[Life, Reply]:
        answer = await self._ask(Errand(node, (meta.read(key),)), deadline)
        return answer.life, answer.replies[0]

    async def _at_versions(
        self, tickets: Iterable[Ticket], request: Callable[[bytes, Ticket, Held], bytes], deadline: float
    ) -> tuple[float, dict[str, Reply | BackendError]]:
        """One request for each, about the version that we know of it; when they were sent, and what came of them.

        Those of which no version is known, or one of another run of the server, have no entry.
        """
        sent = self._runtime.now()
        errands: dict[tuple[Node, Life], list[tuple[Ticket, bytes]]] = {}
        for ticket in tickets:
            held = self._held.get(ticket.nonce)
            if held is not None:
                key = key_of(self._prefix, ticket.name)
                asked = errands.setdefault((home_of(key, self._nodes), held.life), [])
                asked.append((ticket, request(key, ticket, held)))
        packed = [Errand(node, [one for _, one in asked], life) for (node, life), asked in errands.items()]
        said: dict[str, Reply | BackendError] = {}
        if len(packed) == 1:
            answers: Sequence[Answer | HoldfastError] = [await self._port.ask(packed[0], deadline=deadline)]
        else:
            answers = await self._port.ask_each(packed, deadline=deadline) if packed else ()
        for errand, asked, answer in zip(packed, errands.values(), answers, strict=True):
            if isinstance(answer, BackendError):
                said.update((ticket.nonce, answer) for ticket, _ in asked)
                continue
            if isinstance(answer, HoldfastError):
                raise answer
            self._pulses[errand.node].was_heard(sent, answer.life)
            for (ticket, _), reply in zip(asked, answer.replies, strict=False):  # none from another life
                said[ticket.nonce] = errors.refusal(reply, self.url, errand.node) if reply.is_error else reply
        return sent, said

    def _believed(self, ticket: Ticket, sent: float, held: Held) -> float:
        """Until when; and what is known of the item is noted."""
        ends = lease_deadline(sent, ticket.ttl, GRANULARITY)
        held.deadline = ends
        self._held[ticket.nonce] = held
        if len(self._held) > self._room:
            now = self._runtime.now()
            for old, one in list(self._held.items()):
                if one.deadline < now:
                    self._held.pop(old, None)
            self._room = _ROOM + 2 * len(self._held)
        return ends


async def _or_error(answer: Awaitable[T]) -> T | BackendError:
    try:
        return await answer
    except BackendError as error:
        return error

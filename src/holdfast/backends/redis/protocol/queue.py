"""The lock protocol on Redis, `method=queue`: first come, first served. Each step is one script on the server.

The scripts in lua/queue are the protocol; this file decides when to run which. A waiter is notified by pub/sub when it
is its turn. Correctness does not depend on notifications: every waiter also polls, and polls at once if a notification
may have been missed. A notification with a fence is the grant itself and saves the poll (core/handovers.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from holdfast.backends.local_handover import break_in_use
from holdfast.backends.redis.lua import load, load_all
from holdfast.backends.redis.port import Call, Channel, PreparesCalls, RedisPort, Reply, Word, call_of
from holdfast.backends.redis.protocol import getset, setnx
from holdfast.backends.redis.protocol.base import BaseRedisBackend, renewed
from holdfast.backends.redis.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.redis.protocol.index import IndexSource
from holdfast.backends.redis.protocol.keys import (
    OtherKeys,
    keys_for_one_script,
    keys_of_locks,
    method_conflict,
    method_in,
    queue_keys,
)
from holdfast.backends.redis.protocol.records import Line, describe, limit_of, line_suffix
from holdfast.backends.redis.protocol.registers import ScriptRecords
from holdfast.backends.redis.protocol.scanning import Lister, Pacer
from holdfast.backends.redis.protocol.server_info import guarantees_on
from holdfast.backends.redis.protocol.watchers import Watchers
from holdfast.core.clock import lease_deadline
from holdfast.core.handovers import QueueEntry, take_handover
from holdfast.core.local_handover import with_waiting, without_caller
from holdfast.core.notifications import Notifications
from holdfast.core.ports import Backend, PreparedRequests, Runtime
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Waiting,
    granted_of,
    may_have_happened,
    process_text,
)
from holdfast.errors import BackendError, HoldfastError, LimitConflict, NameConflict, OutcomeUnknown
from holdfast.guarantees import Guarantees, Order

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig


GRANULARITY = 0.002  # seconds: the server counts whole milliseconds, here and in its scripts
FOREIGN_POLL = 0.1  # longest interval in seconds between polls while another program holds the lock and will not notify
# The second in the queue polls often too, because it has to notice if the first one does not poll in its turn.
_POLL_OFTEN = 2
_FOREIGN, _ITS_TURN = 1, 2  # types of blockers in replies of try_acquire.lua

# The parts of a script, in the order in which load() joins them.
_WAITERS = ("publish", "silence", "common")
_PARTS = ("layout", "try_acquire_free", "fences", "join", *_WAITERS, "try_acquire")
_TRY_ACQUIRE = load("queue", *_PARTS, is_grant=True)
_TRY_ACQUIRE_ALL = load_all("queue", *_PARTS, keys=7)
_RELEASE = load("queue", "layout", "release_unwaited", "fences", "publish", "silence", "hand_over", "common", "release")
_RENEW = load("queue", "layout", "fences", "renew_alone", *_WAITERS, "renew", is_grant=True)
_RENEW_MANY = load("queue", "layout", "fences", "renew_many", is_grant=True)
_NOT_RENEWED = 2  # in replies of renew_many.lua
_ADOPT = load("queue", "layout", "fences", *_WAITERS, "adopt", is_grant=True)
_INSPECT = load("queue", "layout", "fences", "inspect")
_BREAK = load("queue", "layout", "fences", *_WAITERS, "break")
_EXTEND_TURN = load("queue", "layout", "fences", "extend_turn", is_grant=True)
_END_RANGE = load("queue", "layout", "fences", "end_range", is_grant=True)
_OTHERS_WAIT = -1  # a reply of extend_turn.lua


def backend_on(port: RedisPort, config: RedisConfig, runtime: Runtime) -> Backend:
    """The protocol of the configured method on this port."""
    if config.method == "setnx":
        return setnx.SetnxBackend(config.url, port, runtime, prefix=config.prefix)
    if config.method == "getset":
        return getset.GetsetBackend(config.url, port, runtime, prefix=config.prefix)
    if config.compat == "python-redis-lock":
        return QueueBackend(
            config.url, port, runtime, prefix="lock:", per_slot=False, signals="lock-signal:", hand_over=False
        )
    # Without a prefix, other programs may use the same lock, and they need a moment at which it is free. With
    # replicas=, the new holder has to send a request that the replicas confirm.
    hand_over = config.prefix != "" and not config.replicas
    is_cluster = config.shape == "cluster"
    return QueueBackend(
        config.url,
        port,
        runtime,
        prefix=config.prefix,
        per_slot=is_cluster,
        hand_over=hand_over,
        local_handover=config.local_handover and hand_over,
    )


class QueueBackend(BaseRedisBackend[OtherKeys], ScriptRecords):
    """Locks on one deployment of Redis, granted in order of arrival."""

    lacks = LACKS["queue"]
    has_index = True
    _entry_type = QueueEntry

    def __init__(
        self,
        url: str,
        port: RedisPort,
        runtime: Runtime,
        *,
        prefix: str,
        per_slot: bool,
        signals: str | None = None,
        hand_over: bool = True,
        local_handover: bool = False,
    ) -> None:
        """`per_slot`: on a Cluster, the locks in each slot have their own watermark and index.

        `signals` is the prefix of the keys with which another library wakes the waiters of its locks.

        With `hand_over`, the release of another ticket may grant the lock to a ticket of this client. With
        `local_handover`, callers of this client pass their leases on to each other.
        """
        super().__init__(url, port, runtime, prefix=prefix)
        self._subscriber = port.subscriber
        self._signals = signals
        self._notifications = Notifications(self._subscriber, runtime, url)
        self._hand_over = hand_over
        self.hands_over_locally = local_handover
        self._watchers = Watchers(runtime)
        self._per_slot = per_slot
        # Cached by the name alone, because every request makes this call.
        self._keys = functools.lru_cache(maxsize=4096)(functools.partial(queue_keys, prefix, per_slot=per_slot))
        pacer = Pacer(runtime)
        source = IndexSource(port, runtime, pacer, prefix, per_slot=per_slot)
        self._lister = Lister(
            source, runtime, prefix, self._read_locks, name_in=lambda key: key.removeprefix(prefix), pacer=pacer
        )

    @property
    def guarantees(self) -> Guarantees:
        guarantees = guarantees_on(GUARANTEES["queue"], self._port.server_info)
        return guarantees if self.hands_over_locally else guarantees._replace(order=Order.FIFO)

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        sent = self._runtime.now()
        keys = self._keys(claim.name)
        if claim.state is not None:
            handed = take_handover(claim, sent, GRANULARITY)
            if handed is not None and self._port.trusts_message(keys, handed.polled_at):
                self._stop_waiting(claim, sent)
                claim.reserved = handed.reserved
                return handed.granted
        channel = self._subscriber.channel(keys)
        subscription = self._subscriber.subscription(channel)
        if queue and subscription:
            self._notifications.expect(claim, channel)
        arguments = self._acquire_arguments(claim, channel, queue=queue, is_subscribed=subscription != 0)
        try:
            reply = await self._port.run(call_of((_TRY_ACQUIRE, keys, arguments)), deadline=deadline)
        except BaseException as error:
            if may_have_happened(error):
                claim.unanswered = True
            else:
                self._notifications.refused(claim)
            raise
        if reply.__class__ is int:
            if claim.queued or claim.subscription or claim.channel is not None:
                self._stop_waiting(claim, sent)
            return granted_of((reply, lease_deadline(sent, claim.ttl, GRANULARITY), None))
        if reply[0] != b"wait":
            self._notifications.refused(claim)
        return self._result_of(claim, reply, sent)

    def prepare_requests(self, claim: Claim) -> PreparedRequests | None:
        port = self._port
        if not isinstance(port, PreparesCalls):
            return None
        keys = self._keys(claim.name)
        channel = self._subscriber.channel(keys)
        acquire, try_acquire = (
            port.prepare(
                Call(
                    _TRY_ACQUIRE,
                    keys,
                    self._acquire_arguments(claim, channel, queue=queue, is_subscribed=False),
                )
            )
            for queue in (True, False)
        )
        release = port.prepare(self._release_call(claim))
        if acquire is None:
            return None
        return PreparedRequests(
            port.exchange_now,
            acquire,
            try_acquire,
            release,
            lease_deadline(0.0, claim.ttl, GRANULARITY),
            self._subscriber.channels,
            self._read_reply,
        )

    def _read_reply(self, claim: Claim, reply: Reply, sent: float) -> Granted | Waiting | None:
        return None if isinstance(reply, Exception) else self._result_of(claim, reply, sent)

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        locks = keys_for_one_script(self._port, self._keys, claims)
        if len(locks) == 1:
            return [await self.try_acquire(claims[0], queue=False, deadline=deadline)]
        arguments: list[Word] = []
        for claim, keys in zip(claims, locks, strict=False):
            channel = self._subscriber.channel(keys)
            is_subscribed = self._subscriber.subscription(channel) != 0
            arguments += self._acquire_arguments(claim, channel, queue=False, is_subscribed=is_subscribed)
        sent = self._runtime.now()
        replies = await self._run_for_all(_TRY_ACQUIRE_ALL, locks, claims, arguments, deadline)
        return [self._result_of(claim, reply, sent) for claim, reply in zip(claims, replies, strict=False)]

    async def wait(self, claim: Claim, until: float) -> None:
        channel = self._subscriber.channel(self._keys(claim.name))
        notification = await self._notifications.wait(claim, channel, until)
        entry: QueueEntry | None = claim.state
        if entry is not None and notification is not None and notification.fence:
            entry.fence, entry.reserved = notification.fence, notification.reserved

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        if len(claims) == 1:
            (claim,) = claims
            try:
                reply = await self._port.run(self._release_call(claim), deadline=deadline)
            except NameConflict as error:
                reply = error
            return [self._released(claim, reply)]
        replies = await self._port.run_all([self._release_call(claim) for claim in claims], deadline=deadline)
        return [self._released(claim, reply) for claim, reply in zip(claims, replies, strict=True)]

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        sent = self._runtime.now()
        replies = await self._renew_many(claims, deadline)
        unrenewed = [claim for claim in claims if replies.get(claim.nonce, _NOT_RENEWED) == _NOT_RENEWED]
        calls = [
            Call(_RENEW, self._keys(claim.name), (claim.nonce, _kind(claim), math.ceil(claim.ttl * 1000)))
            for claim in unrenewed
        ]
        if calls:
            single_replies = await self._port.run_all(calls, deadline=deadline)
            replies |= {claim.nonce: reply for claim, reply in zip(unrenewed, single_replies, strict=True)}
        return [renewed(replies[claim.nonce], lease_deadline(sent, claim.ttl, GRANULARITY)) for claim in claims]

    async def _renew_many(self, claims: Sequence[Claim], deadline: float) -> dict[str, Reply]:
        """Renew exclusive leases by one script, because a script for each costs much more. Returns replies by nonce."""
        plain = [claim for claim in claims if claim.exclusive and not claim.owner]
        if len(plain) < 2 or self._per_slot:  # noqa: PLR2004  (a Cluster accepts the keys of one slot only)
            return {}
        words: list[Word] = []
        for claim in plain:
            words += (claim.nonce, math.ceil(claim.ttl * 1000))
        keys = keys_of_locks([self._prefix + claim.name for claim in plain])
        try:
            replies = await self._port.run(Call(_RENEW_MANY, keys, tuple(words)), deadline=deadline)
        except NameConflict:  # one of the keys has another type now: a script for each finds it
            return {}
        return {claim.nonce: reply for claim, reply in zip(plain, replies, strict=True)}

    async def extend_turn(
        self, claim: Claim, successor: Claim, fences: int, *, may_stay: bool, deadline: float
    ) -> Granted | Waiting | LeaseGone:
        keys, ttl_ms = self._keys(claim.name), math.ceil(claim.ttl * 1000)
        info = without_caller(successor.info)  # later fences of the range belong to other callers
        about = line_suffix(self._subscriber.channel(keys), ttl_ms, successor.agent, info, is_subscribed=True)
        sent = self._runtime.now()
        call = Call(_EXTEND_TURN, keys, (claim.nonce, ttl_ms, fences, 1 if may_stay else 0, about))
        reply = await self._port.run(call, deadline=deadline)
        if reply == _OTHERS_WAIT:
            return Waiting(0.0)
        return Granted(reply, lease_deadline(sent, claim.ttl, GRANULARITY)) if reply else LeaseGone()

    async def renew_alone(self, claim: Claim, holder: Claim, fence: int, *, deadline: float) -> Live | LeaseGone:
        keys, ttl_ms = self._keys(claim.name), math.ceil(claim.ttl * 1000)
        channel = self._subscriber.channel(keys)
        about = line_suffix(channel, ttl_ms, holder.agent, holder.info, is_subscribed=True)
        sent = self._runtime.now()
        reply = await self._port.run(Call(_END_RANGE, keys, (claim.nonce, ttl_ms, fence, about)), deadline=deadline)
        return Live(lease_deadline(sent, claim.ttl, GRANULARITY)) if reply else LeaseGone()

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        keys = self._keys(claim.name)
        about = line_suffix(self._subscriber.channel(keys), 0, claim.agent, claim.info, is_subscribed=False)
        sent = self._runtime.now()
        call = Call(_ADOPT, keys, (nonce, claim.nonce, math.ceil(claim.ttl * 1000), about))
        fence = await self._port.run(call, deadline=deadline)
        return Granted(fence, lease_deadline(sent, claim.ttl, GRANULARITY)) if fence > 0 else LeaseGone()

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        reply = await self._port.run(Call(_INSPECT, self._keys(name), ()), deadline=deadline)
        return describe(name, reply)

    async def _read_locks(self, names: Sequence[str], deadline: float) -> Callable[[], list[LockInfo]]:
        calls = [Call(_INSPECT, self._keys(name), ()) for name in names]
        replies = await self._port.run_all(calls, deadline=deadline)
        return lambda: self._in_use(names, replies)

    def _in_use(self, names: Sequence[str], replies: Sequence[Any]) -> list[LockInfo]:
        infos = []
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, BackendError):
                raise reply
            if not isinstance(reply, HoldfastError):  # a key of another type is not a lock
                infos.append(describe(name, reply))
        return [info for info in infos if info.holders or info.waiters]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        async def request() -> bool | tuple[int, int]:
            reply = await self._break(name, fence, deadline, is_forced=False)
            if not isinstance(reply, list):
                return bool(reply)
            first, last = reply
            return int(first), int(last)

        return await break_in_use(request, name=name, url=self.url, runtime=self._runtime, deadline=deadline)

    async def break_range(self, name: str, fence: int, *, deadline: float) -> bool:
        return bool(await self._break(name, fence, deadline, is_forced=True))

    async def _break(self, name: str, fence: int, deadline: float, *, is_forced: bool) -> Reply:
        signal = "" if self._signals is None else self._signals + name
        call = Call(_BREAK, self._keys(name), (fence, signal, 1 if is_forced else 0))
        return await self._port.run(call, deadline=deadline)

    async def close(self) -> None:
        self._notifications.wake_all()
        await super().close()

    def _result_of(self, claim: Claim, reply: Reply, sent: float) -> Granted | Waiting:
        if isinstance(reply, int):
            return Granted(reply, lease_deadline(sent, claim.ttl, GRANULARITY))
        if reply[0] == b"wait":
            *blocker, number = reply[1:]
            waiting = self._waiting(*blocker)
            if number:
                claim.queued = True
                claim.state = self._entry_type(sent, int(number) if number.isdigit() else 0)
                next_poll = self._watchers.next_poll(claim, self._runtime.now())
                waiting = waiting._replace(poll_after=min(waiting.poll_after, next_poll))
            return waiting
        raise self._refusal(claim, reply)

    def _acquire_arguments(
        self, claim: Claim, channel: Channel, *, queue: bool, is_subscribed: bool
    ) -> tuple[Word, ...]:
        is_plain = claim.exclusive and not claim.owner
        ttl_ms = math.ceil(claim.ttl * 1000)
        return (
            claim.nonce,
            "x" if is_plain else _kind(claim),
            ttl_ms,
            1 if queue else 0,
            line_suffix(
                channel,
                ttl_ms if is_plain and self._hand_over else 0,
                claim.agent,
                with_waiting(claim.info, claim.waiting) if claim.waiting else claim.info,
                is_subscribed=is_subscribed,
            ),
        )

    def _release_call(self, claim: Claim) -> Call:
        signal = "" if self._signals is None else self._signals + claim.name
        kind = "x" if claim.exclusive and not claim.owner else _kind(claim)
        return call_of((_RELEASE, self._keys(claim.name), (claim.nonce, kind, 1 if claim.unanswered else 0, signal)))

    def _released(self, claim: Claim, reply: Reply | HoldfastError) -> bool | BackendError:
        if isinstance(reply, BackendError):
            return reply
        # A key of another type is not ours any more, so the ticket is released in that case too.
        if claim.queued or claim.subscription or claim.channel is not None:
            self._stop_waiting(claim, self._runtime.now())
        claim.state, claim.unanswered = None, False
        return reply.__class__ is int and reply == 1

    def _stop_waiting(self, claim: Claim, now: float) -> None:
        """The ticket is granted or withdrawn."""
        claim.queued = False
        self._notifications.stop(claim)
        successor = self._watchers.stop(claim, now)
        if successor is not None:
            self._notifications.wake(successor)

    def _waiting(self, ahead: int, remaining_ms: int, line: bytes, blocker_type: int) -> Waiting:
        """From the number of tickets ahead in the queue, and the ticket that blocks this one."""
        poll_after = POLL_INTERVAL if ahead < _POLL_OFTEN else POLL_INTERVAL_BEHIND
        if blocker_type == _FOREIGN:
            if ahead == 0:
                poll_after = FOREIGN_POLL * (0.5 + self._runtime.jitter() / 2)
            return Waiting(poll_after, "another program")
        # A poll after the end of the current ticket's turn wakes the next one.
        if (ahead == 0 or blocker_type == _ITS_TURN) and remaining_ms >= 0:
            poll_after = min(poll_after, remaining_ms / 1000 + GRANULARITY)
        return Waiting(poll_after, process_text(Line(line).info) if line else None)

    def _refusal(self, claim: Claim, reply: list[Any]) -> HoldfastError:
        match reply:
            case [b"limit", kind, line]:
                holder = process_text(Line(line).info) if line else None
                return LimitConflict(lock=claim.name, ours=claim.limit, theirs=limit_of(kind.decode()), holder=holder)
            case [b"method", value]:
                return method_conflict(claim.name, method_in(value.decode()) or "?")
            case _:
                return OutcomeUnknown(backend=self.url, problem=f"ticket {claim.nonce} was withdrawn before")


def _kind(claim: Claim) -> str:
    """The kind of a ticket, as in layout.lua: "x", "r", a semaphore's limit, or "@<owner>"."""
    if claim.exclusive:
        return "x" if not claim.owner else _owner(claim.owner)
    return "r" if claim.limit is None else str(claim.limit)


@functools.lru_cache(maxsize=256)
def _owner(name: str) -> str:
    """A digest of an owner's name that can be part of a key's value and of a member."""
    return f"@{blake2b(name.encode(), digest_size=16).hexdigest()}"

"""The Redis protocols with one bug each: typical mistakes with SETNX, with pub/sub, and in Lua.

A mutated script is the shipped one with one fragment replaced. If a fragment no longer exists, `edited` raises an error
that names it, and the mutant has to be updated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.redis.lua import CONSTANTS
from holdfast.backends.redis.protocol import getset, queue, setnx
from holdfast.backends.redis.protocol.getset import GetsetBackend
from holdfast.backends.redis.protocol.keys import GETSET, SETNX, Keys, OtherKeys, register_key
from holdfast.backends.redis.protocol.queue import GRANULARITY, QueueBackend
from holdfast.backends.redis.protocol.setnx import SetnxBackend
from holdfast.backends.redis.protocol.watchers import Watchers
from holdfast.core.clock import lease_deadline
from holdfast.core.notifications import Notifications
from holdfast.core.tickets import Claim, Granted, Notification, Waiting
from holdfast_lab.sim.mutants.base import CountedFromNotification, Mutant, WithoutNumber
from holdfast_lab.sim.servers.redis.port import PREFIX
from holdfast_lab.sim.servers.redis.server import GetsetServer, RedisServer, SetnxServer

if TYPE_CHECKING:
    from holdfast.backends.redis.lua import Script
    from holdfast.backends.redis.port import Call, Channel, RedisPort
    from holdfast.core.ports import Runtime

_RENEWALS = (queue._RENEW, queue._RENEW_MANY)
_QUEUE = (queue._TRY_ACQUIRE, queue._TRY_ACQUIRE_ALL, queue._RELEASE, *_RENEWALS, queue._BREAK)
_SETNX = (setnx._TRY_ACQUIRE, setnx._TRY_ACQUIRE_ALL, setnx._RELEASE, setnx._RENEW)


def edited(scripts: tuple[Script, ...], *edits: tuple[str, str]) -> dict[str, str]:
    """The texts of these scripts with each fragment replaced. It must occur in a script, and at most once in each."""
    texts = {script.name: script.text for script in scripts}
    for old, new in edits:
        containing = [name for name, text in texts.items() if old in text]
        for name in containing:
            if texts[name].count(old) != 1:
                raise AssertionError(f"{name} contains {old!r} more than once")
            texts[name] = texts[name].replace(old, new)
        if not containing:
            raise AssertionError(f"no script contains {old!r} any more")
    return texts


def _queue(*edits: tuple[str, str]) -> type[RedisServer]:
    return type("Edited", (RedisServer,), {"texts": edited(_QUEUE, *edits)})


def _with(backend: Callable[..., Any], **more: Any) -> type[RedisServer]:
    return type("Mutated", (RedisServer,), {"backend": backend, **more})


class HandOverUndone(RedisServer):
    """A release checks only after its message whether the next client is subscribed here. A former bug."""

    texts: ClassVar = edited(_QUEUE, ("if is_live and has_subscriber(channel, command) then", "if is_live then"))
    switches, noticed_max = 1.0, 10.0


# ── SETNX ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SetnxThenExpire(SetnxBackend):
    """SETNX and PEXPIRE as two commands, as in many tutorials."""

    async def _try_take(self, claim: Claim, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent = self._runtime.now()
        seconds, microseconds = await self._port.command(keys, "TIME", deadline=deadline)
        fence = int(seconds) * 1_000_000 + int(microseconds)
        mine = f"{SETNX}{claim.nonce}:{fence}"
        if not await self._port.command(keys, "SETNX", keys.lock, mine, deadline=deadline):
            value = await self._port.command(keys, "GET", keys.lock, deadline=deadline)
            if value is None or not value.startswith(f"{SETNX}{claim.nonce}:".encode()):
                return (value or b"").decode(), math.inf
            fence = int(value.rpartition(b":")[2])
        await self._port.command(keys, "PEXPIRE", keys.lock, math.ceil(claim.ttl * 1000), deadline=deadline)
        return Granted(fence, lease_deadline(sent, claim.ttl, GRANULARITY))


class SetnxThenExpireServer(SetnxServer):
    backend = SetnxThenExpire


class SetnxDeletesBlindly(SetnxServer):
    texts: ClassVar = edited(
        _SETNX,
        (
            "if value and string.sub(value, 1, #mine) == mine then\n  return redis.call('DEL', KEYS[1])",
            "if value then\n  return redis.call('DEL', KEYS[1])",
        ),
    )


# ── GETSET ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class OwnOverwriteIsGrant(GetsetBackend):
    """A former bug: a client that lost a take-over finds its own nonce at the next poll and takes it for a grant."""

    compares = True

    async def _try_take(self, claim: Claim, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent, wall = self._runtime.now(), self._runtime.wall()
        fence, end = math.floor(wall * 1e6), math.floor((wall + claim.ttl) * 1e6)
        mine = f"{GETSET}{claim.nonce}:{end}:{fence}"
        granted = Granted(fence, lease_deadline(sent, claim.ttl, 0.0))
        if await self._port.command(keys, "SET", keys.lock, mine, "NX", deadline=deadline):
            return granted
        value = await self._port.command(keys, "GET", keys.lock, deadline=deadline)
        if value is None:
            return "", 0.0
        nonce, ends, _ = value.decode().removeprefix(GETSET).split(":")
        remaining = int(ends) / 1e6 + getset.SKEW - self._runtime.wall()
        if nonce != claim.nonce and remaining > 0:
            return value.decode(), remaining
        replaced = await self._port.command(keys, "GETSET", keys.lock, mine, deadline=deadline)
        if replaced == value or not self.compares:
            return granted
        return (replaced or b"").decode(), 0.0


class GetsetWithoutCompare(OwnOverwriteIsGrant):
    compares = False


class OwnOverwriteIsGrantServer(GetsetServer):
    backend = OwnOverwriteIsGrant


class GetsetWithoutCompareServer(GetsetServer):
    backend = GetsetWithoutCompare


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _NeverPolls(Watchers):
    def next_poll(self, claim: Claim, now: float) -> float:
        return math.inf


class NotificationsOnly(QueueBackend):
    """Polls only when the holder's lease would expire, as libraries do that wait on a channel."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str, per_slot: bool) -> None:
        super().__init__(url, port, runtime, prefix=prefix, per_slot=per_slot)
        self._watchers = _NeverPolls(runtime)

    def _waiting(self, ahead: int, remaining_ms: int, line: bytes, blocker_type: int) -> Waiting:
        usual = super()._waiting(ahead, remaining_ms, line, blocker_type)
        return usual._replace(poll_after=max(0.0, remaining_ms / 1000) + GRANULARITY)


# A long waiter lease, so that a waiter that does not poll keeps its queue entry and depends on its notification.
_PATIENT = edited(_QUEUE, (CONSTANTS, CONSTANTS.replace(" = 10000,", " = 100000000,")))


class _Late(Notifications["Channel"]):
    async def wait(self, claim: Claim, channel: Channel, until: float) -> Notification | None:
        self._wakeups.expect(claim)
        claim.subscription, claim.channel = 1, channel
        await self._subscriber.subscribe(channel, claim.nonce, deadline=until)
        return await self._wakeups.wait(claim, until)


class SubscribesTooLate(NotificationsOnly):
    """It misses messages that were published between its poll and its subscription."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str, per_slot: bool) -> None:
        super().__init__(url, port, runtime, prefix=prefix, per_slot=per_slot)
        self._notifications = _Late(port.subscriber, runtime, url)


# ── hand-overs ───────────────────────────────────────────────────────────────────────────────────────────────────────


class CountsFromNotification(QueueBackend):
    """A notification may be late: the server's lease began earlier."""

    _entry_type = CountedFromNotification


class TrustsOldNotifications(QueueBackend):
    """The lease of an earlier hand-over has expired, and another ticket holds the lock."""

    _entry_type = WithoutNumber


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ClientTime:
    """A port that adds the client's own time as the last two arguments."""

    exchange_now = None  # so that all calls go through `run`

    def __init__(self, port: RedisPort, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def run(self, call: Call, *, deadline: float) -> Any:
        return await self._port.run(self._stamped(call), deadline=deadline)

    async def run_all(self, calls: list[Call], *, deadline: float) -> Any:
        return await self._port.run_all([self._stamped(call) for call in calls], deadline=deadline)

    def _stamped(self, call: Call) -> Call:
        seconds, rest = divmod(self._runtime.wall(), 1)
        return call._replace(arguments=(*call.arguments, int(seconds), int(rest * 1e6)))


class ClientTime(QueueBackend):
    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str, per_slot: bool) -> None:
        super().__init__(url, _ClientTime(port, runtime), runtime, prefix=prefix, per_slot=per_slot)  # type: ignore[arg-type]  # it has all methods of one


class ClientTimeServer(RedisServer):
    backend = ClientTime
    texts: ClassVar = {
        name: text.replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
        for name, text in edited(_QUEUE).items()
    }


# ── registers ────────────────────────────────────────────────────────────────────────────────────────────────────────


class RegisterInTwoSteps(QueueBackend):
    """Two clients may read before one of them writes."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        key = register_key(self._prefix, name)
        last = await self._port.command(key, "HMGET", key.lock, "number", "nonce", deadline=deadline)
        if int(last[0] or 0) >= number:
            return bool(last == [b"%d" % number, nonce.encode()])
        await self._port.command(key, "HSET", key.lock, "number", number, "nonce", nonce, deadline=deadline)
        return True


class RefusalIsSuccess(GetsetBackend):
    """After a refusal, an equal number of another client is taken for its own."""

    async def _add(self, keys: OtherKeys, mine: tuple[int, str], deadline: float) -> tuple[int, str]:
        number, _ = await super()._add(keys, mine, deadline)
        return mine if number == mine[0] else (number, "")


class RefusalIsSuccessServer(GetsetServer):
    backend = RefusalIsSuccess


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SideKeyInOtherSlot(RedisServer):
    def run(self, call: Call) -> Any:
        names = list(self._known(call.keys))
        names[1:2] = [f"{PREFIX}queue:{call.keys.lock}"]
        return self.machine.run(call.script.text, names, call.arguments)


class _OtherSideKeys:
    """A port with other side keys than the other clients, as with another prefix that forms the same key."""

    exchange_now = None  # so that all calls go through `run`

    def __init__(self, port: RedisPort) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def run(self, call: Call, *, deadline: float) -> Any:
        return await self._port.run(self._moved(call), deadline=deadline)

    async def run_all(self, calls: list[Call], *, deadline: float) -> Any:
        return await self._port.run_all([self._moved(call) for call in calls], deadline=deadline)

    def _moved(self, call: Call) -> Call:
        keys = call.keys
        if isinstance(keys, OtherKeys):
            return call._replace(keys=keys._replace(names=tuple(map(self._key, keys.names))))
        if isinstance(keys, Keys):
            raise TypeError("keys of another method")
        queue, waiters, shared, sharers = map(self._key, keys.names[1:5])
        return call._replace(keys=keys._replace(queue=queue, waiters=waiters, shared=shared, sharers=sharers))

    @staticmethod
    def _key(key: str) -> str:
        return f"{key}2" if key.endswith(("}:queue", "}:waiters", "}:shared", "}:sharers")) else key


class SideKeysOfThePrefix(RedisServer):
    """Every second client has different side keys."""

    @staticmethod
    def backend(url: str, port: Any, runtime: Runtime, *, prefix: str, per_slot: bool) -> QueueBackend:
        is_other = port._listener.startswith(("b", "d"))
        own: Any = _OtherSideKeys(port) if is_other else port  # it has all methods of a port
        return QueueBackend(url, own, runtime, prefix=prefix, per_slot=per_slot)


# Other rules that would hide that dead waiters do not expire: the expiry of the keys, the end of a turn, and the rules
# that skip waiters.
_WAITERS_STAY = (
    ("local kept = math.max(kept_in(value), now + WAITER_LEASE)", "local kept = now + 1000 * WAITER_LEASE"),
    ("    keep_until(now + WAITER_LEASE)\n", "    keep_until(now + 1000 * WAITER_LEASE)\n"),
    ("(is_dead or is_silent) and -1 or now + WOKEN_LEASE", "is_dead and -1 or now + 100 * WAITER_LEASE"),
    ("local is_dead = publish(entry.about, nonce) == 0", "local is_dead = publish(entry.about, nonce) == -1"),
)

REDIS = [
    Mutant(
        name="side-keys-of-the-prefix",
        mistake="side keys depend on how a key is split into prefix and name: a writer does not see all readers",
        backend="redis",
        server=SideKeysOfThePrefix,
        kinds=frozenset({"slow"}),  # a broken or lost lease would break the fences first
    ),
    Mutant(
        name="redis-dead-waiters-in-turn",
        mistake="when it is the turn of a dead client's waiter, the lock waits for it, and then for its next waiter",
        backend="redis",
        server=_queue(
            ("local is_dead = publish(entry.about, nonce) == 0", "local is_dead = publish(entry.about, nonce) == -1"),
            ("if not channel or channel == own_channel then", "if true then"),
            ("entry.turn = (is_dead or is_silent) and -1 or now", "entry.turn = is_dead and -1 or now"),
            (
                "remaining, blocker_kind = blocker.turn > 0 and blocker.turn - now or -1, blocker.turn > 0 and 2 or 0",
                "remaining, blocker_kind = -1, 0",
            ),
        ),
        kinds=frozenset({"crash"}),
    ),
    Mutant(
        name="setnx-then-expire",
        mistake="the key is set, and its expiry in a second step: a client that dies between the two keeps the lock",
        backend="redis-setnx",
        server=SetnxThenExpireServer,
        kinds=frozenset({"crash", "slow", "pause"}),
        budget=1000,
    ),
    Mutant(
        name="setnx-deletes-blindly",
        mistake="a release deletes the key even if it belongs to another ticket",
        backend="redis-setnx",
        server=SetnxDeletesBlindly,
    ),
    Mutant(
        name="setnx-no-tombstone",
        mistake="a try_acquire that arrives after its own release takes the lock for a ticket without a client",
        backend="redis-setnx",
        server=type(
            "Edited", (SetnxServer,), {"texts": edited(_SETNX, ("if unanswered == '1' then", "if false then"))}
        ),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="getset-without-compare",
        mistake="a client that overwrites an expired lease is granted without comparing the value that it replaced",
        backend="redis-getset",
        server=GetsetWithoutCompareServer,
    ),
    Mutant(
        name="getset-own-overwrite-is-grant",
        mistake="a client that lost a take-over finds its own value, with which it overwrote the winner's: a grant",
        backend="redis-getset",
        server=OwnOverwriteIsGrantServer,
    ),
    Mutant(
        name="queue-deletes-blindly",
        mistake="a release deletes the lock's key although it names another ticket",
        backend="redis",
        server=_queue(
            (
                "if is_held_by(nonce, value) then\n  redis.call('DEL', lock)",
                "if value and value ~= SHARED then\n  redis.call('DEL', lock)",
            )
        ),
    ),
    Mutant(
        name="fence-by-incr",
        mistake="the fence is a counter on the server: a failover to a replica that lags behind gives it twice",
        backend="redis",
        server=_queue(
            ("if number >= tonumber(now_us) then", "if true then"),
            ("if last >= number then", "if true then"),
        ),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="redis-fence-by-clock",
        mistake="the fence is the server's time, without the watermark: after the clock was set back it is less",
        backend="redis",
        server=_queue(
            ("if number >= tonumber(now_us) then", "if false then"),
            ("if last >= number then", "if false then"),
        ),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="redis-hand-over-without-watermark",
        mistake="a hand-over does not write the watermark: after the clock was set back the next fence is less",
        backend="redis",
        server=_queue(
            (
                "    local fence = take_fence(since)\n    if kept < now",
                (
                    "    local last = string.match(value, '^[^\\n]*\\n(%d+)\\n')\n"
                    "    local fence = string.format('%.0f', math.max(last + 1, since))\n    if kept < now"
                ),
            )
        ),
        kinds=frozenset({"step_clock"}),
        budget=1000,
    ),
    Mutant(
        name="redis-newcomer-overtakes",
        mistake="a free lock is granted without a check of the queue: after an expiry a newcomer overtakes the waiters",
        backend="redis",
        server=_queue(("redis.call('EXISTS', queue, waiters, shared) == 0", "redis.call('EXISTS', shared) == 0")),
    ),
    Mutant(
        name="client-time-as-now",
        mistake="the scripts use the client's clock instead of the server's",
        backend="redis",
        server=ClientTimeServer,
    ),
    Mutant(
        name="notifications-only",
        mistake="a waiter relies on pub/sub: after a lost notification it keeps waiting although the lock is free",
        backend="redis",
        server=_with(NotificationsOnly, texts=_PATIENT),
        kinds=frozenset({"lose_notification"}),
    ),
    Mutant(
        name="subscribes-too-late",
        mistake="a waiter does not poll after it has subscribed: the notification may have been sent before",
        backend="redis",
        server=_with(SubscribesTooLate, texts=_PATIENT),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="hand-over-from-notification",
        mistake="after a hand-over the lease is counted from the notification, not from the last poll before it",
        backend="redis",
        server=_with(CountsFromNotification),
        kinds=frozenset({"pause"}),
    ),
    Mutant(
        name="hand-over-by-old-notification",
        mistake="an old notification of a hand-over is trusted although its ticket was queued again since",
        backend="redis",
        server=_with(TrustsOldNotifications),
        kinds=frozenset({"pause"}),
        budget=600,
    ),
    Mutant(
        name="dead-waiters-stay",
        mistake="dead waiters stay in the queue",
        backend="redis",
        server=_queue(("if not entry or entry.lapses <= now then", "if not entry then"), *_WAITERS_STAY),
    ),
    Mutant(
        name="dead-waiters-expire-in-turn",
        mistake="each waiter's lease begins when the one before it has ended: dead waiters expire one after the other",
        backend="redis",
        server=_queue(
            ("now + WAITER_LEASE .. '\\n0", "now + WAITER_LEASE * (1 + redis.call('LLEN', queue)) .. '\\n0"),
            (
                "entry.about = now + WAITER_LEASE, 0, about",
                "entry.about = now + WAITER_LEASE * (1 + redis.call('LLEN', queue)), 0, about",
            ),
            ("lapses = now + WAITER_LEASE, turn", "lapses = now + WAITER_LEASE * redis.call('LLEN', queue), turn"),
            *_WAITERS_STAY,
        ),
        kinds=frozenset({"crash"}),
        budget=1000,
    ),
    Mutant(
        name="side-key-in-other-slot",
        mistake="a side key is in another slot: on a Cluster no script can have both",
        backend="redis",
        server=SideKeyInOtherSlot,
    ),
    Mutant(
        name="queue-renews-many-blindly",
        mistake="a renewal of several leases prolongs keys that name other tickets",
        backend="redis",
        server=_queue(
            (
                "if not is_held_by(nonce, value) then\n    replies[number] = 0",
                "if not value then\n    replies[number] = 0",
            )
        ),
        workload="lock_all",
    ),
    Mutant(
        name="queue-renews-blindly",
        mistake="a renewal prolongs the lock's key although it names another ticket",
        backend="redis",
        server=_queue(
            ("if not is_held_by(nonce, value) then\n    return 0", "if not value then\n    return 0"),
            ("if kept_in(value) >= now + ttl then\n", "if true then\n"),
        ),
        budget=1000,
    ),
    Mutant(
        name="reader-marker-expires-with-first",
        mistake="the key that blocks writers expires with the first of several readers' leases, not with the last",
        backend="redis",
        server=_queue(
            ("redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')", "redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')")
        ),
    ),
    Mutant(
        name="no-tombstone",
        mistake="withdrawn tickets are not remembered: a late try_acquire takes the lock without a holder",
        backend="redis",
        server=_queue(("if unanswered == '1' then", "if false then")),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="redis-grants-any-owner",
        mistake="a ticket with an owner is granted while any owner holds the lock",
        backend="redis",
        server=_queue(
            ("if owner and fence_of_owner(owner, value) then", "if owner and is_for_several(value) then"),
        ),
        workload="owner",
        by_seeds=False,
    ),
    Mutant(
        name="owner-key-expires-with-first",
        mistake="the lock's key expires with the first of an owner's leases, not with the last",
        backend="redis",
        server=_queue(
            ("redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')", "redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')")
        ),
        workload="owner",
        by_seeds=False,
    ),
    Mutant(
        name="redis-release-ends-all-of-owner",
        mistake="the first release of an owner's ticket ends the leases of its other tickets",
        backend="redis",
        server=_queue(("if redis.call('ZREM', shared, member) == 1 then", "if redis.call('DEL', shared) == 1 then")),
        workload="owner",
        by_seeds=False,
    ),
    Mutant(
        name="redis-repeat-draws-new-fence",
        mistake="a granted ticket that repeats its request gets a new fence, and others of its owner have the old one",
        backend="redis",
        server=_queue(
            (
                "local fence = fence_of_owner(owner, value)\n",
                "local fence = not redis.call('ZSCORE', shared, member) and fence_of_owner(owner, value)\n",
            )
        ),
        workload="owner",
        by_seeds=False,
    ),
    Mutant(
        name="redis-register-in-two-steps",
        mistake="a register is read in one step and written in another",
        backend="redis",
        server=_with(RegisterInTwoSteps),
        by_seeds=False,
    ),
    Mutant(
        name="getset-refusal-is-success",
        mistake="a client that was too late to advance a register takes the present number for its own",
        backend="redis-getset",
        server=RefusalIsSuccessServer,
        by_seeds=False,
    ),
    Mutant(
        name="hand-over-undone-after-message",
        mistake="a hand-over is undone if the server counts no receiver of its message; a client at a replica got it",
        backend="redis",
        server=HandOverUndone,
        kinds=frozenset({"restart"}),
    ),
]

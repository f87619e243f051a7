"""The redis protocols with one bug each: what people get wrong with SETNX, with pub/sub, and in Lua.

A changed script is the one that ships with one fragment replaced. If a fragment is not there any more, this file says
which, and somebody has to look what became of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.redis.lua import CONSTANTS
from holdfast.backends.redis.protocol import getset, queue, setnx
from holdfast.backends.redis.protocol.getset import GetsetBackend
from holdfast.backends.redis.protocol.handovers import Handover, Handovers, Watchers
from holdfast.backends.redis.protocol.keys import GETSET, SETNX, OtherKeys, register_key
from holdfast.backends.redis.protocol.queue import GRANULARITY, QueueBackend
from holdfast.backends.redis.protocol.setnx import SetnxBackend
from holdfast.core.clock import lease_deadline
from holdfast.core.notifications import Notifications
from holdfast.core.tickets import Granted, Ticket, Waiting
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.redis.port import PREFIX
from holdfast.sim.servers.redis.server import GetsetServer, RedisServer, SetnxServer

if TYPE_CHECKING:
    from holdfast.backends.redis.lua import Script
    from holdfast.backends.redis.port import Call, Channel, RedisPort
    from holdfast.backends.redis.protocol.keys import Keys
    from holdfast.core.ports import Runtime

_QUEUE = (queue._TRY_ACQUIRE, queue._TRY_ACQUIRE_ALL, queue._RELEASE, queue._RENEW, queue._BREAK)
_SETNX = (setnx._TRY_ACQUIRE, setnx._TRY_ACQUIRE_ALL, setnx._RELEASE, setnx._RENEW)


def edited(scripts: tuple[Script, ...], *edits: tuple[str, str]) -> dict[str, str]:
    """The texts of these scripts with each fragment replaced where it is: once in a script, and in one at least."""
    texts = {script.name: script.text for script in scripts}
    for old, new in edits:
        found = [name for name, text in texts.items() if old in text]
        for name in found:
            if texts[name].count(old) != 1:
                raise AssertionError(f"more than one place in {name} says {old!r}")
            texts[name] = texts[name].replace(old, new)
        if not found:
            raise AssertionError(f"no script says {old!r} any more")
    return texts


def _queue(*edits: tuple[str, str]) -> type[RedisServer]:
    return type("Edited", (RedisServer,), {"texts": edited(_QUEUE, *edits)})


def _with(backend: Callable[..., Any], **more: Any) -> type[RedisServer]:
    return type("Mutated", (RedisServer,), {"backend": backend, **more})


# ── SETNX, the ways it is done wrong ─────────────────────────────────────────────────────────────────────────────────


class SetnxThenExpire(SetnxBackend):
    """As in countless tutorials."""

    async def _try_take(self, ticket: Ticket, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent = self._runtime.now()
        seconds, microseconds = await self._port.command(keys, "TIME", deadline=deadline)
        fence = int(seconds) * 1_000_000 + int(microseconds)
        mine = f"{SETNX}{ticket.nonce}:{fence}"
        if not await self._port.command(keys, "SETNX", keys.lock, mine, deadline=deadline):
            value = await self._port.command(keys, "GET", keys.lock, deadline=deadline)
            if value is None or not value.startswith(f"{SETNX}{ticket.nonce}:".encode()):
                return (value or b"").decode(), math.inf
            fence = int(value.rpartition(b":")[2])
        await self._port.command(keys, "PEXPIRE", keys.lock, math.ceil(ticket.ttl * 1000), deadline=deadline)
        return Granted(fence, lease_deadline(sent, ticket.ttl, GRANULARITY))


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


class OwnNonceIsOurs(GetsetBackend):
    """As it once was: who lost the race for a take-over finds its own nonce at the next look, and counts itself in."""

    compares = True

    async def _try_take(self, ticket: Ticket, keys: Keys, deadline: float) -> Granted | tuple[str, float]:
        sent, wall = self._runtime.now(), self._runtime.wall()
        fence, end = math.floor(wall * 1e6), math.floor((wall + ticket.ttl) * 1e6)
        mine = f"{GETSET}{ticket.nonce}:{end}:{fence}"
        granted = Granted(fence, lease_deadline(sent, ticket.ttl, 0.0))
        if await self._port.command(keys, "SET", keys.lock, mine, "NX", deadline=deadline):
            return granted
        value = await self._port.command(keys, "GET", keys.lock, deadline=deadline)
        if value is None:
            return "", 0.0
        nonce, ends, _ = value.decode().removeprefix(GETSET).split(":")
        remaining = int(ends) / 1e6 + getset.SKEW - self._runtime.wall()
        if nonce != ticket.nonce and remaining > 0:
            return value.decode(), remaining
        found = await self._port.command(keys, "GETSET", keys.lock, mine, deadline=deadline)
        if found == value or not self.compares:
            return granted
        return (found or b"").decode(), 0.0


class GetsetWithoutCompare(OwnNonceIsOurs):
    compares = False


class OwnNonceIsOursServer(GetsetServer):
    backend = OwnNonceIsOurs


class GetsetWithoutCompareServer(GetsetServer):
    backend = GetsetWithoutCompare


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _NeverPolls(Watchers):
    def next_poll(self, ticket: Ticket, now: float) -> float:
        return math.inf


class HintsOnly(QueueBackend):
    """Looks again only when the holder's lease would end, as libraries do that wait on a channel."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        self._watchers = _NeverPolls(runtime)

    def _waiting(self, before: int, remaining_ms: int, holder: bytes, blocker: int) -> Waiting:
        usual = super()._waiting(before, remaining_ms, holder, blocker)
        return usual._replace(poll_after=max(0.0, remaining_ms / 1000) + GRANULARITY)


# So that who does not look keeps its place in line all the same, and waits for nothing but its hint.
_PATIENT = edited(_QUEUE, (CONSTANTS, CONSTANTS.replace(" = 10000,", " = 100000000,")))


class _Late(Notifications["Channel"]):
    def expect(self, nonce: str, channel: Channel) -> None:
        self._wakeups.expect(nonce)
        self._subscriptions[nonce] = 1

    async def wait(self, nonce: str, channel: Channel, until: float) -> str:
        self._subscribed[nonce] = channel
        await self._subscriber.subscribe(channel, nonce, deadline=until)
        return await self._wakeups.wait(nonce, until)


class SubscribesTooLate(HintsOnly):
    """What was published between its look and its subscription was for nobody."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        self._notifications = _Late(port.subscriber, runtime, url)


# ── hand-overs ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _FromTheHint(Handovers):
    def take(self, ticket: Ticket, now: float) -> Handover | None:
        entry = self._entries.get(ticket.nonce)
        if entry is not None:
            entry.sent = now
        return super().take(ticket, now)


class _AnyPlace(Handovers):
    def expect(self, ticket: Ticket, sent: float, number: bytes) -> None:
        super().expect(ticket, sent, b"0")


class CountsFromTheHint(QueueBackend):
    """A hint may be late: by then the server has counted for a while."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        self._handovers = _FromTheHint(GRANULARITY)


class BelievesOldHints(QueueBackend):
    """What was handed to it in an earlier place has run out since, and somebody else is in."""

    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, port, runtime, prefix=prefix)
        self._handovers = _AnyPlace(GRANULARITY)


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ClientTime:
    """A port that sends the client's own time along, as the last two arguments."""

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
    def __init__(self, url: str, port: RedisPort, runtime: Runtime, *, prefix: str) -> None:
        super().__init__(url, _ClientTime(port, runtime), runtime, prefix=prefix)  # type: ignore[arg-type]  # it is one


class ClientTimeServer(RedisServer):
    backend = ClientTime
    texts: ClassVar = {
        name: text.replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
        for name, text in edited(_QUEUE).items()
    }


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class MarkInTwoSteps(QueueBackend):
    """Two may read before one of them writes."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        key = register_key(self._prefix, name)
        last = await self._port.command(key, "HMGET", key.lock, "number", "nonce", deadline=deadline)
        if int(last[0] or 0) >= number:
            return bool(last == [b"%d" % number, nonce.encode()])
        await self._port.command(key, "HSET", key.lock, "number", number, "nonce", nonce, deadline=deadline)
        return True


class RefusalIsOurs(GetsetBackend):
    """What is there after a refusal is taken for one's own, if only the number fits."""

    async def _add(self, keys: OtherKeys, mine: tuple[int, str], deadline: float) -> tuple[int, str]:
        number, _ = await super()._add(keys, mine, deadline)
        return mine if number == mine[0] else (number, "")


class RefusalIsOursServer(GetsetServer):
    backend = RefusalIsOurs


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SideKeyElsewhere(RedisServer):
    def run(self, call: Call) -> Any:
        names = list(self._known(call.keys))
        names[2:3] = [f"{PREFIX}queue:{call.keys.lock}"]
        return self.machine.run(call.script.text, names, call.arguments)


class _OtherSideKeys:
    """A port whose side keys are not those of the other clients, as with another prefix that forms the same key."""

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
        record, queue, leases, shared = map(self._key, keys.names[1:])
        return call._replace(keys=keys._replace(record=record, queue=queue, leases=leases, shared=shared))

    @staticmethod
    def _key(key: str) -> str:
        return f"{key}2" if key.endswith(("}:record", "}:queue", "}:leases", "}:shared")) else key


class SideKeysOfThePrefix(RedisServer):
    """Every other client has side keys of its own."""

    @staticmethod
    def backend(url: str, port: Any, runtime: Runtime, *, prefix: str) -> QueueBackend:
        is_other = port._listener.startswith(("b", "d"))
        return QueueBackend(url, _OtherSideKeys(port) if is_other else port, runtime, prefix=prefix)  # type: ignore[arg-type]  # it is one


REDIS = [
    Mutant(
        name="side-keys-of-the-prefix",
        mistake="side keys depend on how a key is split into prefix and name: a writer does not see all readers",
        backend="redis",
        server=SideKeysOfThePrefix,
        kinds=frozenset({"slow"}),  # a lease that is broken or lost would break the fences first
    ),
    Mutant(
        name="redis-dead-waiters-in-turn",
        mistake="a waiter whose client is dead is waited for when it is its turn, and then the next one of that client",
        backend="redis",
        server=_queue(
            (
                "publish(line, nonce_of(member)) ~= 0 and lapses - now > WAITER_LEASE - SILENT",
                "(publish(line, nonce_of(member)) or true)",
            ),
            ("if channel and channel ~= own then", "if false then"),
            ("remaining, blocker_kind = turn and turn - now or -1, turn and 2 or 0", "remaining, blocker_kind = -1, 0"),
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
        mistake="a release deletes the key, whoever's it is",
        backend="redis-setnx",
        server=SetnxDeletesBlindly,
    ),
    Mutant(
        name="setnx-no-tombstone",
        mistake="an enter that arrives after its own leave takes the lock for a ticket that no client has any more",
        backend="redis-setnx",
        server=type(
            "Edited", (SetnxServer,), {"texts": edited(_SETNX, ("if unanswered == '1' then", "if false then"))}
        ),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="getset-without-compare",
        mistake="who overwrites a lease that has run out takes it, whatever it has overwritten",
        backend="redis-getset",
        server=GetsetWithoutCompareServer,
    ),
    Mutant(
        name="getset-own-nonce-is-ours",
        mistake="who was too late for a lease that had run out has overwritten the next, and takes that for a grant",
        backend="redis-getset",
        server=OwnNonceIsOursServer,
    ),
    Mutant(
        name="queue-deletes-blindly",
        mistake="a release deletes the lock's key although it names another ticket",
        backend="redis",
        server=_queue(
            (
                "if value == OURS .. nonce then\n  redis.call('DEL', lock)",
                "if value and value ~= SHARED then\n  redis.call('DEL', lock)",
            )
        ),
    ),
    Mutant(
        name="fence-by-incr",
        mistake="the fence is a counter on the server: a failover to a replica that lags behind gives it twice",
        backend="redis",
        server=_queue(
            ("exact(math.max(last + 1, now_us))", "exact(last + 1)"),
            (
                "local last = redis.call('HGET', record, 'fence')\n",
                "local last = redis.call('HGET', record, 'fence') or 0\n",
            ),
            ("if last and tonumber(last) >= number then", "if true then"),
        ),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="client-time-as-now",
        mistake="the client's clock is sent along, and the server goes by it",
        backend="redis",
        server=ClientTimeServer,
    ),
    Mutant(
        name="hints-only",
        mistake="who waits relies on pub/sub: a hint that gets lost leaves it waiting, beside a lock that is free",
        backend="redis",
        server=_with(HintsOnly, texts=_PATIENT),
        kinds=frozenset({"lose_notification"}),
    ),
    Mutant(
        name="subscribes-too-late",
        mistake="a waiter does not look again once it is subscribed: the hint may have been before that",
        backend="redis",
        server=_with(SubscribesTooLate, texts=_PATIENT),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="hand-over-from-the-hint",
        mistake="who is handed the lock counts its lease from when it hears of that, not from its last look before",
        backend="redis",
        server=_with(CountsFromTheHint),
        kinds=frozenset({"pause"}),
    ),
    Mutant(
        name="hand-over-of-old",
        mistake="a hint of a hand-over is believed although its ticket has lost the lock, and stands in line once more",
        backend="redis",
        server=_with(BelievesOldHints),
        kinds=frozenset({"pause"}),
        budget=600,
    ),
    Mutant(
        name="ghost-waiters",
        mistake="waiters that died stay in line",
        backend="redis",
        server=_queue(("ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now))", "ipairs({})")),
    ),
    Mutant(
        name="ghost-waiters-in-turn",
        mistake="each waiter's lease begins when the one before it has ended: the dead lapse one after the other",
        backend="redis",
        server=_queue(
            (
                "redis.call('ZADD', leases, now + WAITER_LEASE, member)",
                "redis.call('ZADD', leases, now + WAITER_LEASE * (before + 1), member)",
            ),
            ("  redis.call('PEXPIRE', queue, WAITER_LEASE)\n  redis.call('PEXPIRE', leases, WAITER_LEASE)\n", ""),
            # Which would hide it: a turn that ends, and a waiter that is silent.
            ("now + WOKEN_LEASE, 'turn:' .. member", "now + 100 * WAITER_LEASE, 'turn:' .. member"),
            (" and lapses - now > WAITER_LEASE - SILENT", ""),
            ("publish(line, nonce_of(member)) ~= 0", "(publish(line, nonce_of(member)) or true)"),
        ),
        kinds=frozenset({"crash"}),
        budget=1000,
    ),
    Mutant(
        name="side-key-elsewhere",
        mistake="a side key is in another slot: on a Cluster no script can have both",
        backend="redis",
        server=SideKeyElsewhere,
    ),
    Mutant(
        name="queue-renews-blindly",
        mistake="a renewal prolongs the lock's key although it names another ticket",
        backend="redis",
        server=_queue(("if value ~= OURS .. nonce then\n    return 0", "if not value then\n    return 0")),
    ),
    Mutant(
        name="marker-ends-with-first",
        mistake="the key that keeps writers out ends with the first of several readers' leases, not with the last",
        backend="redis",
        server=_queue(
            ("redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')", "redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')")
        ),
    ),
    Mutant(
        name="no-tombstone",
        mistake="nobody remembers who left: an enter that comes after its own leave takes the lock for nobody",
        backend="redis",
        server=_queue(("if unanswered == '1' then", "if false then")),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="owner-past-another",
        mistake="a ticket that names an owner is let in with whichever owner is in",
        backend="redis",
        server=_queue(("if owner and value == SEVERAL .. owner then", "if owner and is_for_several(value) then")),
        by_seeds=False,
    ),
    Mutant(
        name="owner-ends-with-first",
        mistake="the lock's key ends with the first of an owner's leases, not with the last",
        backend="redis",
        server=_queue(
            ("redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')", "redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')")
        ),
        by_seeds=False,
    ),
    Mutant(
        name="owner-takes-kin-along",
        mistake="the first of an owner's tickets that leaves ends the leases of the others",
        backend="redis",
        server=_queue(("if redis.call('ZREM', shared, member) == 1 then", "if redis.call('DEL', shared) == 1 then")),
        by_seeds=False,
    ),
    Mutant(
        name="owner-draws-again",
        mistake="a ticket that is in and asks again gets a new fence, although others of its owner have the old one",
        backend="redis",
        server=_queue(
            (
                "local is_first = not fence\n",
                "local is_first = not fence or redis.call('ZSCORE', shared, member)\n",
            )
        ),
        by_seeds=False,
    ),
    Mutant(
        name="redis-mark-in-two-steps",
        mistake="a mark is read in one step, and written in another",
        backend="redis",
        server=_with(MarkInTwoSteps),
        by_seeds=False,
    ),
    Mutant(
        name="getset-refusal-is-ours",
        mistake="who was too late to raise a mark takes the number that is there for its own",
        backend="redis-getset",
        server=RefusalIsOursServer,
        by_seeds=False,
    ),
]

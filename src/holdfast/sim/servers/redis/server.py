"""Redis in its world: one server or a Cluster, its clock, and what becomes of clients when it goes down.

What ends by itself here ends by the server's wall clock, which can be set: forward, and leases end early; back, and
they end late. A restart, with or without data, and a failover end all connections: what was on its way is not done, and
who was subscribed is not any more. A replica that takes over has the data of some time ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.backends.redis.protocol import getset, setnx
from holdfast.backends.redis.protocol.guarantees import GUARANTEES
from holdfast.backends.redis.protocol.handovers import WATCH
from holdfast.backends.redis.protocol.keys import Keys, OtherKeys
from holdfast.backends.redis.protocol.queue import _BREAK, QueueBackend
from holdfast.core.tickets import POLL_INTERVAL, WOKEN_LEASE
from holdfast.sim.faults import POOLED
from holdfast.sim.servers.redis.layouts import Found, in_getset, in_queue, in_setnx, with_lease
from holdfast.sim.servers.redis.lua import require_lupa
from holdfast.sim.servers.redis.machine import Machine
from holdfast.sim.servers.redis.port import PREFIX, SimPort
from holdfast.sim.servers.subscriptions import PushServer

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Word
    from holdfast.core.ports import Backend
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Entry, Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.servers.redis.commands import Reply
    from holdfast.sim.servers.redis.keyspace import Keyspace
    from holdfast.sim.world import World

T = TypeVar("T")

CLOCKS_APART = 0.05  # seconds by which a replica's clock may be ahead of its primary's


class RedisServer(PushServer):
    """Locks by `method=queue`; on a Cluster in half of all worlds."""

    guarantees = GUARANTEES["queue"]
    # Who dies is not seen. An enter may come after its own leave, on another connection: for ten seconds the server
    # remembers who left, which covers all that the network holds up, but not a server that stands still with it, nor
    # one whose memory of that is gone or over.
    orphaning_faults = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    keeps_order = False  # a client has several connections
    # A lease ends by the clock that is set back here. With an hour nobody would see its end.
    clock_back_max = 10.0
    # Dead waiters are passed over at once; but that a dead holder's lease is over is seen by the next poll. Paused ones
    # are passed over after a second, or at once if they have not polled for SILENT.
    grant_past_dead_max: ClassVar[float | None] = POLL_INTERVAL + 0.1
    grant_past_paused_max: ClassVar[float | None] = WOKEN_LEASE + WATCH
    backend: Callable[..., Any] = QueueBackend
    texts: ClassVar[Mapping[str, str]] = {}  # scripts that a mutant has changed, by name
    clusters: ClassVar[float] = 0.5  # of all worlds

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.is_cluster = world.choices.chance(self.clusters)
        self.machine = Machine(self._clock, self._publish, is_cluster=self.is_cluster)
        self._locks: dict[str, tuple[str, Keys]] = {}  # by the lock's key
        self._places: dict[str, int] = {}  # by nonce
        self._copy: Keyspace | None = None

    @classmethod
    def require(cls) -> None:
        require_lupa()

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.subscribers))
        self.subscribers.append(port)
        backend: Backend = type(self).backend("sim://redis", port, runtime, prefix=PREFIX)
        return backend

    # ── what clients ask for ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, call: Call) -> Reply:
        text = type(self).texts.get(call.script.name, call.script.text)
        return self.machine.run(text, self._known(call.keys), call.arguments)

    def command(self, keys: Keys | OtherKeys, words: Sequence[Word]) -> Reply:
        self._known(keys)
        return self.machine.command(words)

    def _publish(self, channel: bytes, message: bytes) -> int:
        return self.publish(channel.decode(), message.decode())

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        found = self._found()
        # A ticket that is in has no place in line any more. The one that it had stays its own, also if it is let in
        # once more, with a new fence, because nobody heard of the first time. A ticket that was passed over, and
        # has not lapsed, keeps its place too.
        kept = {nonce for _, keys in self._locks.values() for nonce in with_lease(self.machine.space, keys)}
        self._places = {nonce: place for nonce, place in self._places.items() if nonce in kept} | {
            one.nonce: one.entry.position
            if one.entry.fence is None
            else self._places.get(one.nonce, one.entry.position)
            for one in found
        }
        return {one.nonce: one.entry._replace(position=self._places[one.nonce]) for one in found}

    def live(self) -> dict[str, Entry]:
        return {found.nonce: found.entry for found in self._found() if found.is_live}

    def _found(self) -> list[Found]:
        locks = self._locks.values()
        return [found for name, keys in locks for found in self.found_in(name, keys)]

    def found_in(self, name: str, keys: Keys) -> Iterator[Found]:
        return in_queue(self.machine.space, name, keys)

    def state(self) -> object:
        return self.machine.space.dump(), self.starts, self.wall_step, self.subscription_state()

    def break_lock(self, name: str, fence: int) -> None:
        keys = next(keys for known, keys in self._locks.values() if known == name)
        self.execute(lambda: self.end_lease(keys, fence))

    def end_lease(self, keys: Keys, fence: int) -> None:
        self.machine.run(_BREAK.text, keys[:5], [fence, ""])

    def _known(self, keys: Keys | OtherKeys) -> tuple[str, ...]:
        for lock in (keys,) if isinstance(keys, Keys) else keys.locks:
            if lock.lock not in self._locks:
                self._locks[lock.lock] = (lock.lock[len(PREFIX) :], lock)
        return keys.names

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────

    def lose_data(self) -> None:
        self.machine.space.clear()
        self.restart()
        self.recorder.observe(self.tickets())

    def back_up(self) -> None:
        self._copy = self.machine.space.snapshot()

    def restore_data(self) -> None:
        """A failover to a replica that lags behind. It takes longer than clocks are apart, so time does not go back."""
        if self._copy is None:
            return
        self.machine.space = self._copy.snapshot()
        self.step_clock(self.world.choices.between(0.0, CLOCKS_APART))
        self.restart()
        self.recorder.observe(self.tickets())

    def step_clock(self, seconds: float) -> None:
        # Redis looks for what has expired ten times a second: nothing of that is left for a clock that goes back.
        self.machine.space.sweep()
        super().step_clock(seconds)

    @property
    def extra_lease_time(self) -> float:
        return self.set_back

    def _clock(self) -> int:
        return round(self.wall() * 1_000_000)


class SetnxServer(RedisServer):
    """Locks by `method=setnx`: one key each."""

    guarantees = GUARANTEES["setnx"]
    grant_past_dead_max = grant_past_paused_max = None
    excluded_faults = RedisServer.excluded_faults | {"drop", "lose_notification"}  # there are no notifications
    kinds = ("lock",)
    backend: Callable[..., Any] = setnx.SetnxBackend

    def end_lease(self, keys: Keys, fence: int) -> None:
        """The lease that was looked at a moment ago."""
        self.machine.command(["DEL", keys.lock])

    def found_in(self, name: str, keys: Keys) -> Iterator[Found]:
        return in_setnx(self.machine.space, name, keys)


class GetsetServer(SetnxServer):
    """Locks by `method=getset`: plain commands, and the clients' own clocks."""

    guarantees = GUARANTEES["getset"]
    # Whoever has no answer to its GETSET cannot know whether that was first, and leaves the key alone.
    # And nobody remembers who left.
    orphaning_faults = SetnxServer.orphaning_faults | {"slow", "lose_request", "lose_reply", "cancel", "cut", "restart"}
    # These it could have, but does not stand, as getset.py says: clients whose clocks are apart, and one that is held
    # up between two commands.
    excluded_faults = SetnxServer.excluded_faults | POOLED | {"drift", "slow", "pause", "stall"}
    backend = getset.GetsetBackend

    def found_in(self, name: str, keys: Keys) -> Iterator[Found]:
        return in_getset(self.machine.space, name, keys)

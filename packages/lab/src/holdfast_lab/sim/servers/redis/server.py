"""Redis in a simulated world: one server or a Cluster, with its clock, restarts and failovers.

Keys expire by the server's wall clock, which can be set: forward, and leases expire early; back, and they expire late.
After a restart (with all data, old data or none) requests in transit are lost. Half of all restarts end all
connections. The other half are failovers: the former primary is a replica then, where clients stay subscribed until
they notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.backends.redis.protocol import getset, setnx
from holdfast.backends.redis.protocol.guarantees import GUARANTEES
from holdfast.backends.redis.protocol.keys import LockKeys, OtherKeys, QueueKeys
from holdfast.backends.redis.protocol.queue import _BREAK, QueueBackend
from holdfast.backends.redis.protocol.watchers import WATCH
from holdfast.core.tickets import POLL_INTERVAL, WOKEN_LEASE
from holdfast.guarantees import Order
from holdfast_lab.sim.faults import POOLED
from holdfast_lab.sim.servers.redis.layouts import StoredTicket, in_getset, in_queue, in_setnx
from holdfast_lab.sim.servers.redis.machine import Machine
from holdfast_lab.sim.servers.redis.port import PREFIX, SimPort
from holdfast_lab.sim.servers.subscriptions import PushServer

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Word
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.recorder import Entry, Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.redis.commands import Reply
    from holdfast_lab.sim.servers.redis.keyspace import Keyspace
    from holdfast_lab.sim.world import World

T = TypeVar("T")

CLOCKS_APART = 0.05  # seconds by which a replica's clock may be ahead of its primary's


class RedisServer(PushServer):
    """Locks by `method=queue`; on a Cluster in half of all worlds."""

    guarantees = GUARANTEES["queue"]._replace(order=Order.FIFO)
    # The server does not notice a dead client. A try_acquire may arrive after its own release, on another connection.
    # The server remembers withdrawn tickets for ten seconds, which covers all delays of the network, but not a server
    # that is stalled, and not one that has lost or expired that record.
    orphaning_faults = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    keeps_order = False  # a client has several connections
    # Leases expire by the clock that is set back here. After an hour no run would reach their end.
    clock_back_max = 10.0
    # Dead waiters are skipped at once, but only the next poll notices that the lease of a dead holder has expired.
    # Paused waiters are skipped after a second, or at once if they have not polled for SILENT.
    grant_past_dead_max: ClassVar[float | None] = POLL_INTERVAL + 0.1
    grant_past_paused_max: ClassVar[float | None] = WOKEN_LEASE + WATCH
    backend: Callable[..., Any] = QueueBackend
    texts: ClassVar[Mapping[str, str]] = {}  # scripts that a mutant has changed, by name
    clusters: ClassVar[float] = 0.5  # of all worlds
    switches: ClassVar[float] = 0.5  # of all restarts are failovers to a replica

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.is_cluster = world.choices.chance(self.clusters)
        self.machine = Machine(self._clock, self._publish, self._count_subscribers, is_cluster=self.is_cluster)
        self._locks: dict[str, tuple[str, LockKeys]] = {}  # by the lock's key
        self._positions: dict[str, tuple[int, int]] = {}  # by nonce: number of the queue entry, position
        self._arrivals = 0
        self._copy: Keyspace | None = None

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.subscribers))
        self.subscribers.append(port)
        backend: Backend = type(self).backend("sim://redis", port, runtime, prefix=PREFIX, **self.backend_options())
        return backend

    def backend_options(self) -> dict[str, Any]:
        return {"per_slot": self.is_cluster}

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, call: Call) -> Reply:
        text = type(self).texts.get(call.script.name, call.script.text)
        return self.machine.run(text, self._known(call.keys), call.arguments)

    def command(self, keys: LockKeys | OtherKeys, words: Sequence[Word]) -> Reply:
        self._known(keys)
        return self.machine.command(words)

    def _publish(self, channel: bytes, message: bytes) -> int:
        return self.publish(channel.decode(), message.decode())

    def _count_subscribers(self, channel: bytes) -> int:
        return self.count_subscribers(channel.decode())

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        tickets = self._stored_tickets()
        # This is called after every step, so a new queue entry has arrived in the last step. A skipped ticket keeps its
        # position, and so does a granted one, also if it is granted again because the first reply was lost.
        before, self._positions = self._positions, {}
        for nonce, entry, *_ in tickets:
            known = before.get(nonce)
            if known is None or (entry.fence is None and known[0] != entry.position):
                self._arrivals += 1
                known = (entry.position, self._arrivals)
            self._positions[nonce] = known
        return {
            ticket.nonce: ticket.entry._replace(position=self._positions[ticket.nonce][1])
            for ticket in tickets
            if not ticket.is_skipped
        }

    def live(self) -> dict[str, Entry]:
        return {
            ticket.nonce: ticket.entry for ticket in self._stored_tickets() if ticket.is_live and not ticket.is_skipped
        }

    def _stored_tickets(self) -> list[StoredTicket]:
        locks = self._locks.values()
        return [ticket for name, keys in locks for ticket in self.tickets_in(name, keys)]

    def tickets_in(self, name: str, keys: LockKeys) -> Iterator[StoredTicket]:
        return in_queue(self.machine.space, name, keys) if isinstance(keys, QueueKeys) else iter(())

    def state(self) -> object:
        return self.machine.space.dump(), self.starts, self.wall_step, self.subscription_state()

    def break_lock(self, name: str, fence: int) -> None:
        keys = next(keys for known, keys in self._locks.values() if known == name)
        self.execute(lambda: self.end_lease(keys, fence))

    def end_lease(self, keys: LockKeys, fence: int) -> None:
        self.machine.run(_BREAK.text, keys.names, [fence, "", 1])

    def _known(self, keys: LockKeys | OtherKeys) -> tuple[str, ...]:
        for lock in keys.locks if isinstance(keys, OtherKeys) else (keys,):
            if lock.lock not in self._locks:
                self._locks[lock.lock] = (lock.lock[len(PREFIX) :], lock)
        return keys.names

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        if self.world.choices.chance(self.switches):
            self.switch_to_replica()
        else:
            super().restart()

    def lose_data(self) -> None:
        self.machine.space.clear()
        self.restart()
        self.recorder.observe(self.tickets())

    def back_up(self) -> None:
        self._copy = self.machine.space.snapshot()

    def restore_data(self) -> None:
        """Continue with old data. A failover takes longer than the clocks differ, so the time does not go back."""
        if self._copy is None:
            return
        self.machine.space = self._copy.snapshot()
        self._positions = {}  # the queue has the order of the copy, also for tickets that were skipped since
        self.step_clock(self.world.choices.between(0.0, CLOCKS_APART))
        self.restart()
        self.recorder.observe(self.tickets())

    def step_clock(self, seconds: float) -> None:
        # Redis deletes expired keys ten times a second, so none of them exists when the clock is set back.
        self.machine.space.sweep()
        super().step_clock(seconds)

    @property
    def extra_lease_time(self) -> float:
        return self.set_back

    def _clock(self) -> int:
        return round(self.wall() * 1_000_000)


class LocalHandoverServer(RedisServer):
    """The same with `local_handover=yes`."""

    guarantees = GUARANTEES["queue"]

    def backend_options(self) -> dict[str, Any]:
        return {**super().backend_options(), "local_handover": True}


class SetnxServer(RedisServer):
    """Locks by `method=setnx`: one key each."""

    guarantees = GUARANTEES["setnx"]
    grant_past_dead_max = grant_past_paused_max = None
    kinds = ("lock",)
    backend: Callable[..., Any] = setnx.SetnxBackend

    def backend_options(self) -> dict[str, Any]:
        return {}

    def end_lease(self, keys: LockKeys, fence: int) -> None:
        """End the lease that was read just before."""
        self.machine.command(["DEL", keys.lock])

    def tickets_in(self, name: str, keys: LockKeys) -> Iterator[StoredTicket]:
        return in_setnx(self.machine.space, name, keys)


class GetsetServer(SetnxServer):
    """Locks by `method=getset`: plain commands, and the clients' own clocks."""

    guarantees = GUARANTEES["getset"]
    # A client without a reply to its GETSET cannot know whether it was the first, and leaves the key. No withdrawn
    # tickets are remembered.
    orphaning_faults = SetnxServer.orphaning_faults | {"slow", "lose_request", "lose_reply", "cancel", "cut", "restart"}
    # These faults break the method, as getset.py says: clients with different clocks, and a pause between two commands.
    excluded_faults = POOLED | {"drift", "slow", "pause", "stall"}
    backend = getset.GetsetBackend

    def tickets_in(self, name: str, keys: LockKeys) -> Iterator[StoredTicket]:
        return in_getset(self.machine.space, name, keys)

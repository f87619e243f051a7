"""etcd in a simulated world: a cluster that acts as one server, and whose leases expire by a monotonic clock.

It loses no data by itself. A restart or a new leader closes connections, and gives every lease its whole ttl again. Old
data return only if an operator restores a snapshot, here with the same cluster id and without --bump-revision; running
clients then refuse further work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.etcd.protocol.guarantees import KEY, QUEUE
from holdfast.backends.etcd.protocol.keys import Keys, QueueEntry, parse_key
from holdfast.backends.etcd.protocol.leases import WAITER_TTL
from holdfast.backends.etcd.protocol.messages import delete, txn
from holdfast.backends.etcd.protocol.operators import granted_flags
from holdfast.backends.etcd.protocol.queue import EtcdBackend
from holdfast.backends.etcd.protocol.single_key import KeyBackend
from holdfast.backends.etcd.protocol.ticket_values import METHOD_KEY, parse_value
from holdfast_lab.checking import history as h
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.etcd.port import SimPort
from holdfast_lab.sim.servers.etcd.store import Change, Store

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import Message, Watch
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

PREFIX = "sim/"
NOTICED_MAX = 1.0  # seconds until a client notices that its connection for events is lost


class EtcdServer(Server):
    """Locks with `method=queue`."""

    guarantees = QUEUE
    # The server does not see that a process dies: its keys end with its lease. So do keys from a restored snapshot.
    orphaning_faults = frozenset({"crash", "old_data"})
    # Leases end by a monotonic clock.
    excluded_faults = frozenset({"step_clock", "leap_clock"})
    dead_waiter_max = WAITER_TTL + 0.5
    backend: Callable[..., Any] = EtcdBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.store = Store()
        self.keys = Keys(PREFIX, raw_names=False)
        self.ports: list[SimPort] = []
        # By port, nonce and watches: the connection. A stream that is opened late does not replace a later one.
        self._watches: dict[tuple[SimPort, str, tuple[Watch, ...]], int] = {}
        self._notified = 0  # how many changes were sent to watchers
        self._prolonged = 0.0
        self._snapshot = self.store.snapshot()

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime)
        self.ports.append(port)
        backend: Backend = type(self).backend("sim://etcd", port, runtime, self.keys)
        return backend

    # ── requests of clients ──────────────────────────────────────────────────────────────────────────────────────

    def execute(self, step: Callable[[], T]) -> T:
        try:
            return step()
        finally:
            self._notify_watchers()
            self.recorder.observe(self.tickets())

    def answer(self, method: str, message: Mapping[str, Any]) -> Message:
        answer = self.store.call(method, message, self.world.now)
        if method == "lease/grant":
            self._schedule_expiry(int(answer["ID"]))
        return answer

    def watch(self, port: SimPort, connection: int, wanted: Mapping[str, Sequence[Watch]]) -> None:
        if connection != port.connection:
            return  # the connection was closed since
        for nonce, watches in wanted.items():
            self._watches[port, nonce, tuple(watches)] = connection
            if any(_match(watches, change) for change in self.store.changes[: self._notified]):
                port.link.notify(port.notify, connection, nonce)

    def forget(self, port: SimPort, nonce: str) -> None:
        for subscription in [subscription for subscription in self._watches if subscription[:2] == (port, nonce)]:
            del self._watches[subscription]

    def disconnect(self, port: SimPort) -> bool:
        """Close the connection on which this client receives events; whether it had watches."""
        subscriptions = [subscription for subscription in self._watches if subscription[0] is port]
        for subscription in subscriptions:
            del self._watches[subscription]
        return bool(subscriptions)

    def _notify_watchers(self) -> None:
        new = self.store.changes[self._notified :]
        self._notified += len(new)
        for (port, nonce, watches), connection in list(self._watches.items()) if new else ():
            if any(_match(watches, change) for change in new):
                port.link.notify(port.notify, connection, nonce)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_expiry(self, lease_id: int) -> None:
        lease = self.store.leases.get(lease_id)
        if lease is not None:
            self.world.at(lease.expires_at, self.when_running, self._expire, lease_id)

    def _expire(self, lease_id: int) -> None:
        lease = self.store.leases.get(lease_id)
        if lease is None:
            return
        if lease.expires_at > self.world.now:
            self._schedule_expiry(lease_id)  # it was kept alive since
        else:
            self.execute(lambda: self.store.expire_lease(lease_id))

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        locks: dict[str, list[QueueEntry]] = {}
        for key, value in self.store.keys.items():
            name = self.keys.lock_name(key)
            if name is not None:
                locks.setdefault(name, []).append(parse_key(key, value.created))
        tickets: dict[str, Entry] = {}
        for name, queue in locks.items():
            queue.sort(key=lambda ticket: ticket.created)
            for ticket, is_granted in zip(queue, granted_flags(queue), strict=True):
                nonce = parse_value(self.store.keys[ticket.key].value).nonce
                fence = ticket.created if is_granted else None
                tickets[nonce] = Entry(name, ticket.created, fence, ticket.limit, ticket.exclusive)
        return tickets

    def live(self) -> dict[str, Entry]:
        return self.tickets()

    def state(self) -> object:
        watches = [(port.link.process.name, *its, connection) for (port, *its), connection in self._watches.items()]
        return sorted(self.store.keys.items()), sorted(self.store.leases.items()), self.starts, watches

    def break_lock(self, name: str, fence: int) -> None:
        # Several locks that were acquired in one transaction have the same revision.
        broken = {nonce for nonce, entry in self.tickets().items() if entry.lock == name and entry.fence == fence}
        of_that_revision = [(key, kv.value) for key, kv in self.store.keys.items() if kv.created == fence]
        keys = [key for key, value in of_that_revision if parse_value(value).nonce in broken]
        self.execute(lambda: self.store.call("kv/txn", txn([], [delete(key) for key in keys]), self.world.now))

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        self.starts += 1
        self.store.term += 1
        self._prolonged += self.store.renew_all(self.world.now)
        for port in self.ports:
            self._break_connection(port)

    def back_up(self) -> None:
        self._snapshot = self.store.snapshot()

    def restore_data(self) -> None:
        self.starts += 1
        self.store.restore(self._snapshot, self.world.now)
        self._notified = len(self.store.changes)
        for lease_id, lease in self.store.leases.items():
            self._prolonged = max(self._prolonged, lease.ttl)
            self._schedule_expiry(lease_id)
        for port in self.ports:
            self._break_connection(port)
        self.recorder.observe(self.tickets())

    def state_lost(self, kind: h.StateKind, detail: str = "") -> list[h.Event]:
        return [h.StateLost(self.world.now, kind, detail=detail, restored=kind == "data")]

    def drop(self, process: Process) -> bool:
        return sum(self._break_connection(port) for port in self.ports if port.link.process is process) > 0

    def process_died(self, process: Process) -> None:
        for port in self.ports:
            if port.link.process is process:
                self.disconnect(port)

    def _break_connection(self, port: SimPort) -> bool:
        if not self.disconnect(port):
            return False
        world = self.world
        noticed = world.now + world.choices.between(0.0, NOTICED_MAX)
        world.at(noticed, port.link.process.do, port.connection_lost, port.connection)
        return True

    @property
    def extra_lease_time(self) -> float:
        return self._prolonged


class EtcdKeyServer(EtcdServer):
    """Locks with `method=key`: each is one key."""

    guarantees = KEY
    kinds = ("lock",)
    backend: Callable[..., Any] = KeyBackend

    def tickets(self) -> dict[str, Entry]:
        tickets: dict[str, Entry] = {}
        for key, value in self.store.keys.items():
            ticket, name = parse_value(value.value), self.keys.single_key_name(key)
            if ticket.method == METHOD_KEY and name is not None:
                tickets[ticket.nonce] = Entry(name, value.created, value.created, 1, exclusive=True)
        return tickets


def _match(watches: Sequence[Watch], change: Change) -> bool:
    return any(
        change.revision >= watch.revision
        and (change.is_delete or watch.puts)
        and (watch.key <= change.key < watch.end if watch.end else watch.key == change.key)
        for watch in watches
    )

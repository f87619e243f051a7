"""A holder reports its loss before another client acquires the lock, no matter which connection is cut.

Here proxies cut connections, which needs no root; test_networks.py loses packets, and also cuts off a leader.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

import holdfast
from holdfast.backends.zookeeper.protocol.session_proof import SessionProof
from tests.integration.conftest import OpenClient
from tests.support.processes import PATIENCE, eventually, now
from tests.support.redis.proxy import Proxy
from tests.support.zookeeper.ensembles import ProxiedEnsemble
from tests.support.zookeeper.servers import TICK, Server, kazoo

TIMEOUT = 6.0  # seconds: of the sessions, which must live until the cut on a busy machine
LOCKS = 20


class WatchedLocks:
    """Many locks with one holder and a waiter for each. Records when each was lost and granted."""

    def __init__(self, holder: holdfast.Client, waiter: holdfast.Client) -> None:
        self.lost: dict[str, float] = {}
        self.granted: dict[str, float] = {}
        self._waiter = waiter
        self.names = [f"lock {number}" for number in range(LOCKS)]
        self.leases = [holder.lock(name, on_lost=self._note_loss).acquire(timeout=0) for name in self.names]
        assert all(self.leases)
        self._threads = [threading.Thread(target=self._acquire, args=(name,)) for name in self.names]
        for thread in self._threads:
            thread.start()
        eventually(lambda: all(len(waiter.inspect(name).waiters) == 1 for name in self.names))

    def await_grants(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self.granted.keys() == set(self.names)
        eventually(lambda: self.lost.keys() == set(self.names))

    def _note_loss(self, lease: holdfast.Lease) -> None:
        self.lost[lease.name] = now()

    def _acquire(self, name: str) -> None:
        lease = self._waiter.lock(name).acquire(timeout=PATIENCE)
        self.granted[name] = now()
        assert lease is not None
        lease.release()


def test_a_partitioned_client_reports_its_loss_before_the_next_grant(
    ensemble: ProxiedEnsemble, open_client: OpenClient
) -> None:
    with Proxy(ensemble.followers[0].port) as proxy:
        holder = open_client(f"zookeeper://127.0.0.1:{proxy.port}/locks?session_timeout={TIMEOUT}")
        locks = WatchedLocks(holder, open_client(ensemble.url(session_timeout=TIMEOUT)))

        proxy.lose_requests()
        proxy.lose_replies()

        locks.await_grants()
        assert [name for name in locks.names if locks.lost[name] >= locks.granted[name]] == []


def test_the_client_of_a_partitioned_follower_reports_its_loss_before_the_next_grant(
    ensemble: ProxiedEnsemble, open_client: OpenClient
) -> None:
    leader, (follower, other) = ensemble.leader, ensemble.followers
    holder = open_client(ensemble.url(follower, session_timeout=TIMEOUT))
    locks = WatchedLocks(holder, open_client(ensemble.url(leader, other, session_timeout=TIMEOUT)))

    ensemble.part(follower, leader)

    locks.await_grants()
    eventually(lambda: follower.mode() == "follower")  # the follower still answers pings and reads
    assert [name for name in locks.names if locks.lost[name] >= locks.granted[name]] == []


@pytest.mark.skipif(
    "HOLDFAST_TEST_QUIET" not in os.environ,
    reason="measures the end of sessions to a tenth of a second: HOLDFAST_TEST_QUIET=1 if nothing else runs",
)
def test_one_write_does_not_prove_that_the_leader_reset_the_timer(ensemble: ProxiedEnsemble) -> None:
    """The reason for session_proof.py: a session can end more than a tick earlier than counted from the last write."""
    leader, follower = ensemble.leader, ensemble.followers[0]
    timeout = 4.0
    with _sessions(follower, 30, timeout) as clients, kazoo(leader.address) as observer:
        ended: dict[str, float] = {}
        for number, client in enumerate(clients):
            client.create(f"/session-{number}", ephemeral=True)
            note = lambda event: ended.setdefault(event.path, now())  # noqa: E731
            observer.get_children(f"/session-{number}", watch=note)  # fires when the node is deleted, not when written
        before_ping = now() + timeout / 3 - 0.5  # kazoo pings up to 0.4 s before a third of the timeout has passed
        while now() < before_ping:
            threading.Event().wait(0.01)
        sent = now()
        for write in [client.set_async(f"/session-{number}", b"") for number, client in enumerate(clients)]:
            write.get(timeout=PATIENCE)  # until all writes are committed

        ensemble.part(follower, leader)

        eventually(lambda: len(ended) == len(clients))
        expected_end = sent + timeout - TICK / 1000
        ensemble.heal()  # so that the clients can close their sessions
        assert min(ended.values()) < expected_end


def test_a_session_proof_holds_when_its_follower_is_cut_off_at_any_moment(ensemble: ProxiedEnsemble) -> None:
    leader, follower = ensemble.leader, ensemble.followers[0]
    timeout = TIMEOUT
    with _sessions(follower, 10, timeout) as clients, kazoo(leader.address) as observer:
        ended: dict[int, float] = {}
        heartbeats = [_Heartbeat(client, f"/proven-{number}", timeout) for number, client in enumerate(clients)]
        for number, heartbeat in enumerate(heartbeats):
            note = lambda _, number=number: ended.setdefault(number, now())  # noqa: E731
            observer.get_children(heartbeat.path, watch=note)  # fires when the node is deleted, not when written
            heartbeat.start(after=number * timeout / 50)  # so that the cut is at a different moment for each
        eventually(lambda: all(heartbeat.pairs > 4 for heartbeat in heartbeats))

        ensemble.part(follower, leader)

        eventually(lambda: len(ended) == len(clients))
        for heartbeat in heartbeats:
            heartbeat.end()
        ensemble.heal()
        proven = [heartbeat.proof.valid_until for heartbeat in heartbeats]
        assert [number for number in ended if proven[number] >= ended[number]] == []


class _Heartbeat:
    """Pairs of writes by a kazoo client, like those of the backend."""

    def __init__(self, client: KazooClient, path: str, timeout: float) -> None:
        self.path = path
        self.pairs = 0
        self.proof = SessionProof(timeout)
        self._client = client
        self._ended = threading.Event()
        client.create(path, ephemeral=True)
        self._thread = threading.Thread(target=self._run)

    def start(self, after: float) -> None:
        self.proof.record_connection(1, 0.0)
        self._after = after
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        self._ended.wait(self._after)
        while not self._ended.is_set():
            times = []
            for _ in range(2):
                times.append(now())
                write = self._client.set_async(self.path, b"")
                while not write.wait(0.05):
                    if self._ended.is_set():
                        return
                if not write.successful():
                    return
            self.proof.record_pair(1, times[0], times[1], now())
            self.pairs += 1
            self._ended.wait(self.proof.pause)


@contextlib.contextmanager
def _sessions(server: Server, count: int, timeout: float) -> Iterator[list[KazooClient]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(kazoo(server.address, timeout=timeout)) for _ in range(count)]

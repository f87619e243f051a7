"""Many waiters use few connections, and a hand-over costs the same with 2 waiters and with 100."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

import pytest

import holdfast
from holdfast import BackendError
from tests.integration.conftest import OpenClient
from tests.integration.etcd.helpers import acquired
from tests.support.etcd.servers import Server
from tests.support.processes import PATIENCE, eventually, now

TURNS = 5


def connections(server: Server) -> int:
    """The number of open connections to the server's port."""
    with open("/proc/net/tcp") as table:
        rows = [line.split()[1:4] for line in table.readlines()[1:]]
    return sum(remote.endswith(f":{server.port:04X}") and state == "01" for _, remote, state in rows)


def operations(server: Server) -> float:
    """The number of requests of the KV service and of watch events so far, without keep-alives."""
    counters = server.metrics().items()
    calls = sum(count for name, count in counters if name.startswith("grpc_server_started_total") and "KV" in name)
    return calls + sum(count for name, count in counters if name == "etcd_debugging_mvcc_events_total")


def timed(step: Callable[[], None]) -> float:
    """The seconds that the step takes."""
    began = now()
    step()
    return now() - began


class Waiters:
    """Threads that are queued for one lock, until they acquire it one after the other."""

    def __init__(self, clients: list[holdfast.Client], number: int) -> None:
        self._clients = clients
        self.leases: list[holdfast.Lease] = []
        self._may_release = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._wait, args=(clients[index % len(clients)],)) for index in range(number)
        ]

    def _wait(self, client: holdfast.Client) -> None:
        with client.lock("a", ttl=60, timeout=100) as lease:
            self.leases.append(lease)
            self._may_release.acquire()

    def start(self) -> None:
        for number, thread in enumerate(self._threads):
            thread.start()
            if number % 20 == 0:
                # mypy does not infer the type of a lambda with a default.
                eventually(lambda queued=number: self._count() >= queued, within=3 * PATIENCE)  # type: ignore[misc]
        eventually(lambda: self._count() == len(self._threads))

    def _count(self) -> int:
        """The number of waiters in the queue; -1 if the server does not answer in time."""
        try:
            return len(self._clients[0].inspect("a").waiters)
        except BackendError:
            return -1

    def await_unanswered_call(self) -> None:
        """Return after a call without an answer, after which the client opens its watches again."""
        with pytest.raises(BackendError):
            self._clients[0].lock("b").acquire(timeout=0)

    def next_turn(self) -> None:
        count = len(self.leases)
        self._may_release.release()
        eventually(lambda: len(self.leases) == count + 1)

    def finish(self) -> None:
        self._may_release.release(len(self._threads))
        for thread in self._threads:
            thread.join(100)


def test_many_waiters_of_one_client_share_a_few_connections(own_server: Server, open_client: OpenClient) -> None:
    lease = acquired(open_client(own_server.url), "a", ttl=60)
    waiters = Waiters([open_client(own_server.url)], 150)
    waiters.start()

    eventually(lambda: connections(own_server) <= 40)

    lease.release()
    waiters.finish()
    assert len(waiters.leases) == 150


def test_waiters_are_notified_again_after_their_server_was_paused(own_server: Server, open_client: OpenClient) -> None:
    lease = acquired(open_client(own_server.url), "a", ttl=60)
    waiters = Waiters([open_client(own_server.url)], 40)
    waiters.start()
    lease.release()
    eventually(lambda: len(waiters.leases) == 1)
    before = [timed(waiters.next_turn) for _ in range(TURNS)]
    own_server.stop()
    try:
        waiters.await_unanswered_call()
    finally:
        own_server.resume()
    waiters.next_turn()  # the next waiter may still wait for the answer to its poll

    after = [timed(waiters.next_turn) for _ in range(TURNS)]

    waiters.finish()
    assert len(waiters.leases) == 40
    # A waiter that only polls needs half a poll interval on average, which is longer than a second.
    assert statistics.median(after) < 5 * statistics.median(before) + 0.5, (before, after)


def test_a_hand_over_costs_the_same_with_2_waiters_and_with_100(own_server: Server, open_client: OpenClient) -> None:
    costs = []
    for number in (2, 100):
        lease = acquired(open_client(own_server.url), "a", ttl=60)
        waiters = Waiters([open_client(own_server.url) for _ in range(10)], number + TURNS)
        waiters.start()
        lease.release()
        eventually(lambda waiters=waiters: len(waiters.leases) == 1)  # type: ignore[misc]  # as above

        # Other waiters poll every few seconds. In the cheapest of several turns none of them polls.
        turn_costs = []
        for _ in range(TURNS):
            before = operations(own_server)
            waiters.next_turn()
            turn_costs.append(operations(own_server) - before)
        costs.append(min(turn_costs))
        waiters.finish()

    assert costs[1] <= costs[0] + 2, costs

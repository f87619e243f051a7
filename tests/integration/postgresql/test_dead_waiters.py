"""Hazard: waiters of a dead or unresponsive client block a free lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import sql

import holdfast
from holdfast.core.tickets import WOKEN_LEASE, Claim, Granted, Waiting
from tests.integration.conftest import OpenClient
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually

WAITERS = 4


class Queue:
    """One client holds the lock; all waiters of a second client are queued before a waiter of a third."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self._schema = sql.Identifier(parse_qs(urlsplit(url).query)["schema"][0])
        self.holder, self.first, self.last = Driver(url), Driver(url), Driver(url)
        (self.held,) = self.holder.tickets(["a"])
        assert isinstance(self.holder.try_acquire(self.held), Granted)
        self.waiting = [self._queued(self.first) for _ in range(WAITERS)]
        self.next = self._queued(self.last)

    def _queued(self, client: Driver) -> Claim:
        (ticket,) = client.tickets(["a"])
        assert isinstance(client.try_acquire(ticket, queue=True), Waiting)
        return ticket

    def nonces(self) -> list[str]:
        query = sql.SQL("SELECT nonce FROM {}.holdfast_tickets ORDER BY number").format(self._schema)
        return [nonce for (nonce,) in self.server.rows(query)]

    def end_sessions_of_first(self) -> None:
        """Close the sockets, as the kernel does for a killed process."""
        is_alive = sql.SQL(
            "SELECT 1 FROM pg_locks k JOIN {}.holdfast_tickets t ON k.locktype = 'advisory' AND t.nonce = {nonce} "
            "AND k.classid::bigint << 32 | k.objid::bigint = ('x' || substr(t.channel, 18, 16))::bit(64)::bigint"
        ).format(self._schema, nonce=self.waiting[-1].nonce)
        assert self.server.rows(is_alive)
        self.first.close()
        eventually(lambda: not self.server.rows(is_alive))

    def close(self) -> None:
        for client in (self.holder, self.first, self.last):
            client.close()


@pytest.fixture
def queue(server: Server, url: str) -> Iterator[Queue]:
    made = Queue(server, url)
    yield made
    made.close()


def test_a_release_skips_all_waiters_of_a_client_without_a_session(queue: Queue) -> None:
    queue.end_sessions_of_first()

    queue.holder.release([queue.held])

    assert queue.nonces() == [queue.next.nonce]
    assert isinstance(queue.last.try_acquire(queue.next, queue=True), Granted)


def test_a_poll_skips_all_waiters_of_a_client_without_a_session(queue: Queue) -> None:
    queue.holder.release([queue.held])  # wakes the first waiter
    queue.first.try_acquire(queue.waiting[0])  # it is granted, and released
    queue.first.release([queue.waiting[0]])
    queue.end_sessions_of_first()

    eventually(lambda: isinstance(queue.last.try_acquire(queue.next, queue=True), Granted))

    assert queue.nonces() == []


def test_all_waiters_of_an_unresponsive_client_are_skipped_together(queue: Queue) -> None:
    queue.holder.release([queue.held])
    assert queue.nonces() == [*(ticket.nonce for ticket in queue.waiting), queue.next.nonce]

    eventually(lambda: isinstance(queue.last.try_acquire(queue.next, queue=True), Granted))

    assert queue.nonces() == []


def test_a_client_that_polls_for_another_waiter_keeps_the_places_of_the_rest(queue: Queue) -> None:
    queue.holder.release([queue.held])
    queue.first.try_acquire(queue.waiting[3], queue=True)

    def first_is_skipped() -> bool:
        assert isinstance(queue.last.try_acquire(queue.next, queue=True), Waiting)
        return queue.waiting[0].nonce not in queue.nonces()

    eventually(first_is_skipped)

    assert queue.nonces() == [*(ticket.nonce for ticket in queue.waiting[1:]), queue.next.nonce]


def test_the_first_waiter_of_another_client_polls_when_the_turn_of_the_woken_waiter_ends(queue: Queue) -> None:
    queue.holder.release([queue.held])
    released_at = time.monotonic()

    waiting = queue.last.try_acquire(queue.next, queue=True)

    if time.monotonic() - released_at < WOKEN_LEASE:  # later, the woken waiter has lost its turn
        assert isinstance(waiting, Waiting)
        assert waiting.poll_after <= WOKEN_LEASE


def test_a_client_whose_subscription_has_just_ended_keeps_its_place(
    server: Server, url: str, open_client: OpenClient, driver: Driver
) -> None:
    held, behind = driver.tickets(["a", "a"])
    driver.try_acquire(held)
    client, leases = open_client(url), list[holdfast.Lease | None]()
    thread = threading.Thread(target=lambda: leases.append(client.lock("a").acquire(timeout=30)))
    thread.start()
    eventually(lambda: bool(server.clients("LISTEN%")))
    driver.try_acquire(behind, queue=True)

    server.terminate("LISTEN%")
    driver.release([held])

    assert isinstance(driver.try_acquire(behind, queue=True), Waiting)
    thread.join(40)
    assert leases[0] is not None
    leases[0].release()


def test_a_session_younger_than_the_last_poll_of_a_waiter_does_not_remove_it(queue: Queue, url: str) -> None:
    """After a restart all sessions are younger, and some clients are still reconnecting."""
    queue.end_sessions_of_first()
    young = Driver(url)
    (ticket,) = young.tickets(["a"])

    queue.server.rows(sql.SQL("UPDATE {}.holdfast_locks SET nonce = NULL").format(queue._schema))
    assert isinstance(young.try_acquire(ticket), Waiting)

    assert queue.nonces()[0] == queue.waiting[0].nonce
    young.close()

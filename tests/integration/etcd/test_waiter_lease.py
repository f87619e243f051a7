"""The keys of waiters have a short lease of their client, so a dead process does not block a free lock for its ttl."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.backends.etcd.protocol.leases import WAITER_TTL
from holdfast.core.tickets import Claim, Granted, Waiting
from tests.integration.conftest import OpenClient
from tests.integration.etcd.harness import Harness, harness, ticket
from tests.integration.etcd.helpers import acquired, waiting
from tests.support.etcd.servers import Server
from tests.support.processes import eventually

WAITERS = """
import sys, threading, holdfast
client = holdfast.Client(sys.argv[1])
for _ in range(3):
    threading.Thread(target=client.lock("a", ttl=600).acquire).start()
"""


@pytest.fixture
def prefix(url: str) -> str:
    return url.partition("prefix=")[2].replace("%2F", "/")


@pytest.fixture
def holder(url: str) -> Iterator[Harness]:
    with harness(url) as made:
        yield made


@pytest.fixture
def waiter(url: str) -> Iterator[Harness]:
    with harness(url) as made:
        made.backend._leases.waiter_ttl = 60  # type: ignore[attr-defined]  # a busy machine may pause between steps
        yield made


def key_of(server: Server, prefix: str, created: int) -> dict[str, Any]:
    """The key on the server that was created at this revision."""
    start = base64.b64encode(f"{prefix}a/".encode()).decode()
    end = base64.b64encode(f"{prefix}a0".encode()).decode()
    entries = server.call("kv/range", key=start, range_end=end)["kvs"]
    (entry,) = [entry for entry in entries if int(entry["create_revision"]) == created]
    return dict(entry)


def ttl_of(server: Server, lease: str) -> int:
    return int(server.call("lease/timetolive", ID=lease)["grantedTTL"])


def created_last(server: Server, prefix: str) -> int:
    start = base64.b64encode(f"{prefix}a/".encode()).decode()
    end = base64.b64encode(f"{prefix}a0".encode()).decode()
    return max(int(entry["create_revision"]) for entry in server.call("kv/range", key=start, range_end=end)["kvs"])


def queued_behind(holder: Harness, waiter: Harness, ttl: float = 30.0) -> tuple[Claim, Claim]:
    """A granted ticket, and the next waiter."""
    first, second = ticket("a"), ticket("a", ttl=ttl)
    assert isinstance(holder.try_acquire(first), Granted)
    assert isinstance(waiter.try_acquire(second, queue=True), Waiting)
    holder.calls()
    waiter.calls()
    return first, second


def test_waiters_of_a_killed_process_do_not_block_a_free_lock_for_their_ttl(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    lease = acquired(client, "a", ttl=30)
    process = subprocess.Popen([sys.executable, "-c", WAITERS, url])
    try:
        eventually(lambda: len(client.inspect("a").waiters) == 3)
    finally:
        process.kill()
        process.wait()

    lease.release()

    acquired(client, "a").release()  # within 10 s


def test_a_waiter_has_the_waiter_lease_and_a_granted_ticket_has_the_lease_of_its_ttl(
    server: Server, url: str, prefix: str, open_client: OpenClient
) -> None:
    lease = acquired(open_client(url), "a")

    with waiting(open_client(url), "a") as leases:
        created = created_last(server, prefix)
        assert ttl_of(server, key_of(server, prefix, created)["lease"]) == WAITER_TTL
        lease.release()
        eventually(lambda: bool(leases))
        assert leases[0].fence == created
        assert ttl_of(server, key_of(server, prefix, created)["lease"]) == 6


def test_an_uncontended_acquire_and_a_hand_over_take_one_request_each(holder: Harness, waiter: Harness) -> None:
    assert isinstance(holder.try_acquire(ticket("b"), queue=True), Granted)
    assert holder.calls() == ["kv/txn"]
    first, second = queued_behind(holder, waiter)

    holder.release([first])
    assert isinstance(waiter.try_acquire(second, queue=True), Granted)

    assert waiter.calls() == ["kv/txn"]


def test_a_grant_is_found_when_its_answer_was_lost(holder: Harness, waiter: Harness) -> None:
    first, second = queued_behind(holder, waiter)
    holder.release([first])

    waiter.cluster.lose_write_answers = True
    with pytest.raises(holdfast.OutcomeUnknown):
        waiter.try_acquire(second, queue=True)
    waiter.cluster.lose_write_answers = False
    granted = waiter.try_acquire(second, queue=True)

    assert isinstance(granted, Granted)
    assert waiter.release([second]) == [True]
    assert waiter.locked() == []


def test_a_grant_does_nothing_when_it_arrives_after_a_withdrawal(holder: Harness, waiter: Harness) -> None:
    first, second = queued_behind(holder, waiter)
    holder.release([first])

    waiter.cluster.hold_next = True
    with pytest.raises(holdfast.OutcomeUnknown):
        waiter.try_acquire(second, queue=True)
    waiter.release([second])
    late_answer = waiter.cluster.deliver()

    assert not late_answer.message.get("succeeded")
    assert waiter.locked() == []


def test_a_queue_request_does_nothing_when_it_arrives_after_a_withdrawal(holder: Harness, waiter: Harness) -> None:
    first, second = ticket("a"), ticket("a")
    warm = ticket("a")
    holder.try_acquire(first)
    waiter.try_acquire(warm, queue=True)  # so that the waiter lease exists
    waiter.release([warm])

    waiter.cluster.hold_after = 1  # the answer to the first request is that the lock is busy
    with pytest.raises(holdfast.OutcomeUnknown):
        waiter.try_acquire(second, queue=True)
    waiter.release([second])
    late_answer = waiter.cluster.deliver()

    assert not late_answer.message.get("succeeded")
    holder.release([first])
    assert waiter.locked() == []


def test_a_waiter_queues_again_at_the_end_when_its_lease_ends_before_its_grant(
    server: Server, url: str, prefix: str, holder: Harness, waiter: Harness
) -> None:
    first, second = queued_behind(holder, waiter)
    revision = created_last(server, prefix)
    third = ticket("a")
    assert isinstance(holder.try_acquire(third, queue=True), Waiting)

    holder.release([first])
    server.revoke(int(key_of(server, prefix, revision)["lease"]))

    assert isinstance(waiter.try_acquire(second, queue=True), Waiting)
    assert isinstance(holder.try_acquire(third, queue=True), Granted)
    holder.release([third])
    granted = waiter.try_acquire(second, queue=True)
    assert isinstance(granted, Granted)
    assert granted.fence > revision
    waiter.release([second])

"""Hazard: a script that renews many leases hides the loss of one of them, or the server runs a script for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.backends.redis.lua import KEEP
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.redis.test_handovers import scripts_run
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster

LEASES = 100


@pytest.fixture
def verbs(server: Server) -> Iterator[Verbs]:
    with closing(Verbs(server.url)) as verbs:
        yield verbs


def hold(verbs: Verbs, name: str, **options: object) -> Claim:
    ticket = verbs.ticket(name, **options)
    assert isinstance(verbs.try_acquire(ticket), Granted)
    return ticket


def test_one_script_renews_a_hundred_leases(server: Server, verbs: Verbs) -> None:
    tickets = [hold(verbs, f"name-{number}", ttl=20.0) for number in range(LEASES)]
    for ticket in tickets:
        server.call("PEXPIRE", f"holdfast:{ticket.name}", 5000)
    before = scripts_run(server)

    outcomes = verbs.renew(*tickets)

    assert scripts_run(server) == before + 1
    assert all(isinstance(outcome, Live) for outcome in outcomes)
    assert min(server.call("PTTL", f"holdfast:{ticket.name}") for ticket in tickets) > 10_000


def test_each_lease_has_its_own_result(server: Server, verbs: Verbs) -> None:
    names = ("live", "expired", "foreign", "other")
    live, expired, foreign, other = (hold(verbs, name) for name in names)
    reader = hold(verbs, "reader", exclusive=False, limit=None)
    owner = hold(verbs, "owner", owner="x")
    server.call("DEL", "holdfast:expired")
    server.call("SET", "holdfast:foreign", "token of redis-py")

    outcomes = verbs.renew(live, expired, reader, foreign, owner, other)

    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Live, LeaseGone, Live, LeaseGone, Live, Live]
    assert server.call("GET", "holdfast:foreign") == "token of redis-py"


def test_a_key_of_another_type_is_the_loss_of_its_lease_only(server: Server, verbs: Verbs) -> None:
    live, replaced = hold(verbs, "live"), hold(verbs, "replaced")
    server.call("DEL", "holdfast:replaced")
    server.call("LPUSH", "holdfast:replaced", "x")

    assert [type(outcome) for outcome in verbs.renew(live, replaced)] == [Live, LeaseGone]


def test_a_longer_ttl_keeps_the_locks_in_the_index_and_their_waiters(server: Server, verbs: Verbs) -> None:
    tickets = [hold(verbs, name, ttl=10.0) for name in ("one", "two")]
    waiter = verbs.ticket("one")
    verbs.try_acquire(waiter)
    for ticket in tickets:
        ticket.ttl = 2 * KEEP

    assert all(isinstance(outcome, Live) for outcome in verbs.renew(*tickets))

    ends = [float(server.call("ZSCORE", "holdfast:{}:locks", f"holdfast:{ticket.name}")) for ticket in tickets]
    seconds, _ = server.call("TIME")
    assert min(ends) > (int(seconds) + 2 * KEEP) * 1000
    assert len(verbs.inspect("one").waiters) == 1
    queues = [key for key in server.all_keys() if "queue" in key or "waiters" in key]
    assert len(queues) == 2
    assert min(server.call("PTTL", key) for key in queues) > 2 * KEEP * 1000


def test_leases_on_a_cluster_are_renewed_in_all_slots(cluster: Cluster) -> None:
    with closing(Verbs(cluster.url)) as verbs:
        tickets = [hold(verbs, f"name-{number}") for number in range(20)]

        assert all(isinstance(outcome, Live) for outcome in verbs.renew(*tickets))

"""Registers in etcd: one of many clients advances a register. It outlives its client, and is not listed as a lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.backends.etcd.protocol.messages import b64
from holdfast.core.tickets import Granted
from tests.integration.etcd.harness import Harness, harness, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, etcdctl

FIRST, SECOND = "1" * 32, "2" * 32


@pytest.fixture(params=["queue", "key"])
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return shared.fresh_url(method=request.param)


@pytest.fixture
def ours(url: str) -> Iterator[Harness]:
    with harness(url) as made:
        yield made


def prefix_in(url: str) -> str:
    return url.partition("prefix=")[2].partition("&")[0].replace("%2F", "/")


def test_a_late_advance_needs_one_request_and_a_successful_one_two(ours: Harness) -> None:
    ours.advance_register("a", 1)
    ours.calls()

    ours.advance_register("a", 2)
    assert ours.calls() == ["kv/txn"] * 2
    ours.advance_register("a", 2, SECOND)
    assert ours.calls() == ["kv/txn"]


def test_an_advance_is_found_by_its_nonce_when_the_answer_was_lost(ours: Harness) -> None:
    ours.cluster.lose_write_answers = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.advance_register("a", 3, FIRST)
    ours.cluster.lose_write_answers = False

    assert not ours.advance_register("a", 3, SECOND)
    assert ours.advance_register("a", 3, FIRST)


def test_a_register_outlives_its_client_for_the_requested_time(server: Server, url: str) -> None:
    with harness(url) as first:
        first.advance_register("a", 7, keep=500)

    with harness(url) as second:
        assert second.read_registers("a") == [7]
    entry = server.call("kv/range", key=b64(f"{prefix_in(url)}%mark/a".encode()))["kvs"][0]
    lease = server.call("lease/timetolive", ID=entry["lease"])
    assert int(lease["TTL"]) >= 500


def test_one_lease_serves_many_registers(own_server: Server) -> None:
    with harness(own_server.url) as ours:
        ours.advance_register("x", 1)
        before = len(own_server.leases())

        for number in range(20):
            ours.advance_register(f"many{number}", 1)

        assert len(own_server.leases()) == before


def test_a_revoked_lease_ends_its_registers_and_is_replaced(own_server: Server) -> None:
    with harness(own_server.url) as ours:
        before = own_server.leases()
        ours.advance_register("revoked", 1)
        for lease_id in set(own_server.leases()) - set(before):
            own_server.revoke(lease_id)

        assert ours.read_registers("revoked") == [0]
        assert ours.advance_register("revoked", 2)


def test_registers_are_not_listed_as_locks(server: Server, url: str, ours: Harness) -> None:
    for name in ("a", "x/y", "%", "a" * 528):
        assert ours.advance_register(name, 1)

    assert ours.locked() == []
    with harness(f"{server.url}?prefix={prefix_in(url)[:-5]}") as wider:
        assert wider.locked() == []
    assert isinstance(ours.try_acquire(ticket("a")), Granted)
    with etcdctl(server, "lock", f"{prefix_in(url)}b", "true") as foreign:
        assert foreign.wait(10) == 0


def test_an_error_names_data_that_are_no_register(server: Server, url: str, ours: Harness) -> None:
    server.put(f"{prefix_in(url)}%mark/a", "something")

    with pytest.raises(holdfast.NameConflict, match="is no register"):
        ours.advance_register("a", 1)

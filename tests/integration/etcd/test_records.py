"""Records in etcd: a lost answer is found by its nonce, a delayed request changes nothing, and leases are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.backends.etcd.protocol.messages import b64
from holdfast.core.ports import RECORD_MAX, Record
from tests.integration.etcd.harness import Harness, harness, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server

FIRST, SECOND = Record("1" * 32, "{}"), Record("2" * 32, "[1]")


@pytest.fixture(params=["queue", "key"])
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return shared.fresh_url(method=request.param)


@pytest.fixture
def ours(url: str) -> Iterator[Harness]:
    with harness(url) as made:
        yield made


def record_key(url: str, name: str) -> str:
    prefix = url.partition("prefix=")[2].partition("&")[0].replace("%2F", "/")
    return f"{prefix}%mark/%record/{name}"


def test_a_new_record_needs_one_request_and_a_replacement_two(ours: Harness) -> None:
    ours.swap_record("other", "", FIRST)
    ours.calls()

    ours.swap_record("a", "", FIRST)
    assert ours.calls() == ["kv/txn"]
    ours.swap_record("a", FIRST.nonce, SECOND)
    assert ours.calls() == ["kv/txn"] * 2
    ours.swap_record("a", "", None)
    assert ours.calls() == ["kv/txn"]


def test_a_swap_is_found_by_its_nonce_when_the_answer_was_lost(ours: Harness) -> None:
    ours.cluster.lose_write_answers = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.swap_record("a", "", FIRST)
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.swap_record("a", FIRST.nonce, SECOND)
    ours.cluster.lose_write_answers = False

    assert ours.swap_record("a", FIRST.nonce, SECOND) == SECOND
    assert ours.swap_record("a", "", FIRST) == SECOND


def test_a_delayed_request_does_not_replace_a_newer_record(ours: Harness) -> None:
    ours.swap_record("a", "", FIRST)
    ours.calls()
    ours.cluster.hold_after = 1
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.swap_record("a", FIRST.nonce, None)
    assert ours.swap_record("a", FIRST.nonce, SECOND) == SECOND

    ours.cluster.deliver()

    assert ours.swap_record("a", "", None) == SECOND


def test_a_record_outlives_its_client_for_the_requested_time(server: Server, url: str) -> None:
    with harness(url) as first:
        first.swap_record("a", "", FIRST, keep=500)

    with harness(url) as second:
        assert second.swap_record("a", "", None) == FIRST
    stored = server.call("kv/range", key=b64(record_key(url, "a").encode()))["kvs"][0]
    lease = server.call("lease/timetolive", ID=stored["lease"])
    assert 500 <= int(lease["TTL"]) <= 600


def test_one_lease_serves_the_records_of_a_minute(own_server: Server) -> None:
    with harness(own_server.url) as ours:
        ours.swap_record("x", "", FIRST, keep=3600)
        before = len(own_server.leases())

        for number in range(20):
            ours.swap_record(f"many{number}", "", FIRST, keep=3600)

        assert len(own_server.leases()) == before


def test_a_revoked_lease_ends_its_records_and_is_replaced(own_server: Server) -> None:
    with harness(own_server.url) as ours:
        before = own_server.leases()
        ours.swap_record("revoked", "", FIRST, keep=1000)
        for lease in set(own_server.leases()) - set(before):
            own_server.revoke(lease)

        assert ours.swap_record("revoked", "", None) is None
        assert ours.swap_record("revoked", "", SECOND, keep=1000) == SECOND


def test_records_are_not_read_when_locks_are_listed(ours: Harness) -> None:
    for name in ("a", "a/b", "%"):
        ours.swap_record(name, "", Record("3" * 32, "x" * RECORD_MAX))
    ours.try_acquire(ticket("!"))  # its key is before the keys of records, the key of "z" after them
    ours.try_acquire(ticket("z"))

    assert ours.locked() == ["!", "z"]

    assert ours.cluster.longest_answer < RECORD_MAX


def test_an_error_names_data_that_are_no_record(server: Server, url: str, ours: Harness) -> None:
    server.put(record_key(url, "a"), "something")

    with pytest.raises(holdfast.NameConflict, match="is no record"):
        ours.swap_record("a", "", FIRST)

"""Marks in etcd: one of many raises one, it outlives its client, and nothing that looks for locks sees it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.backends.etcd.protocol.messages import b64
from holdfast.core.tickets import Granted
from tests.integration.etcd.roads import Bench, bench, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, etcdctl

FIRST, SECOND = "1" * 32, "2" * 32


@pytest.fixture(params=["queue", "key"])
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return shared.fresh_url(method=request.param)


@pytest.fixture
def ours(url: str) -> Iterator[Bench]:
    with bench(url) as made:
        yield made


def prefix_in(url: str) -> str:
    return url.partition("prefix=")[2].partition("&")[0].replace("%2F", "/")


def test_a_mark_is_raised_by_one_and_never_goes_down(ours: Bench) -> None:
    assert ours.advance_register("a", 5, FIRST)
    assert not ours.advance_register("a", 5, SECOND)
    assert not ours.advance_register("a", 4, SECOND)
    assert ours.advance_register("a", 5, FIRST)
    assert ours.read_registers("a", "b") == [5, 0]
    assert ours.advance_register("a", 2**63 - 1, SECOND)
    assert ours.read_registers("a") == [2**63 - 1]


def test_who_comes_too_late_asks_once_and_who_raises_it_twice(ours: Bench) -> None:
    ours.advance_register("a", 1)
    ours.calls()

    ours.advance_register("a", 2)
    assert ours.calls() == ["kv/txn"] * 2
    ours.advance_register("a", 2, SECOND)
    assert ours.calls() == ["kv/txn"]


def test_of_many_at_once_one_raises_it(url: str) -> None:
    raised: list[int] = []

    def raise_all(number: int) -> None:
        with bench(url) as own:
            raised.extend(period for period in range(1, 30) if own.advance_register("a", period, f"{number:032x}"))

    threads = [threading.Thread(target=raise_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(raised) == len(set(raised))
    assert max(raised) == 29


def test_a_lost_answer_is_found_out_by_the_nonce(ours: Bench) -> None:
    ours.road.loses_writes = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.advance_register("a", 3, FIRST)
    ours.road.loses_writes = False

    assert not ours.advance_register("a", 3, SECOND)
    assert ours.advance_register("a", 3, FIRST)


def test_it_outlives_the_client_for_as_long_as_was_asked(server: Server, url: str) -> None:
    with bench(url) as first:
        first.advance_register("a", 7, keep=500)

    with bench(url) as second:
        assert second.read_registers("a") == [7]
    found = server.call("kv/range", key=b64(f"{prefix_in(url)}%mark/a".encode()))["kvs"][0]
    left = server.call("lease/timetolive", ID=found["lease"])
    assert int(left["TTL"]) >= 500


def test_one_lease_serves_many_marks(own_server: Server) -> None:
    with bench(own_server.url) as ours:
        ours.advance_register("x", 1)
        before = len(own_server.leases())

        for number in range(20):
            ours.advance_register(f"many{number}", 1)

        assert len(own_server.leases()) == before


def test_a_lease_that_somebody_revokes_takes_its_marks_along_and_the_next_has_another(own_server: Server) -> None:
    with bench(own_server.url) as ours:
        before = own_server.leases()
        ours.advance_register("revoked", 1)
        for one in set(own_server.leases()) - set(before):
            own_server.revoke(one)

        assert ours.read_registers("revoked") == [0]
        assert ours.advance_register("revoked", 2)


def test_nothing_that_looks_for_locks_sees_a_mark(server: Server, url: str, ours: Bench) -> None:
    for name in ("a", "x/y", "%", "a" * 528):
        assert ours.advance_register(name, 1)

    assert ours.locked() == []
    with bench(f"{server.url}?prefix={prefix_in(url)[:-5]}") as wider:
        assert wider.locked() == []
    assert isinstance(ours.try_acquire(ticket("a")), Granted)
    with etcdctl(server, "lock", f"{prefix_in(url)}b", "true") as foreign:
        assert foreign.wait(10) == 0


def test_what_is_no_mark_is_named(server: Server, url: str, ours: Bench) -> None:
    server.put(f"{prefix_in(url)}%mark/a", "something")

    with pytest.raises(holdfast.NameConflict, match="is no register"):
        ours.advance_register("a", 1)


def test_hundreds_are_read(ours: Bench) -> None:
    ours.advance_register("n249", 3)

    assert ours.read_registers(*(f"n{number}" for number in range(250))) == [0] * 249 + [3]

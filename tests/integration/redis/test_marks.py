"""Hazard: two are told that they have raised a mark to the same number, or a mark goes down, or is taken for a lock."""

from __future__ import annotations

import contextlib
import threading

import pytest

import holdfast
from tests.integration.redis.conftest import OpenClient
from tests.integration.redis.scenes import immortal_keys, take
from tests.integration.redis.test_names import NAMES
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster
from tests.support.verbs import Verbs

METHODS = ["queue", "setnx", "getset"]
LARGEST = 2**63 - 1


@pytest.fixture(params=METHODS)
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return f"{server.url}?method={request.param}"


def test_a_mark_goes_up_and_never_down_and_says_who_raised_it(url: str) -> None:
    backend = Verbs(url)

    assert backend.read_registers("a") == [0]
    assert backend.advance_register("a", 7, nonce="me")
    assert backend.advance_register("a", 7, nonce="me"), "the same call once more, because its answer was lost"
    assert not backend.advance_register("a", 7, nonce="other")
    assert not backend.advance_register("a", 6, nonce="me")
    assert backend.advance_register("a", 10)  # more digits
    assert not backend.advance_register("a", 9)
    assert not backend.advance_register("a", 7, nonce="me"), "it is not that any more"
    for number in (1_700_000_000_000_001, LARGEST - 1, LARGEST):
        assert backend.advance_register("a", number)
        assert not backend.advance_register("a", number)
    assert backend.read_registers("b", "a", "c") == [0, LARGEST, 0]
    backend.close()


def test_of_many_at_once_one_raises_a_mark_to_each_number(url: str) -> None:
    raised: list[int] = []
    gate = threading.Barrier(6)

    def work() -> None:
        backend = Verbs(url)
        for number in range(1, 101):
            gate.wait()
            if backend.advance_register("a", number):
                raised.append(number)
        backend.close()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(raised) == list(range(1, 101))


def test_marks_are_no_locks(url: str, server: Server, open_client: OpenClient) -> None:
    backend, client = Verbs(url), open_client(url)

    lease = take(client.lock("a"))
    assert backend.advance_register("a", 5)

    assert [info.name for info in client.locks()] == ["a"]
    assert not client.inspect("b").holders
    lease.release()
    assert client.locks() == []
    assert backend.read_registers("a") == [5]
    assert immortal_keys(server) == set()
    backend.close()


def test_a_mark_is_kept_for_as_long_as_anybody_asked_and_then_goes(url: str, server: Server) -> None:
    backend = Verbs(url)

    assert backend.advance_register("a", 5, keep=1000)
    assert backend.advance_register("a", 6, keep=10)
    assert backend.advance_register("b", 5, keep=0.05)

    (kept,) = (server.call("PTTL", key) for key in server.all_keys() if "holdfast:a" in key)
    assert 990_000 < kept <= 1_000_000
    server.await_true(lambda one: not [key for key in one.all_keys() if "holdfast:b" in key])
    assert backend.read_registers("a", "b") == [6, 0]
    assert backend.advance_register("b", 1)
    backend.close()


@pytest.mark.parametrize("method", METHODS)
def test_every_name_has_a_mark_of_its_own_on_a_cluster_too(
    method: str, shared_cluster: Cluster, open_client: OpenClient
) -> None:
    url = f"{shared_cluster.url}?method={method}&prefix={method}-marks:"
    backend, client = Verbs(url), open_client(url)
    names = [*NAMES, "x" * 528]

    for number, name in enumerate(names, start=1):
        assert backend.advance_register(name, number)

    assert backend.read_registers(*names) == list(range(1, len(names) + 1))
    assert client.locks() == []
    backend.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_mark_whose_answer_is_lost_is_the_caller_s_when_it_asks_again(
    method: str, server: Server, proxy: Proxy
) -> None:
    backend = Verbs(f"{proxy.url}?method={method}&io_timeout=0.5")
    assert backend.advance_register("warm-up", 1)

    proxy.lose_next_reply("XADD" if method == "getset" else "{holdfast:a}:mark:")
    with contextlib.suppress(holdfast.OutcomeUnknown):  # getset looks again by itself
        assert backend.advance_register("a", 5, nonce="me")
    proxy.await_loss()

    assert backend.advance_register("a", 5, nonce="me")
    assert not backend.advance_register("a", 5, nonce="other")
    assert immortal_keys(server) == set()
    backend.close()


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_marks_of_many_names_are_one_round_trip(method: str, proxy: Proxy) -> None:
    backend = Verbs(f"{proxy.url}?method={method}")
    backend.read_registers("warm-up")
    begun = proxy.round_trips

    assert backend.read_registers(*(f"name-{number}" for number in range(50))) == [0] * 50

    assert proxy.round_trips == begun + 1
    backend.close()


def test_a_mark_of_a_key_that_is_something_else_is_a_clear_error(url: str, server: Server) -> None:
    backend = Verbs(url)
    server.call("SET", "holdfast:{holdfast:a}:mark:", "not a mark")

    with pytest.raises(holdfast.NameConflict):
        backend.advance_register("a", 1)
    with pytest.raises(holdfast.NameConflict):
        backend.read_registers("b", "a")
    backend.close()

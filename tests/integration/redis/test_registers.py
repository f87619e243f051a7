"""Hazard: two callers advance a register to the same number, a register decreases, or it is mistaken for a lock."""

from __future__ import annotations

import contextlib

import pytest

import holdfast
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import keys_without_ttl
from tests.integration.redis.test_names import NAMES
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster

METHODS = ["queue", "setnx", "getset"]
LARGEST = 2**63 - 1


@pytest.fixture(params=METHODS)
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return f"{server.url}?method={request.param}"


def test_a_register_is_kept_for_the_longest_requested_time(url: str, server: Server) -> None:
    backend = Verbs(url)

    assert backend.advance_register("a", 5, keep=1000)
    assert backend.advance_register("a", 6, keep=10)
    assert backend.advance_register("b", 5, keep=0.05)

    (kept,) = (server.call("PTTL", key) for key in server.all_keys() if "holdfast:a" in key)
    assert 990_000 < kept <= 1_000_000
    server.await_true(lambda node: not [key for key in node.all_keys() if "holdfast:b" in key])
    assert backend.read_registers("a", "b") == [6, 0]
    assert backend.advance_register("b", 1)
    backend.close()


@pytest.mark.parametrize("method", METHODS)
def test_every_name_has_its_own_register_on_a_cluster(
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
def test_an_advance_whose_reply_is_lost_succeeds_when_repeated(method: str, server: Server, proxy: Proxy) -> None:
    backend = Verbs(f"{proxy.url}?method={method}&io_timeout=0.5")
    assert backend.advance_register("warm-up", 1)

    proxy.lose_next_reply("XADD" if method == "getset" else "{holdfast:a}:mark:")
    with contextlib.suppress(holdfast.OutcomeUnknown):  # getset reads the register after a lost reply
        assert backend.advance_register("a", 5, nonce="me")
    proxy.await_loss()

    assert backend.advance_register("a", 5, nonce="me")
    assert not backend.advance_register("a", 5, nonce="other")
    assert keys_without_ttl(server) == set()
    backend.close()


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_reading_many_registers_takes_one_round_trip(method: str, proxy: Proxy) -> None:
    backend = Verbs(f"{proxy.url}?method={method}")
    backend.read_registers("warm-up")
    before = proxy.round_trips

    assert backend.read_registers(*(f"name-{number}" for number in range(50))) == [0] * 50

    assert proxy.round_trips == before + 1
    backend.close()


def test_a_register_whose_key_has_another_type_raises(url: str, server: Server) -> None:
    backend = Verbs(url)
    server.call("SET", "holdfast:{holdfast:a}:mark:", "not a mark")

    with pytest.raises(holdfast.NameConflict):
        backend.advance_register("a", 1)
    with pytest.raises(holdfast.NameConflict):
        backend.read_registers("b", "a")
    backend.close()

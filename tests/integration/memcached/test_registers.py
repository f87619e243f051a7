"""Hazard: two clients that advance a register to one number, a lost reply, a register that ends too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.keys import register_key_of
from holdfast.backends.memcached.protocol.meta import Reply
from holdfast.errors import NameConflict, OutcomeUnknown
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.memcached.conftest import StartServer
from tests.support.memcached.servers import Server
from tests.support.redis.proxy import Proxy

OURS, THEIRS = "a" * 32, "b" * 32
DAY = 86400.0


@pytest.fixture
def opens() -> Iterator[Callable[[str], Verbs]]:
    opened: list[Verbs] = []

    def opens(url: str) -> Verbs:
        opened.append(Verbs(url))
        return opened[-1]

    yield opens
    for verbs in opened:
        verbs.close()


def _item(server: Server, name: str) -> Reply:
    return server.call(meta.read(register_key_of("holdfast:", name)))


@pytest.mark.parametrize("before", [0, 6])
def test_a_call_without_an_answer_recognises_its_own_write(
    proxy: Proxy, proxied: str, opens: Callable[[str], Verbs], before: int
) -> None:
    verbs = opens(f"{proxied}?io_timeout=1")
    if before:
        verbs.advance_register("one", before)
    verbs.read_registers("one")
    proxy.lose_next_reply(f"mark:7:{OURS}")

    with pytest.raises(OutcomeUnknown):
        verbs.advance_register("one", 7, nonce=OURS)

    proxy.await_loss()
    assert verbs.advance_register("one", 7, nonce=OURS)
    assert not verbs.advance_register("one", 7, nonce=THEIRS)


@pytest.mark.parametrize(
    ("keeps", "least", "most"),
    [
        ([100.0], 100, 106),
        ([100.0, 10.0], 99, 106),  # the first promise holds
        ([30 * DAY - 5], 30 * DAY - 6, 30 * DAY),
        ([30 * DAY], -1, -1),  # it never expires: memcached reads longer times as dates
        ([30 * DAY, 10.0], -1, -1),
    ],
)
def test_a_register_is_kept_for_as_long_as_requested(
    server: Server, opens: Callable[[str], Verbs], keeps: list[float], least: float, most: float
) -> None:
    verbs = opens(server.url)
    for number, keep in enumerate(keeps, start=1):
        assert verbs.advance_register("one", number, keep=keep)

    assert least <= _item(server, "one").seconds_left <= most


def test_an_item_of_another_program_is_not_changed(server: Server, opens: Callable[[str], Verbs]) -> None:
    verbs = opens(server.url)
    server.call(meta.add(register_key_of("holdfast:", "one"), 0, b"holdfast:mark:what"))

    with pytest.raises(NameConflict, match="another program"):
        verbs.advance_register("one", 7)

    assert verbs.read_registers("one") == [0]
    assert _item(server, "one").value == b"holdfast:mark:what"


def test_registers_of_several_servers_are_read_together(
    start_server: StartServer, opens: Callable[[str], Verbs]
) -> None:
    servers = [start_server() for _ in range(3)]
    verbs = opens("memcached://" + ",".join(f"127.0.0.1:{server.port}" for server in servers))
    names = [f"name-{number}" for number in range(250)]
    for number, name in enumerate(names, start=1):
        assert verbs.advance_register(name, number)

    assert verbs.read_registers(*names, "none") == [*range(1, 251), 0]
    assert all(int(server.stats()["curr_items"]) > 40 for server in servers)

"""Hazard: two clients advance a register to one number, or a register is lost because some of the nodes are down.

The simulator tests the order of messages; this file uses real nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.backends.redis.protocol.keys import register_key
from holdfast.errors import ConfigurationError, OutcomeUnknown, QuorumError
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.redlock.conftest import StartRedlock
from tests.support.redis.proxy import Proxy
from tests.support.redis.redlock import RedlockServers

OURS, THEIRS = "a" * 32, "b" * 32
OpenVerbs = Callable[[str], Verbs]


@pytest.fixture
def open_verbs() -> Iterator[OpenVerbs]:
    opened: list[Verbs] = []

    def open_verbs(url: str) -> Verbs:
        opened.append(Verbs(url))
        return opened[-1]

    yield open_verbs
    for verbs in opened:
        verbs.close()


def test_a_register_works_with_a_minority_down_and_raises_with_a_majority_down(
    start_redlock: StartRedlock, open_verbs: OpenVerbs
) -> None:
    redlock = start_redlock(number=3)
    first = open_verbs(redlock.url(quarantine="no"))
    assert first.advance_register("one", 7)

    redlock.servers[0].kill()
    assert not open_verbs(redlock.url(quarantine="no")).advance_register("one", 7)
    assert first.advance_register("one", 8)
    redlock.servers[1].kill()

    with pytest.raises(QuorumError):
        first.advance_register("one", 9)
    with pytest.raises(QuorumError):
        first.read_registers("one")


@pytest.mark.parametrize("lost", [[0, 1], [0, 1, 2], [0, 1, 2, 3, 4]])
def test_an_advance_without_a_reply_succeeds_when_repeated(
    redlock: RedlockServers, proxies: list[Proxy], open_verbs: OpenVerbs, lost: list[int]
) -> None:
    url = redlock.url(ports={number: proxy.port for number, proxy in enumerate(proxies)}, quarantine="no")
    verbs, other = open_verbs(url), open_verbs(redlock.url(quarantine="no"))
    verbs.read_registers("one")
    for number in lost:
        proxies[number].lose_next_reply(f":7:{OURS}")

    if len(lost) < 3:
        assert verbs.advance_register("one", 7, nonce=OURS)
    else:
        with pytest.raises(OutcomeUnknown):
            verbs.advance_register("one", 7, nonce=OURS)

    assert other.read_registers("one") == [7]
    assert not other.advance_register("one", 7, nonce=THEIRS)
    assert verbs.advance_register("one", 7, nonce=OURS)


def test_a_read_completes_an_advance_that_a_minority_has_accepted(
    redlock: RedlockServers, proxies: list[Proxy], open_verbs: OpenVerbs
) -> None:
    """As if the client had died before it reached a majority. All later readers must read the same number."""
    url = redlock.url(ports={number: proxy.port for number, proxy in enumerate(proxies)}, quarantine="no")
    verbs, other = open_verbs(url), open_verbs(redlock.url(quarantine="no"))
    verbs.read_registers("one")
    for proxy in proxies[1:]:
        proxy.lose_next_request(f":7:{OURS}")
    with pytest.raises(OutcomeUnknown):
        verbs.advance_register("one", 7, nonce=OURS)
    key = register_key("holdfast:", "one").lock
    assert [bool(server.call("HGET", key, "state")) for server in redlock.servers] == [True] + [False] * 4

    assert other.read_registers("one") == [7]

    assert sum(bool(server.call("HGET", key, "state")) for server in redlock.servers) >= 3
    assert not other.advance_register("one", 7, nonce=THEIRS)


def test_a_register_is_kept_for_the_requested_time(redlock: RedlockServers, open_verbs: OpenVerbs) -> None:
    verbs = open_verbs(redlock.url(quarantine="no"))
    verbs.advance_register("one", 7, keep=1e5)
    verbs.advance_register("one", 8, keep=1.0)

    ttls = [int(server.call("PTTL", register_key("holdfast:", "one").lock)) / 1000 for server in redlock.servers]

    assert all(1e5 < ttl < 1e5 + 3601 for ttl in ttls)


def test_a_ttl_is_refused_when_it_is_longer_than_max_ttl_with_its_delay(
    redlock: RedlockServers, open_verbs: OpenVerbs
) -> None:
    """A node that has lost its data counts again after max_ttl. The delay must have ended by then too."""
    verbs = open_verbs(redlock.url(quarantine="no", max_ttl=30))
    verbs.try_acquire(verbs.ticket("one", ttl=30.0, delay=10.0), queue=False)

    with pytest.raises(ConfigurationError, match="with a lock delay of 10"):
        verbs.try_acquire(verbs.ticket("two", ttl=31.0, delay=10.0), queue=False)

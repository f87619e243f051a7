"""Hazard: a client trusts a primary that was replaced and does not know this, because it queries no other server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.backends.redis.config import config_of
from holdfast.backends.redis.io.handshake import Handshake
from holdfast.backends.redis.io.topology.cluster import TRUST, Cluster
from holdfast.backends.redis.io.topology.sentinel import Sentinel
from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast.url_parts import Node

OLD, NEW, OTHER = Node("old", 1), Node("new", 2), Node("other", 3)
KEYS = keys_of("holdfast:", "one")
DEADLINE = 1e9


class Connections:
    """Servers that return the replies of `answer`. For None they do not answer."""

    def __init__(self, answer: Callable[[Node], Any]) -> None:
        self.answer = answer
        self.queried: list[Node] = []

    async def exchange(self, node: Node, request: bytes, deadline: float) -> Any:
        self.queried.append(node)
        reply = self.answer(node)
        if reply is None:
            raise BackendUnavailable(backend="test", problem=f"{node} does not answer")
        return reply

    def drop(self, node: Node) -> None:
        pass


class Clock(ThreadRuntime):
    """A runtime whose time the test sets."""

    at = 100.0

    def now(self) -> float:
        return self.at


def slots_of(primary: Node) -> list[Any]:
    return [[0, 16383, [primary.host.encode(), primary.port, b"id"]]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def cluster_of(connections: Connections, clock: Clock) -> Cluster:
    """A client of a Cluster, which knows that all slots are on the old primary."""
    config = config_of(parse("redis+cluster://old:1,other:3"), is_asyncio=False)
    cluster = Cluster(config, connections, Handshake(config), None, clock)  # type: ignore[arg-type]  # it has the methods that are called
    run_sync(cluster.find_primary(KEYS.slot, DEADLINE))
    assert cluster.known_primary(KEYS.slot) == OLD
    return cluster


def test_cluster_queries_other_servers_when_a_late_reply_needs_confirmation(clock: Clock) -> None:
    connections = Connections(lambda _: slots_of(OLD))
    cluster = cluster_of(connections, clock)
    connections.queried.clear()
    connections.answer = lambda node: slots_of(OLD if node == OLD else NEW)

    assert run_sync(cluster.recheck_primary(KEYS.slot, OLD, DEADLINE)) == NEW
    assert connections.queried == [OTHER]


def test_cluster_rejects_a_late_reply_when_no_other_server_confirms_the_primary(clock: Clock) -> None:
    connections = Connections(lambda _: slots_of(OLD))
    cluster = cluster_of(connections, clock)
    connections.answer = lambda node: slots_of(OLD) if node == OLD else None

    with pytest.raises(OutcomeUnknown):
        run_sync(cluster._confirm_primary(KEYS.slot, OLD, DEADLINE))


def test_cluster_with_one_server_confirms_itself(clock: Clock) -> None:
    connections = Connections(lambda _: slots_of(OLD))
    config = config_of(parse("redis+cluster://old:1"), is_asyncio=False)
    cluster = Cluster(config, connections, Handshake(config), None, clock)  # type: ignore[arg-type]  # it has the methods that are called

    assert run_sync(cluster.recheck_primary(KEYS.slot, OLD, DEADLINE)) == OLD


def test_cluster_trusts_a_grant_by_message_as_long_as_a_reply(clock: Clock) -> None:
    cluster = cluster_of(Connections(lambda _: slots_of(OLD)), clock)
    polled_at = clock.now()

    assert cluster.trusts_message(KEYS, polled_at)
    clock.at += TRUST

    assert not cluster.trusts_message(KEYS, polled_at)


def test_sentinel_trusts_a_grant_by_message_only_after_a_recent_query(
    clock: Clock,
) -> None:
    config = config_of(parse("redis+sentinel://a:1,b:2,c:3/service"), is_asyncio=False)
    sentinels = Connections(lambda _: [b"old", b"1"])
    sentinel = Sentinel(config, Connections(lambda _: None), sentinels, Handshake(config), None, clock)  # type: ignore[arg-type]  # they have the methods that are called
    polled_at = clock.now()

    assert not sentinel.trusts_message(KEYS, polled_at)
    assert run_sync(sentinel.find_primary(KEYS.slot, DEADLINE)) == OLD
    assert sentinel.trusts_message(KEYS, polled_at)
    clock.at += TRUST

    assert not sentinel.trusts_message(KEYS, polled_at)


def test_the_sentinel_that_replied_last_is_queried_first(clock: Clock) -> None:
    config = config_of(parse("redis+sentinel://a:1,b:2,c:3/service"), is_asyncio=False)
    sentinels = Connections(lambda node: [b"old", b"1"] if node.host == "b" else None)
    sentinel = Sentinel(config, Connections(lambda _: None), sentinels, Handshake(config), None, clock)  # type: ignore[arg-type]  # they have the methods that are called

    for _ in range(2):
        run_sync(sentinel.find_primary(KEYS.slot, DEADLINE))

    assert [node.host for node in sentinels.queried] == ["a", "b", "b"]
    assert sorted(node.host for node in sentinel._order) == ["a", "b", "c"]

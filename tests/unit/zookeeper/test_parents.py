"""Hazard: a client fails on servers without container nodes, or its error names no cause."""

from __future__ import annotations

from holdfast.backends.zookeeper.port import Refusal
from holdfast.backends.zookeeper.protocol.parents import Parents

LOCK = "/holdfast/lock"


def test_concurrent_requests_are_repeated_without_containers_when_the_server_has_none() -> None:
    parents = Parents("zookeeper://zk")
    concurrent = [parents.create_requests(LOCK) for _ in range(2)]  # sent before the first answer arrives
    assert all(requests[-1].is_container for requests in concurrent)

    for _ in concurrent:
        parents.handle_missing(LOCK, [None, Refusal.UNKNOWN_REQUEST])

    assert not parents.create_request(LOCK).is_container


def test_an_error_names_the_refusal_in_words() -> None:
    error = Parents("zookeeper://zk").error_for(Refusal.UNKNOWN_REQUEST, LOCK)

    assert "/holdfast/lock: the server does not support this request" in str(error)

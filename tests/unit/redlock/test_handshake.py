"""Hazard: a node that has just restarted without its data counts as one that has been up long enough.

A server reports its uptime as the difference of two clock readings in whole seconds. A server that was started at 9.9
reports an uptime of one second at 10.1.
"""

from __future__ import annotations

import pytest

from holdfast.backends.redis.port import Reply
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.config import config_of
from holdfast.backends.redlock.io.handshake import NodeHandshake
from holdfast.errors import BackendUnavailable
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse


class Stub:
    """A connection to a server that only reports about itself."""

    def __init__(self, uptime: int, run: str = "r1", *, persistence: str = "") -> None:
        self._info = f"redis_version:7.0.0\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n{persistence}".encode()
        self.requests: list[bytes] = []

    async def exchange_many(self, request: bytes, count: int, deadline: float) -> list[Reply]:
        self.requests.append(request)
        if b"appendfsync" in request:
            return [[b"appendfsync", b"always"]]
        return [b"OK", self._info, *([b""] * (count - 2))] if b"INFO" in request else [b"sha"] * count

    def close(self) -> None:
        pass


@pytest.fixture
def handshake() -> NodeHandshake:
    return NodeHandshake(config_of(parse("redlock://a,b,c"), is_asyncio=False).redis, ThreadRuntime())


def connect(handshake: NodeHandshake, connection: Stub, number: int = 0) -> None:
    runtime = handshake._runtime
    run_sync(handshake.run(connection, handshake._config.nodes[number], runtime.now() + 1))


@pytest.mark.parametrize(("reported", "at_least"), [(0, 0), (1, 0), (2, 1), (100, 99)])
def test_a_node_counts_as_up_for_a_second_less_than_it_reports(
    reported: int, at_least: int, handshake: NodeHandshake
) -> None:
    connect(handshake, Stub(reported))

    server_run = handshake.server_runs[0]
    assert server_run is not None
    assert at_least <= handshake._runtime.now() - server_run.started_at < at_least + 0.5
    assert server_run.may_forget
    assert handshake.server_runs[1:] == [None, None]


def test_a_process_gets_the_scripts_once_and_the_next_process_too(handshake: NodeHandshake) -> None:
    first, second, other = Stub(5), Stub(6), Stub(0, "r2")

    for connection in (first, second, other):
        connect(handshake, connection)

    loads = [sum(request.count(b"LOAD") for request in connection.requests) for connection in (first, second, other)]
    assert loads == [len(lua.ALL), 0, len(lua.ALL)]


def test_a_node_with_appendfsync_always_does_not_forget(handshake: NodeHandshake) -> None:
    connect(handshake, Stub(0, persistence="aof_enabled:1\r\n"))

    server_run = handshake.server_runs[0]
    assert server_run is not None
    assert not server_run.may_forget


def test_a_node_without_a_run_id_gets_no_request_for_its_vote(handshake: NodeHandshake) -> None:
    connection = Stub(5)
    connection._info = b"redis_version:7.0.0\r\n"

    with pytest.raises(BackendUnavailable, match="does not report its run_id"):
        connect(handshake, connection)

    assert handshake.server_runs[0] is None

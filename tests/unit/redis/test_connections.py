"""Hazard: a reply reaches the wrong request, a request hangs past its deadline, notifications are lost.

These tests use the port without locks, on a real server, for threads and for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

import holdfast
from holdfast.backends.net.errors import located
from holdfast.backends.redis.config import RedisConfig, config_of
from holdfast.backends.redis.io import aio, blocking
from holdfast.backends.redis.io.errors import network_error
from holdfast.backends.redis.io.topology import Topology
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.port import Call
from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.system import now
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast.url_parts import Node
from tests.support.processes import eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.servers import Server
from tests.support.server_process import free_ports, running
from tests.support.wakeups import RecordedWakeups

ECHO = Script.of("test/echo", "return {KEYS[1], ARGV[1]}")
GRANT = Script.of("test/grant", "return redis.call('SET', KEYS[1], ARGV[1])", is_grant=True)
KEYS = keys_of("holdfast:", "one")
Scenario = Callable[[Topology], Awaitable[None]]
Run = Callable[[Scenario], None]


def soon(seconds: float = 5.0) -> float:
    return now() + seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Server(main_binary(), tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(params=["threads", "asyncio"])
def run(request: pytest.FixtureRequest, server: Server) -> Run:
    """Run a scenario on a port of this kind."""
    return lambda scenario: run_on(scenario, request.param, server.url)


def run_on(scenario: Scenario, kind: str, url: str, **options: str) -> None:
    config = config_of(parse(url, options), is_asyncio=False)
    if kind == "threads":
        run_sync(_on_threads(scenario, config))
    else:
        asyncio.run(_on_asyncio(scenario, config))


async def _on_threads(scenario: Scenario, config: RedisConfig) -> None:
    port = blocking.open_port(config, ThreadRuntime())
    try:
        await scenario(port)
    finally:
        await port.close()


async def _on_asyncio(scenario: Scenario, config: RedisConfig) -> None:
    port = aio.open_port(config, AsyncioRuntime())
    try:
        await scenario(port)
    finally:
        await port.close()


def test_scripts_are_sent_by_digest_and_loaded_again_when_the_server_forgets_them(server: Server, run: Run) -> None:
    async def scenario(port: Topology) -> None:
        call = Call(ECHO, KEYS, ("ä",))
        for _ in range(2):
            server.call("SCRIPT", "FLUSH")
            assert await port.run(call, deadline=soon()) == [b"holdfast:one", "ä".encode()]
        server.call("SCRIPT", "FLUSH")
        calls = [Call(ECHO, keys_of("holdfast:", str(number)), (number,)) for number in range(10)]

        replies = await port.run_all(calls, deadline=soon())

        assert replies == [[f"holdfast:{number}".encode(), str(number).encode()] for number in range(10)]
        assert await port.run_all([], deadline=soon()) == []

    run(scenario)


def test_the_handshake_is_the_first_request_on_a_connection(server: Server, run: Run) -> None:
    async def scenario(port: Topology) -> None:
        assert port.server_info is None
        assert await port.command(KEYS, "PING", deadline=soon()) == b"PONG"

        assert port.server_info is not None
        assert port.server_info.is_primary
        assert port.server_info.policy == "noeviction"
        assert [client["name"] for client in server.clients() if client["name"].startswith("holdfast-")]

    run(scenario)


def test_a_late_reply_raises_and_is_never_read_by_another_request(server: Server, run: Run) -> None:
    async def scenario(port: Topology) -> None:
        await port.command(KEYS, "PING", deadline=soon())
        started = now()

        with pytest.raises(holdfast.OutcomeUnknown, match="no answer in time"):
            await port.command(KEYS, "BLPOP", "never", "10", deadline=soon(0.1))

        assert now() - started < 8, "it did not wait for the reply"
        assert await port.run(Call(ECHO, KEYS, ("mine",)), deadline=soon()) == [b"holdfast:one", b"mine"]

    run(scenario)


def test_nothing_is_sent_when_no_time_is_left(server: Server, run: Run) -> None:
    async def scenario(port: Topology) -> None:
        for _ in range(2):
            with pytest.raises(holdfast.BackendUnavailable):
                await port.command(KEYS, "SET", "late", "1", deadline=now() - 1)
            assert await port.command(KEYS, "EXISTS", "late", deadline=soon()) == 0

    run(scenario)


def test_all_keys_are_found(server: Server, run: Run) -> None:
    async def scenario(port: Topology) -> None:
        names = {f"scanned:{number}" for number in range(3000)}
        server.call("MSET", *(word for name in names for word in (name, "1")))

        (node,) = await port.servers(deadline=soon())
        cursor, scanned = b"0", set[str]()
        while True:
            cursor, keys = await port.scan(node, cursor, "scanned:*", deadline=soon())
            scanned.update(keys)
            if cursor == b"0":
                break
        assert scanned == names
        assert await port.key_count(node, deadline=soon()) == len(names)

    run(scenario)


def test_the_outcome_is_unknown_when_too_few_replicas_confirm(server: Server) -> None:
    async def scenario(port: Topology) -> None:
        call = Call(GRANT, KEYS, ("x",))

        with pytest.raises(holdfast.OutcomeUnknown, match="0 of 1 replicas confirmed"):
            await port.run(call, deadline=soon())
        (outcome,) = await port.run_all([call], deadline=soon())
        assert isinstance(outcome, holdfast.OutcomeUnknown)
        assert await port.run(Call(ECHO, KEYS, ("x",)), deadline=soon()) == [b"holdfast:one", b"x"]

    for kind in ("threads", "asyncio"):
        run_on(scenario, kind, server.url, replicas="1", replicas_timeout="0.1")


def test_notifications_arrive_and_gaps_are_reported(server: Server, run: Run) -> None:
    async def until(port: Topology, condition: Callable[[], bool]) -> None:
        end = soon(10)
        while not condition():
            assert now() < end
            await port._runtime.sleep(0.01)

    async def scenario(port: Topology) -> None:
        recorded = port.subscriber.wakeups = RecordedWakeups(port._runtime)
        woken = recorded.received
        channel = port.subscriber.channel(KEYS)
        assert port.subscriber.subscription(channel) == 0
        await port.subscriber.subscribe(channel, "n1", deadline=soon())
        first = port.subscriber.subscription(channel)
        assert first > 0
        server.call("PUBLISH", channel.name, "n1")
        await until(port, lambda: woken == ["n1"])

        server.call("CLIENT", "KILL", "TYPE", "pubsub")
        await until(port, lambda: port.subscriber.subscription(channel) not in (0, first))
        server.call("PUBLISH", channel.name, "n1")
        await until(port, lambda: woken == ["n1", "missed", "n1"])

        assert len(server.subscribers()) == 1
        port.subscriber.unsubscribe(channel, "n1")

    run(scenario)
    eventually(lambda: not server.subscribers())
    assert "holdfast-listener" not in {thread.name for thread in threading.enumerate()}


def test_subscribe_raises_when_the_user_has_no_permission(tmp_path: Path) -> None:
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* resetchannels +@all\n")

    async def scenario(port: Topology) -> None:
        for _ in range(2):
            with pytest.raises(holdfast.BackendUnavailable, match="NOPERM"):
                await port.subscriber.subscribe(port.subscriber.channel(KEYS), "n1", deadline=soon())

    with running(Server(main_binary(), tmp_path / "server", options=["--aclfile", str(users)])) as server:
        for kind in ("threads", "asyncio"):
            run_on(scenario, kind, server.url)


def test_the_reply_of_a_cancelled_task_is_discarded(server: Server) -> None:
    async def scenario(port: Topology) -> None:
        await port.command(KEYS, "PING", deadline=soon())
        slow = asyncio.create_task(_await(port.command(KEYS, "BLPOP", "never", "0.2", deadline=soon())))
        others = [
            asyncio.create_task(_await(port.run(Call(ECHO, KEYS, (number,)), deadline=soon()))) for number in range(20)
        ]
        await asyncio.sleep(0.05)

        for cancelled in (slow, *others[::2]):
            cancelled.cancel()

        for number, other in list(enumerate(others))[1::2]:
            assert await other == [b"holdfast:one", str(number).encode()]
        assert await port.run(Call(ECHO, KEYS, ("after",)), deadline=soon()) == [b"holdfast:one", b"after"]
        assert len([client for client in server.clients() if client["name"].startswith("holdfast-")]) == 1

    run_on(scenario, "asyncio", server.url)


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def test_many_threads_share_few_connections(server: Server) -> None:
    async def scenario(port: Topology) -> None:
        def block() -> None:
            with contextlib.suppress(holdfast.HoldfastError):
                run_sync(_block(port))
                replies_received.append(True)

        replies_received: list[bool] = []
        threads = [threading.Thread(target=block) for _ in range(40)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(_own_clients(server)) == 16)
        for thread in threads:
            thread.join()

        assert len(replies_received) == 40
        assert len(_own_clients(server)) == 16

    run_on(scenario, "threads", server.url)
    eventually(lambda: not _own_clients(server))


async def _block(port: Topology) -> Any:
    return await port.command(KEYS, "BLPOP", "never", "0.3", deadline=soon())


def _own_clients(server: Server) -> list[dict[str, str]]:
    return [client for client in server.clients() if client["name"].startswith("holdfast-")]


def test_an_unresponsive_server_does_not_delay_replies_of_others(server: Server, tmp_path: Path) -> None:
    with running(Server(main_binary(), tmp_path / "other")) as other:
        for kind in ("threads", "asyncio"):
            run_on(_with_unresponsive_server(other), kind, server.url)


def _with_unresponsive_server(other: Server) -> Scenario:
    async def scenario(port: Topology) -> None:
        from holdfast.backends.redis.io.connection import Batch
        from holdfast.backends.redis.io.resp import pack
        from holdfast.url_parts import Node

        own_node, other_node = port._config.nodes[0], Node("127.0.0.1", other.port)
        for node in (own_node, other_node):
            await port._connections.exchange(node, pack("PING"), soon())
        batches = [Batch(other_node, pack("BLPOP", "never", "1"), 1), Batch(own_node, pack("PING"), 1)]

        unresponsive, replied = await port._connections.exchange_batches(batches, soon(0.3))

        assert isinstance(unresponsive, holdfast.OutcomeUnknown)
        assert replied == [b"PONG"]

    return scenario


@pytest.mark.slow
def test_a_listener_ends_after_a_time_without_waiters(server: Server) -> None:
    async def scenario(port: Topology) -> None:
        await port.subscriber.subscribe(port.subscriber.channel(KEYS), "n1", deadline=soon())
        port.subscriber.unsubscribe(port.subscriber.channel(KEYS), "n1")

        eventually(lambda: not server.subscribers(), within=15)

        assert "holdfast-listener" not in {thread.name for thread in threading.enumerate()}
        await port.subscriber.subscribe(port.subscriber.channel(KEYS), "n2", deadline=soon())
        assert port.subscriber.subscription(port.subscriber.channel(KEYS))

    run_on(scenario, "threads", server.url)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_refused_connection_names_its_address_once_with_advice(kind: str) -> None:
    [port] = free_ports(1)
    url = f"redis://localhost:{port}/0"

    async def acquire() -> None:
        async with holdfast.AsyncClient(url) as client:
            await client.lock("a").acquire()

    with pytest.raises(holdfast.BackendUnavailable) as caught:
        asyncio.run(acquire()) if kind == "asyncio" else holdfast.Client(url).lock("a").acquire()

    assert str(caught.value) == f"{url}: connection refused: is the server running?"
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)  # and not the error of the driver around it


def test_an_error_names_its_server_unless_the_url_names_only_this_server() -> None:
    assert located("redis://me:***@a:1/0?x=a", Node("a", 1), "gone") == "gone"
    assert located("redis+cluster://a:1,b:1", Node("a", 1), "gone") == "a:1: gone"
    assert located("redis://a", Node("a", 6379), "gone") == "a:6379: gone"


def test_an_error_that_the_caller_handles_is_not_taken_for_the_cause() -> None:
    refused = RedisError("WRONGPASS invalid username-password pair")

    try:
        raise FileNotFoundError(2, "No such file or directory")
    except FileNotFoundError:  # a program may acquire a lock while it handles an error
        with pytest.raises(RedisError) as caught:
            raise refused from None

    assert isinstance(caught.value.__context__, FileNotFoundError)
    assert network_error(caught.value) is refused

"""Hazard: more connections than allowed, connections lost to an error or an interrupt, or a dead one that is used."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable, Iterator

import pytest

from holdfast import BackendUnavailable, OutcomeUnknown
from holdfast.backends.net.pool import (
    CONNECTIONS_MAX,
    IDLE_KEPT,
    IDLE_MAX,
    ConnectionPool,
    Probe,
    _Waiter,
    exchange_each,
)
from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioEvent, AsyncioRuntime
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import SmallWorld


class PipeConnection:
    """A connection of a pool: one end of a pair of sockets. The other end is its server."""

    def __init__(self) -> None:
        self.ours, self.server = socket.socketpair()
        self.ours.setblocking(False)  # noqa: FBT003 (its name says it)
        self.used_at = 0.0
        self.probe: Probe | None = None

    @property
    def is_open(self) -> bool:
        return self.ours.fileno() >= 0

    def is_dead(self) -> bool:
        try:
            return self.ours.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.ours.close()
        self.server.close()


class Connector:
    """Opens connections and records them."""

    def __init__(self) -> None:
        self.opened: list[PipeConnection] = []

    async def open(self, deadline: float) -> PipeConnection:
        self.opened.append(PipeConnection())
        return self.opened[-1]


@pytest.fixture
def connector() -> Iterator[Connector]:
    connector = Connector()
    yield connector
    for connection in connector.opened:
        connection.close()


@pytest.fixture
def pool(connector: Connector) -> ConnectionPool[PipeConnection]:
    return ConnectionPool("test://", connector.open, ThreadRuntime())


def get(pool: ConnectionPool[PipeConnection], seconds: float = 30.0) -> PipeConnection:
    return pool.get_idle(system.now()) or run_sync(pool.open_or_wait(system.now() + seconds))


def test_the_most_recently_used_connection_is_used_next(
    pool: ConnectionPool[PipeConnection], connector: Connector
) -> None:
    first, second = get(pool), get(pool)
    pool.put(first)
    pool.put(second)

    assert get(pool) is second
    assert get(pool) is first
    assert len(connector.opened) == 2


def test_the_connections_of_a_burst_are_closed_when_the_client_is_idle(connector: Connector) -> None:
    runtime = ThreadRuntime()
    pool = ConnectionPool("test://", connector.open, runtime)
    taken = [get(pool) for _ in range(5)]
    for connection in taken:
        pool.put(connection)

    runtime.report_idle()

    assert [connection.is_open for connection in connector.opened].count(True) == IDLE_KEPT
    assert get(pool) is taken[-1]
    assert len(pool._counted) == IDLE_KEPT


def test_the_runtime_does_not_keep_a_pool_alive(connector: Connector) -> None:
    runtime = ThreadRuntime()
    reference = weakref.ref(ConnectionPool("test://", connector.open, runtime))

    gc.collect()
    runtime.report_idle()

    assert reference() is None


def test_a_connection_that_the_server_has_closed_is_not_used(
    pool: ConnectionPool[PipeConnection], connector: Connector
) -> None:
    connection = get(pool)
    pool.put(connection)
    connection.server.close()

    assert get(pool) is not connection
    assert not connection.is_open


def test_a_caller_gets_an_error_when_all_connections_are_in_use(
    pool: ConnectionPool[PipeConnection], connector: Connector
) -> None:
    used = [get(pool) for _ in range(CONNECTIONS_MAX)]

    with pytest.raises(BackendUnavailable, match="all 16 connections were in use"):
        get(pool, seconds=0.01)

    assert len(used) == len(connector.opened) == CONNECTIONS_MAX


@pytest.mark.parametrize(
    "end", [PipeConnection.close, lambda connection: connection.server.close()], ids=["by us", "by the server"]
)
def test_a_closed_connection_does_not_count(
    pool: ConnectionPool[PipeConnection], end: Callable[[PipeConnection], None]
) -> None:
    used = [get(pool) for _ in range(CONNECTIONS_MAX)]
    end(used[0])
    pool.put(used[0])

    assert get(pool, seconds=1.0).is_open


def test_a_connection_that_an_interrupt_dropped_does_not_count() -> None:
    async def connect(deadline: float) -> PipeConnection:
        return PipeConnection()

    pool = ConnectionPool("test://", connect, ThreadRuntime())
    used = [get(pool) for _ in range(CONNECTIONS_MAX)]
    dropped = used.pop()
    dropped.close()
    del dropped  # without a put

    used.append(get(pool, seconds=1.0))
    for connection in used:
        connection.close()


def test_a_failed_attempt_to_connect_does_not_count_while_its_error_is_kept(connector: Connector) -> None:
    errors: list[BackendUnavailable] = []

    async def connect(deadline: float) -> PipeConnection:
        if len(errors) < 2 * CONNECTIONS_MAX:
            raise BackendUnavailable(backend="test://", problem="connection refused")
        return await connector.open(deadline)

    pool = ConnectionPool("test://", connect, ThreadRuntime())
    for _ in range(2 * CONNECTIONS_MAX):
        with pytest.raises(BackendUnavailable, match="connection refused") as caught:
            get(pool, seconds=1.0)
        errors.append(caught.value)

    assert get(pool, seconds=1.0).is_open


def test_a_connection_without_an_answer_does_not_count_while_its_error_is_kept(
    pool: ConnectionPool[PipeConnection],
) -> None:
    errors: list[Exception] = []

    async def fail(connection: PipeConnection) -> None:
        connection.close()
        raise OutcomeUnknown(backend="test://", problem="no answer in time")

    for _ in range(2 * CONNECTIONS_MAX):
        with pytest.raises(OutcomeUnknown) as caught:
            run_sync(pool.run(fail, system.now() + 1.0))
        errors.append(caught.value)

    assert get(pool, seconds=1.0).is_open


def test_a_connection_without_an_answer_closes_all_that_were_idle_before_its_request(
    pool: ConnectionPool[PipeConnection], connector: Connector
) -> None:
    used = [get(pool) for _ in range(8)]
    for connection in used[:6]:
        pool.put(connection)
    failed = get(pool)

    pool.discard_failed(failed)
    pool.put(used[6])

    assert [connection.is_open for connection in used] == [*(6 * [False]), True, True]
    assert get(pool) is used[6]
    assert get(pool) not in used


def test_a_connection_that_has_answered_since_is_kept(pool: ConnectionPool[PipeConnection]) -> None:
    failing, other = get(pool), get(pool)
    pool.put(other)
    assert get(pool) is other
    pool.put(other)

    pool.discard_failed(failing)

    assert get(pool) is other


async def test_an_interrupted_request_closes_its_connection(connector: Connector) -> None:
    pool = ConnectionPool("test://", connector.open, AsyncioRuntime(), 1)

    async def hang(connection: PipeConnection) -> None:
        await asyncio.Event().wait()

    hanging = asyncio.create_task(pool.run(hang, system.now() + 30))
    while not connector.opened:
        await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.wait([hanging])

    assert not connector.opened[0].is_open
    assert (await pool.open_or_wait(system.now() + 30)).is_open


def test_surplus_idle_connections_are_closed_after_a_burst(
    pool: ConnectionPool[PipeConnection], connector: Connector
) -> None:
    for connection in [get(pool) for _ in range(CONNECTIONS_MAX)]:
        pool.put(connection)
    for connection in connector.opened:
        connection.used_at -= IDLE_MAX + 1

    pool.put(get(pool))

    assert sum(connection.is_open for connection in connector.opened) == IDLE_KEPT


def test_the_limit_can_be_set(connector: Connector) -> None:
    pool = ConnectionPool("test://", connector.open, ThreadRuntime(), 1, server="db.example")
    get(pool)

    with pytest.raises(BackendUnavailable, match=r"db\.example: all 1 connections were in use"):
        get(pool, seconds=0.01)


async def test_callers_that_wait_get_connections_in_the_order_of_their_arrival_when_others_arrive_later(
    connector: Connector,
) -> None:
    pool, served = ConnectionPool("test://", connector.open, AsyncioRuntime(), 1), list[int]()
    connection = await pool.open_or_wait(system.now() + 30)

    async def use(number: int) -> None:
        taken = pool.get_idle(system.now()) or await pool.open_or_wait(system.now() + 30)
        served.append(number)
        await asyncio.sleep(0)
        pool.put(taken)

    waiting = []
    for number in range(20):
        waiting.append(asyncio.create_task(use(number)))
        while len(pool.waiters) <= number:
            await asyncio.sleep(0)
    pool.put(connection)
    assert pool.get_idle(system.now()) is None, "a caller waits for this one"
    await use(20)
    await asyncio.gather(*waiting)

    assert served == list(range(21))
    assert not pool.waiters


async def test_a_free_connection_wakes_one_of_the_callers_that_wait(connector: Connector) -> None:
    wakes: list[AsyncioEvent] = []

    class CountedEvent(AsyncioEvent):
        def set(self) -> None:
            wakes.append(self)
            super().set()

    class CountingRuntime(AsyncioRuntime):
        def event(self) -> AsyncioEvent:
            return CountedEvent()

    pool = ConnectionPool("test://", connector.open, CountingRuntime(), 1)
    connection = await pool.open_or_wait(system.now() + 30)

    async def use() -> None:
        pool.put(await pool.open_or_wait(system.now() + 30))

    waiting = [asyncio.create_task(use()) for _ in range(50)]
    while len(pool.waiters) < 50:
        await asyncio.sleep(0)
    pool.put(connection)
    await asyncio.gather(*waiting)

    assert len(wakes) <= 3 * 50  # each put wakes a caller, and so does each caller that stops waiting


async def test_a_caller_that_is_cancelled_while_it_waits_leaves_its_connection_to_the_next(
    connector: Connector,
) -> None:
    pool = ConnectionPool("test://", connector.open, AsyncioRuntime(), 1)
    connection = await pool.open_or_wait(system.now() + 30)
    first, second = (asyncio.create_task(pool.open_or_wait(system.now() + 30)) for _ in range(2))
    while len(pool.waiters) < 2:
        await asyncio.sleep(0)

    pool.put(connection)  # wakes the first one
    first.cancel()

    assert await second is connection
    assert not pool.waiters


def test_a_caller_that_an_interrupt_ended_does_not_block_others(connector: Connector) -> None:
    pool = ConnectionPool("test://", connector.open, ThreadRuntime(), 1)
    connection = get(pool)
    pool.waiters.append(weakref.ref(_Waiter(ThreadRuntime().event())))  # nothing else refers to it

    pool.put(connection)

    assert get(pool, seconds=0.01) is connection


def test_a_probe_shortens_the_wait_when_the_server_accepts_a_new_connection(
    pool: ConnectionPool[PipeConnection], connector: Connector
) -> None:
    connection = get(pool)
    assert connection.probe is None
    pool.put(connection)
    assert get(pool).probe is not None
    far = system.now() + 1000

    assert run_sync(pool.probe(far)) < far

    pool.discard_failed(connection)
    assert get(pool) is connector.opened[1]


def test_a_probe_keeps_the_deadline_when_the_server_cannot_be_reached(connector: Connector) -> None:
    async def connect(deadline: float) -> PipeConnection:
        if connector.opened:
            raise BackendUnavailable(backend="test://", problem="no answer in time")
        return await connector.open(deadline)

    pool = ConnectionPool("test://", connect, ThreadRuntime())
    pool.put(get(pool))
    get(pool)
    far = system.now() + 1000

    assert run_sync(pool.probe(far)) == far


def test_a_probe_keeps_the_deadline_when_all_connections_are_in_use(connector: Connector) -> None:
    pool = ConnectionPool("test://", connector.open, ThreadRuntime(), 1)
    get(pool)
    far = system.now() + 1000

    assert run_sync(pool.probe(far)) == far


def test_a_closed_pool_closes_all_connections(pool: ConnectionPool[PipeConnection]) -> None:
    idle, used = get(pool), get(pool)
    pool.put(idle)

    pool.close()
    pool.put(used)

    assert not idle.is_open
    assert not used.is_open


async def test_connections_that_are_being_opened_count(connector: Connector) -> None:
    may_open = asyncio.Event()

    async def connect(deadline: float) -> PipeConnection:
        connection = await connector.open(deadline)
        await may_open.wait()
        return connection

    pool = ConnectionPool("test://", connect, AsyncioRuntime())

    async def use() -> None:
        pool.put(pool.get_idle(system.now()) or await pool.open_or_wait(system.now() + 30))

    users = [asyncio.create_task(use()) for _ in range(3 * CONNECTIONS_MAX)]
    while len(connector.opened) < CONNECTIONS_MAX:
        await asyncio.sleep(0)
    may_open.set()
    await asyncio.gather(*users)

    assert len(connector.opened) == CONNECTIONS_MAX


class IdleRecorder:
    """Records when the runtime reports that the client is idle."""

    def __init__(self, small: SmallWorld) -> None:
        self._world = small.world
        self.times: list[float] = []

    def note(self) -> None:
        self.times.append(self._world.now)


def test_a_client_is_idle_when_its_keeper_had_nothing_to_do_for_a_while() -> None:
    small = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    sim_client, recorder = small.add("a"), IdleRecorder(small)
    sim_client.client.runtime.on_idle(recorder.note)

    async def work() -> None:
        lease = await sim_client.client.acquire(sim_client.lock(30.0), None)
        assert lease is not None
        await sim_client.client.runtime.sleep(40.0)
        await sim_client.client.release(lease)

    sim_client.start(work())
    small.world.run(100.0)
    small.end()

    (at,) = recorder.times
    assert 40.0 < at <= 40.0 + 2 * IDLE_MAX


def test_exchanges_are_all_sent_before_the_first_reply_is_read(connector: Connector) -> None:
    pools = [ConnectionPool("test://", connector.open, ThreadRuntime()) for _ in range(3)]
    pools[2].put(get(pools[2]))
    steps: list[tuple[str, int]] = []

    def send(number: int, connection: PipeConnection) -> str | None:
        steps.append(("send", number))
        return "known" if number == 1 else None

    def receive(number: int, connection: PipeConnection) -> str:
        steps.append(("receive", number))
        connection.close()
        raise OutcomeUnknown(backend="test://", problem="no answer in time")

    answers = run_sync(exchange_each(pools, send, receive, system.now() + 30))

    assert steps == [("send", 2), ("send", 0), ("send", 1), ("receive", 2), ("receive", 0)]
    assert [str(answer) for answer in answers] == ["test://: no answer in time", "known", "test://: no answer in time"]
    assert [len(pool.idle) for pool in pools] == [0, 1, 0]


def test_an_interrupted_exchange_closes_all_its_connections(connector: Connector) -> None:
    pools = [ConnectionPool("test://", connector.open, ThreadRuntime()) for _ in range(2)]

    def receive(number: int, connection: PipeConnection) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sync(exchange_each(pools, lambda *_: None, receive, system.now() + 30))

    assert not any(connection.is_open for connection in connector.opened)
    assert [len(pool._counted) for pool in pools] == [0, 0]

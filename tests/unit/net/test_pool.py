"""The connections of one client: never more than allowed, none lost to an error or an interrupt, no dead one used."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable, Iterator

import pytest

from holdfast import BackendUnavailable, OutcomeUnknown
from holdfast.backends.net.pool import CONNECTIONS_MAX, IDLE_KEPT, IDLE_MAX, ConnectionPool, Probe
from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.sim.choices import Choices
from holdfast.sim.run import Plan
from holdfast.sim.scenarios import SmallWorld


class Line:
    """One end of a pair of sockets. Its server is the other end."""

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


class Lines:
    """Opens them, and knows those that it has opened."""

    def __init__(self) -> None:
        self.opened: list[Line] = []

    async def open(self, deadline: float) -> Line:
        self.opened.append(Line())
        return self.opened[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    yield made
    for line in made.opened:
        line.close()


@pytest.fixture
def pool(lines: Lines) -> ConnectionPool[Line]:
    return ConnectionPool("test://", lines.open, ThreadRuntime())


def get(pool: ConnectionPool[Line], seconds: float = 30.0) -> Line:
    return pool.get_idle(system.now()) or run_sync(pool.open_or_wait(system.now() + seconds))


def test_the_one_used_last_is_used_next(pool: ConnectionPool[Line], lines: Lines) -> None:
    first, second = get(pool), get(pool)
    pool.put(first)
    pool.put(second)

    assert get(pool) is second
    assert get(pool) is first
    assert len(lines.opened) == 2


def test_when_the_client_rests_the_connections_of_a_burst_are_closed(lines: Lines) -> None:
    runtime = ThreadRuntime()
    pool = ConnectionPool("test://", lines.open, runtime)
    taken = [get(pool) for _ in range(5)]
    for line in taken:
        pool.put(line)

    runtime.report_idle()

    assert [line.is_open for line in lines.opened].count(True) == IDLE_KEPT
    assert get(pool) is taken[-1]
    assert len(pool._counted) == IDLE_KEPT


def test_a_pool_that_is_gone_is_not_kept_by_its_runtime(lines: Lines) -> None:
    runtime = ThreadRuntime()
    gone = weakref.ref(ConnectionPool("test://", lines.open, runtime))

    gc.collect()
    runtime.report_idle()

    assert gone() is None


def test_one_that_the_server_has_closed_is_not_used(pool: ConnectionPool[Line], lines: Lines) -> None:
    line = get(pool)
    pool.put(line)
    line.server.close()

    assert get(pool) is not line
    assert not line.is_open


def test_who_finds_all_in_use_is_told_so_when_the_time_is_up(pool: ConnectionPool[Line], lines: Lines) -> None:
    used = [get(pool) for _ in range(CONNECTIONS_MAX)]

    with pytest.raises(BackendUnavailable, match="all 16 connections were in use"):
        get(pool, seconds=0.01)

    assert len(used) == len(lines.opened) == CONNECTIONS_MAX


@pytest.mark.parametrize("end", [Line.close, lambda line: line.server.close()], ids=["by us", "by the server"])
def test_one_that_has_ended_makes_room(pool: ConnectionPool[Line], end: Callable[[Line], None]) -> None:
    used = [get(pool) for _ in range(CONNECTIONS_MAX)]
    end(used[0])
    pool.put(used[0])

    assert get(pool, seconds=1.0).is_open


def test_one_that_an_interrupt_has_dropped_makes_room() -> None:
    async def connect(deadline: float) -> Line:
        return Line()

    pool = ConnectionPool("test://", connect, ThreadRuntime())
    used = [get(pool) for _ in range(CONNECTIONS_MAX)]
    dropped = used.pop()
    dropped.close()
    del dropped  # and nobody has given it back

    used.append(get(pool, seconds=1.0))
    for line in used:
        line.close()


def test_one_that_could_not_be_opened_makes_room_even_while_its_error_is_kept(lines: Lines) -> None:
    errors: list[BackendUnavailable] = []

    async def connect(deadline: float) -> Line:
        if len(errors) < 2 * CONNECTIONS_MAX:
            raise BackendUnavailable(backend="test://", problem="nobody is there")
        return await lines.open(deadline)

    pool = ConnectionPool("test://", connect, ThreadRuntime())
    for _ in range(2 * CONNECTIONS_MAX):
        with pytest.raises(BackendUnavailable, match="nobody is there") as caught:
            get(pool, seconds=1.0)
        errors.append(caught.value)

    assert get(pool, seconds=1.0).is_open


def test_one_that_got_no_answer_makes_room_even_while_its_error_is_kept(pool: ConnectionPool[Line]) -> None:
    errors: list[Exception] = []

    async def fail(line: Line) -> None:
        line.close()
        raise OutcomeUnknown(backend="test://", problem="no answer in time")

    for _ in range(2 * CONNECTIONS_MAX):
        with pytest.raises(OutcomeUnknown) as caught:
            run_sync(pool.run(fail, system.now() + 1.0))
        errors.append(caught.value)

    assert get(pool, seconds=1.0).is_open


def test_one_that_got_no_answer_takes_all_with_it_that_were_idle_before(
    pool: ConnectionPool[Line], lines: Lines
) -> None:
    used = [get(pool) for _ in range(8)]
    for line in used[:6]:
        pool.put(line)
    failed = get(pool)

    pool.discard_failed(failed)
    pool.put(used[6])

    assert [line.is_open for line in used] == [*(6 * [False]), True, True]
    assert get(pool) is used[6]
    assert get(pool) not in used


def test_one_that_has_answered_since_stays(pool: ConnectionPool[Line]) -> None:
    failing, other = get(pool), get(pool)
    pool.put(other)
    assert get(pool) is other
    pool.put(other)

    pool.discard_failed(failing)

    assert get(pool) is other


async def test_an_interrupted_request_closes_its_connection(lines: Lines) -> None:
    pool = ConnectionPool("test://", lines.open, AsyncioRuntime(), 1)

    async def hang(line: Line) -> None:
        await asyncio.Event().wait()

    hanging = asyncio.create_task(pool.run(hang, system.now() + 30))
    while not lines.opened:
        await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.wait([hanging])

    assert not lines.opened[0].is_open
    assert (await pool.open_or_wait(system.now() + 30)).is_open


def test_connections_of_a_burst_are_closed_when_they_are_not_needed_any_more(
    pool: ConnectionPool[Line], lines: Lines
) -> None:
    for line in [get(pool) for _ in range(CONNECTIONS_MAX)]:
        pool.put(line)
    for line in lines.opened:
        line.used_at -= IDLE_MAX + 1

    pool.put(get(pool))

    assert sum(line.is_open for line in lines.opened) == IDLE_KEPT


def test_the_limit_can_be_set(lines: Lines) -> None:
    pool = ConnectionPool("test://", lines.open, ThreadRuntime(), 1, server="db.example")
    get(pool)

    with pytest.raises(BackendUnavailable, match=r"db\.example: all 1 connections were in use"):
        get(pool, seconds=0.01)


def test_a_server_that_answers_on_a_new_connection_gives_up_an_old_one_early(
    pool: ConnectionPool[Line], lines: Lines
) -> None:
    line = get(pool)
    assert line.probe is None
    pool.put(line)
    assert get(pool).probe is not None
    far = system.now() + 1000

    assert run_sync(pool.probe(far)) < far

    pool.discard_failed(line)
    assert get(pool) is lines.opened[1]


def test_a_server_that_cannot_be_reached_anew_gets_all_the_time(lines: Lines) -> None:
    async def connect(deadline: float) -> Line:
        if lines.opened:
            raise BackendUnavailable(backend="test://", problem="no answer in time")
        return await lines.open(deadline)

    pool = ConnectionPool("test://", connect, ThreadRuntime())
    pool.put(get(pool))
    get(pool)
    far = system.now() + 1000

    assert run_sync(pool.probe(far)) == far


def test_where_all_connections_are_in_use_nothing_is_known(lines: Lines) -> None:
    pool = ConnectionPool("test://", lines.open, ThreadRuntime(), 1)
    get(pool)
    far = system.now() + 1000

    assert run_sync(pool.probe(far)) == far


def test_closed_it_keeps_none_and_closes_what_comes_back(pool: ConnectionPool[Line]) -> None:
    idle, used = get(pool), get(pool)
    pool.put(idle)

    pool.close()
    pool.put(used)

    assert not idle.is_open
    assert not used.is_open


async def test_those_that_are_just_being_opened_count_too(lines: Lines) -> None:
    let_in = asyncio.Event()

    async def connect(deadline: float) -> Line:
        line = await lines.open(deadline)
        await let_in.wait()
        return line

    pool = ConnectionPool("test://", connect, AsyncioRuntime())

    async def use() -> None:
        pool.put(pool.get_idle(system.now()) or await pool.open_or_wait(system.now() + 30))

    users = [asyncio.create_task(use()) for _ in range(3 * CONNECTIONS_MAX)]
    while len(lines.opened) < CONNECTIONS_MAX:
        await asyncio.sleep(0)
    let_in.set()
    await asyncio.gather(*users)

    assert len(lines.opened) == CONNECTIONS_MAX


class Rested:
    """When the client has rested."""

    def __init__(self, small: SmallWorld) -> None:
        self._world = small.world
        self.times: list[float] = []

    def note(self) -> None:
        self.times.append(self._world.now)


def test_a_client_rests_when_its_keeper_had_nothing_to_do_for_a_while() -> None:
    small = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
    party, rested = small.add("a"), Rested(small)
    party.client.runtime.on_idle(rested.note)

    async def work() -> None:
        lease = await party.client.acquire(party.lock(30.0), None)
        assert lease is not None
        await party.client.runtime.sleep(40.0)
        await party.client.release(lease)

    party.start(work())
    small.world.run(100.0)
    small.end()

    (at,) = rested.times
    assert 40.0 < at <= 40.0 + 2 * IDLE_MAX

"""Hazard: threads or tasks of one client pass a lease on without the server, and two of them hold it, a fence is used
twice, a caller waits forever, or the lock stays taken after an interrupt, a cancellation or a fork.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.core import engine, local_handover
from holdfast.guarantees import Order
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import PROMPT, acquiring, await_waiters, in_background, take
from tests.support.interrupts import alarms_interrupt, interrupted
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.processes import PATIENCE, eventually
from tests.support.redis import shared as redis

STORES: dict[str, Callable[..., str]] = {
    "redis": redis.fresh_url,
    "postgresql": postgresql.fresh_url,
    "postgresql-pooler": postgresql.fresh_pooled_url,
    "mysql": mysql.fresh_url,
}


@pytest.fixture(params=STORES)
def strict_url(request: pytest.FixtureRequest) -> str:
    """A store, for clients without local hand-over."""
    return STORES[request.param](local_handover="no")


@pytest.fixture
def url(strict_url: str) -> str:
    return strict_url.replace("local_handover=no", "local_handover=yes")


@pytest.fixture
def client(url: str) -> Iterator[holdfast.Client]:
    with holdfast.Client(url) as client:
        yield client


def until_waiting(client: holdfast.Client | holdfast.AsyncClient, count: int, name: str = "a") -> None:
    """Wait until so many callers of this client are queued inside the client."""
    eventually(lambda: len(waiting_in(client, name)) == count)


def waiting_in(client: holdfast.Client | holdfast.AsyncClient, name: str = "a") -> list[str]:
    local = client._engine.local
    assert local is not None
    return [*local.queues[name].waiting] if name in local.queues else []


def held_and_awaited(holder: holdfast.Client, client: holdfast.Client) -> tuple[holdfast.Lease, Future[holdfast.Lease]]:
    """A lease of one client, and a call of another that waits for it at the server."""
    held = take(holder.lock("a"))
    waiting = acquiring(client.lock("a"))
    await_waiters(holder, "a", 1)
    return held, waiting


def assert_clean(client: holdfast.Client, name: str = "a") -> None:
    """Nothing is left in the client or on the server."""
    local = client._engine.local
    assert local is not None
    eventually(lambda: not local.active and not local.queues)
    eventually(lambda: is_unused(client, name))


def is_unused(client: holdfast.Client, name: str = "a") -> bool:
    info = client.inspect(name)
    return not info.holders and not info.waiters


def with_patience(client: holdfast.Client, seconds: float) -> holdfast.Client:
    """Limit the time of each request of the client."""
    client._engine.io_timeout = seconds
    return client


def count_requests(client: holdfast.Client) -> list[str]:
    """The requests of the client from now on."""
    requests: list[str] = []
    client._observe_requests(lambda operation, _seconds, _error: requests.append(operation))
    return requests


def test_the_option_changes_the_declared_order(url: str, strict_url: str) -> None:
    with holdfast.Client(url) as client, holdfast.Client(strict_url) as strict:
        assert client.guarantees.order is Order.TURNS
        assert strict.guarantees.order is Order.FIFO
    with pytest.raises(
        holdfast.ConfigurationError, match=r"by turns, not FIFO \(it is with the option local_handover=no\)"
    ):
        holdfast.Client(url, require={"order": "FIFO"})


def test_threads_pass_a_lease_on_in_order_with_growing_fences_and_few_requests(client: holdfast.Client) -> None:
    lock = client.lock("a")
    first = lock.acquire()
    assert first is not None
    fences = [first.fence]
    order: list[int] = []

    def work(number: int) -> None:
        with lock as lease:
            order.append(number)
            fences.append(lease.fence)

    futures = []
    for number in range(20):
        futures.append(in_background(partial(work, number)))
        until_waiting(client, number + 1)
    requests = count_requests(client)
    first.release()
    for future in futures:
        future.result(PATIENCE)

    assert order == [*range(20)]
    assert fences == sorted(set(fences))
    # One to extend the turn, one to release it. A busy machine may need another extension after 100 ms.
    assert len(requests) < 20
    assert_clean(client)


def test_another_client_gets_the_lock_although_callers_wait_here_all_the_time(
    client: holdfast.Client, strict_url: str, open_client: OpenClient
) -> None:
    lock, other = client.lock("a"), open_client(strict_url)
    is_over = threading.Event()
    log: list[tuple[str, int]] = []

    def work() -> None:
        while not is_over.is_set():
            with lock as lease:
                log.append(("local", lease.fence))

    threads = [in_background(work) for _ in range(4)]
    for _ in range(30):
        with other.lock("a", timeout=PATIENCE) as lease:
            log.append(("other", lease.fence))
    is_over.set()
    for thread in threads:
        thread.result(PATIENCE)

    fences = [fence for _, fence in log]
    assert fences == sorted(set(fences))
    assert_clean(client)


def test_the_next_caller_takes_over_the_place_of_one_that_gives_up(
    client: holdfast.Client, strict_url: str, open_client: OpenClient
) -> None:
    other = open_client(strict_url)
    held = other.lock("a").acquire()
    assert held is not None
    order: list[str] = []
    gives_up = in_background(lambda: client.lock("a").acquire(timeout=1.5))
    await_waiters(other, "a", 1)
    second = acquiring(client.lock("a"))
    until_waiting(client, 1)
    third = acquiring(open_client(strict_url).lock("a"))
    await_waiters(other, "a", 2)

    assert gives_up.result(PATIENCE) is None
    held.release()
    lease = second.result(PATIENCE)  # it waits in the place of the first, before the third
    order.append("second")
    assert not third.done()
    lease.release()
    third.result(PATIENCE).release()
    assert_clean(client)


@pytest.mark.parametrize("strict_url", ["postgresql", "postgresql-pooler"], indirect=True)
def test_a_client_with_waiting_callers_is_queued_again_by_the_request_that_ends_its_turn(
    client: holdfast.Client, strict_url: str, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_client(strict_url)
    held, first = held_and_awaited(other, client)
    second = acquiring(client.lock("a"))
    until_waiting(client, 1)
    held.release()
    lease = first.result(PATIENCE)  # its turn also has a fence for the second caller
    waits_again = acquiring(other.lock("a"))
    await_waiters(other, "a", 1)
    third = acquiring(client.lock("a"))
    until_waiting(client, 2)
    backend: Any = client._engine.backend
    try_acquire, may_request = backend.try_acquire, threading.Event()

    async def try_acquire_later(*arguments: Any, **options: Any) -> Any:
        may_request.wait(PATIENCE)
        return await try_acquire(*arguments, **options)

    monkeypatch.setattr(backend, "try_acquire", try_acquire_later)  # as if the server were slow to execute it
    lease.release()
    second.result(PATIENCE).release()
    other_lease = waits_again.result(PATIENCE)
    waiters = other.inspect("a").waiters
    may_request.set()

    assert [waiter.pid for waiter in waiters] == [os.getpid()]
    other_lease.release()
    third.result(PATIENCE).release()
    assert_clean(client)


@pytest.mark.parametrize("strict_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("has_waiters", [False, True], ids=["callers gave up", "lost reply"])
def test_a_ticket_that_no_caller_uses_is_withdrawn(
    client: holdfast.Client,
    strict_url: str,
    open_client: OpenClient,
    monkeypatch: pytest.MonkeyPatch,
    has_waiters: bool,  # noqa: FBT001
) -> None:
    """While the request that queues the ticket is under way, all callers give up, or the reply is lost."""
    other = open_client(strict_url)
    held, first = held_and_awaited(other, client)
    held.release()
    lease = first.result(PATIENCE)
    waits_again = acquiring(other.lock("a"))
    await_waiters(other, "a", 1)
    second = in_background(lambda: client.lock("a").acquire(timeout=PATIENCE if has_waiters else 1.5))
    until_waiting(client, 1)
    backend: Any = client._engine.backend
    release_and_queue, release = backend.release_and_queue, backend.release
    queued: list[str] = []
    released: list[str] = []

    async def release_and_queue_late(*arguments: Any, **options: Any) -> Any:
        queued.append(arguments[1].nonce)
        answer = await release_and_queue(*arguments, **options)
        if has_waiters:
            arguments[1].unanswered = True
            raise holdfast.OutcomeUnknown(backend=backend.url, problem="the reply was lost")
        second.result(PATIENCE)
        return answer

    async def release_recorded(claims: Any, **options: Any) -> Any:
        released.extend(claim.nonce for claim in claims)
        return await release(claims, **options)

    monkeypatch.setattr(backend, "release_and_queue", release_and_queue_late)
    monkeypatch.setattr(backend, "release", release_recorded)
    if has_waiters:
        with pytest.raises(holdfast.OutcomeUnknown):
            lease.release()
    else:
        lease.release()

    assert len(queued) == 1
    eventually(lambda: queued[0] in released)
    waits_again.result(PATIENCE).release()
    last = second.result(PATIENCE)
    if has_waiters:
        assert last is not None
        last.release()
    assert_clean(client)


def test_a_local_waiter_times_out_in_time_and_leaves_the_queue(client: holdfast.Client) -> None:
    with client.lock("a"):
        waiter = in_background(lambda: client.lock("a").acquire(timeout=0.3))
        until_waiting(client, 1)
        assert waiter.result(PATIENCE) is None
        assert not waiting_in(client)
        assert in_background(lambda: client.lock("a").acquire(timeout=0)).result(PATIENCE) is None
    assert_clean(client)


def test_a_caller_that_pauses_after_an_outage_gets_the_lease_at_once(
    client: holdfast.Client, strict_url: str, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_client(strict_url)
    held, first = held_and_awaited(other, client)
    monkeypatch.setattr(engine, "OUTAGE_PAUSE_MIN", 10 * PATIENCE)
    second = in_background(lambda: client.lock("a").acquire(timeout=10 * PATIENCE))
    until_waiting(client, 1)
    local: Any = client._engine.local
    queue_locally = local._queue_locally
    failed = threading.Event()

    def queue_recorded(*arguments: Any) -> Any:
        try:
            return queue_locally(*arguments)
        except holdfast.BackendUnavailable:
            failed.set()
            raise

    monkeypatch.setattr(local, "_queue_locally", queue_recorded)
    monkeypatch.setattr(local, "_note", lambda *_: None)  # the outage does not end before the caller has noticed it
    local.queues["a"].outage = holdfast.BackendUnavailable(backend=client.url, problem="no answer in time")
    assert failed.wait(PATIENCE)

    held.release()
    first.result(PATIENCE).release()
    lease = second.result(PATIENCE)
    assert lease is not None
    lease.release()
    assert_clean(client)


def test_locks_with_other_options_are_requested_from_the_server(
    client: holdfast.Client, strict_url: str, open_client: OpenClient
) -> None:
    held = client.lock("a").acquire()
    assert held is not None
    others: list[Any] = [
        client.lock("a", ttl=20),
        client.lock("a", reentrant=True),
        client.lock("a", renew=False),
        client.lock("a", lock_delay=1),
        client.lock("a", owner="x"),
        client.lock("a", revocable=True),
        client.lock("a", detect_deadlocks=True),
        client.lock("a", min_hold=1),
        client.rwlock("a").read(),
        client.rwlock("a").write(),
    ]
    waiting = [in_background(partial(lock.acquire, timeout=PATIENCE)) for lock in others]
    await_waiters(open_client(strict_url), "a", len(others))

    assert not waiting_in(client)
    client.close()
    for future in waiting:
        with pytest.raises(holdfast.UsageError):
            future.result(PATIENCE)


def test_a_caller_that_waits_here_gets_the_lock_after_a_renewal_has_changed_the_ttl(client: holdfast.Client) -> None:
    lock = client.lock("a")
    lease = take(lock)
    waiting = acquiring(lock)
    until_waiting(client, 1)
    (claim,) = client._engine.local.queues["a"].waiting.values()  # type: ignore[union-attr]  # not None on these stores
    eventually(lambda: claim.event is not None)
    event = claim.event
    assert event is not None

    lease.renew(ttl=60)
    event.set()  # it polls
    eventually(lambda: claim.event not in (event, None))
    lease.release()
    waiting.result(PATIENCE).release()

    assert_clean(client)
    take(lock).release()


def test_a_broken_lease_is_not_passed_on(client: holdfast.Client, strict_url: str, open_client: OpenClient) -> None:
    first = client.lock("a").acquire()
    assert first is not None
    second = acquiring(client.lock("a"))
    until_waiting(client, 1)
    assert open_client(strict_url).break_lock("a", first.fence)

    with pytest.raises(holdfast.LockLost):
        first.release()
    lease = second.result(PATIENCE)  # the server granted it
    assert lease.fence > first.fence
    assert client.inspect("a").holders[0].fence == lease.fence
    lease.release()
    assert_clean(client)


# ── operators ────────────────────────────────────────────────────────────────────────────────────────────────────────


def passed_on(client: holdfast.Client, ttl: float, count: int = 3) -> tuple[holdfast.Lease, list[Any]]:
    """A lease that was passed on to the first of so many waiting callers."""
    first = client.lock("a", ttl=ttl).acquire()
    assert first is not None
    waiting = []
    for number in range(count):
        waiting.append(acquiring(client.lock("a", ttl=ttl)))
        until_waiting(client, number + 1)
    first.release()
    return waiting[0].result(PATIENCE), waiting[1:]


def test_inspect_shows_the_range_of_fences_and_break_needs_force(
    client: holdfast.Client, strict_url: str, open_client: OpenClient
) -> None:
    lease, waiting = passed_on(client, ttl=60)
    other = with_patience(open_client(strict_url), 0.3)
    (holder,) = other.inspect("a").holders

    assert (holder.fence, holder.last_fence, holder.caller) == (lease.fence, lease.fence + 2, "")
    with pytest.raises(holdfast.BackendUnavailable, match=f"fences {lease.fence} to {lease.fence + 2}"):
        other.break_lock("a", lease.fence + 1)
    assert not other.break_lock("a", lease.fence - 1, force=True)
    assert other.break_lock("a", lease.fence + 1, force=True)
    with pytest.raises(holdfast.LockLost):
        lease.release()
    for future in waiting:
        future.result(PATIENCE).release()
    assert_clean(client)


def test_break_waits_until_the_client_has_reported_the_fence_in_use(
    client: holdfast.Client, strict_url: str, open_client: OpenClient
) -> None:
    lease, waiting = passed_on(client, ttl=6)
    other = with_patience(open_client(strict_url), 30)

    assert not other.break_lock("a", lease.fence + 1)  # refused: the renewal has reported that another fence is in use
    (holder,) = other.inspect("a").holders
    assert (holder.fence, holder.last_fence) == (lease.fence, None)
    assert holder.caller  # the caller of the lease
    assert other.break_lock("a", lease.fence)
    assert lease.wait_lost(PATIENCE)
    for future in waiting:
        future.result(PATIENCE).release()
    with pytest.raises(holdfast.LockLost):
        lease.release()
    assert_clean(client)


def test_the_command_break_finds_each_fence_of_the_range(
    client: holdfast.Client, strict_url: str, open_client: OpenClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lease, waiting = passed_on(client, ttl=60)
    fence = lease.fence + 1

    status = main(["break", "a", "--fence", str(fence), "--force", "--yes", "--url", strict_url])

    assert (status, capsys.readouterr().out) == (0, f"a, fence {fence}: broken\n")
    assert open_client(strict_url).inspect("a").holders == ()
    with pytest.raises(holdfast.LockLost):
        lease.renew()
    for future in waiting:
        future.result(PATIENCE).release()
    assert_clean(client)


def test_break_finds_the_last_fence_of_a_range_too(
    client: holdfast.Client, strict_url: str, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both hand-overs use fences of the same answer, however busy the machine is.
    monkeypatch.setattr(local_handover, "CONTACT_MAX", 3.0)
    monkeypatch.setattr(local_handover, "SPENT_MAX", 0.5)
    second, waiting = passed_on(client, ttl=6, count=2)
    second.release()
    third = waiting[0].result(PATIENCE)
    other = with_patience(open_client(strict_url), 30)

    assert other.inspect("a").holders[0].last_fence == third.fence
    assert other.break_lock("a", third.fence)
    assert third.wait_lost(PATIENCE)
    with pytest.raises(holdfast.LockLost):
        third.release()
    assert_clean(client)


# ── interrupts, cancellation, forks, the end ─────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(method="thread")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
# Python ignores an exception in a finaliser, and pytest reports it. This interrupt may hit the one of a lease.
@pytest.mark.filterwarnings(r"ignore:[\s\S]*interrupts\.Interrupt:pytest.PytestUnraisableExceptionWarning")
# The interrupt may hit a call that has just opened a socket. Then Python closes the socket, and warns of it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("strict_url", "is_contended"),
    # The hand-over is code of the engine, so one store without contention is enough by default.
    [
        *(pytest.param(store, False, marks=[] if store == "redis" else [pytest.mark.extra]) for store in STORES),
        ("postgresql", True),
    ],
    indirect=["strict_url"],
)
def test_interrupts_at_any_time_leave_no_stuck_caller(
    client: holdfast.Client,
    strict_url: str,
    open_client: OpenClient,
    is_contended: bool,  # noqa: FBT001
) -> None:
    lock = client.lock("a", timeout=PATIENCE)
    is_over = threading.Event()
    counts = [0, 0, 0, 0]
    locks = [lock, lock, lock, *([open_client(strict_url).lock("a", timeout=PATIENCE)] if is_contended else [])]
    requests = count_requests(client) if is_contended else []

    def work(number: int) -> None:
        while not is_over.is_set():
            with locks[number]:
                counts[number] += 1

    def body() -> None:
        with lock as lease:
            lease.check()

    threads = [in_background(partial(work, number)) for number in range(len(locks))]
    hits = 0
    try:
        with alarms_interrupt():
            for delay in itertools.islice(itertools.cycle(range(1, 3000, 17)), 800):
                hits += interrupted(delay * 1e-6, body)
                if lock.held:  # the interrupt came before the first instruction of __exit__
                    lock.release()
    finally:
        is_over.set()
    for thread in threads:
        thread.result(PATIENCE)

    assert hits > 20, "too few interrupts hit the call to show anything"
    assert all(counts[: len(locks)])
    assert ("release_and_queue" in requests) is is_contended
    with lock:
        pass
    assert_clean(client)


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.extra), 5])
async def test_cancellation_at_any_await_leaves_no_stuck_caller(url: str, strict_url: str, count: int) -> None:
    async with holdfast.AsyncClient(url) as client:
        lock = client.lock("a")
        done = 0

        async def work() -> None:
            nonlocal done
            for _ in range(3):
                async with lock:
                    await asyncio.sleep(0)
                    done += 1

        for steps in range(60):
            tasks = [asyncio.create_task(work()) for _ in range(count)]
            for _ in range(steps):
                await asyncio.sleep(0)
            tasks[steps % count].cancel()
            if steps % 3 == 0:
                await asyncio.sleep(0)
                tasks[(steps + 1) % count].cancel()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*tasks, return_exceptions=True)
            async with asyncio.timeout(PATIENCE), lock:
                pass

        assert done > 60
        local = client._engine.local
        assert local is not None
        assert not local.active
        assert not local.queues
    with holdfast.Client(strict_url) as other:
        assert is_unused(other)


def test_a_fork_while_callers_wait_leaves_both_processes_able_to_lock(client: holdfast.Client) -> None:
    first = client.lock("a").acquire()
    assert first is not None
    second = acquiring(client.lock("a"))
    until_waiting(client, 1)
    pid = os.fork()
    if pid == 0:
        try:
            is_free = client.lock("a").acquire(timeout=0) is not None
            with client.lock("b", timeout=PROMPT):
                pass
            os._exit(1 if is_free else 0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    first.release()
    second.result(PATIENCE).release()
    assert_clean(client)


def test_close_ends_local_waiters_and_releases_the_lock(url: str, strict_url: str) -> None:
    client = holdfast.Client(url)
    first = client.lock("a").acquire()
    assert first is not None
    waiters = [in_background(lambda: client.lock("a").acquire(timeout=PATIENCE)) for _ in range(3)]
    until_waiting(client, 3)

    client.close()

    for waiter in waiters:
        with pytest.raises(holdfast.UsageError):
            waiter.result(PATIENCE)
    with holdfast.Client(strict_url) as other:
        assert is_unused(other)


def test_a_transferred_lease_ends_the_turn(client: holdfast.Client, strict_url: str, open_client: OpenClient) -> None:
    lease, waiting = passed_on(client, ttl=30)
    text = lease.transfer(within=20)
    adopted = open_client(strict_url).adopt(text)

    assert adopted.fence > lease.fence
    assert not any(future.done() for future in waiting)
    adopted.release()
    for future in waiting:
        future.result(PATIENCE).release()
    assert_clean(client)
